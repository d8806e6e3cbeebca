"""Model cards of packs: README.md in the form of the Hugging Face hub, with metadata in YAML."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from composer.data.pairs import available_splits
from composer.data.parallel_files import split_parts
from composer.hub.pack_format import basename
from composer.metrics.table import METRICS
from composer.recipe.canonical_form import block_paths
from composer.recipe.recipe import Recipe
from composer.recipe.yaml_reader import dump, strings_in
from composer.runs.record import RunRecord
from composer.viz.architecture import Drawing, draw

SPLIT_TITLES = {"val": "validation"}
"""What splits are called in a card; others by their names."""
TEMPLATE = Path(__file__).with_name("model_card.md.j2")
LANGUAGES = re.compile(
    "ar|bg|bn|ca|cs|cy|da|de|el|en|es|et|eu|fa|fi|fr|ga|gl|gu|he|hi|hr|hu|hy|id|is|it|ja|ka|kk|km|kn|ko|lt|lv|mk|ml|mn"
    "|mr|ms|my|ne|nl|no|pa|pl|ps|pt|ro|ru|si|sk|sl|sq|sr|sv|sw|ta|te|th|tl|tr|uk|ur|uz|vi|xh|yo|zh|zu"
)
"""ISO 639-1 codes that are recognised in names of columns and endings of files."""


def model_card(
    recipe: Recipe, record: RunRecord, license: str = "", drawing: Drawing | None = None
) -> str:
    """Return the model card of a finished run: metadata in YAML, then prose from TEMPLATE.

    record: the run's run.json; what it does not know is left out. license: its identifier on the
    hub, such as `mit`. drawing: of the recipe; without it, the model is planned for one.
    """
    from huggingface_hub import EvalResult, ModelCard, ModelCardData

    scores = list(finite_scores(recipe, record))
    tested = any(split != "val" for split, *_ in scores)
    task = pipeline_tag(recipe) or "text2text-generation"
    dataset: dict[str, Any] = {
        "dataset_type": dataset_name(recipe),
        "dataset_name": dataset_name(recipe),
    }
    results = [
        EvalResult(
            **dataset,
            task_type=task,
            task_name=task.replace("-", " "),
            dataset_split=SPLIT_TITLES.get(split, split),
            metric_type=METRICS[name].hub or name,
            metric_name=f"{METRICS[name].label} ({SPLIT_TITLES.get(split, split)})",
            metric_value=value,
        )
        for split, name, value in scores
        if split != "val" or not tested
    ]
    generated = recipe.data.generate
    blocks = (str(path[-1]).replace("_", "-") for path in block_paths(recipe.canonical["model"]))
    metadata = ModelCardData(
        license=license or None,
        language=languages(recipe) or None,
        library_name="seqcomposer",
        pipeline_tag=pipeline_tag(recipe) or None,
        tags=[
            "seqcomposer",
            "pytorch",
            *dict.fromkeys(blocks),
            *([generated.word] if generated else []),
        ],
        datasets=[dataset_name(recipe)] if is_on_hub(recipe) else None,
        metrics=list(dict.fromkeys(name for _, name, _ in scores if METRICS[name].sacrebleu))
        or None,
        eval_results=results or None,
        model_name=recipe.name if results else None,
    )
    return str(ModelCard.from_template(metadata, str(TEMPLATE), **_prose(recipe, record, drawing)))


def _prose(recipe: Recipe, record: RunRecord, drawing: Drawing | None) -> dict[str, Any]:
    """Return the variables of TEMPLATE."""
    drawing = drawing or draw(recipe, vocabularies=record.vocabularies or None)
    sides = recipe.sources
    reads = f"reads {' and '.join(f'`{side}`' for side in sides)} and writes `target`"
    scores = list(finite_scores(recipe, record))
    settings = {key: recipe.canonical["training"][key] for key in ("optimizer", "schedule")}
    signatures = record.signatures
    return {
        "recipe": recipe,
        "record": record,
        "task": reads if sides else "continues a text",
        "noun": "pairs" if sides else "texts",
        "languages": languages(recipe),
        "diagram": fenced(drawing.mermaid(), "mermaid"),
        "recipe_text": fenced(recipe.dump(), "yaml"),
        "scores": [
            (SPLIT_TITLES.get(split, split), METRICS[name], value) for split, name, value in scores
        ],
        "signatures": [
            (
                f"{METRICS[name].label} ({SPLIT_TITLES.get(split, split)})",
                signatures[f"{split}/{name}_signature"],
            )
            for split, name, _ in scores
            if f"{split}/{name}_signature" in signatures
        ],
        "data_option": "" if recipe.data.generate or is_on_hub(recipe) else " --data DIR",
        "dataset": dataset_name(recipe),
        "settings": {key: dump(value).strip() for key, value in settings.items() if value},
        "start_from": basename(record.start_from or ""),
        "cell": cell,
        "code": code,
        "code_cell": code_cell,
        "has_test": any(split == "test" for split, *_ in scores),
    }


def finite_scores(recipe: Recipe, record: RunRecord) -> Iterator[tuple[str, str, float]]:
    """Yield split, name and value of each finite score of the run's weights that is in METRICS."""
    scores = record.scores
    for split in (name for name in available_splits(recipe) if name != "train"):
        for name in METRICS:
            value = scores.get(f"{split}/{name}")
            if isinstance(value, int | float) and math.isfinite(value):
                yield split, name, float(value)


def languages(recipe: Recipe) -> list[str]:
    """Return the languages of sources and target, where columns, endings of files or settings name
    them.
    """
    files = split_parts(recipe, "train")[0] if recipe.data.parallel else None
    sections = [
        section.as_data() for section in (recipe.data.hub, files, recipe.data.generate) if section
    ]
    names = [
        str(section.get(side, "")) for section in sections for side in (*recipe.sources, "target")
    ]
    endings = [PurePosixPath(name).suffix.lstrip(".") or name for name in names]
    return list(dict.fromkeys(code for code in endings if LANGUAGES.fullmatch(code)))


def pipeline_tag(recipe: Recipe) -> str:
    """Return the hub's name for what the model does; "" where it has none."""
    if not recipe.sources:
        return "text-generation"
    return "translation" if len(languages(recipe)) > 1 else ""


def is_on_hub(recipe: Recipe) -> bool:
    """Return whether the data are a data set of the hub, and not a local folder in its form."""
    hub = recipe.data.hub
    return hub is not None and re.fullmatch(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", hub.id) is not None


def dataset_name(recipe: Recipe) -> str:
    """Return the name of the data: the hub's id, the task, or the training file."""
    if hub := recipe.data.hub:
        return str(hub.id) if is_on_hub(recipe) else basename(hub.id)
    if task := recipe.data.generate:
        return task.word
    if recipe.data.babi:
        return "babi"
    if recipe.data.text:
        return basename(next(strings_in(recipe.data.text.as_data()["train"])))
    train = split_parts(recipe, "train")[0]
    return basename(train.file or str(train.target))


def fenced(text: str, language: str) -> str:
    """Return a Markdown code block, with a fence longer than any in the text."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}{language}\n{text.rstrip()}\n{fence}\n"


def cell(text: object) -> str:
    """Return a text as a cell of a Markdown table, which it cannot leave; nothing in it is markup."""
    return re.sub(r"([|`<\[\\])", r"\\\1", " ".join(str(text).split()))


def code(text: object) -> str:
    """Return a text as a span of code on one line, between more backticks than any in it."""
    line = " ".join(str(text).split())
    longest = max(map(len, re.findall("`+", line)), default=0)
    fence, pad = "`" * (longest + 1), " " * (longest > 0)
    return f"{fence}{pad}{line}{pad}{fence}"


def code_cell(text: object) -> str:
    """Return a text as a span of code in a cell of a Markdown table."""
    return code(text).replace("|", "\\|")
