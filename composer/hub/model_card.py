"""Model cards of packs: README.md in the form of the Hugging Face hub, with metadata in YAML."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

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
"""Names of splits in a card, where they differ."""
TEMPLATE = Path(__file__).with_name("model_card.md.j2")
LANGUAGES = re.compile(
    "ar|bg|bn|ca|cs|cy|da|de|el|en|es|et|eu|fa|fi|fr|ga|gl|gu|he|hi|hr|hu|hy|id|is|it|ja|ka|kk|km"
    "|kn|ko|lt|lv|mk|ml|mn|mr|ms|my|ne|nl|no|pa|pl|ps|pt|ro|ru|si|sk|sl|sq|sr|sv|sw|ta|te|th|tl|tr"
    "|uk|ur|uz|vi|xh|yo|zh|zu"
)
"""ISO 639-1 codes that are recognised in names of columns and endings of files."""


def model_card(
    recipe: Recipe, record: RunRecord, license: str = "", drawing: Drawing | None = None
) -> str:
    """Return the model card of a finished run: metadata in YAML, then prose from TEMPLATE.

    Args:
        record: The run's run.json; missing values are left out.
        license: Its identifier on the hub, such as `mit`.
        drawing: Of the recipe; without it, the model is planned for one.
    """
    from huggingface_hub import EvalResult, ModelCard, ModelCardData

    scores = list(finite_scores(recipe, record))
    tested = [score for score in scores if score[0] != "val"]
    task = pipeline_tag(recipe) or "text2text-generation"
    results = [
        EvalResult(
            dataset_type=dataset_name(recipe),
            dataset_name=dataset_name(recipe),
            task_type=task,
            task_name=task.replace("-", " "),
            dataset_split=SPLIT_TITLES.get(split, split),
            metric_type=METRICS[name].hub or name,
            metric_name=f"{METRICS[name].label} ({SPLIT_TITLES.get(split, split)})",
            metric_value=value,
        )
        for split, name, value in tested or scores
    ]
    generated = recipe.data.generate
    blocks = (str(path[-1]).replace("_", "-") for path in block_paths(recipe.canonical["model"]))
    tags = ["seqcomposer", "pytorch", *dict.fromkeys(blocks)]
    if generated:
        tags.append(generated.word)
    sacrebleu = dict.fromkeys(name for _, name, _ in scores if METRICS[name].sacrebleu)
    metadata = ModelCardData(
        license=license or None,
        language=languages(recipe) or None,
        library_name="seqcomposer",
        pipeline_tag=pipeline_tag(recipe) or None,
        tags=tags,
        datasets=[dataset_name(recipe)] if is_on_hub(recipe) else None,
        metrics=list(sacrebleu) or None,
        eval_results=results or None,
        model_name=recipe.name if results else None,
    )
    drawing = drawing or draw(recipe, vocabularies=record.vocabularies or None)
    card = ModelCard.from_template(
        metadata,
        str(TEMPLATE),
        recipe=recipe,
        record=record,
        scores=scores,
        metrics=METRICS,
        titles=SPLIT_TITLES,
        languages=languages(recipe),
        dataset=dataset_name(recipe),
        needs_data=not (generated or is_on_hub(recipe)),
        diagram=fenced(drawing.mermaid(), "mermaid"),
        recipe_text=fenced(recipe.dump(), "yaml"),
        cell=cell,
        code=code,
        code_cell=code_cell,
        dump=dump,
        basename=basename,
    )
    return str(card)


def eval_results(recipe: Recipe, record: RunRecord) -> str:
    """Return the scores on a data set of the hub as the YAML of `.eval_results`, or ""."""
    from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml

    entries = [
        EvalResultEntry(dataset_name(recipe), name, value, notes=f"{METRICS[name].label}, {split}")
        for split, name, value in finite_scores(recipe, record)
        if split == "test" and is_on_hub(recipe)
    ]
    return dump(eval_result_entries_to_yaml(entries)) if entries else ""


def finite_scores(recipe: Recipe, record: RunRecord) -> Iterator[tuple[str, str, float]]:
    """Yield split, name and value of each finite score of the run's weights that is in METRICS."""
    scores = record.scores
    for split in (name for name in available_splits(recipe) if name != "train"):
        for name in METRICS:
            value = scores.get(f"{split}/{name}")
            if isinstance(value, int | float) and math.isfinite(value):
                yield split, name, float(value)


def languages(recipe: Recipe) -> list[str]:
    """Return the languages named by columns, file suffixes or settings of the sides."""
    files = split_parts(recipe, "train")[0] if recipe.data.parallel else None
    codes: dict[str, None] = {}
    for section in filter(None, (recipe.data.hub, files, recipe.data.generate)):
        settings = section.as_data()
        for side in (*recipe.sources, "target"):
            name = str(settings.get(side, ""))
            code = PurePosixPath(name).suffix.lstrip(".") or name
            if LANGUAGES.fullmatch(code):
                codes[code] = None
    return list(codes)


def pipeline_tag(recipe: Recipe) -> str:
    """Return the hub's name of the model's task, or ""."""
    if not recipe.sources:
        return "text-generation"
    return "translation" if len(languages(recipe)) > 1 else ""


def is_on_hub(recipe: Recipe) -> bool:
    """True if the data are a data set of the hub, not a local folder of that form."""
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
    """Escape a text for a cell of a Markdown table."""
    return re.sub(r"([|`<\[\\])", r"\\\1", " ".join(str(text).split()))


def code(text: object) -> str:
    """Return a text as inline code, between more backticks than any in it."""
    line = " ".join(str(text).split())
    longest = max(map(len, re.findall("`+", line)), default=0)
    fence, pad = "`" * (longest + 1), " " * (longest > 0)
    return f"{fence}{pad}{line}{pad}{fence}"


def code_cell(text: object) -> str:
    """Return a text as inline code in a cell of a Markdown table."""
    return code(text).replace("|", "\\|")
