"""Decoding speed against plain PyTorch loops: with a key-value cache, and recomputing the prefix at every step.

    python benchmarks/decoding.py RUN [--lines 256] [--rounds 5] [--precision float32 bfloat16 int8]

RUN is a trained `recipes/multi30k/transformer.yaml`. Its weights are copied into the plain model, which computes in
float32, so that in float32 both sides produce the same translations; the number of identical lines is printed. Rounds
alternate in one process: batches of 64 lines of similar length, and one line at a time.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any, get_args

import torch
from bare import BOS, EOS, PAD, Attention, Cache, Transformer
from torch import Tensor

from composer.data.encoding import load_data
from composer.inference.decode import decode_all
from composer.inference.precision import Precision
from composer.inference.run import Run, open_run
from composer.model.encoder_decoder import EncoderDecoder

BATCH_SIZE = 64
Lines = list[list[int]]


def copy_to_bare(run: Run, heads: int = 4) -> Transformer:
    """Return the plain model with the run's weights."""
    ours, vocabulary = run.model, run.tokenizers.sizes["target"]
    repeats = {
        side: block.stacks for side, stack in sides(ours).items() for block in stack.blocks if hasattr(block, "stacks")
    }
    hidden = repeats["encoder"][0].blocks[-1].stack.blocks[0].contract.in_features
    bare = Transformer(vocabulary, ours.embedding.embedding_dim, heads, hidden, len(repeats["encoder"])).eval()
    bare.embedding.weight.data.copy_(ours.embedding.weight)
    bare.bias.data.copy_(ours.output.bias)
    for side, layers in (("encoder", bare.encoder), ("decoder", bare.decoder)):
        for layer, stack in zip(layers, repeats[side], strict=True):
            residuals = list(stack.blocks)
            inner = [residual.stack.blocks[0] for residual in residuals]
            layer.norm.load_state_dict(residuals[0].norm.state_dict())
            copy_attention(layer.attention, inner[0].project.weight, inner[0].project.bias, inner[0].merge)
            if layer.cross is not None:
                layer.cross_norm.load_state_dict(residuals[1].norm.state_dict())
                copy_attention(layer.cross, *concat_projections(inner[1].query, inner[1].project), inner[1].merge)
            norm, expand, _, contract = layer.feed_forward
            norm.load_state_dict(residuals[-1].norm.state_dict())
            expand.load_state_dict(inner[-1].expand.state_dict())
            contract.load_state_dict(inner[-1].contract.state_dict())
    for side, norm in (("encoder", bare.encoder_norm), ("decoder", bare.decoder_norm)):
        norm.load_state_dict(sides(ours)[side].blocks[-1].normalise.state_dict())
    return bare


def sides(model: EncoderDecoder) -> dict[str, torch.nn.Module]:
    return {"encoder": model.encoders["source"].stack, "decoder": model.decoder}


def concat_projections(query: torch.nn.Linear, pair: torch.nn.Linear) -> tuple[Tensor, Tensor]:
    return torch.cat((query.weight, pair.weight)), torch.cat((query.bias, pair.bias))


def copy_attention(into: Attention, weight: Tensor, bias: Tensor, merge: torch.nn.Linear) -> None:
    """Copy weights whose rows are those of query, keys and values."""
    width = merge.out_features
    into.query.load_state_dict({"weight": weight[:width], "bias": bias[:width]})
    into.pair.load_state_dict({"weight": weight[width:], "bias": bias[width:]})
    into.merge.load_state_dict(merge.state_dict())


# ------------------------------------------------------------------------------------------- the bare decoders


def greedy(model: Transformer, source: Tensor, limit: int) -> Lines:
    """Decode one step per token, with a cache."""
    memory, mask = model.encode(source)
    read = [layer.cross.read(memory) for layer in model.decoder]
    ids = torch.full((len(source), 1), BOS, device=source.device)
    done, cache, tokens = torch.zeros_like(ids[:, 0], dtype=torch.bool), [], []
    for position in range(limit):
        logits, cache = model.step(ids, position, cache, read, mask)
        ids = mask_special_tokens(logits).argmax(-1, keepdim=True)
        tokens.append(ids)
        done |= ids[:, 0] == EOS
        if done.all():
            break
    return cut_at_eos(torch.cat(tokens, 1))


def greedy_without_cache(model: Transformer, source: Tensor, limit: int) -> Lines:
    """Decode by recomputing the whole prefix at every step."""
    memory, mask = model.encode(source)
    read = [layer.cross.read(memory) for layer in model.decoder]
    ids = torch.full((len(source), 1), BOS, device=source.device)
    done = torch.zeros_like(ids[:, 0], dtype=torch.bool)
    for _ in range(limit):
        x = model.embed(ids)
        for layer, pair in zip(model.decoder, read, strict=True):
            x = layer(x, memory=pair, memory_mask=mask)
        ids = torch.cat((ids, mask_special_tokens(model.logits(x[:, -1:])[:, 0]).argmax(-1, keepdim=True)), 1)
        done |= ids[:, -1] == EOS
        if done.all():
            break
    return cut_at_eos(ids[:, 1:])


def beam(model: Transformer, source: Tensor, limit: int, size: int, length_penalty: float) -> Lines:
    """Search with a beam in which finished hypotheses stay; ranked by log p / ((5 + n) / 6) ^ length_penalty."""
    memory, mask = model.encode(source.repeat_interleave(size, 0))
    read = [layer.cross.read(memory) for layer in model.decoder]
    batch, cache, device = len(source), Cache(), source.device
    score = torch.full((batch, size), -torch.inf, device=device)
    score[:, 0] = 0.0
    last = torch.full((batch * size, 1), BOS, device=device)
    ids, done = last[:, :0], torch.zeros(batch * size, dtype=torch.bool, device=device)
    for position in range(limit):
        logits, cache = model.step(last, position, cache, read, mask)
        gain = mask_special_tokens(logits).float().log_softmax(-1)
        gain[done] = -torch.inf
        gain[done, EOS] = 0.0
        score, best = (score[..., None] + gain.view(batch, size, -1)).flatten(1).topk(size)
        rows = (torch.arange(batch, device=device)[:, None] * size + best // gain.shape[1]).flatten()
        last = (best % gain.shape[1]).view(-1, 1)
        ids, done = torch.cat((ids[rows], last), 1), done[rows] | (last[:, 0] == EOS)
        if done.all():
            break
        cache = [(keys[rows], values[rows]) for keys, values in cache]
    lengths = (ids != EOS).sum(1).view(batch, size) + 1
    best = (score / ((5 + lengths) / 6) ** length_penalty).argmax(1)
    return cut_at_eos(ids.view(batch, size, -1)[torch.arange(batch, device=device), best])


def mask_special_tokens(logits: Tensor) -> Tensor:
    logits[:, [PAD, BOS]] = -torch.inf
    return logits


def cut_at_eos(ids: Tensor) -> Lines:
    return [[*row, EOS][: [*row, EOS].index(EOS)] for row in ids.tolist()]


def in_batches(lines: Lines, decode: Callable[[Tensor], Lines]) -> Lines:
    """Decode all lines in batches of 64 of similar length; return them in their own order."""
    order = sorted(range(len(lines)), key=lambda row: -len(lines[row]))
    outputs: Lines = [[]] * len(lines)
    for first in range(0, len(order), BATCH_SIZE):
        rows = order[first : first + BATCH_SIZE]
        padded = torch.nn.utils.rnn.pad_sequence([torch.tensor([*lines[row], EOS]) for row in rows], batch_first=True)
        for row, output in zip(rows, decode(padded), strict=True):
            outputs[row] = output
    return outputs


# ------------------------------------------------------------------------------------------- the comparison


def one_by_one(lines: Lines, decode: Callable[[Lines], Lines]) -> Lines:
    """Decode each line by itself."""
    return [answer for line in lines for answer in decode([line])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--lines", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--precision", nargs="+", default=list(get_args(Precision)), choices=get_args(Precision))
    options = parser.parse_args()
    run = open_run(options.run)
    encoded = load_data(run.recipe, run.folders(), run.tokenizers, ["test"]).splits["test"]
    lines = [encoded.sources["source"][row] for row in range(min(options.lines, len(encoded)))]
    model, limit = copy_to_bare(run), 3 * max(map(len, lines)) + 50
    penalty = 1.0
    searches: dict[str, tuple[dict[str, Any], Callable[[Lines], Lines]]] = {
        "greedy": ({"greedy": {}}, lambda part: in_batches(part, lambda ids: greedy(model, ids, limit))),
        "greedy, no cache": (
            {"greedy": {}},
            lambda part: in_batches(part, lambda ids: greedy_without_cache(model, ids, limit)),
        ),
        "beam 5": (
            {"beam": {"size": 5, "length_penalty": penalty}},
            lambda part: in_batches(part, lambda ids: beam(model, ids, limit, 5, penalty)),
        ),
    }

    def ours(decoding: dict[str, Any], precision: str) -> Callable[[Lines], Lines]:
        ((method, settings),) = decoding.items()
        settings = {**settings, "max_length": limit, "precision": precision}
        return lambda part: [best.ids for best, *_ in decode_all([run.model], {"source": part}, {method: settings})]

    with torch.inference_mode():
        for precision in options.precision:
            for name, (decoding, plain) in searches.items():
                mine = ours(decoding, precision)
                compare(f"{name}, {precision}", lambda: mine(lines), lambda: plain(lines), len(lines), options.rounds)  # noqa: B023
            few, mine = lines[: len(lines) // 8], ours({"greedy": {}}, precision)
            plain = searches["greedy"][1]
            title = f"greedy, one line at a time, {precision}"
            compare(title, lambda: one_by_one(few, mine), lambda: one_by_one(few, plain), len(few), options.rounds)  # noqa: B023


def compare(name: str, mine: Callable[[], Lines], bare: Callable[[], Lines], count: int, rounds: int) -> None:
    """Print every round, and the median of the ratios."""
    identical = sum(one == other for one, other in zip(mine(), bare(), strict=True))
    ratios = []
    for number in range(rounds):
        speed = {}
        for side, decode in (("ours", mine), ("bare", bare))[:: 1 if number % 2 else -1]:
            start = time.perf_counter()
            decode()
            speed[side] = count / (time.perf_counter() - start)
        ratios.append(speed["ours"] / speed["bare"])
        print(
            f"{name} round {number + 1}: ours {speed['ours']:.0f} lines/s, plain {speed['bare']:.0f}, "
            f"ratio {ratios[-1]:.2f}",
            flush=True,
        )
    median = statistics.median(ratios)
    print(f"{name}: median ratio {median:.2f} of {rounds} rounds; {identical} of {count} lines identical")


if __name__ == "__main__":
    main()
