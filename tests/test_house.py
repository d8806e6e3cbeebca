"""The house keeps its rules: imports run one way, one library has one door, files are short and described."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

from blocks.core.contract import Block

ROOT = Path(__file__).parents[1]
SOURCES = sorted([*ROOT.glob("composer/**/*.py"), *ROOT.glob("blocks/**/*.py")])
MAX_LINES = 400
GENERATED = ("composer.recipe.classes",)
"""Modules that nobody writes; they may be longer."""

LAYERS = (
    # from the top; a module imports only from its own layer and from those below it
    "cli",
    "commands checker show scaffold api",
    "differences",
    "sweeps",
    "sharing exports",
    "testing",
    "restarts train translator report upgrader",
    "contents",
    "findings",
    "session course outcome start repeat keeper position module trainer progress journal samples metrics_log wandb_log",
    "curriculum",
    "evaluator page drawings",
    "strips weightings",
    "maps",
    "alignments",
    "films memories",
    "sides",
    "runs",
    "words",
    "objects",
    "written",
    "identity lock",
    "processes run_folder checkpoint weights signals randomness budget allocator",
    "scores advice decode charts style",
    "markup",
    "data",
    "planner reads",
    "builder",
    "initialization scheduled_sampling gradient_noise sharding",
    "model optimizers schedules loss",
    "embeddings outputs vocabulary limits",
    "recipe",
    "registry sections",
    "dataset",
    "freeze validate agree",
    "explain",
    "wrong",
    "classes",
    "describe",
    "schema",
    "resolve extends override variables",
    "pins versions",
    "source store",
    "node complaints",
    "errors ids quantities whole rules",
    "blocks",
    "core",
)

FOLDERS = ("language", "training", "reports")
"""Folders whose modules have layers of their own; the other folders are one layer each."""

LATE = {
    ("composer.recipe.recipe", "composer.model.planner"): "`recipe.plan()` is a promise to Python's users",
    ("composer.recipe.recipe", "composer.model.builder"): "`recipe.build()` is a promise to Python's users",
    ("composer.inference.run", "composer.evaluation.evaluate"): "`run.evaluate()` is a promise to Python's users",
    ("composer.inference.run", "composer.viz.report"): "`run.report()` is a promise to Python's users",
    ("composer.inference.run", "composer.viz.attention_maps"): "`run.alignments()` is a promise to Python's users",
    ("composer.viz.attention_maps", "composer.viz.page"): "a notebook shows an alignment by itself",
    ("composer.recipe.schema", "composer.recipe.sections"): "the generator reads what it describes",
    ("composer.recipe.schema", "composer.recipe.registry"): "the generator reads what it describes",
}
"""Imports inside a function that go up, and why they may."""

DOORS = {
    "yaml": {"composer.recipe.yaml_reader"},
    "jsonschema": {"composer.recipe.validation"},
    "wandb": {"composer.training.wandb_logger", "composer.hub.wandb_artifacts"},
    "huggingface_hub": {"composer.hub.huggingface"},
    "sacrebleu": {"composer.evaluation.metrics"},
    "tokenizers": {"composer.data.tokenizer", "composer.exporters.standalone_cli"},
    "datasets": {"composer.data.sources"},
    "num2words": {"composer.data.tasks.numbers"},
    "typer": {"composer.cli.main", *(f"composer.commands.{path.stem}" for path in ROOT.glob("composer/commands/*.py"))},
    "rich": {"composer.cli.output", "composer.training.progress"},
    "safetensors": {
        "composer.model.weights",
        "composer.testing.checkpoint_laws",
        "composer.testing.model_laws",
        "composer.exporters.standalone_cli",
    },
    "optuna": {"composer.sweeps.study"},
    "ray": {"composer.sweeps.ray_workers"},
    "ctranslate2": {"composer.exporters.ctranslate2"},
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
    """`from composer import schema` imports the module composer.recipe.schema."""
    for alias in node.names:
        inner = f"{node.module}.{alias.name}"
        yield inner if (ROOT / inner.replace(".", "/")).with_suffix(".py").exists() else str(node.module)


def layer(module: str) -> int:
    """The layer of a module: of its own name in a folder of one stage, else of the part after `composer`."""
    places = {name: depth for depth, names in enumerate(LAYERS) for name in names.split()}
    parts = module.split(".")
    if parts[0] == "blocks":
        name = "core" if parts[1:2] == ["core"] else "blocks"
    else:
        name = parts[2] if parts[1] in FOLDERS and len(parts) > 2 else parts[1]
    assert name in places, f"{module} has no place: name it in LAYERS, and in ARCHITECTURE.md"
    return places[name]


def is_ours(module: str) -> bool:
    return module.split(".")[0] in ("composer", "blocks") and module not in ("composer",)


def test_imports_run_one_way() -> None:
    faults = [
        f"{module_of(path)} imports {module}, which stands above it"
        for path in SOURCES
        for module, late in imports(path)
        if is_ours(module) and goes_up(module_of(path), module, late)
    ]
    assert not faults, "\n".join(faults)


def goes_up(here: str, module: str, late: bool) -> bool:
    return here != "composer" and layer(module) < layer(here) and not (late and (here, module) in LATE)


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


def test_one_library_has_one_door() -> None:
    faults = [
        f"{here} imports {library}, whose door is {sorted(DOORS[library])}"
        for here, library in ((module_of(path), name.split(".")[0]) for path in SOURCES for name, _ in imports(path))
        if library in DOORS and here not in DOORS[library]
    ]
    assert not faults, "\n".join(faults)


def test_a_block_knows_nothing_of_the_composer_or_of_other_blocks() -> None:
    allowed = {"torch", *sys.stdlib_module_names}
    faults = [
        f"{module_of(path)} imports {module}"
        for path in ROOT.glob("blocks/**/*.py")
        for module, _ in imports(path)
        if not module.startswith("blocks.core") and module.split(".")[0] not in allowed
    ]
    assert not faults, "\n".join(faults)


def test_files_are_short_and_described() -> None:
    written = [path for path in SOURCES if module_of(path) not in GENERATED]
    assert [path.name for path in written if len(path.read_text(encoding="utf-8").splitlines()) > MAX_LINES] == []
    assert [path.name for path in SOURCES if ast.get_docstring(tree(path)) is None] == []
    assert [path.name for path in SOURCES if {"utils", "helpers", "util", "common", "misc"} & set(path.parts)] == []


def test_what_is_public_has_a_docstring() -> None:
    bare = [
        f"{module_of(path)}.{node.name}"
        for path in SOURCES
        for node in tree(path).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
        if not node.name.startswith("_") and ast.get_docstring(node) is None
    ]
    assert not bare, "\n".join(bare)


def test_nobody_prints_asserts_or_catches_everything() -> None:
    faults = [
        f"{module_of(path)}:{node.lineno}: {told}"
        for path in SOURCES
        for node in ast.walk(tree(path))
        if isinstance(node, ast.stmt | ast.expr | ast.ExceptHandler) and (told := manners(node))
    ]
    assert not faults, "\n".join(faults)


def manners(node: ast.AST) -> str:
    """What is wrong with a node, if anything."""
    if isinstance(node, ast.Assert) and not ast.unparse(node.test).endswith(" is not None"):  # that is for mypy
        return "an assert is no answer to a user"
    if isinstance(node, ast.ExceptHandler) and node.type is None:
        return "a bare except"
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("print", "eval", "exec"):
        return node.func.id
    if isinstance(node, ast.FunctionDef) and node.name in ("__init__", "forward") and node.args.kwarg is not None:
        return f"`**{node.args.kwarg.arg}`: say what it takes"
    return ""


def test_every_block_has_its_test() -> None:
    blocks = {f"blocks.{path.stem}" for path in ROOT.glob("blocks/[a-z]*.py")}
    tested = {module for path in ROOT.glob("tests/blocks/test_*.py") for module, _ in imports(path)}
    assert blocks <= tested, f"no test of its own: {sorted(blocks - tested)}"


def test_one_block_one_file() -> None:
    for path in ROOT.glob("blocks/[a-z]*.py"):
        module = import_module(f"blocks.{path.stem}")
        here = [each for each in vars(module).values() if isinstance(each, type) and each.__module__ == module.__name__]
        blocks = [each.__name__ for each in here if issubclass(each, Block)]
        assert [each.lower() for each in blocks] == [path.stem.replace("_", "")], f"{path.name} defines {blocks}"


def test_every_module_stands_in_the_architecture() -> None:
    told = set(re.findall(r"[a-z_]+", (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").split("```")[3]))
    places = [ROOT / "composer", *(ROOT / "composer" / folder for folder in FOLDERS)]
    there = {path.stem for place in places for path in place.glob("[a-z]*") if path.suffix == ".py" or path.is_dir()}
    assert there - {"py"} <= told, f"ARCHITECTURE.md does not place {sorted(there - told)}"


def test_no_two_files_of_tests_have_one_name() -> None:
    """The folders of tests are no packages: of two modules with one name only the first would be found."""
    names = [path.stem for path in ROOT.glob("tests/**/*.py") if path.stem != "conftest"]
    assert sorted(names) == sorted(set(names))
