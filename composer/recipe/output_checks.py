"""Checks of a recipe's embeddings and output head beside its data, its tied matrices and its training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from composer.errors import Fault, did_you_mean, fault_at, format_path
from composer.recipe.schema_reader import quote_all
from composer.recipe.yaml_reader import Node

TARGETS_ONLY = ("char_lstm",)
"""Output heads that measure given targets without the logits of all tokens."""
OWN_COSTS = ("adaptive", "sampled", *TARGETS_ONLY)
"""Output heads that train without them."""
WITHOUT_EMBEDDING = {"image": "images", "audio": "sounds", "vectors": "vectors"}
"""Kinds of columns that are no text, in words."""
NEEDS_LOGITS = (("model", "output", "length"), ("training", "label_smoothing"), ("training", "curriculum"))


def output_faults(root: Node, sources: Sequence[str]) -> Iterator[Fault]:
    """Yield the faults of embeddings and output head; `sources` are the keys that encoders read."""
    yield from _tied_embeddings(root, sources)
    yield from _bit_vectors(root)
    yield from _answers(root)
    yield from _own_costs(root)
    yield from _ctc(root, sources)


def get(node: Node | None, *keys: str) -> Node | None:
    """Return the node under the keys, or None if nothing is written there."""
    for key in keys:
        node = node.value.get(key) if node is not None and isinstance(node.value, dict) else None
    return None if node is None or node.value is None else node


def chosen_word(node: Node | None) -> str:
    """Return the name in a choice, with settings or without; "" if nothing is written."""
    return "" if node is None else next(iter(node.value)) if isinstance(node.value, dict) else str(node.value)


def _tied_embeddings(root: Node, sources: Sequence[str]) -> Iterator[Fault]:
    tie = get(root, "model", "output", "tie")
    allowed = ["target", *sources]
    for index, node in enumerate(tie.value if tie is not None else ()):
        if node.value not in allowed:
            message = f"there is no embedding called `{node.value}`{did_you_mean(node.value, allowed)}"
            hint = f"the embeddings are {quote_all(allowed)}"
            yield fault_at(node.mark, "unknown", f"model.output.tie[{index}]", message, hint)
            continue
        kind = get(root, "data", "table", node.value, "kind")
        if kind is not None and kind.value in WITHOUT_EMBEDDING:
            message = f"`{node.value}` reads {WITHOUT_EMBEDDING[kind.value]} and has no embedding"
            yield fault_at(node.mark, "tie", f"model.output.tie[{index}]", message, "remove it from `tie`")


def _bit_vectors(root: Node) -> Iterator[Fault]:
    """Check that bits are read and written where the tokenizer gives vectors of them, and tokens where it does not."""
    tokenizer = chosen_word(get(root, "data", "tokenizer")) or "word"
    tie = get(root, "model", "output", "tie")
    words = ((("embedding",), "linear", ("learned",)), (("output", "kind"), "sigmoid", ("linear", "sampled")))
    for keys, for_bits, with_rows in words:
        node, path = get(root, "model", *keys), format_path(("model", *keys))
        word, for_tokens = chosen_word(node), with_rows[0]
        if node is None:
            continue
        if word == for_bits and tokenizer != "bits":
            message = f"`{for_bits}` works on vectors of bits, and the tokenizer `{tokenizer}` gives words"
            yield fault_at(node.mark, "vectors", path, message, f"write `{for_tokens}`, or `data: {{tokenizer: bits}}`")
        if word not in with_rows and tie is not None and tie.value:
            message = f"`{word}` has no matrix with a row for each token, and `tie` shares one"
            yield fault_at(node.mark, "tie", path, message, f"write `{for_tokens}`, or remove `tie`")


def _answers(root: Node) -> Iterator[Fault]:
    """Check what needs answers of one length, and what cannot go with them."""
    length, kind = get(root, "model", "output", "length"), get(root, "model", "output", "kind")
    if kind is not None and kind.value == "identity" and length is None:
        message = "`identity` has no logit for the end of an answer"
        hint = "add `length:`, or `kind: linear`"
        yield fault_at(kind.mark, "missing", "model.output.kind", message, hint)
    window = get(root, "training", "window")
    if length is not None and window is not None and window.value:
        message = "a window of a text goes on where the one before ended: no answer of a fixed length is in it"
        yield fault_at(length.mark, "conflict", "model.output.length", message, "remove `length`, or `window`")
    smoothing = get(root, "training", "label_smoothing")
    if smoothing is None or not smoothing.value:
        return
    for node, path in ((length, "model.output.length"), (kind, "model.output.kind")):
        if node is not None and (node is length or chosen_word(node) in ("sigmoid", "identity")):
            message = "label smoothing gives every token some probability, and here some tokens are impossible"
            yield fault_at(node.mark, "value", path, message, "write `label_smoothing: 0`")


def _own_costs(root: Node) -> Iterator[Fault]:
    """Check that nothing needs the logits of all tokens where a head trains without them."""
    kind = chosen_word(get(root, "model", "output", "kind"))
    has_own = kind in OWN_COSTS or get(root, "model", "output", "kind", "cnn", "samples") is not None
    for path in NEEDS_LOGITS if has_own else ():
        node = get(root, *path)
        if node is not None and node.value:
            message = f"`{path[-1]}` needs the logits of all tokens, and `{kind}` trains without them"
            hint = f"remove `{path[-1]}`, or write `kind: linear`"
            yield fault_at(node.place, "conflict", format_path(path), message, hint)
    ctc = get(root, "model", "output", "ctc")
    if ctc is not None and kind in TARGETS_ONLY:
        message = f"CTC changes the probability of every token, and `{kind}` measures the target alone"
        yield fault_at(ctc.place, "conflict", "model.output.ctc", message, "remove `ctc`, or write `kind: linear`")
    compiled = get(root, "training", "compile")
    if kind == "adaptive" and compiled is not None and compiled.value:
        message = "`adaptive` sorts the tokens of a batch into clusters of any size, each of which is compiled anew"
        yield fault_at(compiled.mark, "conflict", "training.compile", message, "remove `compile`")


def _ctc(root: Node, sources: Sequence[str]) -> Iterator[Fault]:
    """Check that either a decoder or CTC alone writes the answers, and CTC has frames and answers of any length."""
    ctc, decoder = get(root, "model", "output", "ctc"), get(root, "model", "decoder")
    if ctc is not None and not sources:
        message, hint = "CTC reads the frames of an encoder, and the model has none", "remove `ctc`, or add an encoder"
        yield fault_at(ctc.place, "memory", "model.output.ctc", message, hint)
    weight = get(root, "model", "output", "ctc", "weight")
    is_alone, model = weight is not None and weight.value == 1, get(root, "model")
    if is_alone and decoder is not None:
        message, hint = "with `weight: 1` CTC is alone, and a decoder would learn nothing", "remove `decoder`, or"
        yield fault_at(decoder.place, "conflict", "model.decoder", message, f"{hint} write a `weight` below 1")
    own = model.value.get("decoder") if model is not None else None
    is_empty = own is not None and own.value is None and not own.text  # which has an error of its own
    if model is not None and not is_alone and decoder is None and not is_empty:
        hint = "write `decoder:` and a list of blocks, or `output: {ctc: {weight: 1}}`"
        yield fault_at(model.place, "missing", "model", "`decoder` is missing", hint)
    for path in (("model", "output", "length"), *([("training", "curriculum")] if is_alone else [])):
        node = get(root, *path)
        if ctc is not None and node is not None:
            hint = f"remove `{path[-1]}`, or `ctc`"
            yield fault_at(node.place, "conflict", format_path(path), f"`{path[-1]}` does not go with CTC", hint)
