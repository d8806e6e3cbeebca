"""Checks of a recipe's embeddings and output head beside its data, its tied matrices and its training."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from composer.errors import Fault, KeyPath
from composer.recipe.data_sections import TableColumn
from composer.recipe.schema_reader import quote_all
from composer.suggest import did_you_mean

if TYPE_CHECKING:
    from composer.recipe.recipe import Recipe

WITHOUT_EMBEDDING = {"image": "images", "audio": "sounds", "vectors": "vectors"}
"""Kinds of columns that are no text, in words."""
KIND, CTC, LENGTH = ("model", "output", "kind"), ("model", "output", "ctc"), ("model", "output", "length")
CURRICULUM, SMOOTHING = ("training", "curriculum"), ("training", "label_smoothing")


def output_faults(recipe: Recipe) -> Iterator[Fault]:
    """Yield the faults of embeddings and output head."""
    for check in (_tied_embeddings, _bit_vectors, _answers, _own_costs, _ctc):
        yield from check(recipe)


def _tied_embeddings(recipe: Recipe) -> Iterator[Fault]:
    allowed = ["target", *recipe.sources]
    for index, side in enumerate(recipe.model.output.tie):
        path: KeyPath = ("model", "output", "tie", index)
        column = recipe.data.table.of_side(side) if recipe.data.table else None
        kind = column.kind if isinstance(column, TableColumn) else "text"
        if side not in allowed:
            message = f"there is no embedding called `{side}`{did_you_mean(side, allowed)}"
            yield recipe.fault("unknown", path, message, f"the embeddings are {quote_all(allowed)}")
        elif kind in WITHOUT_EMBEDDING:
            message = f"`{side}` reads {WITHOUT_EMBEDDING[kind]} and has no embedding"
            yield recipe.fault("tie", path, message, "remove it from `tie`")


def _bit_vectors(recipe: Recipe) -> Iterator[Fault]:
    """Check that bits are read and written where the tokenizer gives vectors of them, and tokens where it does not."""
    tokenizer, output = recipe.data.tokenizer, recipe.model.output
    choices = ((("model", "embedding"), recipe.model.embedding, "learned"), (KIND, output.kind, "linear"))
    for path, choice, for_tokens in choices:
        if choice.is_of_bits and not tokenizer.gives_bits:
            message = f"`{choice.word}` works on vectors of bits, and the tokenizer `{tokenizer.word}` gives words"
            yield recipe.fault("vectors", path, message, f"write `{for_tokens}`, or `data: {{tokenizer: bits}}`")
        if output.tie and not choice.has_rows:
            message = f"`{choice.word}` has no matrix with a row for each token, and `tie` shares one"
            yield recipe.fault("tie", path, message, f"write `{for_tokens}`, or remove `tie`")


def _answers(recipe: Recipe) -> Iterator[Fault]:
    """Check what needs answers of one length, and what cannot go with them."""
    length, head = recipe.model.output.length, recipe.model.output.kind
    if not (head.has_end or length):
        message = f"`{head.word}` has no logit for the end of an answer"
        yield recipe.fault("missing", KIND, message, "add `length:`, or `kind: linear`")
    if length and recipe.training.window:
        message = "a window of a text goes on where the one before ended: no answer of a fixed length is in it"
        yield recipe.fault("conflict", LENGTH, message, "remove `length`, or `window`")
    decoder, limit = recipe.decoding.word, recipe.decoding.max_length
    if length and limit <= length:
        message = f"answers have {length:,} tokens and their end, and decoding cuts them after {limit:,}"
        fix = f"write `decoding: {{{decoder}: {{max_length: {length + 1}}}}}`, or more"
        yield recipe.fault("length", LENGTH, message, fix)
    impossible = ([LENGTH] if length else []) + ([KIND] if head.has_impossible_tokens else [])
    for path in impossible if recipe.training.label_smoothing else ():
        message = "label smoothing gives every token some probability, and here some tokens are impossible"
        yield recipe.fault("value", path, message, "write `label_smoothing: 0`")


def _own_costs(recipe: Recipe) -> Iterator[Fault]:
    """Check that nothing needs the logits of all tokens where a head trains without them."""
    head = recipe.model.output.kind
    for path in (LENGTH, SMOOTHING, CURRICULUM) if head.trains_on_cost else ():
        if recipe.settings_at(path):
            message = f"`{path[-1]}` needs the logits of all tokens, and `{head.word}` trains without them"
            yield recipe.fault("conflict", path, message, f"remove `{path[-1]}`, or write `kind: linear`")
    if recipe.model.output.ctc and head.evaluates_on_cost:
        message = f"CTC changes the probability of every token, and `{head.word}` measures the target alone"
        yield recipe.fault("conflict", CTC, message, "remove `ctc`, or write `kind: linear`")
    if head.compile_problem and recipe.training.compile:
        message = f"`{head.word}` {head.compile_problem}"
        yield recipe.fault("conflict", ("training", "compile"), message, "remove `compile`")


def _ctc(recipe: Recipe) -> Iterator[Fault]:
    """Check that either a decoder or CTC alone writes the answers, and CTC has frames and answers of any length."""
    ctc, decoder = recipe.model.output.ctc, recipe.model.decoder
    is_alone = ctc is not None and ctc.weight == 1
    if ctc and not recipe.sources:
        message = "CTC reads the frames of an encoder, and the model has none"
        yield recipe.fault("memory", CTC, message, "remove `ctc`, or add an encoder")
    if is_alone and decoder:
        message = "with `weight: 1` CTC is alone, and a decoder would learn nothing"
        yield recipe.fault("conflict", ("model", "decoder"), message, "remove `decoder`, or write a `weight` below 1")
    if not is_alone and not decoder:
        hint = "write `decoder:` and a list of blocks, or `output: {ctc: {weight: 1}}`"
        yield recipe.fault("missing", ("model",), "`decoder` is missing", hint)
    for path in (LENGTH, *([CURRICULUM] if is_alone else [])):
        if ctc and recipe.settings_at(path):
            hint = f"remove `{path[-1]}`, or `ctc`"
            yield recipe.fault("conflict", path, f"`{path[-1]}` does not go with CTC", hint)
