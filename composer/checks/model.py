"""Rules of `model` without its blocks, and of what decodes: embeddings, output head, ties."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from blocks.core.fixes import Fix, Remove, Set, remove, write
from composer.checks.problem import Problem, Problems
from composer.errors import KeyPath
from composer.recipe.data_sections import TableColumn
from composer.recipe.schema_reader import quote_all
from composer.suggest import did_you_mean

if TYPE_CHECKING:
    from composer.recipe.recipe import Recipe

WITHOUT_EMBEDDING = {"image": "images", "audio": "sounds", "vectors": "vectors"}
"""Kinds of columns that are no text, in words."""
KIND, CTC, LENGTH = (
    ("model", "output", "kind"),
    ("model", "output", "ctc"),
    ("model", "output", "length"),
)
CURRICULUM, SMOOTHING = ("training", "curriculum"), ("training", "label_smoothing")
COMPILE, DECODER = ("training", "compile"), ("model", "decoder")


def tied_embeddings(recipe: Recipe) -> Problems:
    """Sides that share their matrix have one."""
    allowed = ["target", *recipe.sources]
    for index, side in enumerate(recipe.model.output.tie):
        path: KeyPath = ("model", "output", "tie", index)
        column = recipe.data.table.of_side(side) if recipe.data.table else None
        kind = column.kind if isinstance(column, TableColumn) else "text"
        if side not in allowed:
            message = f"there is no embedding called `{side}`{did_you_mean(side, allowed)}"
            yield Problem("unknown", path, message, f"the embeddings are {quote_all(allowed)}")
        elif kind in WITHOUT_EMBEDDING:
            message = f"`{side}` reads {WITHOUT_EMBEDDING[kind]} and has no embedding"
            yield Problem("tie", path, message, Fix("remove it from `tie`", Remove(path)))


def bit_vectors(recipe: Recipe) -> Problems:
    """Bits are read and written if the tokenizer gives vectors of them, tokens otherwise."""
    tokenizer, output = recipe.data.tokenizer, recipe.model.output
    choices = (
        (("model", "embedding"), recipe.model.embedding, "learned"),
        (KIND, output.kind, "linear"),
    )
    for path, choice, for_tokens in choices:
        if choice.is_of_bits and not tokenizer.gives_bits:
            message = (
                f"`{choice.word}` works on vectors of bits, and the tokenizer `{tokenizer.word}`"
                " gives words"
            )
            fix = Fix(
                f"write `{for_tokens}`, or `data: {{tokenizer: bits}}`", Set(path, for_tokens)
            )
            yield Problem("vectors", path, message, fix)
        if output.tie and not choice.has_rows:
            message = (
                f"`{choice.word}` has no matrix with a row for each token, and `tie` shares one"
            )
            yield Problem(
                "tie",
                path,
                message,
                Fix(f"write `{for_tokens}`, or remove `tie`", Set(path, for_tokens)),
            )


def answers(recipe: Recipe) -> Problems:
    """Answers have one length where an output needs it, and no setting contradicts that."""
    length, head = recipe.model.output.length, recipe.model.output.kind
    if not (head.has_end or length):
        message = f"`{head.word}` has no logit for the end of an answer"
        yield Problem("missing", KIND, message, "add `length:`, or `kind: linear`")
    if length and recipe.training.window:
        message = (
            "a window of a text goes on where the one before ended: no answer of a fixed length is"
            " in it"
        )
        yield Problem("conflict", LENGTH, message, remove(LENGTH, ", or `window`"))
    decoding = recipe.decoding
    if length and decoding.max_length <= length:
        limit = decoding.max_length
        message = (
            f"answers have {length:,} tokens and their end, and decoding cuts them after {limit:,}"
        )
        words = f"write `decoding: {{{decoding.word}: {{max_length: {length + 1}}}}}`, or more"
        yield Problem(
            "length", LENGTH, message, Fix(words, Set((*decoding.at, "max_length"), length + 1))
        )
    impossible = ([LENGTH] if length else []) + ([KIND] if head.has_impossible_tokens else [])
    for path in impossible if recipe.training.label_smoothing else ():
        message = (
            "label smoothing gives every token some probability, and here some tokens are"
            " impossible"
        )
        yield Problem("value", path, message, write(SMOOTHING, 0))


def own_costs(recipe: Recipe) -> Problems:
    """Nothing needs the logits of all tokens where a head trains without them."""
    head, training = recipe.model.output.kind, recipe.training
    needs = (
        (LENGTH, recipe.model.output.length),
        (SMOOTHING, training.label_smoothing),
        (CURRICULUM, training.curriculum),
    )
    for path, setting in needs if head.trains_on_cost else ():
        if setting:
            message = (
                f"`{path[-1]}` needs the logits of all tokens, and `{head.word}` trains without"
                " them"
            )
            yield Problem("conflict", path, message, remove(path, ", or write `kind: linear`"))
    if recipe.model.output.ctc and head.evaluates_on_cost:
        message = (
            f"CTC changes the probability of every token, and `{head.word}` measures the target"
            " alone"
        )
        yield Problem("conflict", CTC, message, remove(CTC, ", or write `kind: linear`"))
    if head.compile_problem and training.compile:
        message = f"`{head.word}` {head.compile_problem}"
        yield Problem("conflict", COMPILE, message, remove(COMPILE))


def ctc(recipe: Recipe) -> Problems:
    """A decoder or CTC alone writes the answers, and CTC has frames and answers of any length."""
    settings, decoder, training = recipe.model.output.ctc, recipe.model.decoder, recipe.training
    is_alone = settings is not None and settings.weight == 1
    if settings and not recipe.sources:
        message = "CTC reads the frames of an encoder, and the model has none"
        yield Problem("memory", CTC, message, remove(CTC, ", or add an encoder"))
    if is_alone and decoder:
        message = "with `weight: 1` CTC is alone, and a decoder would learn nothing"
        yield Problem(
            "conflict", DECODER, message, remove(DECODER, ", or write a `weight` below 1")
        )
    if not is_alone and not decoder:
        hint = "write `decoder:` and a list of blocks, or `output: {ctc: {weight: 1}}`"
        yield Problem("missing", ("model",), "`decoder` is missing", hint)
    for path, setting in (
        (LENGTH, recipe.model.output.length),
        (CURRICULUM, is_alone and training.curriculum),
    ):
        if settings and setting:
            yield Problem(
                "conflict", path, f"`{path[-1]}` does not go with CTC", remove(path, ", or `ctc`")
            )


def engine(recipe: Recipe) -> Problems:
    """The engine that decodes does so in the precision."""
    decoding = recipe.decoding
    if decoding.engine == "onnxruntime" and decoding.precision != "float32":
        path = (*decoding.at, "precision")
        fix = write(path, "float32", ", or `engine: torch`")
        yield Problem("conflict", path, "onnxruntime decodes in `float32` alone", fix)


RULES: Sequence[Callable[[Recipe], Problems]] = (
    tied_embeddings,
    bit_vectors,
    answers,
    own_costs,
    ctc,
    engine,
)
