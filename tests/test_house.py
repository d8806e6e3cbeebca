"""The house keeps its rules: imports run one way, one library has one door, files are short and
described.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

from blocks.core.contract import Block

ROOT = Path(__file__).parents[1]
SOURCES = sorted([*ROOT.glob("composer/**/*.py"), *ROOT.glob("blocks/**/*.py")])
MAX_LINES, MAX_BYTES = 600, 1 << 20
LONG = {"runner.py"}
"""`export` copies it as `run.py`: one file, which knows no other of this project."""

MAX_ROOT_MODULES = 10

ROOMS = (
    # from the top; a room imports only from those below it
    "__main__",
    "cli",
    "api",
    "comparison exporters server",
    "importers",
    "sweeps hub testing",
    "training",
    "viz",
    "evaluation",
    "checks",
    "inference",
    "fingerprint",
    "programs data",
    "model",
    "recipe",
    "run_dir",
    "runs",
    "metrics atomic_io processes",
    "errors formatting suggest text_lines",
    "blocks",
    "core",
)
"""The folders of `composer` and the modules in its root, and under them `blocks` and `blocks/core`.
"""

CHOICES = "the tables of choices are named by CHOICES, and imported to read what is chosen"
SUBPROCESS = "the command line is run in a process of its own, as a user would run it"
UPWARDS = {
    **{
        ("composer.recipe.registry", f"composer.{room}"): CHOICES
        for room in ("model", "data", "inference", "training")
    },
    ("composer.processes.python", "composer.cli"): SUBPROCESS,
    (
        "composer.recipe.recipe",
        "composer.checks",
    ): "a recipe that is loaded has passed the rules of its sections; `recipe.plan()` plans it",
    (
        "composer.training.finalize",
        "composer.hub",
    ): "W&B is given the final model as a pack, which is what `pull` takes",
    (
        "composer.recipe.recipe",
        "composer.model",
    ): "`recipe.build()` is a promise to Python's users",
    (
        "composer.run_dir",
        "composer.sweeps",
    ): "`SWEEP#RANK` names a run, and only a leaderboard knows ranks",
    (
        "composer.inference.run",
        "composer.evaluation",
    ): "`run.evaluate()` is a promise to Python's users",
    (
        "composer.inference.run",
        "composer.viz",
    ): "`run.report()` and `run.alignments()` are promises to Python's users",
}
"""What is imported from above, inside a function or by a module's name in a string; nothing else
imports upwards.
"""

DOORS = {
    "yaml": {"recipe.yaml_reader"},
    "jsonschema": {"recipe.validation"},
    "sacrebleu": {"metrics.table", "metrics.bleu", "metrics.bootstrap"},
    "tokenizers": {"data.tokenizer_kinds", "data.tokenizer_files", "exporters.runner"},
    "sentencepiece": {"data.tokenizer_files"},
    "datasets": {"data.tables"},
    "num2words": {"data.tasks.numbers"},
    "wandb": {"training.wandb_logger", "hub.remotes", "processes.wandb"},
    "optuna": {"sweeps.study"},
    "ray": {"sweeps.executors.ray"},
    "submitit": {"sweeps.executors.slurm"},
    "scipy": {"comparison.outputs", "sweeps.leaderboard.significance"},
    "pytorch_lightning": {"training.lightning"},
    "lightning_fabric": {"training.lightning"},
    "plotly": {"viz.page", "sweeps.leaderboard.charts"},
    "vl_convert": {"viz.figure_files"},
    "jinja2": {"viz.page"},
    "huggingface_hub": {"hub.model_card", "hub.remotes"},
    "ctranslate2": {"exporters.ctranslate2"},
    "PIL": {"data.images", "exporters.runner"},
    "soundfile": {"data.audio"},
    "soxr": {"data.audio"},
    "fastapi": {"server.app"},
    "uvicorn": {"server.process"},
    "prometheus_client": {"server.measures"},
}
"""The modules of `composer` that may import a library."""

OPTIONAL = frozenset(["wandb", "optuna", "datasets", "pyarrow", "pandas", "ray"])
"""Packages without which a training works."""
IMPORT_OPTUNA = ("coordinator", "study", "sweep_display", "trial_course")

BANNED = frozenset(
    [
        "told",
        "said",
        "found",
        "asked",
        "kept",
        "given",
        "whole",
        "written",
        "held",
        "drawn",
        "each",
        "stood",
        "gone",
    ]
)
"""Words that say nothing of what a thing is, and so are names of nothing."""


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imports(path: Path) -> tuple[tuple[str, bool], ...]:
    """Each module that a file imports when it runs, and whether only inside a function, or by its
    name in a string.
    """
    constants = (node.value for node in ast.walk(tree(path)) if isinstance(node, ast.Constant))
    names = [value.partition(":")[0] for value in constants if isinstance(value, str)]
    return (*_imports(tree(path), late=False), *((name, True) for name in names if is_module(name)))


def is_module(name: str) -> bool:
    """Return whether a text is the name of one of our modules or packages below `composer` and
    `blocks`.
    """
    if not re.fullmatch(r"(composer|blocks)(\.\w+)+", name):
        return False
    path = ROOT / name.replace(".", "/")
    return path.is_dir() or path.with_suffix(".py").exists()


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
            yield from _imports(
                child,
                late or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda),
            )


def _imported(node: ast.ImportFrom) -> Iterator[str]:
    """`from composer import schema` imports the module composer.recipe.schema_generator."""
    for alias in node.names:
        inner = f"{node.module}.{alias.name}"
        yield (
            inner
            if (ROOT / inner.replace(".", "/")).with_suffix(".py").exists()
            else str(node.module)
        )


def room(module: str) -> str:
    """Return the room of a module: its folder, or its own name in composer's root."""
    parts = module.split(".")
    if parts[0] == "blocks":
        return "core" if parts[1:2] == ["core"] else "blocks"
    return parts[1]


def depth(module: str) -> int:
    floors = {name: floor for floor, names in enumerate(ROOMS) for name in names.split()}
    assert room(module) in floors, (
        f"{module} is in no room: name it in ROOMS, and in ARCHITECTURE.md"
    )
    return floors[room(module)]


def is_ours(module: str) -> bool:
    return module.split(".")[0] in ("composer", "blocks") and module != "composer"


def test_imports_run_one_way() -> None:
    faults = [
        f"{module_of(path)} imports {module}, which is above it"
        for path in SOURCES
        for module, late in imports(path)
        if is_ours(module) and goes_up(module_of(path), module, late)
    ]
    assert not faults, "\n".join(faults)


def test_a_module_that_is_named_in_a_string_is_seen() -> None:
    registry = ROOT / "composer" / "recipe" / "registry.py"
    assert ("composer.training.optimizers", True) in list(imports(registry))
    assert goes_up("composer.recipe.registry", "composer.sweeps.study", late=True)


def goes_up(module: str, imported: str, late: bool) -> bool:
    if module == "composer" or room(module) == room(imported):
        return False
    allowed = late and (module, ".".join(imported.split(".")[:2])) in UPWARDS
    return depth(imported) <= depth(module) and not allowed


def test_every_exception_upwards_is_needed() -> None:
    lazy = {
        (module_of(path), ".".join(name.split(".")[:2]))
        for path in SOURCES
        for name, late in imports(path)
        if late
    }
    assert set(UPWARDS) <= lazy


@pytest.mark.parametrize("with_types", [False, True])
def test_there_are_no_circular_imports(with_types: bool) -> None:
    graph = {module_of(path): imported_at_once(path, with_types) for path in SOURCES}
    done: set[str] = set()

    def visit(module: str, way: tuple[str, ...]) -> None:
        assert module not in way, f"a circle of imports: {' -> '.join((*way, module))}"
        if module not in done:
            for inner in sorted(graph.get(module, ())):
                visit(inner, (*way, module))
            done.add(module)

    for module in graph:
        visit(module, ())


def imported_at_once(path: Path, with_types: bool) -> set[str]:
    """Return what a module imports when it is imported; with what it imports for its types, but for
    the contract's.
    """
    names = {name for name, late in imports(path) if is_ours(name) and not late}
    if with_types and module_of(path) not in ("composer", "blocks.core.contract"):
        typed = (
            node
            for node in ast.walk(tree(path))
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node)
        )
        inner = (
            child for node in typed for child in node.body if isinstance(child, ast.ImportFrom)
        )
        names |= {name for child in inner for name in _imported(child) if is_ours(name)}
    return names - upwards_for_types(module_of(path), names)


def upwards_for_types(module: str, names: set[str]) -> set[str]:
    """Return what only the types of the methods in UPWARDS need."""
    return {name for name in names if (module, ".".join(name.split(".")[:2])) in UPWARDS}


def test_each_library_is_imported_by_one_module() -> None:
    imported: dict[str, set[str]] = {library: set() for library in DOORS}
    for path in SOURCES:
        for library in {name.split(".")[0] for name, _ in imports(path)} & set(DOORS):
            imported[library].add(module_of(path).removeprefix("composer."))
    assert imported == DOORS


STARTERS = frozenset(
    ["Popen", "run", "call", "check_call", "check_output", "system", "popen", "fork", "Process"]
)
"""Functions of `subprocess`, `os` and `multiprocessing` that start a process; `os.exec*` and
`os.spawn*` do, too.
"""


def test_git_has_one_door_and_every_other_process_imports_nothing_from_the_current_folder() -> None:
    faults = [
        f"{module_of(path)}:{call.lineno}: {ast.unparse(call)[:80]}"
        for path in SOURCES
        if module_of(path) != "composer.processes.git"
        for function in ast.walk(tree(path))
        if isinstance(function, ast.FunctionDef)
        for call in ast.walk(function)
        if isinstance(call, ast.Call)
        if starts_a_process(call) and "python_environment" not in names_of(function)
    ]
    assert not faults, "\n".join(faults)
    lists = (
        (path, node)
        for path in SOURCES
        for node in ast.walk(tree(path))
        if isinstance(node, ast.List)
    )
    assert {module_of(path) for path, node in lists if ast.unparse(node).startswith("['git',")} == {
        "composer.processes.git"
    }


def starts_a_process(call: ast.Call) -> bool:
    function = call.func
    if isinstance(function, ast.Name):
        return function.id == "Popen"
    if not isinstance(function, ast.Attribute):
        return False
    module = ast.unparse(function.value)
    return module in ("subprocess", "os", "multiprocessing") and (
        function.attr in STARTERS or function.attr.startswith(("exec", "spawn", "posix_spawn"))
    )


def names_of(function: ast.FunctionDef) -> set[str]:
    return {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}


def test_nothing_but_a_search_imports_at_once_what_may_be_missing() -> None:
    at_once = {
        module_of(path): {name for name, late in imports(path) if not late} for path in SOURCES
    }
    need = {
        module
        for module, names in at_once.items()
        if {name.partition(".")[0] for name in names} & OPTIONAL
    }
    while more := {module for module, names in at_once.items() if names & need} - need:
        need |= more
    assert need == {f"composer.sweeps.{name}" for name in IMPORT_OPTUNA}


def test_the_root_is_small() -> None:
    assert len(list((ROOT / "composer").glob("*.py"))) <= MAX_ROOT_MODULES


def test_nothing_large_is_tracked() -> None:
    """Downloads and outputs that are committed once stay in every clone."""
    if not (ROOT / ".git").exists():
        pytest.skip("this is no clone")
    tracked = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True).split("\0")
    sizes = {name: (ROOT / name).stat().st_size for name in tracked if (ROOT / name).is_file()}
    assert {name for name, size in sizes.items() if size > MAX_BYTES} == set()


def test_names_are_terms_of_the_field() -> None:
    faults = [
        f"{module_of(path)}:{line}: {name}"
        for path in SOURCES
        for name, line in names_given(tree(path))
        if name.strip("_") in BANNED
    ]
    assert not faults, "\n".join(faults)


def names_given(module: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield each name of a function, a parameter or a variable, with its line."""
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno


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
    assert [
        path.name
        for path in SOURCES
        if len(path.read_text(encoding="utf-8").splitlines()) > MAX_LINES and path.name not in LONG
    ] == []
    assert [path.name for path in SOURCES if ast.get_docstring(tree(path)) is None] == []
    assert [
        path.name
        for path in SOURCES
        if {"utils", "helpers", "util", "common", "misc"} & set(path.parts)
    ] == []


def test_public_names_have_docstrings() -> None:
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
        f"{module_of(path)}:{node.lineno}: {fault}"
        for path in SOURCES
        for node in ast.walk(tree(path))
        if isinstance(node, ast.stmt | ast.expr | ast.ExceptHandler) and (fault := manners(node))
    ]
    assert not faults, "\n".join(faults)


def manners(node: ast.AST) -> str:
    """What is wrong with a node, if anything."""
    # that is for mypy
    if isinstance(node, ast.Assert) and not ast.unparse(node.test).endswith(" is not None"):
        return "an assert is no answer to a user"
    if isinstance(node, ast.ExceptHandler) and node.type is None:
        return "a bare except"
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("print", "eval", "exec")
    ):
        return node.func.id
    if (
        isinstance(node, ast.FunctionDef)
        and node.name in ("__init__", "forward")
        and node.args.kwarg is not None
    ):
        return f"`**{node.args.kwarg.arg}`: say what it takes"
    return ""


def test_every_block_has_its_test() -> None:
    blocks = {f"blocks.{path.stem}" for path in ROOT.glob("blocks/[a-z]*.py")}
    tested = {module for path in ROOT.glob("tests/blocks/test_*.py") for module, _ in imports(path)}
    assert blocks <= tested, f"no test of its own: {sorted(blocks - tested)}"


def test_each_file_has_one_block() -> None:
    for path in ROOT.glob("blocks/[a-z]*.py"):
        module = import_module(f"blocks.{path.stem}")
        classes = [
            value
            for value in vars(module).values()
            if isinstance(value, type) and value.__module__ == module.__name__
        ]
        blocks = [cls.__name__ for cls in classes if issubclass(cls, Block)]
        assert [name.lower() for name in blocks] == [path.stem.replace("_", "")], (
            f"{path.name} defines {blocks}"
        )


def test_every_package_is_in_the_architecture() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    rooms = {
        path.stem
        for path in (ROOT / "composer").glob("[a-z]*")
        if path.suffix == ".py" or path.is_dir()
    }
    missing = sorted(name for name in rooms - {"py"} if not re.search(rf"\b{name}\b", text))
    assert not missing, f"ARCHITECTURE.md does not place {missing}"


@pytest.mark.parametrize(
    ("folder", "above"),
    [
        ("prepare_data", ("verify", "benchmarks", "tests")),
        ("verify", ("benchmarks", "tests")),
    ],
)
def test_scripts_import_one_way(folder: str, above: tuple[str, ...]) -> None:
    for path in (ROOT / folder).glob("*.py"):
        upwards = [name for name, _ in imports(path) if name.startswith(above)]
        assert not upwards, f"{path.name} imports {upwards}"
