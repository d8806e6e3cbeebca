"""What the parts of a recipe must agree on, and no schema can say: the data's keys and the model's encoders."""

from __future__ import annotations

from collections.abc import Iterator

from composer.errors import Fault, closest_match, did_you_mean, format_path
from composer.recipe.json_schema import quote_all
from composer.recipe.metrics import METRICS, metric_of
from composer.recipe.node import Mark, Node, fault_at

NOT_FOR_ENCODERS = ("input", "prev", "tape", "zeros", "learned", "target", "file")
HUB_KEYS = ("id", "config", "train", "val", "test", "target")
SPLITS = ("train", "val", "test")

STORIES = ("question", "story")
"""What the stories of `data.babi` give the encoders."""


def cross_checks(root: Node) -> list[Fault]:
    """Every fault between the parts of a recipe that the schema has found good one by one."""
    found = (_encoder_names, _data_keys, _ties, _stopping, _curriculum, _vectors, _answers, _stories, _machine)
    return [fault for each in found for fault in each(root)]


def _child(node: Node | None, *keys: str) -> Node | None:
    """What stands under the keys, or None where nothing is written."""
    for key in keys:
        node = node.value.get(key) if node is not None and isinstance(node.value, dict) else None
    return None if node is None or node.value is None else node


def _sources(root: Node) -> list[str]:
    """The data's key, or keys, that are read beside the target."""
    encoders = _child(root, "model", "encoders")
    if encoders is not None:
        return list(encoders.value)
    return ["source"] if _child(root, "model", "encoder") is not None else []


def _encoder_names(root: Node) -> Iterator[Fault]:
    encoders = _child(root, "model", "encoders")
    for name, node in encoders.value.items() if encoders is not None else ():
        if name in NOT_FOR_ENCODERS:
            message = f"`{name}` is a word of the language and cannot be an encoder's name"
            yield fault_at(node.place, "name", format_path(("model", "encoders", name)), message, "choose another name")


def _data_keys(root: Node) -> Iterator[Fault]:
    sources = _sources(root)
    for split in SPLITS:
        node = _child(root, "data", "parallel", split)
        if node is not None and isinstance(node.value, dict):  # else a number of pairs
            yield from _keys_of(node, ("data", "parallel", split), ("file", "target"), sources)
    hub = _child(root, "data", "hub")
    if hub is not None:
        yield from _keys_of(hub, ("data", "hub"), HUB_KEYS, sources)


def _keys_of(node: Node, path: tuple[str, ...], own: tuple[str, ...], sources: list[str]) -> Iterator[Fault]:
    allowed = [*own, *(sources or ["source"])]
    for name, value in node.value.items():
        if name not in allowed:
            message = f"`{path[-1]}` has no key `{name}`{did_you_mean(name, allowed)}"
            hint = f"allowed here: {quote_all(allowed)}"
            yield fault_at(value.place, "unknown", format_path((*path, name)), message, hint)
    misspelt = {closest_match(name, allowed) for name in node.value if name not in allowed}
    for name in sources:
        if _child(node, name) is None and name not in misspelt:
            message = f"`{path[-1]}` needs `{name}`"
            yield fault_at(node.place, "missing", format_path(path), message, _reader(name))


def _reader(name: str) -> str:
    reader = "the encoder" if name == "source" else f"the encoder `{name}`"
    return f"add `{name}:` the file or column that {reader} reads"


def _ties(root: Node) -> Iterator[Fault]:
    tie = _child(root, "model", "output", "tie")
    allowed = ["target", *_sources(root)]
    for index, node in enumerate(tie.value if tie is not None else ()):
        if node.value not in allowed:
            message = f"there is no embedding called `{node.value}`{did_you_mean(node.value, allowed)}"
            path = format_path(("model", "output", "tie", index))
            yield fault_at(node.mark, "unknown", path, message, f"the embeddings are {quote_all(allowed)}")


def _curriculum(root: Node) -> Iterator[Fault]:
    by = _child(root, "training", "curriculum", "by")
    allowed = [*_sources(root), "target"]
    if by is not None and by.value not in allowed:
        message = f"a pair has no side called `{by.value}`{did_you_mean(by.value, allowed)}"
        yield fault_at(by.mark, "unknown", "training.curriculum.by", message, f"its sides are {quote_all(allowed)}")
    workers = _child(root, "training", "workers")
    if workers is not None and workers.value and _child(root, "training", "curriculum") is not None:
        message = "workers fetch batches ahead, and what a curriculum has next is not known so early"
        yield fault_at(workers.place, "conflict", "training.workers", message, "remove `workers`")


def _stopping(root: Node) -> Iterator[Fault]:
    """Early stopping watches what is measured: it needs a validation, and BLEU and the like something to translate."""
    stopping = _child(root, "training", "early_stopping")
    if stopping is None:
        return
    parallel, hub = _child(root, "data", "parallel"), _child(root, "data", "hub")
    share = _child(root, "data", "babi", "val")
    none_held_out = share is not None and not share.value
    lacks_val = none_held_out or (parallel is not None and _child(parallel, "val") is None)
    if lacks_val or (hub is not None and "val" in hub.value and _child(hub, "val") is None):
        yield _needs_val(stopping.place)
    metric = _child(stopping, "metric")
    if metric is not None and (never := unavailable_metric(root, metric.value)) is not None:
        path = "training.early_stopping.metric"
        yield fault_at(metric.mark, "metric", path, f"`{metric.value}` is never measured: {never[0]}", never[1])
    goal = _child(stopping, "goal")
    watched = metric.value if metric is not None else "val/loss"
    highest = METRICS[watched.removeprefix("val/")].highest
    if goal is not None and highest is not None and goal.value > highest:
        message = f"`{watched}` is never above {highest:g}, and the goal is {goal.value:g}"
        path = "training.early_stopping.goal"
        yield fault_at(goal.mark, "value", path, message, f"write a number up to {highest:g}")


def unavailable_metric(root: Node, key: str) -> tuple[str, str] | None:
    """Return why a recipe's model never logs a metric such as `val/bleu`, and what to write; None if it does."""
    metric = metric_of(key)
    needs = metric.needs if metric else "tokens"
    if needs == "translations" and not _sources(root):
        return "a model without encoders translates nothing", "write `val/loss`, or give the model an encoder"
    kind = _child(root, "model", "output", "kind")
    if needs == "bits" and (kind is None or kind.value != "sigmoid"):
        return "the answers are of words, not of bits", "write `val/loss`, or `model: {output: {kind: sigmoid}}`"
    return None


def _needs_val(mark: Mark) -> Fault:
    message = "`early_stopping` watches a validation, and the data has no `val`"
    return fault_at(mark, "missing", "training.early_stopping", message, "name a `val` among the data")


def _chosen_word(node: Node | None) -> str:
    """The one word of a choice: its name, with settings or without."""
    return "" if node is None else next(iter(node.value)) if isinstance(node.value, dict) else str(node.value)


def _vectors(root: Node) -> Iterator[Fault]:
    """Bits are made and read where the tokenizer gives vectors of them."""
    kind = _chosen_word(_child(root, "data", "tokenizer")) or "word"
    embedding, output = _child(root, "model", "embedding"), _child(root, "model", "output", "kind")
    for node, path, value in ((embedding, "model.embedding", "linear"), (output, "model.output.kind", "sigmoid")):
        if node is not None and node.value == value and kind != "bits":
            message = f"`{value}` works on vectors of bits, and the tokenizer `{kind}` gives words"
            other = "learned" if node is embedding else "linear"
            yield fault_at(node.mark, "vectors", path, message, f"write `{other}`, or `data: {{tokenizer: bits}}`")
    tie = _child(root, "model", "output", "tie")
    if tie is None or not tie.value:
        return
    for node, path, value in ((embedding, "model.embedding", "learned"), (output, "model.output.kind", "linear")):
        if node is not None and node.value != value:
            message = f"`{node.value}` has no matrix with a row for each token, and `tie` shares one"
            yield fault_at(node.mark, "tie", path, message, f"write `{value}`, or remove `tie`")


def _answers(root: Node) -> Iterator[Fault]:
    """What goes with answers of one length, and what needs them."""
    length, kind = _child(root, "model", "output", "length"), _child(root, "model", "output", "kind")
    if kind is not None and kind.value == "identity" and length is None:
        message = "`identity` has no logit for the end of an answer"
        yield fault_at(
            kind.mark, "missing", "model.output.kind", message, "write `length:` beside it, or `kind: linear`"
        )
    smoothing = _child(root, "training", "label_smoothing")
    if smoothing is None or not smoothing.value:
        return
    for node, path in ((length, "model.output.length"), (kind, "model.output.kind")):
        if node is not None and node.value != "linear":
            message = "label smoothing asks every token to have some probability, and here some can never come"
            yield fault_at(node.mark, "value", path, message, "write `label_smoothing: 0`")


def _stories(root: Node) -> Iterator[Fault]:
    """Stories have their encoders, and a tokenizer that gives a word a token."""
    stories = _child(root, "data", "babi")
    if stories is None:
        return
    encoders = _child(root, "model", "encoders")
    names = tuple(sorted(encoders.value)) if encoders is not None else ()
    if names != STORIES:
        place = (encoders or _child(root, "model", "encoder") or root.value["model"]).place
        told = quote_all(list(names)) if names else "other encoders, or none"
        message = f"the data of `babi` are read by the encoders {quote_all(list(STORIES))}, and the model has {told}"
        yield fault_at(
            place, "encoders", "model.encoders", message, "write `encoders: {question: [...], story: [...]}`"
        )
    split = _child(root, "data", "tokenizer", "word", "split")
    if split is None or split.value != "spaces":
        place = (_child(root, "data", "tokenizer") or stories).place
        message = "a story is made of words between spaces, and its answer is one of them"
        yield fault_at(
            place, "tokenizer", "data.tokenizer", message, "write `tokenizer: {word: {split: spaces, joint: true}}`"
        )
    tasks = stories.value["tasks"]
    if not tasks.value:
        yield fault_at(tasks.place, "empty", "data.babi.tasks", "no task is named", "write `tasks: [1]`")


def _machine(root: Node) -> Iterator[Fault]:
    """A list of devices names each once, and only what has numbers; Apple's accelerator is one device."""
    accelerator, strategy = (_chosen_word(_child(root, "trainer", key)) for key in ("accelerator", "strategy"))
    devices = _child(root, "trainer", "devices")
    if devices is not None and isinstance(devices.value, list):
        numbers = [each.value for each in devices.value]
        twice = [each for each in numbers if numbers.count(each) > 1]
        message = f"`devices` names the device {twice[0]} twice" if twice else ""
        message = message if numbers else "`devices` is an empty list"
        message = message or ("CPUs have no numbers" if accelerator == "cpu" else "")
        if message:
            hint = "write how many there are, or `auto`"
            yield fault_at(devices.mark, "value", "trainer.devices", message, hint)
    if accelerator == "mps" and strategy in ("ddp", "fsdp"):
        node = _child(root, "trainer", "strategy")
        assert node is not None
        message = f"mps has one device, and `{strategy}` is for several"
        yield fault_at(node.mark, "conflict", "trainer.strategy", message, "remove `strategy`")
    precision, sharded = _child(root, "training", "precision"), _child(root, "trainer", "strategy")
    if precision is not None and precision.value == "16-mixed" and accelerator == "cpu":
        message = "a CPU does not train in `16-mixed`"
        hint = "write `precision: bf16-mixed`, or `32`"
        yield fault_at(precision.mark, "conflict", "training.precision", message, hint)
    if sharded is not None and strategy == "fsdp" and precision is not None and precision.value in (64, "16-mixed"):
        message = f"`fsdp` does not train in `precision: {precision.value}`"
        yield fault_at(sharded.mark, "conflict", "trainer.strategy", message, "write `ddp`, or `precision: 32`")
