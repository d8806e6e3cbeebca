"""Speed of writing one text against loops by hand in plain PyTorch with a cache: an LSTM and a
small Transformer.

    OMP_NUM_THREADS=1 python -m benchmarks.generation [--tokens 256] [--rounds 15] [--vocabulary
    10000]

The LSTM has the sizes of Zaremba et al. 2014 (small), the Transformer four layers of width 128.
Both have random weights, which are copied into the plain models. Each side begins with the same
eight tokens and writes so many more, greedily, and by drawing from the softmax. The sides alternate
in one process, in another order every round. Prints the median ratio of speeds in processor time,
and whether both have written the same greedy text.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from benchmarks.bare import BOS, Layer, sinusoids
from benchmarks.bare_weights import copy_layer
from composer.inference.decode import Row, decode_all
from composer.inference.methods import Greedy, Sample
from composer.model.builder import build
from composer.model.encoder_decoder import NEVER, EncoderDecoder
from composer.model.special_tokens import EOS, PAD
from composer.recipe.recipe import load_text

WIDTH, LAYERS, HEADS = 128, 4, 4
RECIPE = """
recipe: 1
name: generation
data: {generate: {counting: {strings: 5, max_length: 6, train: 40, val: 10, test: 5}}}
"""
DECODERS = {
    "LSTM": "{width: 200, decoder: [{rnn: {cell: lstm, layers: 2}}]}",
    "Transformer": (
        f"""
  width: {WIDTH}
  residual: {{norm: pre}}
  self_attention: {{heads: {HEADS}}}
  decoder: [positions, repeat: {{times: {LAYERS}, stack: [residual: [self_attention],
    residual: [feed_forward]]}}, norm]
"""
    ),
}
Side = Callable[[list[int], int], list[int]]
"""Continues ids by so many tokens."""


class PlainLSTM(nn.Module):
    def __init__(self, model: EncoderDecoder) -> None:
        super().__init__()
        (rnn,), width = model.decoder.blocks, model.embedding.embedding_dim
        self.embedding, self.output, self.scale = model.embedding.weight, model.output, width**0.5
        self.lstm = nn.LSTM(width, width, len(rnn.layers), batch_first=True)
        for weights, layer in zip(self.lstm.all_weights, rnn.layers, strict=True):
            for weight, value in zip(weights, layer.weights(), strict=True):
                weight.data.copy_(value)

    def step(
        self, ids: Tensor, position: int, state: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, object]:
        y, state = self.lstm(nn.functional.embedding(ids, self.embedding) * self.scale, state)
        return self.output(y[:, -1]), state


class PlainTransformer(nn.Module):
    def __init__(self, model: EncoderDecoder) -> None:
        super().__init__()
        _, repeat, norm = model.decoder.blocks
        self.embedding, self.output, self.norm = (
            model.embedding.weight,
            model.output,
            norm.normalise,
        )
        self.layers = nn.ModuleList(
            Layer(WIDTH, HEADS, 4 * WIDTH, 0.0, None) for _ in range(LAYERS)
        )
        for layer, stack in zip(self.layers, repeat.stacks, strict=True):
            copy_layer(layer, stack)
        self.register_buffer("positions", sinusoids(4096, WIDTH))

    def step(self, ids: Tensor, position: int, state: list | None) -> tuple[Tensor, list]:
        x = nn.functional.embedding(ids, self.embedding) * WIDTH**0.5
        x, caches = x + self.positions[position : position + ids.shape[1]], []
        for layer, cache in zip(self.layers, state or [None] * LAYERS, strict=True):
            x, cache = layer.step(x, cache)
            caches.append(cache)
        return self.output(self.norm(x[:, -1])), caches


def by_hand(model: PlainLSTM | PlainTransformer, draws: bool) -> Side:
    def write(prompt: list[int], tokens: int) -> list[int]:
        ids, state, position = torch.tensor([[BOS, *prompt]]), None, 0
        new: list[int] = []
        for _ in range(tokens):
            logits, state = model.step(ids, position, state)
            position += ids.shape[1]
            ids = (
                torch.multinomial(logits.softmax(-1), 1)
                if draws
                else logits.argmax(-1, keepdim=True)
            )
            new.append(int(ids))
        return [*prompt, *new]

    return write


def ours(model: EncoderDecoder, draws: bool) -> Side:
    def write(prompt: list[int], tokens: int) -> list[int]:
        decoding = (Sample if draws else Greedy)(max_length=tokens)
        return decode_all([model], [Row(prefix=prompt)], decoding)[0][0].ids

    return write


def untrained(name: str, vocabulary: int) -> EncoderDecoder:
    torch.manual_seed(1)
    model = build(load_text(f"{RECIPE}model: {DECODERS[name]}"), {"target": vocabulary}).eval()
    model.output.bias.data[[PAD, BOS, EOS]] = NEVER
    return model


def sides_of(name: str, model: EncoderDecoder, draws: bool) -> dict[str, Side]:
    plain = {"LSTM": PlainLSTM, "Transformer": PlainTransformer}[name](model).eval()
    return {"ours": ours(model, draws), "by hand": by_hand(plain, draws)}


def compare(
    sides: dict[str, Side], tokens: int, rounds: int
) -> tuple[dict[str, list[int]], dict[str, list[float]]]:
    """Return what each side writes, and its seconds in every round but the first."""
    prompt = [*range(4, 12)]
    texts = {name: side(prompt, tokens) for name, side in sides.items()}
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds):
        for name in [*sides][:: 1 if number % 2 else -1]:
            start = time.process_time()
            sides[name](prompt, tokens)
            seconds[name].append(time.process_time() - start)
    return texts, seconds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--vocabulary", type=int, default=10_000)
    options = parser.parse_args()
    for name in DECODERS:
        model = untrained(name, options.vocabulary)
        for draws in (False, True):
            with torch.inference_mode():
                sides = sides_of(name, model, draws)
                texts, seconds = compare(sides, options.tokens, options.rounds)
            ratios = [
                hand / own for hand, own in zip(seconds["by hand"], seconds["ours"], strict=True)
            ]
            speed = options.tokens / statistics.median(seconds["ours"])
            same = "" if draws else f", the same text: {texts['ours'] == texts['by hand']}"
            print(
                f"{name}, {'sampled' if draws else 'greedy'}: ours {speed:,.0f} tokens/s, to by"
                f" hand {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}) of"
                f" {len(ratios)} rounds{same}",
                flush=True,
            )


if __name__ == "__main__":
    main()
