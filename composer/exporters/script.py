"""`export --script`: a model as a folder of this project's own modules, unchanged, which needs PyTorch alone.

The blocks of the model, the builder, the decoding and what these import are copied byte for byte, so outputs are the
same. What is copied imports torch and the standard library alone.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.machinery import ModuleSpec
from importlib.metadata import version
from pathlib import Path

import torch

from composer.atomic_io import atomic_directory, require_absent
from composer.errors import RunError
from composer.exporters.standalone import RECIPE, TOKENIZER, WEIGHTS, ExportedRecipe
from composer.inference.decoders import DECODERS
from composer.inference.run import open_run
from composer.model.builder import build, vocabulary_bounds
from composer.model.encoder_decoder import EncoderDecoder
from composer.model.features import describe_features, feature_settings, feature_shape
from composer.recipe.own_blocks import refuse_own_blocks
from composer.recipe.recipe import Recipe, load
from composer.recipe.registry import GROUP, plug_ins

ROOTS = ("composer.exporters.standalone", "composer.data.tokenizer", "composer.inference.compiled_step")
"""Where the search for needed modules begins, beside the model's blocks: the command line, and what it imports late."""
OURS = frozenset({"composer", "blocks"})
ALLOWED = frozenset({"torch", "tokenizers", *sys.stdlib_module_names})
MAIN = '''"""{purpose}: `python DIR {call}`."""

from pathlib import Path

from composer.exporters.standalone import main

main(Path(__file__).parent)
'''
TRANSLATES = {
    "purpose": "Translate with this exported model",
    "call": '"a sentence"',
    "use": "The first translates the sentences that it is given, the second each line of a file",
    "sources": "sources",
    "ids": "A source ends with eos, a target begins with bos",
    "signature": "ids (B, S) by the encoders' keys, (B, T) -> (B, T, V)",
}
"""What an exported folder says of a model that has an encoder."""
WRITES = {
    "purpose": "Write text with this exported language model",
    "call": '"how a text begins"',
    "use": "The first writes on from beginnings, the second from each line of a file; both print these with the rest",
    "sources": "{}",
    "ids": "A text begins with bos, which a model of windows reads as eos",
    "signature": "ids (B, T) -> (B, T, V), and nothing else to read",
}
"""And of one that has none."""
TAKES_TENSORS = {
    **TRANSLATES,
    "purpose": "Show this exported model, which takes tensors",
    "call": "--info",
    "use": """The model reads files, and to read them takes more than PyTorch: `seqcomposer translate RUN` does. Here it
takes what is in them as tensors, as `composer.open_run(RUN).batch(LINES, TARGETS)["sources"]` has it, and no lines""",
    "ids": "A source of text ends with eos, a target begins with bos",
    "signature": "ids (B, S) or features by the encoders' keys, (B, T) -> (B, T, V)",
}
"""And of one that reads images, sounds or vectors."""
README = Path(__file__).with_name("script.template.md").read_text(encoding="utf-8")


def export_script(run_or_recipe: str | Path | Recipe, path: str | Path, overrides: Sequence[str] = ()) -> Path:
    """Write the model of a run or a recipe as a new folder that needs PyTorch alone, and return its path.

    overrides: of a run, those that `open_run` takes. Raises RecipeError where the recipe is refused, and RunError where
    the folder exists or cannot be written, or where a block needs another library.
    """
    target = Path(path)
    require_absent(target)
    run = None
    if isinstance(run_or_recipe, Recipe) or not Path(run_or_recipe).is_dir():
        recipe = run_or_recipe if isinstance(run_or_recipe, Recipe) else load(run_or_recipe, overrides)
        recipe.plan()  # raises RecipeError with every fault
        sizes, fingerprints = vocabulary_bounds(recipe), recipe.fingerprints
        model = build(recipe, sizes)
    else:
        run = open_run(run_or_recipe, overrides)
        recipe, model, sizes = run.recipe, run.model, run.tokenizers.sizes
        fingerprints = run.run_dir.read().get("fingerprints") or recipe.fingerprints
    refuse_own_blocks(recipe, "an export is a folder of modules")
    (decoder,) = recipe.decoding
    if problem := DECODERS[decoder].model_problem([model]):
        raise RunError.of(problem, "write `decoding.beam.size=5`")
    training = {"initialization": recipe.training["initialization"]}
    sections = recipe.model, recipe.dataset, recipe.decoding, training
    exported = ExportedRecipe(*sections, recipe.joint, dict(sizes), model.begins_after_end, recipe.sources)
    with atomic_directory(target) as draft:
        write_modules(draft, model)
        (draft / RECIPE).write_text(json.dumps(vars(exported), indent=1) + "\n", encoding="utf-8")
        if run is not None:
            torch.save(model.state_dict(), draft / WEIGHTS)  # tied weights share their storage there, too
            shutil.copy(run.run_dir.tokenizer, draft / TOKENIZER)
        words = TAKES_TENSORS if exported.files else TRANSLATES if exported.sources else WRITES
        (draft / "__main__.py").write_text(MAIN.format(**words), encoding="utf-8")
        (draft / "README.md").write_text(readme(recipe, fingerprints, target.name, words), encoding="utf-8")
    return target


def readme(recipe: Recipe, fingerprints: Mapping[str, str], folder: str, words: Mapping[str, str]) -> str:
    """Return the README.md of an exported folder. words: TRANSLATES, TAKES_TENSORS or WRITES"""
    calls = ["--info"] if words is TAKES_TENSORS else [words["call"], "< input.txt", "--info"]
    return README.format(
        **words,
        name=recipe.name,
        version=version("seqcomposer"),
        folder=folder,
        calls="\n".join(f"    python {folder} {call}" for call in calls),
        features="".join(describe_sources(recipe)),
        recipe=RECIPE,
        weights=WEIGHTS,
        fingerprints="\n".join(f"    {key:<6}{fingerprints[key]}" for key in ("model", "data", "run")),
    )


def describe_sources(recipe: Recipe) -> Iterator[str]:
    """Yield a line of README.md on each source that is no text: what its tensor has."""
    for side in recipe.sources:
        if settings := feature_settings(recipe.dataset, side):
            shape = ", ".join(map(str, feature_shape(settings)))
            yield f"- the source `{side}`: {describe_features(settings)}, (B, S, {shape}), with NaN as padding\n"


def write_modules(folder: Path, model: EncoderDecoder) -> None:
    """Copy every module that `model` needs, unchanged. Raises RunError where one needs another library than torch."""
    blocks = {type(module).__module__ for module in model.modules()}
    packages = OURS | {point.module.partition(".")[0] for point in plug_ins()}
    roots = [*ROOTS, *(decoder.__module__ for decoder in DECODERS.values())]
    roots += sorted(name for name in blocks if name.partition(".")[0] in packages)
    for name, file in needed_modules(roots, packages).items():
        target = folder.joinpath(*name.split(".")).with_suffix(".py")
        if file.name == "__init__.py":
            target = target.with_suffix("") / "__init__.py"
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)
    plugged = [point for point in plug_ins() if point.module in blocks]
    if plugged:  # the registry finds them there as it does here: by the metadata of an installed package
        metadata = folder / "seqcomposer_plug_ins-1.dist-info"
        metadata.mkdir()
        lines = [f"[{GROUP}]", *(f"{point.name} = {point.value}" for point in plugged)]
        (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def needed_modules(roots: Sequence[str], packages: frozenset[str]) -> dict[str, Path]:
    """Return the files of `roots`, of all modules of `packages` that they import at once, and of their packages.

    Raises RunError where one imports a library that is not ALLOWED, or has no Python source.
    """
    files: dict[str, Path] = {}
    todo = list(roots)
    while todo:
        name = todo.pop()
        if name in files:
            continue
        spec = _find_spec(name)
        if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
            message = f"`{name}` cannot be exported: it has no Python source"
            raise RunError.of(message, "use blocks that are written in Python")
        files[name] = Path(spec.origin)
        todo += [parent for parent in [name.rpartition(".")[0]] if parent]
        for imported in imported_modules(files[name]):
            package = imported.partition(".")[0]
            if package in packages:
                todo.append(imported)
            elif package not in ALLOWED:
                message = f"`{name}` needs the library `{package}`, and an exported model has PyTorch alone"
                raise RunError.of(message, "use blocks that are written in PyTorch", str(files[name]))
    return files


@cache
def imported_modules(file: Path) -> tuple[str, ...]:
    """Return the modules that a file imports at once: not inside functions, and not for its types alone."""
    modules: list[str] = []
    todo: list[ast.stmt] = [*ast.parse(file.read_bytes()).body]
    for node in todo:
        if isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules.append(node.module)
            if node.module.partition(".")[0] not in ALLOWED:
                names = (f"{node.module}.{alias.name}" for alias in node.names)
                modules += [name for name in names if _find_spec(name) is not None]
        elif isinstance(node, ast.If | ast.Try) and "TYPE_CHECKING" not in ast.unparse(getattr(node, "test", node)):
            todo += node.body
    return tuple(modules)


def _find_spec(module: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(module)
    except ModuleNotFoundError:  # its parent is a module, not a package
        return None
