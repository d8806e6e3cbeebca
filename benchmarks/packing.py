"""Speed of a training step on packed rows against the same rows padded.

    OMP_NUM_THREADS=1 python -m benchmarks.packing [--rounds 9] [--models transformer ...]

Forward and backward pass with the loss, width 256, 8,000 words, about 1,500 target tokens of random
ids. Two kinds of batches: rows of one length but for a token or two, as bucketing makes them, and
rows of 5 to 60 tokens drawn evenly. Prints of each the share of padding, and the median over the
rounds of padded to packed processor time, both sides in each round, in another order every time;
beside it what would be left of the time if it fell as the padding does.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

from composer.data.collate import Batch, pack_rows
from composer.model.builder import build
from composer.model.encoder_decoder import EncoderDecoder, StepInputs
from composer.model.special_tokens import BOS, EOS, NUM_SPECIAL
from composer.recipe.recipe import load_text
from composer.training.loss import sum_loss

VOCABULARY = 8_000
RECIPE = """
recipe: 1
name: packing
data: {generate: {counting: {strings: 5, max_length: 6, train: 40, val: 10, test: 5}}}
model:
  width: 256
  residual: {norm: pre}
  self_attention: {heads: 4}
  cross_attention: {heads: 4}
"""
MODELS = {
    "language model, attention": (
        """
  decoder: [positions, repeat: {times: 4, stack: [residual: [self_attention],
    residual: [feed_forward]]}, norm]
"""
    ),
    "language model, gated delta net": (
        """
  decoder: [repeat: {times: 4, stack: [residual: [gated_delta_net: {heads: 4}],
    residual: [feed_forward]]}, norm]
"""
    ),
    "language model, LSTM": (
        """
  decoder: [{rnn: {cell: lstm, layers: 2}}]
"""
    ),
    "encoder and decoder, attention": (
        """
  encoder: [positions, repeat: {times: 3, stack: [residual: [self_attention],
    residual: [feed_forward]]}, norm]
  decoder:
    - positions
    - repeat: {times: 3, stack: [residual: [self_attention], residual: [cross_attention],
          residual: [feed_forward]]}
    - norm
"""
    ),
    "encoder and decoder, GRU": (
        """
  encoder: [{rnn: {cell: gru, bidirectional: true}}]
  decoder: [{rnn: {cell: gru}}, residual: [cross_attention]]
"""
    ),
}
TOKENS = 1_500
"""Target tokens of a batch, about."""


def draw_lengths(bucketed: bool, generator: torch.Generator) -> list[int]:
    """Return the lengths of the rows of a batch."""
    if bucketed:
        middle = int(torch.randint(10, 50, (), generator=generator))
        return torch.randint(
            middle - 1, middle + 2, (TOKENS // middle,), generator=generator
        ).tolist()
    lengths = []
    while sum(lengths) < TOKENS:
        lengths.append(int(torch.randint(5, 61, (), generator=generator)))
    return lengths


def draw_batch(model: EncoderDecoder, bucketed: bool, seed: int) -> Batch:
    """Return a padded batch of random ids; a source is as long as its target, or one token more or
    less.
    """
    generator = torch.Generator().manual_seed(seed)
    lengths = draw_lengths(bucketed, generator)
    rows = [
        torch.randint(NUM_SPECIAL, VOCABULARY, (length,), generator=generator) for length in lengths
    ]
    pad = torch.nn.utils.rnn.pad_sequence
    sources = {}
    for key in model.readers():
        changes = torch.randint(-1, 2, (len(rows),), generator=generator).tolist()
        cut = [
            torch.cat((row, row[:1]))[: len(row) + change]
            for row, change in zip(rows, changes, strict=True)
        ]
        sources[key] = pad([torch.cat((row, torch.tensor([EOS]))) for row in cut], True)
    none = torch.zeros(len(rows), 0, dtype=torch.long)
    return {
        "sources": sources,
        "target_in": pad([torch.cat((torch.tensor([BOS]), row)) for row in rows], True),
        "target_out": pad([torch.cat((row, torch.tensor([EOS]))) for row in rows], True),
        "tokens": float(sum(lengths) + len(lengths)),
        "part": 1.0,
        "rows": torch.arange(len(rows)),
        "graded": torch.zeros(len(rows), dtype=torch.bool),
        "window": -1,
        "turn": 0,
        "facts": none,
        "packed": {},
    }


def run_step(model: EncoderDecoder, batch: Batch) -> float:
    """Run the forward and the backward pass; return the loss per token."""
    model.zero_grad()
    inputs = StepInputs(packed=batch["packed"])
    loss = (
        sum_loss(model(batch["sources"], batch["target_in"], inputs), batch["target_out"])
        / batch["tokens"]
    )
    loss.backward()
    return loss.item()


def compare(model: EncoderDecoder, bucketed: bool, rounds: int) -> tuple[float, list[float], float]:
    """Return the share of padding, padded to packed time of each round, and the largest difference
    of losses.
    """
    seconds: dict[bool, list[float]] = {False: [], True: []}
    gap, padding = 0.0, []
    for number in range(rounds + 1):
        padded = draw_batch(model, bucketed, seed=number)
        losses = {}
        padding.append((padded["target_in"] == 0).double().mean().item())
        for packs in (False, True) if number % 2 else (True, False):
            start = time.process_time()
            losses[packs] = run_step(model, pack_rows(padded) if packs else padded)
            seconds[packs].append(time.process_time() - start)
        gap = max(gap, abs(losses[True] - losses[False]))
    ratios = [one / other for one, other in zip(seconds[False][1:], seconds[True][1:], strict=True)]
    return statistics.mean(padding[1:]), ratios, gap


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument(
        "--models", nargs="+", default=[*MODELS], help=f"of these: {', '.join(MODELS)}"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(
        "| model | batches | padding | padded to packed time | as the padding | losses differ by at"
        " most |"
    )
    print("|---|---|---|---|---|---|")
    for name in options.models:
        torch.manual_seed(1)
        sizes = {"source": VOCABULARY, "target": VOCABULARY}
        model = build(load_text(RECIPE + MODELS[name]), sizes)
        for bucketed in (True, False):
            padding, ratios, gap = compare(model, bucketed, options.rounds)
            kind, cost = "bucketed" if bucketed else "drawn evenly", 1 / (1 - padding)
            spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
            print(
                f"| {name} | {kind} | {padding:.0%} | {spread} | {cost:.2f} | {gap:.1e} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
