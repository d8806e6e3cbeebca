"""Weights, text and the command line of a script.

This module is written out into scripts, as `standalone` is. What is not PyTorch is imported where it is needed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor

from composer.data.stories import normalize_sentence, split_sentences
from composer.data.tokenizer import Tokenizers
from composer.inference.decode import batches, best_over_lengths, evaluation_mode, padded
from composer.inference.search import Hypothesis, Search
from composer.inference.target_lengths import LengthQuery, candidate_lengths, sizes_of, token_limit
from composer.model.encoder_decoder import EncoderDecoder
from composer.model.vocabulary import EOS, PAD

TARGET = "target"
TOGETHER = 1024
"""Lines that are read and translated together, at most."""


class Speech(NamedTuple):
    """How a model is asked. `answer` searches; an answer has at most `max_length` tokens, see `token_limit`.

    `story` is the source that is a story, `shape` how many of its sentences are read and the words that each may have;
    `question` is the source without its mark at the end.
    """

    sources: Sequence[str]
    answer: Callable[[Search], list[list[Hypothesis]]]
    max_length: int
    max_ratio: float
    side_by_side: int
    story: str = ""
    shape: tuple[int, int] = (0, 0)
    question: str = ""


def load(model: EncoderDecoder, path: str) -> EncoderDecoder:
    """Puts the weights of a file into a model, which is then ready to be asked. Tied weights stand in it once."""
    from safetensors.torch import load_file

    try:
        found = load_file(path)
    except OSError as error:
        raise SystemExit(f"error: {path} cannot be read: {error}") from None
    wanted = model.state_dict()
    fits = all(key in wanted and wanted[key].shape == value.shape for key, value in found.items())
    there = {wanted[key].data_ptr() for key in found if key in wanted}
    if not fits or any(value.numel() and value.data_ptr() not in there for value in wanted.values()):
        raise SystemExit(f"error: {path} holds the weights of another model")
    model.load_state_dict(found, strict=False)
    return model.eval()


def read_tokenizers(path: str) -> Tokenizers:
    """The tokenizers of a file."""
    from tokenizers import Tokenizer

    with open(path, encoding="utf-8") as file:
        told = json.load(file)
    parts = tuple(Tokenizer.from_str(json.dumps(each)) for each in told["parts"])
    return Tokenizers(told["settings"], told["lowercase"], told["sides"], parts)


def translate(
    model: EncoderDecoder, tokenizers: Tokenizers, lines: Sequence[str], speech: Speech, first: int = 0
) -> list[str]:
    """The best answer to each line; several sources stand in it side by side, with tabs between.

    A model without a source continues the line. first: how many lines came before.
    """
    full = [at for at, line in enumerate(lines) if line.strip()]
    columns = [lines[at].split("\t") if len(speech.sources) > 1 else [lines[at]] for at in full]
    texts = {side: [row[at] for row in columns] for at, side in enumerate(speech.sources)}
    rows = {side: encoded(tokenizers, side, each, speech) for side, each in texts.items()}
    begun = [[]] * len(full) if speech.sources else tokenizers.encode(TARGET, [lines[at] for at in full])
    found = decode(model, rows, begun, [first + at for at in full], speech)
    answers = [""] * len(lines)
    for at, text in zip(full, tokenizers.decode(TARGET, [best.ids for best, *_ in found]), strict=True):
        answers[at] = " ".join(text.splitlines()) if "\n" in text or "\r" in text else text
    return answers


def encoded(tokenizers: Tokenizers, side: str, lines: Sequence[str], speech: Speech) -> list[list[Any]]:
    """The ids of each line, without eos; of a story those of each sentence, padded on the right."""
    if side == speech.story:
        told = [split_sentences(line)[-speech.shape[0] :] for line in lines]
        return [[row + [PAD] * (speech.shape[1] - len(row)) for row in tokenizers.encode(side, each)] for each in told]
    return tokenizers.encode(side, [*map(normalize_sentence, lines)] if side == speech.question else lines)


def decode(
    model: EncoderDecoder,
    rows: Mapping[str, Sequence[list[Any]]],
    prefixes: Sequence[Sequence[int]],
    numbers: Sequence[int],
    speech: Speech,
) -> list[list[Hypothesis]]:
    """The best hypotheses of any number of rows of ids, in batches of like lengths, each at every size it may have."""
    lengths = {side: [positions(row) for row in each] for side, each in rows.items()}
    longest = [max((each[at] for each in lengths.values()), default=0) for at in range(len(prefixes))]
    limits = [token_limit(each, speech.max_length, speech.max_ratio) for each in longest]
    asked = candidate_lengths([model], lengths, prefixes, limits)
    long = [max((each.size, 1, longest[each.row])) for each in asked]
    found: list[list[Hypothesis]] = [[]] * len(asked)
    for places in batches(long, speech.side_by_side):
        part = [asked[at] for at in places]
        for at, answer in zip(places, ask(model, rows, prefixes, numbers, part, speech), strict=True):
            found[at] = answer
    return best_over_lengths(asked, found, 1)


def ask(
    model: EncoderDecoder,
    rows: Mapping[str, Sequence[list[Any]]],
    prefixes: Sequence[Sequence[int]],
    numbers: Sequence[int],
    asked: Sequence[LengthQuery],
    speech: Speech,
) -> list[list[Hypothesis]]:
    """The best hypotheses of some rows that are answered together."""
    sources = {side: batch([each[question.row] for question in asked], model.device) for side, each in rows.items()}
    begun = [prefixes[each.row] for each in asked]
    told = [numbers[each.row] for each in asked]
    with evaluation_mode([model]):
        return speech.answer(Search([model], sources, begun, 1, told, sizes_of(asked, begun, model.device)))


def positions(row: list[Any]) -> int:
    """How many positions a source has, eos counted; a story its sentences times their room."""
    return sum(map(len, row)) if row and isinstance(row[0], list) else len(row) + 1


def batch(rows: Sequence[list[Any]], device: torch.device) -> Tensor:
    """Rows of ids, (B, S), ending in eos; stories (B, N, W)."""
    if not any(row and isinstance(row[0], list) for row in rows):
        return padded([[*row, EOS] for row in rows], device)
    longest, words = max(map(len, rows)), max(len(sentence) for row in rows for sentence in row)
    return torch.tensor([row + [[PAD] * words] * (longest - len(row)) for row in rows], device=device)


def main(build: Callable[[], EncoderDecoder], speech: Speech) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="Answers lines of stdin on stdout; without a tokenizer, tells of the model."
    )
    parser.add_argument("--weights", metavar="F", help="model.safetensors; random without it")
    parser.add_argument("--tokenizer", metavar="F", help="tokenizer.json of the same run")
    told = parser.parse_args()
    model = load(build(), told.weights) if told.weights else build().eval()
    model = model.cuda() if torch.cuda.is_available() else model
    if told.tokenizer:
        filter_lines(model, read_tokenizers(told.tokenizer), speech)
    else:
        count = sum(parameter.numel() for parameter in model.parameters())
        sys.stdout.write(f"{model}\n{count:,} parameters, {f'as in {told.weights}' if told.weights else 'random'}\n")


def filter_lines(model: EncoderDecoder, tokenizers: Tokenizers, speech: Speech) -> None:
    """Answers each line of stdin with a line on stdout, in order."""
    first = 0
    while read := list(islice(sys.stdin.buffer, TOGETHER)):
        lines = [line.decode().removesuffix("\n").removesuffix("\r") for line in read]
        answers = translate(model, tokenizers, lines, speech, first)
        sys.stdout.buffer.write("".join(f"{answer}\n" for answer in answers).encode())
        sys.stdout.buffer.flush()
        first += len(lines)
