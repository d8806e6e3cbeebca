"""Rules of `data`: constraints of stories, tables, texts, packing and weights on other sections."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import ROUND_UP, Context, Decimal
from typing import TYPE_CHECKING, Any

from blocks.core.fixes import Fix, Remove, Set, write
from composer.checks.problem import Problem, Problems
from composer.errors import KeyPath, fault_at, format_path
from composer.metrics.table import SAMPLE
from composer.recipe.canonical_form import SETTINGS_BY_KIND
from composer.recipe.data_sections import Split, TableColumn, WeightedFile
from composer.recipe.schema_reader import REFERENCE, SPLITS, quote_all

if TYPE_CHECKING:
    from composer.recipe.recipe import Recipe

STORIES = ["question", "story"]
"""The encoders that read the stories of `data.babi`."""
NEEDED: Mapping[str, Mapping[str, Any]] = {"image": {"size": [64, 256]}, "vectors": {"width": 512}}
"""The settings of a table's column that a kind has and that have no default, each with an example.
"""
RESERVED_ENCODERS = (
    *("input", "prev", "tape", "zeros", "learned", "target", "file", "weight"),
    *(*SPLITS, "test_sets", "hold_out"),
)
"""Words that no encoder can be called."""
RESERVED_TEST_SETS = (*SPLITS, SAMPLE)
"""Words that no test set can be called."""
HUB_KEYS = ("id", "config")
"""Keys of `data.hub` that no encoder can have as its own there, where it names its column."""
TEXT_KEYS = ("hold_out", "unit", "column")
"""Settings of `data.text` beside its splits, which no file among named ones can be called."""
PACKING, WINDOW, TOKENIZER = ("data", "packing"), ("training", "window"), ("data", "tokenizer")


def reserved_names(recipe: Recipe) -> Problems:
    """No encoder and no test set has a reserved name."""
    of_hub = HUB_KEYS if recipe.data.hub else ()
    for name in recipe.model.encoders or ():
        if name in RESERVED_ENCODERS or name in of_hub or name.startswith(REFERENCE):
            yield _reserved(("model", "encoders", name))
    parallel, table = recipe.data.parallel, recipe.data.table
    for section, test_sets in (
        ("parallel", parallel and parallel.test_sets),
        ("table", table and table.test_sets),
    ):
        for name in test_sets or ():
            if name in RESERVED_TEST_SETS:
                yield _reserved(("data", section, "test_sets", name))


def _reserved(path: KeyPath) -> Problem:
    message = f"`{path[-1]}` is reserved and cannot be the name of one of `{path[-2]}`"
    return Problem("name", path, message, "choose another name")


def stories(recipe: Recipe) -> Problems:
    """Stories have their encoders, and a tokenizer that makes a token of a word."""
    if (babi := recipe.data.babi) is None:
        return
    if sorted(recipe.sources) != STORIES:
        actual = quote_all(recipe.sources) if recipe.model.encoders else "other encoders, or none"
        message = (
            f"the data of `babi` are read by the encoders {quote_all(STORIES)}, and the model has"
            f" {actual}"
        )
        yield Problem(
            "encoders",
            _encoder_path(recipe),
            message,
            "write `encoders: {question: [...], story: [...]}`",
        )
    if not recipe.data.tokenizer.splits_at_spaces:
        message = "a story is made of words between spaces, and its answer is one of them"
        key = "tokenizer" if "tokenizer" in recipe.explicit["data"] else "babi"
        fix = write(TOKENIZER, {"word": {"split": "spaces", "joint": True}})
        yield Problem("tokenizer", ("data", key), message, fix)
    if not babi.tasks:
        path = (*babi.at, "tasks")
        yield Problem("empty", path, "`tasks` is empty", write(path, [1]))


def _encoder_path(recipe: Recipe) -> KeyPath:
    return ("model", "encoder" if recipe.model.encoder else "encoders")


def columns(recipe: Recipe) -> Problems:
    """A column has the settings that its kind needs, and none of another kind."""
    table = recipe.data.table
    sides = {"source": table.source, **table.encoders} if table else {}
    for side, column in sides.items():
        if not isinstance(column, TableColumn):
            continue
        path, kind = column.at, column.kind
        for key in recipe.explicit["data"]["table"][side]:
            others = [other for other, keys in SETTINGS_BY_KIND.items() if key in keys]
            if others and kind not in others:
                message = (
                    f"`{key}` is a setting of {quote_all(others)}, and this column is `{kind}`"
                )
                fix = Fix(f"remove it, or write `kind: {others[0]}`", Remove((*path, key)))
                yield Problem("unused", (*path, key), message, fix)
        for key, example in NEEDED.get(kind, {}).items():
            if getattr(column, key) is None:
                fix = Fix(f"add `{key}: {example}`", Set((*path, key), example))
                yield Problem("missing", path, f"a column of `{kind}` needs `{key}`", fix)
        if kind == "audio":
            yield from _frames(column)


def _frames(column: TableColumn) -> Problems:
    """The frames of a sound, the steps between them and its length have enough samples."""
    log_mel, rate = column.features.log_mel, column.rate
    for key, seconds in (("window", log_mel.window), ("hop", log_mel.hop)):
        if seconds * rate < 1:
            message = f"at `rate: {rate}` a `{key}` of {seconds:g} seconds is less than one sample"
            shortest = Context(prec=6, rounding=ROUND_UP).divide(Decimal(1), Decimal(rate))
            path = (*log_mel.at, key)
            fix = Fix(f"write `{key}: {shortest:f}` or more", Set(path, f"{shortest:f}"))
            yield Problem("bound", path, message, fix)
    samples = round(log_mel.window * rate)
    if log_mel.fft is not None and log_mel.fft < samples:
        message = f"a `window` has {samples:,} samples, and the transform {log_mel.fft:,} points"
        path = (*log_mel.at, "fft")
        yield Problem("bound", path, message, write(path, samples, " or more, or remove it"))
    if column.seconds is not None and column.seconds < log_mel.hop:
        message = f"no frame fits: the next begins {log_mel.hop:g} seconds after the first"
        path = (*column.at, "seconds")
        yield Problem("bound", path, message, write(path, log_mel.hop, " or more"))


def file_names(recipe: Recipe) -> Problems:
    """What stands among named files of a text are files: no settings of it, and no pair."""
    text = recipe.data.text
    parts = {"train": text.train, "val": text.val, "test": text.test} if text else {}
    for split, files in parts.items():
        if not isinstance(files, Mapping):
            continue
        path: KeyPath = ("data", "text", split)
        if {"source", "target"} <= files.keys():
            message = "`source` and `target` would be two files of one text"
            hint = "write `parallel` in place of `text` for pairs, or give the files other names"
            yield Problem("pairs", path, message, hint)
        for key in files.keys() & {*TEXT_KEYS}:
            message = (
                f"`{key}` would be a file of this name, and is a setting of `text`, of all its"
                " files"
            )
            hint = f"write it in `data.text.{key}`, or give the file another name; "
            hint += "settings of one file are written in a list, `[{file: ..., weight: ...}]`"
            name = recipe.locate((*path, key)).node.place
            yield fault_at(name, "name", format_path((*path, key)), message, hint)


def windows(recipe: Recipe) -> Problems:
    """A text has no encoder beside it, and settings of windows need windows."""
    training, stride = recipe.training, recipe.evaluation.stride
    window, tokens = training.window, training.tokens_per_batch
    if recipe.data.text and recipe.sources:
        hint = (
            "remove the encoder, or give pairs in place of `text`: `parallel: {train: {source: F,"
            " target: F}}`"
        )
        message = "a text has no source that an encoder could read"
        yield Problem("encoders", _encoder_path(recipe), message, hint)
    if window and stride and stride > window:
        path = ("evaluation", "stride")
        message = f"a window has {window:,} tokens, and no more can be measured"
        yield Problem("value", path, message, write(path, window, " or less"))
    if not recipe.reads_text:
        return
    if training.carry and not window:
        message = "a state is carried from window to window, and there is no `window`"
        yield Problem(
            "missing",
            ("training", "carry"),
            message,
            Fix("add `window: 35`, or so", Set(WINDOW, 35)),
        )
    elif window and window > tokens:
        message = f"a batch of {tokens:,} tokens has no window of {window:,}"
        rows = "streams of text" if training.carry else "windows"
        fix = write(("training", "tokens_per_batch"), 20 * window, f", for 20 {rows}")
        yield Problem("value", WINDOW, message, fix)


def packing(recipe: Recipe) -> Problems:
    """Rows have padding that packing saves, and nothing counts rows."""
    if not recipe.data.packing:
        return
    output = recipe.model.output
    unpacked = (
        (WINDOW, recipe.training.window, "a window of a text has no padding"),
        (
            ("training", "curriculum"),
            recipe.training.curriculum,
            "a curriculum counts the mistakes of rows",
        ),
        (("data", "babi"), recipe.data.babi, "a row has one story"),
        (("model", "output", "ctc"), output.ctc, "CTC adds up all ways through a row"),
        (
            ("model", "output", "length"),
            output.length,
            "an answer of a fixed length has no padding",
        ),
    )
    for path, setting, reason in unpacked:
        if setting:
            at = format_path(path)
            fix = Fix(f"remove it, or `{at}`", Remove(PACKING))
            yield Problem("packing", PACKING, f"{reason}: `{at}` is set", fix)
    table = recipe.data.table
    for name, column in {"source": table.source, **table.encoders}.items() if table else ():
        if isinstance(column, TableColumn) and column.kind != "text":
            message = f"only text is packed, and `{name}` is of the kind `{column.kind}`"
            yield Problem("packing", PACKING, message, Fix("remove it", Remove(PACKING)))


def prefixes(recipe: Recipe) -> Problems:
    """A prefix stands before lines of text, which are read as letters."""
    data, prefix = recipe.data, recipe.data.prefix
    if prefix is None:
        return
    reason = ""
    if not data.tokenizer.has_letters:
        reason = f"the tokens of `{data.tokenizer.word}` are no text"
    elif data.generate:
        reason = "the lines of a generated task are whole"
    elif data.babi:
        reason = "the sentences of a story and its answer are whole"
    if reason:
        message = f"{reason}, and nothing can stand before them"
        yield Problem("unused", prefix.at, message, Fix("remove it", Remove(prefix.at)))
        return
    for side in recipe.sources:
        column = data.table.of_side(side) if data.table else None
        if not isinstance(column, TableColumn) or column.kind == "text":
            continue
        if prefix.of_side(side) is not None:
            message = f"`{side}` is of the kind `{column.kind}`, and a prefix stands before text"
            path = (*prefix.at, side)
            yield Problem("unused", path, message, Fix("remove it", Remove(path)))


def weights(recipe: Recipe) -> Problems:
    """No curriculum chooses the pairs of an epoch where the weights of their files do."""
    for source in (recipe.data.parallel, recipe.data.text) if recipe.training.curriculum else ():
        for part in _weighted(source.train) if source else ():
            path = (*part.at, "weight")
            message = "a curriculum chooses the pairs of an epoch, whatever their files weigh"
            yield Problem(
                "unused", path, message, Fix("remove it, or `training.curriculum`", Remove(path))
            )


def _weighted(train: Any) -> Iterable[Split | WeightedFile]:
    """Return the files of a training part whose weight is not 1."""
    parts = train.values() if isinstance(train, Mapping) else train
    parts = parts if isinstance(parts, Iterable) else (train,)
    files = [part for part in parts if isinstance(part, Split | WeightedFile)]
    return [file for file in files if file.weight != 1]


RULES: Sequence[Callable[[Recipe], Problems]] = (
    reserved_names,
    stories,
    columns,
    file_names,
    windows,
    packing,
    prefixes,
    weights,
)
