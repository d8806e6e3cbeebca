"""Decoding of the same Transformer beside Marian's `generate` and CTranslate2, which runs our
export in float16.

Marian has random weights of its own, of the same sizes. Every answer has as many tokens as the
others have.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch

from benchmarks.gpu import Outcome, Settings
from benchmarks.gpu.models import marian
from benchmarks.gpu.searches import BEAM, Decode, Task, compare, ours, task_names, task_of
from composer.exporters.ctranslate2 import export_ctranslate2
from composer.inference.run import Run
from composer.model.special_tokens import EOS


def cases(settings: Settings) -> list[str]:
    return task_names(settings)


def run(case: str, settings: Settings) -> Outcome:
    sides = {"ours": ours, "Marian of Hugging Face": generate, "CTranslate2": ctranslate2}
    return compare(
        task_of(case, settings),
        sides,
        dict.fromkeys(("Marian of Hugging Face", "CTranslate2"), 1.5),
    )


def generate(task: Task, run: Run) -> Decode:
    """Return Hugging Face's `generate`, with its cache."""
    model = marian(task.size, dropout=0.0).to(task.settings.device, task.dtype).eval()
    beams = 1 if task.search == "greedy" else BEAM
    length = {
        "min_new_tokens": task.length,
        "max_new_tokens": task.length,
        "num_beams": beams,
        "do_sample": False,
    }

    def decode(lines: list[list[int]]) -> object:
        source = torch.tensor([[*line, EOS] for line in lines], device=task.settings.device)
        return model.generate(source, attention_mask=torch.ones_like(source), **length).tolist()

    return decode


def ctranslate2(task: Task, run: Run) -> Decode:
    """Return CTranslate2 with our export; on a GPU it has float16 where we have bfloat16."""
    from ctranslate2 import Translator

    device = "cuda" if task.settings.is_cuda else "cpu"
    types = {
        torch.float32: "float32",
        torch.bfloat16: "float16" if task.settings.is_cuda else "float32",
    }
    with tempfile.TemporaryDirectory() as parent:
        folder = export_ctranslate2(run, Path(parent) / "exported")
        translator = Translator(str(folder), device=device, compute_type=types[task.dtype])
    words = run.tokenizers.vocabulary("source")
    beams = 1 if task.search == "greedy" else BEAM
    length = {
        "min_decoding_length": task.length,
        "max_decoding_length": task.length,
        "beam_size": beams,
    }

    def decode(lines: list[list[int]]) -> object:
        return translator.translate_batch([[words[id] for id in line] for line in lines], **length)

    return decode
