"""The model card: README.md in the form of the Hugging Face hub, front matter in YAML and then prose."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from typing import Any

from composer.data.sources import source_names
from composer.hub.redact import last
from composer.recipe.metrics import METRICS, signatures
from composer.recipe.recipe import Recipe
from composer.recipe.yaml_reader import dump
from composer.run_dir import recorded_vocabularies, versions
from composer.viz.architecture import draw

LANGUAGES = re.compile(
    "ar|bg|bn|ca|cs|cy|da|de|el|en|es|et|eu|fa|fi|fr|ga|gl|gu|he|hi|hr|hu|hy|id|is|it|ja|ka|kk|km|kn|ko|lt|lv|mk|ml|mn"
    "|mr|ms|my|ne|nl|no|pa|pl|ps|pt|ro|ru|si|sk|sl|sq|sr|sv|sw|ta|te|th|tl|tr|uk|ur|uz|vi|xh|yo|zh|zu"
)
"""Languages by the codes with which files and columns of corpora are called."""
SPLITS = {"val": "validation", "test": "test"}


def card(recipe: Recipe, record: Mapping[str, Any], license: str = "") -> str:
    """The model card of a finished run, whose run.json is `record`."""
    # the hub reads YAML 1.1, in which 1e-05 is text
    head = re.sub(r"(value: -?[0-9])(e)", r"\1.0\2", dump(front_matter(recipe, record, license)))
    parts = (about, architecture, data, results, use, training, limits)
    return f"---\n{head}---\n\n" + "\n".join(part(recipe, record) for part in parts)


# ------------------------------------------------------------------------------------------- front matter


def front_matter(recipe: Recipe, record: Mapping[str, Any], license: str) -> dict[str, Any]:
    """What the hub reads of a card; what is not known is not there."""
    spoken = languages(recipe)
    told: dict[str, Any] = {
        "license": license,
        "language": spoken,
        "library_name": "seqcomposer",
        "pipeline_tag": pipeline(recipe, spoken),
        "tags": ["seqcomposer", "pytorch", *tags(recipe)],
        "datasets": [recipe.dataset["hub"]["id"]] if on_the_hub(recipe) else [],
        "metrics": list(dict.fromkeys(name for _, name, _ in scores(record) if METRICS[name].sacrebleu)),
        "model-index": model_index(recipe, record, spoken),
    }
    return {key: value for key, value in told.items() if value}


def on_the_hub(recipe: Recipe) -> bool:
    """Whether the data are a data set of the hub, and not a folder in its form."""
    hub = recipe.dataset.get("hub")
    return hub is not None and re.fullmatch(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", hub["id"]) is not None


def languages(recipe: Recipe) -> list[str]:
    """The languages that are read and written, where the data say so: by columns, endings of files, or settings."""
    told = recipe.dataset.get("hub") or (recipe.dataset.get("parallel") or {}).get("train") or {}
    task = next(iter((recipe.dataset.get("generate") or {}).values()), None) or {}
    named = [str(place.get(side, "")) for place in (told, task) for side in (*source_names(recipe), "target")]
    endings = [PurePosixPath(name).suffix.lstrip(".") or name for name in named]
    return list(dict.fromkeys(each for each in endings if LANGUAGES.fullmatch(each)))


def pipeline(recipe: Recipe, spoken: list[str]) -> str:
    """The hub's word for what the model does; none where it has none."""
    if not source_names(recipe):
        return "text-generation"
    return "translation" if len(spoken) > 1 else ""


def tags(recipe: Recipe) -> list[str]:
    """The blocks that the model is made of, and the task of its data."""
    found: dict[str, None] = {}
    _collect((recipe.model.get(part) for part in ("encoder", "encoders", "decoder", "stacks")), found)
    return [*(name.replace("_", "-") for name in found), *(recipe.dataset.get("generate") or {})]


def _collect(value: Any, found: dict[str, None]) -> None:
    """Names of blocks: keys of the single-key mappings that stand in lists."""
    for each in value.values() if isinstance(value, Mapping) else value:
        if isinstance(each, Mapping) and isinstance(value, list) and len(each) == 1:
            found.update(dict.fromkeys(map(str, each)))
        if isinstance(each, Mapping | list):
            _collect(each, found)


def scores(record: Mapping[str, Any]) -> list[tuple[str, str, float]]:
    """Split, name and value of each score of the run's weights that a card tells."""
    told = record.get("scores") or {}
    return [
        (split, name, float(told[f"{split}/{name}"]))
        for split in SPLITS
        for name in METRICS
        if isinstance(told.get(f"{split}/{name}"), int | float) and math.isfinite(told[f"{split}/{name}"])
    ]


def model_index(recipe: Recipe, record: Mapping[str, Any], spoken: list[str]) -> list[dict[str, Any]]:
    """The scores on the test part, or else on the validation part, as the hub's leaderboards read them."""
    told = scores(record)
    split = "test" if any(each == "test" for each, *_ in told) else "val"
    metrics = [
        {"type": METRICS[name].hub or name, "value": value, "name": f"{METRICS[name].label} ({SPLITS[split]})"}
        for each, name, value in told
        if each == split
    ]
    if not metrics:
        return []
    task = pipeline(recipe, spoken) or "text2text-generation"
    result = {
        "task": {"type": task, "name": task.replace("-", " ")},
        "dataset": {"type": dataset_name(recipe), "name": dataset_name(recipe), "split": SPLITS[split]},
        "metrics": metrics,
    }
    return [{"name": recipe.name, "results": [result]}]


def dataset_name(recipe: Recipe) -> str:
    """What the data are called: the hub's id, the task, or the training file."""
    if hub := recipe.dataset.get("hub"):
        return str(hub["id"]) if on_the_hub(recipe) else last(hub["id"])
    if task := recipe.dataset.get("generate"):
        return str(next(iter(task)))
    if recipe.dataset.get("babi"):
        return "babi"
    train = recipe.dataset["parallel"]["train"]
    return last(train.get("file") or train["target"])


# ------------------------------------------------------------------------------------------- prose


def about(recipe: Recipe, record: Mapping[str, Any]) -> str:
    """What it is, in three lines."""
    spoken = languages(recipe)
    read = source_names(recipe)
    does = f"reads {' and '.join(f'`{side}`' for side in read)} and writes `target`" if read else "continues a text"
    languages_told = f" ({' to '.join(spoken)})" if len(spoken) == 2 else ""
    size = f", with {record['parameters']:,} parameters" if isinstance(record.get("parameters"), int) else ""
    return (
        f"# {recipe.name}\n\n"
        f"A sequence model that {does}{languages_told}{size}.\n"
        "A recipe describes it, and seqcomposer trained it; the files beside this one are all that is needed to\n"
        "use it, to measure it and to train it again.\n"
    )


def architecture(recipe: Recipe, record: Mapping[str, Any]) -> str:
    """The drawing, and the recipe."""
    picture = fenced(draw(recipe, vocabularies=recorded_vocabularies(record)).mermaid(), "mermaid")
    return f"## Architecture\n\n{picture}\nThe recipe, `recipe.yaml`:\n\n{fenced(recipe.dump(), 'yaml')}"


def fenced(text: str, language: str) -> str:
    """Text as a block of code, whatever it holds."""
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{fence}{language}\n{text.rstrip()}\n{fence}\n"


def data(recipe: Recipe, record: Mapping[str, Any]) -> str:
    """What it was trained on, by hashes where they are known."""
    told = record.get("data") or {}
    pairs = told.get("pairs") or {}
    rows = [("data", f"`{dataset_name(recipe)}`")]
    rows += [(f"pairs, {split}", f"{count:,}") for split, count in pairs.items() if isinstance(count, int)]
    rows += [("trained on", f"{told['trained_on']:,} pairs")] if isinstance(told.get("trained_on"), int) else []
    rows += [
        (f"SHA-256, {name}", f"`{told[key]}`")
        for key, name in (("sha256", "training part"), ("val_sha256", "validation part"))
        if told.get(key)
    ]
    rows += [("tokenizer", f"{next(iter(recipe.dataset['tokenizer']))}, `{record.get('tokenizer', 'unknown')}`")]
    rows += [(f"fingerprint, {name}", f"`{value}`") for name, value in (record.get("fingerprints") or {}).items()]
    return f"## Data\n\n{table(('', ''), rows)}\nThe data themselves are not part of this pack.\n"


def results(recipe: Recipe, record: Mapping[str, Any]) -> str:
    """The scores, and sacreBLEU's signatures."""
    told = scores(record)
    if not told:
        return "## Results\n\nNothing was measured.\n"
    decoding = next(iter(recipe.decoding))
    rows = [(SPLITS[split], METRICS[name].label, f"{value:.4g}", METRICS[name].unit) for split, name, value in told]
    kept = (record.get("kept") or {}).get("how")
    weights = f" The weights are those that were kept ({kept})." if kept else ""
    signed = signature(record) if any(METRICS[name].sacrebleu for _, name, _ in told) else ""
    numbers = table(("part", "score", "value", "range"), rows)
    return f"## Results\n\nDecoded by `{decoding}`, as the recipe says.{weights}\n\n{numbers}{signed}"


def signature(record: Mapping[str, Any]) -> str:
    """How sacreBLEU computed its scores, where this version is the one that did."""
    used = (record.get("versions") or {}).get("sacrebleu", "")
    if not used or versions().get("sacrebleu") != used:
        return f"\nBLEU and chrF are sacreBLEU's{f' {used}' if used else ''}, with its defaults.\n"
    told = signatures()
    lines = "\n".join(
        f"- {metric.label}: `{told[f'{name}_signature']}`" for name, metric in METRICS.items() if metric.sacrebleu
    )
    return f"\nsacreBLEU's signatures:\n\n{lines}\n"


def use(recipe: Recipe, _: Mapping[str, Any]) -> str:
    """The commands that use it."""
    name = recipe.name
    needs = "" if recipe.dataset.get("generate") or on_the_hub(recipe) else " --data DIR    # where the data files are"
    commands = [
        "pip install seqcomposer",
        f"seqcomposer pull REF --output runs/{name}    # REF: where you see this, or a path",
        f"seqcomposer translate runs/{name} < text",
        f"seqcomposer evaluate runs/{name}{needs}",
        f"seqcomposer train runs/{name}/recipe.yaml{needs.split('    ')[0]}    # the same training again",
    ]
    return f"## How to use it\n\n{fenced(chr(10).join(commands), 'sh')}"


def training(recipe: Recipe, record: Mapping[str, Any]) -> str:
    """How it was trained."""
    settings = recipe.training
    rows = [(name, f"`{dump(settings[name]).strip()}`") for name in ("optimizer", "schedule") if settings.get(name)]
    rows += [
        (name, f"{record[name]:,}")
        for name in ("steps", "epochs", "minutes")
        if isinstance(record.get(name), int | float)
    ]
    rows += [("seed", str(settings["seed"]))]
    rows += [("began from", f"the weights of `{last(record['start_from'])}`")] if record.get("start_from") else []
    rows += [(f"version, {name}", str(value)) for name, value in (record.get("versions") or {}).items()]
    git, machine = record.get("git") or {}, record.get("machine") or {}
    changes = ", with changes" if git.get("dirty") else ""
    rows += [("git commit", f"{git['commit']}{changes}")] if git.get("commit") else []
    devices = [*(machine.get("gpus") or []), machine.get("cpu")]
    rows += [("device", ", ".join(each for each in devices if isinstance(each, str) and each))]
    return f"## How it was trained\n\n{table(('', ''), (row for row in rows if row[1]))}"


def limits(recipe: Recipe, record: Mapping[str, Any]) -> str:
    """What it must not be trusted with."""
    longest = recipe.dataset.get("max_length")
    told = [
        f"It has seen nothing but `{dataset_name(recipe)}`, and knows only what that data holds, its biases included."
    ]
    told += (
        [f"Training pairs had at most {longest:,} tokens on a side; on longer texts it is untested."] if longest else []
    )
    if not any(split == "test" for split, *_ in scores(record)):
        told.append(
            "No test part was measured; the scores are those by which its weights were chosen, and so too good."
        )
    told.append("Scores of one run say nothing of how much they vary with the seed.")
    return "## Limits\n\n" + "".join(f"- {each}\n" for each in told)


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table in Markdown."""
    names = list(heads)
    lines = [names, ["---"] * len(names), *rows]
    return "".join("| " + " | ".join(cell(each) for each in line) + " |\n" for line in lines)


def cell(text: str) -> str:
    """A text that stays in its cell."""
    return " ".join(text.split()).replace("|", "\\|")
