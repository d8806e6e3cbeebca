"""Rules of `training.distillation` and the run that it names: what it gives suits the student."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from blocks.core.contract import Block, Output
from blocks.core.fixes import Fix, Remove
from composer.checks.problem import Problem, Problems, faults
from composer.data.pairs import text_names
from composer.data.teacher import TEACHER, find_teacher
from composer.data.tokenizer import Tokenizers
from composer.errors import ComposerError, Fault, KeyPath
from composer.inference.lines import source_form
from composer.model.builder import build
from composer.model.encoder_decoder import EncoderDecoder, training_logits
from composer.model.named_outputs import keep_named_outputs
from composer.recipe.recipe import Recipe, load
from composer.run_dir import RunDir
from composer.suggest import did_you_mean

OTHER_TEACHER = "name another teacher"


def teacher_faults(recipe: Recipe, folders: Sequence[Path], may_be_missing: bool) -> list[Fault]:
    """Return what is wrong with the teacher of a recipe, [] without one."""
    if recipe.training.distillation is None:
        return []
    folder = find_teacher(recipe, folders)
    if folder is None:
        return [] if may_be_missing else [_missing(recipe, folders)]
    run = RunDir(folder)
    try:
        if not run.weights.is_file():
            message, fix = f"`{folder}` has no weights: it is no run that has finished", "finish it"
            return [recipe.fault("run", TEACHER, message, fix)]
        teacher, tokenizers = load(run.recipe), Tokenizers.load(run.tokenizer)
        return [*faults(recipe, _problems(recipe, teacher, tokenizers))]
    except ComposerError as error:
        reasons = "; ".join(fault.message for fault in error.faults)
        return [
            recipe.fault("run", TEACHER, f"`{folder}` cannot be opened: {reasons}", OTHER_TEACHER)
        ]


def _missing(recipe: Recipe, folders: Sequence[Path]) -> Fault:
    assert recipe.training.distillation is not None
    name = recipe.training.distillation.teacher
    where = " and ".join(dict.fromkeys(f"`{folder}`" for folder in folders))
    fix = "train the teacher first, write its path from the recipe's folder, or pass `--data DIR`"
    return recipe.fault("file", TEACHER, f"no run folder `{name}` in {where}", fix)


def _problems(recipe: Recipe, teacher: Recipe, tokenizers: Tokenizers) -> Problems:
    """Yield what differs between student and teacher, and what the teacher cannot give."""
    if sorted(recipe.sources) != sorted(teacher.sources):
        own, theirs = (", ".join(one.sources) or "no source" for one in (recipe, teacher))
        message = f"the teacher reads {theirs}, and this model {own}"
        yield Problem("encoders", TEACHER, message, "give their encoders the same names")
        return
    for side in recipe.sources:
        if source_form(recipe, side) != source_form(teacher, side):
            message = f"the teacher reads `{side}` in another form"
            yield Problem(
                "encoders", TEACHER, message, "write the settings of `data` of its recipe"
            )
            return
    if not has_tokenizer_of(recipe, tokenizers):
        yield other_tokenizer()
        return
    yield from _heads(recipe, teacher)
    with torch.device("meta"):
        model = build(teacher, tokenizers.sizes)
    for block in model.modules():
        if isinstance(block, Block) and block.not_packed and recipe.data.packing:
            message = f"rows are packed, and `{block.path[-1]}` of the teacher {block.not_packed}"
            yield Problem("packing", TEACHER, message, Fix(OTHER_TEACHER))
            return
    yield from _hidden(recipe, model, tokenizers)


def has_tokenizer_of(recipe: Recipe, tokenizers: Tokenizers) -> bool:
    """True if a training of the recipe can have these tokenizers: its settings are theirs."""
    if {*text_names(recipe)} != {
        *tokenizers.sides
    } or recipe.data.lowercase != tokenizers.lowercase:
        return False
    if recipe.tokenizer.word == "file":  # the same file may have another path
        return recipe.tokenizer.identity() == str(tokenizers.parts[0].to_str())
    return recipe.canonical["data"]["tokenizer"] == tokenizers.settings


def other_tokenizer() -> Problem:
    """Return the problem of a teacher with another tokenizer."""
    message = "the teacher has another tokenizer, so its probabilities are of other tokens"
    fix = "write `data.tokenizer` and `data.lowercase` as in the recipe of the teacher"
    return Problem("tokenizer", TEACHER, message, f"{fix}, or give both `tokenizer: {{file: ...}}`")


def _heads(recipe: Recipe, teacher: Recipe) -> Problems:
    """Yield what of two output heads cannot be compared token by token."""
    own, theirs = recipe.model.output, teacher.model.output
    if theirs.ctc is not None:
        yield Problem(
            "output", TEACHER, "the teacher has `ctc`, with no logits of its tokens", OTHER_TEACHER
        )
    elif theirs.kind.trains_on_cost or theirs.kind.evaluates_on_cost:
        message = f"the teacher has `{theirs.kind.word}`, which was trained without all logits"
        yield Problem("output", TEACHER, message, OTHER_TEACHER)
    impossible = own.kind.has_impossible_tokens or theirs.kind.has_impossible_tokens
    if own.length != theirs.length or (impossible and own.kind.word != theirs.kind.word):
        message = "other tokens are impossible for the teacher than for this model"
        fix = "write `kind` and `length` of `model.output` as in the recipe of the teacher"
        yield Problem("output", TEACHER, message, fix)


def _hidden(recipe: Recipe, teacher: EncoderDecoder, tokenizers: Tokenizers) -> Problems:
    """Yield names of `hidden` that do not exist, and outputs of different positions."""
    assert recipe.training.distillation is not None
    pairs = recipe.training.distillation.hidden
    if not pairs:
        return
    with torch.device("meta"):
        student = build(recipe, tokenizers.sizes)
    outputs = {"student": _named(student), "teacher": _named(teacher)}
    for pair in pairs:
        unknown = [
            *_unknown_names(pair.at, {"student": pair.student, "teacher": pair.teacher}, outputs)
        ]
        yield from unknown
        if unknown:
            continue
        own, theirs = outputs["student"][pair.student], outputs["teacher"][pair.teacher]
        if own.mask.shape != theirs.mask.shape:
            message = f"`{pair.student}` and `{pair.teacher}` have different positions"
            yield Problem("length", pair.at, message, Fix("remove this pair", Remove(pair.at)))


def _unknown_names(
    path: KeyPath, names: dict[str, str], outputs: dict[str, dict[str, Output]]
) -> Iterator[Problem]:
    for side, name in names.items():
        known = outputs[side]
        if name not in known:
            message = f"the {side} has no output called `{name}`{did_you_mean(name, known)}"
            fix = "give a block a name by `as`; that of an encoder is called `encoder.NAME`"
            yield Problem("name", (*path, side), message, fix)


def _named(model: EncoderDecoder) -> dict[str, Output]:
    """Return the named outputs of a model for a short pair."""
    with torch.no_grad(), keep_named_outputs(model) as outputs:
        training_logits(model, {})
    return dict(outputs)
