"""Decoding speed against the same searches by hand in plain PyTorch, and against CTranslate2.

    python -m benchmarks.decoding RUN [--lines 256] [--rounds 5] [--precision float32 bfloat16 int8]
    python -m benchmarks.decoding RUN --ctranslate2 [--tokens 0]

RUN is a trained `recipes/multi30k/transformer.yaml` or `gru_attention.yaml`. Its weights are copied
into the plain model, which computes in float32, and which answers as ours does in float32 but for
near ties. CTranslate2 runs the export of a Transformer in float32 and in int8. All answers have 16
tokens, since the loop by hand has no means to leave out lines that have ended; with `--tokens 0`
they end when the model says so.
All sides take part in each round, in another order every time, with equally many threads, from ids
to ids. Prints every round; at the end, for each search and pair of sides, the ratio of speeds and
how many answers are identical.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, get_args

import torch

from benchmarks.bare import GRU, Transformer
from benchmarks.bare_searches import Lines, beam, greedy, in_batches
from benchmarks.bare_weights import copy_to_bare
from composer.data.encoding import load_data
from composer.errors import RunError
from composer.exporters.ctranslate2 import export_ctranslate2
from composer.inference.decode import decode_all, make_rows
from composer.inference.engine import decoding_models
from composer.inference.methods import Beam, Greedy
from composer.inference.precision import Precision
from composer.inference.run import Run, open_run
from composer.model.encoder_decoder import NEVER
from composer.model.special_tokens import EOS

LENGTH_PENALTY = 1.0
BY_HAND, CTRANSLATE2, ONNXRUNTIME = "by hand", "CTranslate2", "onnxruntime"


class Search(NamedTuple):
    """What all sides do: search with a beam of `size`, 1 is greedy, so many lines at once."""

    name: str
    size: int
    batch: int


GREEDY = Search("greedy", 1, 64)
SEARCHES = [GREEDY, Search("beam 5", 5, 64), Search("greedy, one line at a time", 1, 1)]
SIDES = (*get_args(Precision), ONNXRUNTIME)
"""Our own sides: precisions of PyTorch, and the other engine."""
Side = Callable[[Search, Lines], Lines]
"""Decodes lines, from ids to ids."""


def ours(run: Run, precision: str, limit: int) -> Side:
    """Return our decoding, which makes batches of 64 by itself; ONNXRUNTIME is its other engine."""
    settings = {"precision": precision, "max_length": limit}
    if precision == ONNXRUNTIME:
        settings = {"engine": ONNXRUNTIME, "max_length": limit}
    models = decoding_models([run], Greedy(**settings))

    def decode(search: Search, lines: Lines) -> Lines:
        beams = {"size": search.size, "length_penalty": LENGTH_PENALTY, **settings}
        decoding = Greedy(**settings) if search.size == 1 else Beam(**beams)
        parts = [lines] if search.batch > 1 else [[line] for line in lines]
        return [
            best.ids
            for part in parts
            for best, *_ in decode_all(models, make_rows({"source": part}), decoding)
        ]

    return decode


def by_hand(model: Transformer | GRU, limit: int) -> Side:
    def decode(search: Search, lines: Lines) -> Lines:
        if search.size == 1:
            return in_batches(lines, search.batch, lambda source: greedy(model, source, limit))
        return in_batches(
            lines,
            search.batch,
            lambda source: beam(model, source, limit, search.size, LENGTH_PENALTY),
        )

    return decode


def sides_of(run: Run, precisions: Sequence[str], limit: int) -> dict[str, Side]:
    """Return ours in each precision, and those by hand."""
    model = copy_to_bare(run)
    sides = {precision: ours(run, precision, limit) for precision in precisions}
    return sides | {BY_HAND: by_hand(model, limit)}


def ctranslate2_sides(run: Run, limit: int) -> dict[str, Side]:
    """Return a side for each precision that we have too; none, and a line that says why, where it
    cannot run.
    """
    with tempfile.TemporaryDirectory() as parent:
        try:
            folder = str(export_ctranslate2(run, Path(parent) / "exported"))
        except RunError as error:
            print(f"without CTranslate2: {error.faults[0].message}")
            return {}
        return {
            f"{CTRANSLATE2} {precision}": ctranslate2(run, folder, precision, limit)
            for precision in ("float32", "int8")
        }


def ctranslate2(run: Run, folder: str, precision: str, limit: int) -> Side:
    from ctranslate2 import Translator

    threads = {"inter_threads": 1, "intra_threads": torch.get_num_threads()}
    translator = Translator(folder, device="cpu", compute_type=precision, **threads)
    source, target = (run.tokenizers.vocabulary(side) for side in ("source", "target"))
    ids = {token: id for id, token in enumerate(target)}

    def decode(search: Search, lines: Lines) -> Lines:
        tokens = [[source[id] for id in line] for line in lines]
        settings = {
            "beam_size": search.size,
            "length_penalty": LENGTH_PENALTY,
            "max_decoding_length": limit,
        }
        parts = [tokens] if search.batch > 1 else [[line] for line in tokens]
        results = [
            result
            for part in parts
            for result in translator.translate_batch(part, max_batch_size=search.batch, **settings)
        ]
        return [[ids[token] for token in result.hypotheses[0]] for result in results]

    return decode


class Comparison(NamedTuple):
    """Of each side, its answers and its speed in lines per second in every round."""

    search: Search
    answers: dict[str, Lines]
    speeds: dict[str, list[float]]

    def describe_pair(self, mine: str, other: str) -> str:
        ratios = [
            one / another
            for one, another in zip(self.speeds[mine], self.speeds[other], strict=True)
        ]
        pairs = list(zip(self.answers[mine], self.answers[other], strict=True))
        return (
            f"{self.search.name}: {mine} to {other} {statistics.median(ratios):.2f}"
            f" ({min(ratios):.2f} to {max(ratios):.2f}) of {len(ratios)} rounds,"
            f" {torch.get_num_threads()} threads, {sum(one == another for one, another in pairs)}"
            f" of {len(pairs)} lines identical"
        )


def compare(search: Search, sides: Mapping[str, Side], lines: Lines, rounds: int) -> Comparison:
    """Let the sides search `rounds` times, after once that is not counted; print every round."""
    answers = {name: side(search, lines) for name, side in sides.items()}
    speeds: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds):
        for name in list(sides)[:: 1 if number % 2 else -1]:
            start = time.perf_counter()
            sides[name](search, lines)
            speeds[name].append(len(lines) / (time.perf_counter() - start))
        listing = ", ".join(f"{name} {measured[-1]:.1f}" for name, measured in speeds.items())
        print(f"{search.name}, round {number + 1}, lines/s: {listing}", flush=True)
    return Comparison(search, answers, speeds)


def pair_sides(names: Iterable[str], precisions: Sequence[str]) -> list[tuple[str, str]]:
    """Pair each of our sides with those by hand, and with CTranslate2 in the same precision."""
    pairs = [(mine, other) for mine in precisions for other in (BY_HAND, f"{CTRANSLATE2} {mine}")]
    if ONNXRUNTIME in precisions:
        pairs += [(ONNXRUNTIME, "float32"), (ONNXRUNTIME, f"{CTRANSLATE2} float32")]
    return [(mine, other) for mine, other in pairs if other in names]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run")
    parser.add_argument("--lines", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--precision", nargs="+", default=list(get_args(Precision)), choices=SIDES)
    parser.add_argument("--ctranslate2", action="store_true", help="measure CTranslate2 too")
    parser.add_argument(
        "--tokens", type=int, default=16, help="of each answer; 0: it ends when the model says so"
    )
    return parser.parse_args()


def main() -> None:
    options = parse_arguments()
    run = open_run(options.run)
    encoded = load_data(run.recipe, run.folders(), run.tokenizers, ["test"]).splits["test"]
    lines = [encoded.sources["source"][row] for row in range(min(options.lines, len(encoded)))]
    limit = options.tokens or 3 * max(map(len, lines)) + 50
    if options.tokens:  # in the weights, which all sides have
        run.model.output.bias.data[EOS] = NEVER
    sides = sides_of(run, options.precision, limit)
    if options.ctranslate2:
        sides |= ctranslate2_sides(run, limit)
    comparisons = []
    with torch.inference_mode():
        for search in SEARCHES:
            part = lines if search.batch > 1 else lines[: len(lines) // 8]
            comparisons.append(compare(search, sides, part, options.rounds))
    for comparison in comparisons:
        for mine, other in pair_sides(comparison.answers, options.precision):
            print(comparison.describe_pair(mine, other))


if __name__ == "__main__":
    main()
