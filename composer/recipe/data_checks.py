"""What the data of a recipe need of its other sections: stories, texts and weights of files."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import ROUND_UP, Context, Decimal

from composer.errors import Fault, KeyPath, fault_at, format_path
from composer.recipe.output_checks import get
from composer.recipe.schema_reader import SPLITS, Schema, quote_all
from composer.recipe.yaml_reader import Node

STORIES = ("question", "story")
"""The encoders that read the stories of `data.babi`."""

OF_KINDS = {
    "text": (),
    "image": ("size", "channels", "positions", "augment"),
    "audio": ("rate", "features", "normalize", "spec_augment"),
    "vectors": ("width",),
}
"""The settings of a table's column that are of one kind alone."""
NEEDED = {"image": {"size": "[64, 256]"}, "vectors": {"width": "512"}}
"""Those that have no default, each with an example."""


UNPACKED = {
    ("training", "window"): "a window of a text has no padding",
    ("training", "curriculum"): "a curriculum counts the mistakes of rows",
    ("data", "babi"): "a row has one story",
    ("model", "output", "ctc"): "CTC adds up all ways through a row",
    ("model", "output", "length"): "an answer of a fixed length has no padding",
}
"""What has no rows that could be packed, and why."""


def check_stories(root: Node) -> Iterator[Fault]:
    """Check that stories have their encoders, and a tokenizer that makes a token of a word."""
    stories = get(root, "data", "babi")
    if stories is None:
        return
    encoders = get(root, "model", "encoders")
    if (names := sorted(encoders.value) if encoders is not None else []) != list(STORIES):
        mark = (encoders or get(root, "model", "encoder") or root.value["model"]).place
        actual = quote_all(names) if names else "other encoders, or none"
        message = f"the data of `babi` are read by the encoders {quote_all(STORIES)}, and the model has {actual}"
        yield fault_at(mark, "encoders", "model.encoders", message, "write `encoders: {question: [...], story: [...]}`")
    split = get(root, "data", "tokenizer", "word", "split")
    if split is None or split.value != "spaces":
        mark = (get(root, "data", "tokenizer") or stories).place
        message = "a story is made of words between spaces, and its answer is one of them"
        hint = "write `tokenizer: {word: {split: spaces, joint: true}}`"
        yield fault_at(mark, "tokenizer", "data.tokenizer", message, hint)
    if not (tasks := stories.value["tasks"]).value:
        yield fault_at(tasks.place, "empty", "data.babi.tasks", "`tasks` is empty", "write `tasks: [1]`")


def check_table(root: Node) -> Iterator[Fault]:
    """Check that a column has the settings that its kind needs, and none of another kind."""
    table = get(root, "data", "table")
    for side, column in table.value.items() if table is not None else ():
        kind = get(column, "kind")
        path, word = format_path(("data", "table", side)), "text" if kind is None else kind.value
        if not isinstance(column.value, dict) or "column" not in column.value or word not in OF_KINDS:
            continue  # of splits and columns of text
        if side == "target" and kind is not None and word != "text":
            yield fault_at(kind.place, "kind", f"{path}.kind", "a model writes text", "write `target: COLUMN`")
        for key, node in column.value.items():
            others = [other for other, keys in OF_KINDS.items() if key in keys]
            if others and word not in others:
                message = f"`{key}` is a setting of {quote_all(others)}, and this column is `{word}`"
                hint = f"remove it, or write `kind: {others[0]}`"
                yield fault_at(node.place, "unused", f"{path}.{key}", message, hint)
        for key, example in NEEDED.get(word, {}).items():
            if get(column, key) is None:
                message = f"a column of `{word}` needs `{key}`"
                yield fault_at(column.place, "missing", path, message, f"add `{key}: {example}`")


def check_sounds(root: Node, schema: Schema) -> Iterator[Fault]:
    """Check that the frames of a sound, and the steps between them, have a sample."""
    table = get(root, "data", "table")
    for side, column in table.value.items() if table is not None else ():
        rate = get(column, "rate")
        samples = schema["$defs"]["tablecolumn"]["properties"]["rate"]["default"] if rate is None else rate.value
        for key in ("window", "hop"):
            seconds = get(column, "features", "log_mel", key)
            if seconds is not None and seconds.value * samples < 1:
                path = format_path(("data", "table", side, "features", "log_mel", key))
                message = f"at `rate: {samples}` a `{key}` of {seconds.value:g} seconds is less than one sample"
                hint = f"write `{key}: {shortest_seconds(samples)}` or more"
                yield fault_at(seconds.mark, "bound", path, message, hint)


def shortest_seconds(rate: int) -> str:
    """Return the seconds of one sample as they are written, rounded up to a few digits. rate: samples a second"""
    context = Context(prec=6, rounding=ROUND_UP)
    return f"{context.divide(Decimal(1), Decimal(rate)):f}"


def check_file_names(root: Node, schema: Schema) -> Iterator[Fault]:
    """Check that what stands among named files of a text are files: no settings of it, and no pair."""
    settings = [key for key in schema["$defs"]["corpus"]["properties"] if key not in SPLITS]
    for split in SPLITS:
        files = get(root, "data", "text", split)
        if files is None or not isinstance(files.value, dict):
            continue
        if {"source", "target"} <= files.value.keys():
            message = "`source` and `target` would be two files of one text"
            hint = "write `parallel` in place of `text` for pairs, or give the files other names"
            yield fault_at(files.place, "pairs", f"data.text.{split}", message, hint)
        for key in files.value.keys() & settings:
            message = f"`{key}` would be a file of this name, and is a setting of `text`, of all its files"
            hint = f"write it in `data.text.{key}`, or give the file another name; "
            hint += "settings of one file are written in a list, `[{file: ..., weight: ...}]`"
            yield fault_at(files.value[key].place, "name", f"data.text.{split}.{key}", message, hint)


def check_text(root: Node) -> Iterator[Fault]:
    """Check that a text has no encoder beside it, and that there are windows for what is written of them."""
    text = get(root, "data", "text")
    encoder = get(root, "model", "encoder") or get(root, "model", "encoders")
    if text is not None and encoder is not None:
        message = "a text has no source that an encoder could read"
        hint = "remove the encoder, or give pairs in place of `text`: `parallel: {train: {source: F, target: F}}`"
        yield fault_at(encoder.place, "encoders", "model.encoder", message, hint)
    window, carry = get(root, "training", "window"), get(root, "training", "carry")
    stride = get(root, "evaluation", "stride")
    if window is not None and stride is not None and stride.value > window.value:
        message = f"of a window of {window.value:,} tokens no more than those are measured"
        yield fault_at(stride.mark, "value", "evaluation.stride", message, f"write `stride: {window.value}` or less")
    is_text = text is not None or (get(root, "data", "hub") is not None and encoder is None)
    if carry is None or not carry.value or not is_text:
        return
    if window is None or not window.value:
        hint = "add `window:`, the tokens of a window, 35 or so"
        yield fault_at(carry.mark, "missing", "training.carry", "a state is carried from window to window", hint)
        return
    tokens = get(root, "training", "tokens_per_batch")
    if window.value > (size := tokens.value if tokens is not None else 4096):
        message = f"a batch of {size:,} tokens has no window of {window.value:,}"
        hint = f"write `tokens_per_batch: {20 * window.value}`, for 20 streams of text"
        yield fault_at((tokens or window).mark, "value", "training.window", message, hint)


def check_packing(root: Node) -> Iterator[Fault]:
    """Check that rows have padding that packing saves, and that nothing counts rows."""
    packing = get(root, "data", "packing")
    if packing is None or not packing.value:
        return
    for path, reason in UNPACKED.items():
        if (node := get(root, *path)) is not None and node.value not in (None, False):
            at = ".".join(path)
            yield fault_at(packing.mark, "packing", "data.packing", f"{reason}: `{at}` is set", f"remove it, or `{at}`")
    for name, column in (table.value if (table := get(root, "data", "table")) is not None else {}).items():
        kind = get(column, "kind") if name not in SPLITS else None
        if kind is not None and kind.value != "text":
            message = f"only text is packed, and `{name}` is of the kind `{kind.value}`"
            yield fault_at(packing.mark, "packing", "data.packing", message, "remove it")


def check_filters(root: Node) -> Iterator[Fault]:
    """Check that there is something measured that a filter can leave out of the training."""
    parallel = get(root, "data", "parallel")
    filters = get(root, "data", "parallel", "decontaminate")
    if filters is None or not filters.value:
        return
    parts = [get(parallel, name) for name in ("val", "test", "test_sets")]
    if all(part is None or not part.value for part in parts):
        message = "there is no `val` and no `test` whose lines could be left out"
        yield fault_at(filters.place, "unused", "data.parallel.decontaminate", message, "remove it, or add `val: 1000`")


def check_weights(root: Node) -> Iterator[Fault]:
    """Check that no curriculum chooses the pairs of an epoch where the weights of their files do."""
    if (curriculum := get(root, "training", "curriculum")) is None or curriculum.value is None:
        return
    for path in (("data", "parallel", "train"), ("data", "text", "train")):
        if (train := get(root, *path)) is not None:
            yield from _weight_faults(train, path)


def _weight_faults(node: Node, path: KeyPath) -> Iterator[Fault]:
    parts = (
        node.value
        if isinstance(node.value, dict)
        else dict(enumerate(node.value))
        if isinstance(node.value, list)
        else {}
    )
    for key, part in parts.items():
        if key == "weight" and part.value not in (1, None) and not isinstance(part.value, (str, dict)):
            message = "a curriculum chooses the pairs of an epoch, whatever their files weigh"
            hint = "remove it, or `training.curriculum`"
            yield fault_at(part.place, "unused", format_path((*path, key)), message, hint)
        yield from _weight_faults(part, (*path, key))
