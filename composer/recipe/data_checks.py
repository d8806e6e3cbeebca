"""What the data of a recipe need of its other sections: stories, tables, texts and weights of files."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import ROUND_UP, Context, Decimal
from typing import TYPE_CHECKING, Any

from composer.errors import Fault, KeyPath, fault_at, format_path
from composer.recipe.canonical_form import OF_KINDS
from composer.recipe.data_sections import TableColumn
from composer.recipe.metrics import SAMPLE
from composer.recipe.schema_reader import REFERENCE, SPLITS, quote_all
from composer.recipe.yaml_reader import items_of

if TYPE_CHECKING:
    from composer.recipe.recipe import Recipe

STORIES = ["question", "story"]
"""The encoders that read the stories of `data.babi`."""
NEEDED = {"image": {"size": "[64, 256]"}, "vectors": {"width": "512"}}
"""The settings of a table's column that a kind has and that have no default, each with an example."""
RESERVED = {
    "encoders": (
        *("input", "prev", "tape", "zeros", "learned", "target", "file", "weight"),
        *(*SPLITS, "test_sets", "hold_out"),
    ),
    "test_sets": (*SPLITS, SAMPLE),
}
"""Words that no encoder, and no test set, can be called."""
OF_HUB = ("id", "config")
"""Keys of `data.hub` that no encoder can have as its own there, where it names its column."""
UNPACKED = {
    ("training", "window"): "a window of a text has no padding",
    ("training", "curriculum"): "a curriculum counts the mistakes of rows",
    ("data", "babi"): "a row has one story",
    ("model", "output", "ctc"): "CTC adds up all ways through a row",
    ("model", "output", "length"): "an answer of a fixed length has no padding",
}
"""What has no rows that could be packed, and why."""


def data_faults(recipe: Recipe) -> Iterator[Fault]:
    """Yield the faults of `data` beside the other sections."""
    for check in (_names, _stories, _table, _file_names, _text, _packing, _weights):
        yield from check(recipe)


def _names(recipe: Recipe) -> Iterator[Fault]:
    """Check that no encoder and no test set has a reserved name."""
    of_encoders = OF_HUB if recipe.data.hub else ()
    for section in (("model",), ("data", "parallel"), ("data", "table")):
        for key, reserved in RESERVED.items():
            for name in (recipe.settings_at(section) or {}).get(key) or ():
                is_taken = key == "encoders" and (name in of_encoders or name.startswith(REFERENCE))
                if name in reserved or is_taken:
                    message = f"`{name}` is reserved and cannot be the name of one of `{key}`"
                    yield recipe.fault("name", (*section, key, name), message, "choose another name")


def _stories(recipe: Recipe) -> Iterator[Fault]:
    """Check that stories have their encoders, and a tokenizer that makes a token of a word."""
    if (stories := recipe.data.babi) is None:
        return
    if sorted(recipe.sources) != STORIES:
        actual = quote_all(recipe.sources) if recipe.model.encoders else "other encoders, or none"
        message = f"the data of `babi` are read by the encoders {quote_all(STORIES)}, and the model has {actual}"
        hint = "write `encoders: {question: [...], story: [...]}`"
        yield recipe.fault("encoders", _encoder_path(recipe), message, hint)
    if not recipe.data.tokenizer.splits_at_spaces:
        message = "a story is made of words between spaces, and its answer is one of them"
        hint = "write `tokenizer: {word: {split: spaces, joint: true}}`"
        key = "tokenizer" if "tokenizer" in recipe.explicit["data"] else "babi"
        yield recipe.fault("tokenizer", ("data", key), message, hint)
    if not stories.tasks:
        yield recipe.fault("empty", ("data", "babi", "tasks"), "`tasks` is empty", "write `tasks: [1]`")


def _encoder_path(recipe: Recipe) -> KeyPath:
    return ("model", "encoder" if recipe.model.encoder else "encoders")


def _table(recipe: Recipe) -> Iterator[Fault]:
    """Check that a column has the settings that its kind needs, and none of another kind, as they are written."""
    for side, column in (recipe.explicit["data"].get("table") or {}).items():
        path: KeyPath = ("data", "table", side)
        if not isinstance(column, dict) or "column" not in column:
            continue  # of splits and columns of text
        kind = column.get("kind") or "text"
        if side == "target" and kind != "text":
            yield recipe.fault("kind", (*path, "kind"), "a model writes text", "write `target: COLUMN`")
        for key in column:
            others = [other for other, keys in OF_KINDS.items() if key in keys]
            if others and kind not in others:
                message = f"`{key}` is a setting of {quote_all(others)}, and this column is `{kind}`"
                hint = f"remove it, or write `kind: {others[0]}`"
                yield recipe.fault("unused", (*path, key), message, hint)
        for key, example in NEEDED.get(kind, {}).items():
            if column.get(key) is None:
                yield recipe.fault("missing", path, f"a column of `{kind}` needs `{key}`", f"add `{key}: {example}`")
        if kind == "audio":
            yield from _frames(recipe, path)


def _frames(recipe: Recipe, path: KeyPath) -> Iterator[Fault]:
    """Check that the frames of a sound, and the steps between them, have a sample."""
    column = recipe.settings_at(path)
    rate, log_mel = column["rate"], column["features"]["log_mel"]
    for key in ("window", "hop"):
        if log_mel[key] * rate < 1:
            message = f"at `rate: {rate}` a `{key}` of {log_mel[key]:g} seconds is less than one sample"
            shortest = Context(prec=6, rounding=ROUND_UP).divide(Decimal(1), Decimal(rate))
            hint = f"write `{key}: {shortest:f}` or more"
            yield recipe.fault("bound", (*path, "features", "log_mel", key), message, hint)


def _file_names(recipe: Recipe) -> Iterator[Fault]:
    """Check that what stands among named files of a text are files: no settings of it, and no pair."""
    text = recipe.canonical["data"]["text"] or {}
    for split in SPLITS:
        files, path = text.get(split), ("data", "text", split)
        if not isinstance(files, dict):
            continue
        if {"source", "target"} <= files.keys():
            message = "`source` and `target` would be two files of one text"
            hint = "write `parallel` in place of `text` for pairs, or give the files other names"
            yield recipe.fault("pairs", path, message, hint)
        for key in files.keys() & text.keys() - set(SPLITS):
            message = f"`{key}` would be a file of this name, and is a setting of `text`, of all its files"
            hint = f"write it in `data.text.{key}`, or give the file another name; "
            hint += "settings of one file are written in a list, `[{file: ..., weight: ...}]`"
            name = recipe.locate((*path, key))[0].place
            yield fault_at(name, "name", format_path((*path, key)), message, hint)


def _text(recipe: Recipe) -> Iterator[Fault]:
    """Check that a text has no encoder beside it, and that there are windows for what is written of them."""
    training, stride = recipe.training, recipe.evaluation.stride
    window, tokens = training.window, training.tokens_per_batch
    if recipe.data.text and recipe.sources:
        hint = "remove the encoder, or give pairs in place of `text`: `parallel: {train: {source: F, target: F}}`"
        yield recipe.fault("encoders", _encoder_path(recipe), "a text has no source that an encoder could read", hint)
    if window and stride and stride > window:
        message = f"of a window of {window:,} tokens no more than those are measured"
        yield recipe.fault("value", ("evaluation", "stride"), message, f"write `stride: {window}` or less")
    if not recipe.reads_text:
        return
    if training.carry and not window:
        message, hint = "a state is carried from window to window, and there is no `window`", "add `window: 35`, or so"
        yield recipe.fault("missing", ("training", "carry"), message, hint)
    elif window and window > tokens:
        message = f"a batch of {tokens:,} tokens has no window of {window:,}"
        rows = "streams of text" if training.carry else "windows"
        hint = f"write `tokens_per_batch: {20 * window}`, for 20 {rows}"
        yield recipe.fault("value", ("training", "window"), message, hint)


def _packing(recipe: Recipe) -> Iterator[Fault]:
    """Check that rows have padding that packing saves, and that nothing counts rows."""
    if not recipe.data.packing:
        return
    path = ("data", "packing")
    for other, reason in UNPACKED.items():
        if recipe.settings_at(other):
            at = format_path(other)
            yield recipe.fault("packing", path, f"{reason}: `{at}` is set", f"remove it, or `{at}`")
    table = recipe.data.table
    for name, column in {"source": table.source, **table.encoders}.items() if table else ():
        if isinstance(column, TableColumn) and column.kind != "text":
            message = f"only text is packed, and `{name}` is of the kind `{column.kind}`"
            yield recipe.fault("packing", path, message, "remove it")


def _weights(recipe: Recipe) -> Iterator[Fault]:
    """Check that no curriculum chooses the pairs of an epoch where the weights of their files do."""
    for source in ("parallel", "text") if recipe.training.curriculum else ():
        train = (recipe.canonical["data"][source] or {}).get("train")
        for path in _weighted(train, ("data", source, "train")):
            message = "a curriculum chooses the pairs of an epoch, whatever their files weigh"
            yield recipe.fault("unused", path, message, "remove it, or `training.curriculum`")


def _weighted(value: Any, path: KeyPath) -> Iterator[KeyPath]:
    """Yield the path of each weight that is not 1; a text may have a file of this name."""
    for key, part in items_of(value):
        if key == "weight" and isinstance(part, float) and part != 1:
            yield (*path, key)
        yield from _weighted(part, (*path, key))
