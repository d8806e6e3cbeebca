"""The house keeps its rules: imports run one way, one library has one door, files are short and described."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = sorted([*ROOT.glob("composer/**/*.py"), *ROOT.glob("blocks/**/*.py")])
MAX_LINES = 400

LAYERS = (
    # from the top; a module imports only from the layers below its own, or from its own without going in a circle
    ("composer.cli", "composer.check", "composer.show"),
    ("composer.scaffold", "composer.testing"),
    ("composer.train", "composer.evaluate", "composer.translate", "composer.runs"),
    ("composer.module", "composer.trainer", "composer.progress", "composer.wandb_log", "composer.journal"),
    ("composer.decode", "composer.data"),
    ("composer.plan", "composer.build", "composer.model"),
    ("composer.recipe", "composer.registry", "composer.language"),
    ("composer.freeze", "composer.validate", "composer.resolve"),
    ("composer.agree", "composer.explain", "composer.describe", "composer.extends", "composer.override", "composer.variables"),
    ("composer.schema",),
    ("composer.source", "composer.complaints", "composer.node"),
    ("composer.errors",),
    ("blocks",),
    ("blocks.core",),
)

LATE = {
    ("composer.recipe", "composer.plan"): "`recipe.plan()` is a promise to Python's users",
    ("composer.recipe", "composer.build"): "`recipe.build()` is a promise to Python's users",
    ("composer.schema", "composer.language"): "the generator reads what it describes",
    ("composer.schema", "composer.registry"): "the generator reads what it describes",
}
"""Imports inside a function that go up, and why they may."""

DOORS = {
    "yaml": {"composer.source"},
    "jsonschema": {"composer.validate"},
    "wandb": {"composer.wandb_log"},
    "sacrebleu": {"composer.evaluate"},
    "tokenizers": {"composer.data.tokenizer"},
    "datasets": {"composer.data.pairs"},
    "num2words": {"composer.data.tasks"},
    "typer": {"composer.cli"},
    "rich": {"composer.show", "composer.progress"},
    "safetensors": {"composer.checkpoint"},
    "optuna": set(),
    "matplotlib": set(),
}
"""Each library, and the modules that may import it."""


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """Each module that a file imports when it runs, and whether only inside a function."""
    yield from _imports(tree(path), late=False)


def _imports(node: ast.AST, late: bool) -> Iterator[tuple[str, bool]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        if isinstance(child, ast.Import):
            yield from ((alias.name, late) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, "imports are absolute"
            yield from ((name, late) for name in _imported(child))
        else:
            yield from _imports(child, late or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda))


def _imported(node: ast.ImportFrom) -> Iterator[str]:
    """`from composer import schema` imports the module composer.schema."""
    for alias in node.names:
        inner = f"{node.module}.{alias.name}"
        yield inner if (ROOT / inner.replace(".", "/")).with_suffix(".py").exists() else str(node.module)


def layer(module: str) -> int:
    """The layer of a module: the one with the longest beginning of its name."""
    places = {name: depth for depth, names in enumerate(LAYERS) for name in names}
    parts = module.split(".")
    found = [name for end in range(len(parts), 0, -1) if (name := ".".join(parts[:end])) in places]
    assert found, f"{module} has no place: name it in LAYERS"
    return places[found[0]]


def is_ours(module: str) -> bool:
    return module.split(".")[0] in ("composer", "blocks") and module not in ("composer",)


@pytest.mark.parametrize("path", SOURCES, ids=module_of)
def test_imports_run_one_way(path: Path) -> None:
    here = module_of(path)
    if here == "composer":
        return
    for module, late in imports(path):
        if is_ours(module) and layer(module) < layer(here):
            assert late, f"{here} imports {module}, which stands above it"
            assert (here, module) in LATE, f"{here} imports {module} inside a function, and it stands above"


def test_no_circles() -> None:
    graph = {module_of(path): {name for name, late in imports(path) if is_ours(name) and not late} for path in SOURCES}
    done: set[str] = set()

    def visit(module: str, way: tuple[str, ...]) -> None:
        assert module not in way, f"a circle of imports: {' -> '.join((*way, module))}"
        if module not in done:
            for inner in sorted(graph.get(module, ())):
                visit(inner, (*way, module))
            done.add(module)

    for module in graph:
        visit(module, ())


@pytest.mark.parametrize("path", SOURCES, ids=module_of)
def test_one_library_has_one_door(path: Path) -> None:
    here = module_of(path)
    for module, _ in imports(path):
        library = module.split(".")[0]
        assert here in DOORS.get(library, {here}), f"{here} imports {library}: its door is {DOORS[library]}"


def test_a_block_knows_nothing_of_the_composer_or_of_other_blocks() -> None:
    allowed = {"torch", "blocks.core", *sys.stdlib_module_names}
    for path in ROOT.glob("blocks/**/*.py"):
        for module, _ in imports(path):
            inside = module.split(".")[0] if not module.startswith("blocks.core") else "blocks.core"
            assert inside in allowed, f"{module_of(path)} imports {module}"


@pytest.mark.parametrize("path", SOURCES, ids=module_of)
def test_files_are_short_and_described(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MAX_LINES
    if text.strip():
        assert ast.get_docstring(tree(path)), "a file says in its first lines what it is"
    assert "utils" not in path.stem
    assert "helpers" not in path.stem


@pytest.mark.parametrize("path", SOURCES, ids=module_of)
def test_what_is_public_has_a_docstring(path: Path) -> None:
    for node in tree(path).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            assert ast.get_docstring(node), f"{module_of(path)}.{node.name} has no docstring"


@pytest.mark.parametrize("path", SOURCES, ids=module_of)
def test_nobody_prints_asserts_or_catches_everything(path: Path) -> None:
    for node in ast.walk(tree(path)):
        where = f"{module_of(path)}:{getattr(node, 'lineno', 0)}"
        assert not isinstance(node, ast.Assert), f"{where}: an assert is not an answer to a user"
        assert not (isinstance(node, ast.ExceptHandler) and node.type is None), f"{where}: a bare except"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in ("print", "eval", "exec"), f"{where}: {node.func.id}"


@pytest.mark.parametrize("path", SOURCES, ids=module_of)
def test_constructors_and_forwards_say_what_they_take(path: Path) -> None:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef) and node.name in ("__init__", "forward"):
            assert node.args.kwarg is None, f"{module_of(path)}:{node.lineno}: `**{node.args.kwarg.arg}`"


def test_every_block_has_its_test() -> None:
    blocks = {path.stem for path in ROOT.glob("blocks/[a-z]*.py")}
    tests = {path.stem.removeprefix("test_") for path in ROOT.glob("tests/blocks/test_*.py")}
    assert blocks <= tests, f"no test of its own: {sorted(blocks - tests)}"


def test_one_block_one_file() -> None:
    for path in ROOT.glob("blocks/[a-z]*.py"):
        classes = [node for node in tree(path).body if isinstance(node, ast.ClassDef)]
        blocks = [each for each in classes if any(ast.unparse(base) == "Block" for base in each.bases)]
        assert len(blocks) == 1, f"{path.name} defines {len(blocks)} blocks"
        assert blocks[0].name.lower() == path.stem.replace("_", ""), f"{path.name} defines {blocks[0].name}"
