"""What a run's attentions read, sentence by sentence: for every block and head, how much of each token."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from blocks.core.contract import Record
from composer.data.encoding import encode_side
from composer.data.sources import TARGET, source_names
from composer.data.tokenizer import Tokenizers
from composer.inference.decode import SourceIds, decode_all, evaluation_mode, pad, source_tensor
from composer.inference.run import Run, check_stories, oom_as_run_failed, split_columns
from composer.model.encoder_decoder import StepInputs
from composer.model.vocabulary import BOS, EOS, SPECIAL_TOKENS
from composer.recipe.recipe import Recipe, source_path
from composer.viz.axis_labels import BLANK, Tokens, named, passes, sides_of, what_is_read
from composer.viz.frames import Film, films
from composer.viz.memory import Memory, memories

LONGEST = 100
"""Tokens of a source, and of a translation, at most: a picture of more cannot be read."""
WEIGHTS, BRANCHES = "weights", "branches"
"""What attention calls what it records, and what attention over branches does."""
HERE = "self_attention"


@dataclass(frozen=True)
class Attention:
    """The weights of one block. `block` is its path as the recipe writes it, `word` its word, `side` who it is part of.

    In the decoder a row is named after the token that is written there.
    """

    block: str
    word: str
    side: str
    rows: list[str]  # T
    columns: list[str]  # S
    weights: np.ndarray  # (H, T, S)


@dataclass(frozen=True)
class Alignment:
    """One sentence: what was read, what was written, and how. `note` says why there are no pictures, if so.

    `films` show how the grids changed on the way, `memories` what the memories held.
    """

    texts: Mapping[str, str]
    written: str
    attentions: Sequence[Attention]
    note: str = ""
    films: Sequence[Film] = ()
    memories: Sequence[Memory] = ()

    def _repr_html_(self) -> str:
        """How a notebook shows it."""
        from composer.viz.page import framed

        return framed(self)


def alignments(run: Run, lines: Sequence[str], origin: str = "") -> list[Alignment]:
    """The weights with which the run translates each line; of a model without encoders, with which it reads the line.

    A line has the texts of several encoders with tabs between. Raises DataError where it has not, and RunFailed.
    """
    sides = source_names(run.recipe)
    rows = [split_columns(line, sides, number, origin) for number, line in enumerate(lines, start=1)]
    texts = {side: [row[place] for row in rows] for place, side in enumerate(sides)}
    check_stories(run.recipe, texts, range(1, len(lines) + 1), origin)
    ids = {side: encode_side(run.recipe, run.tokenizers, side, each) for side, each in texts.items()}
    with oom_as_run_failed(ids):
        found = answers(run, ids) if sides else run.tokenizers.encode(TARGET, lines)
        return [
            alignment(run, {side: texts[side][at] for side in sides}, {side: ids[side][at] for side in sides}, answer)
            for at, answer in enumerate(found)
        ]


def answers(run: Run, ids: Mapping[str, Sequence[SourceIds]]) -> list[Sequence[int]]:
    """The ids of the translation of each row, as the recipe decodes."""
    return [best.ids for best, *_ in decode_all([run.model], ids, run.recipe.decoding)]


def alignment(run: Run, texts: Mapping[str, str], ids: Mapping[str, SourceIds], answer: Sequence[int]) -> Alignment:
    """The weights of one sentence, given what is written."""
    written = run.tokenizers.decode(TARGET, [answer])[0]
    longest = max((len(row) for row in [*ids.values(), *([answer] if run.model.room else [])]), default=0)
    if longest > LONGEST:
        return Alignment(texts, written, [], f"its {longest} tokens are more than the {LONGEST} of a picture")
    note = f"the first {LONGEST} of {len(answer)} tokens" if len(answer) > LONGEST else ""
    answer = answer[:LONGEST]
    tokens = {side: shown(run.tokenizers, side, row) for side, row in ids.items()}
    tokens[TARGET] = [SPECIAL_TOKENS[BOS], *names(run.tokenizers, TARGET, answer)]
    records = recorded(run, ids, answer)
    found = list(attentions(run.recipe, records, tokens))
    told = films(run.recipe, records, tokens), memories(run.recipe, records, tokens)
    return Alignment(texts, written, found, note, *told)


def recorded(run: Run, ids: Mapping[str, SourceIds], answer: Sequence[int]) -> dict[Record, list[Tensor]]:
    """What the blocks record of one sentence, its translation given."""
    device = run.model.device
    records: dict[Record, list[Tensor]] = {}
    read = {side: source_tensor([row], device) for side, row in ids.items()}
    with evaluation_mode([run.model]):
        # not the model itself: where it is compiled, that would be compiled anew
        run.model.forward(read, pad([[BOS, *answer]], device), StepInputs(records=records))
    return records


def shown(tokenizers: Tokenizers, side: str, row: SourceIds) -> list[str]:
    """What stands at the positions of a source: its tokens and eos; of a story its sentences."""
    if isinstance(row, np.ndarray):
        return tokenizers.decode(side, row.tolist())
    return [*names(tokenizers, side, row), SPECIAL_TOKENS[EOS]]


def names(tokenizers: Tokenizers, side: str, ids: Sequence[int]) -> list[str]:
    """Each token as a reader would show it; a dot for a blank."""
    return [text if text.strip() else BLANK for text in tokenizers.decode(side, [[each] for each in ids])]


# ------------------------------------------------------------------------------------------- from records to maps


def attentions(recipe: Recipe, records: Mapping[Record, Sequence[Tensor]], tokens: Tokens) -> Iterator[Attention]:
    """Every attention that was recorded, in the order in which they ran."""
    for record, recorded in records.items():
        values = [maps for value in recorded if (maps := maps_in(record, value)) is not None]
        if values:
            sides = sides_of(record.path, tokens)
            for part in passes(values, [len(tokens[side]) for side in sides]):
                length = sum(value.shape[1] for value in part)
                side = next((each for each in sides if len(tokens[each]) == length), sides[0])
                yield attention(recipe, record, side, part, tokens)


def attention(recipe: Recipe, record: Record, side: str, values: Sequence[Tensor], tokens: Tokens) -> Attention:
    """The weights of one block over all positions of a side."""
    word = str(record.path[-1])
    whole = beside(values) if word == HERE else on_top(values)  # (T, H, S)
    weights = whole.transpose(0, 1).float().cpu().numpy()  # (H, T, S)
    rows = [*tokens[side][1:], SPECIAL_TOKENS[EOS]] if side == TARGET else tokens[side]
    read = tokens[side] if word == HERE else what_is_read(recipe, record.path, tokens)
    times = "".join(f", iteration {each + 1}" for each in record.iterations)
    block = source_path(recipe, record.path).removeprefix("model.")
    (_, length, width), answer = weights.shape, len(tokens[TARGET])
    return Attention(f"{block}{times}", word, side, named(rows, length, answer), named(read, width, answer), weights)


def maps_in(record: Record, value: Tensor) -> Tensor | None:
    """The weights that were recorded, (1, t, H, S); None where it is something else."""
    if record.name == BRANCHES and value.dim() == 3:
        return value[:, :, None]
    return value if record.name == WEIGHTS and value.dim() == 4 else None


def on_top(values: Sequence[Tensor]) -> Tensor:
    """Consecutive positions that read the same, one after another. (1, t, H, S) each -> (T, H, S)"""
    widest = max(value.shape[3] for value in values)
    return torch.cat([F.pad(value[0], (0, widest - value.shape[3])) for value in values])


def beside(values: Sequence[Tensor]) -> Tensor:
    """Consecutive positions that read each other. The last slot of each value is its own last position; slots before
    the first position are those that a window keeps empty. (1, t, H, N) each -> (T, H, T)"""
    rows, after = [], 0
    length = sum(value.shape[1] for value in values)
    for value in values:
        after += value.shape[1]
        past = value.shape[3] - after
        seen = value[0, :, :, max(past, 0) :]  # (t, H, after)
        rows.append(F.pad(seen, (max(-past, 0), length - after)))
    return torch.cat(rows)
