"""Runs of this project's own trainings leave as models of transformers, or are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from composer.errors import RunError
from composer.exporters.hugging_face import export_hugging_face
from composer.inference.run import Run, open_run
from composer.model.special_tokens import BOS, EOS
from tests.inference.untrained import GRU, made

LLAMA = """
embedding: {learned: {scale: false}}
decoder:
  - repeat:
      times: 2
      stack:
        - residual: [{norm: rms}, self_attention: {heads: 2, positions: rotary, bias: false}]
        - residual: [{norm: rms}, feed_forward: {activation: swiglu, bias: false}]
  - norm: rms
output: {tie: [target], bias: false}
"""


def run_of(folder: Path) -> Run:
    return open_run(made(folder, LLAMA, "char"))


@pytest.mark.parametrize("after_end", [False, True])
def test_an_own_model_begins_a_text_as_it_was_trained_to(after_end: bool, tmp_path: Path) -> None:
    run = run_of(tmp_path / "run")
    run.model.begins_after_end = after_end
    folder = export_hugging_face(run, tmp_path / "hf")
    start = EOS if after_end else BOS
    assert json.loads((folder / "config.json").read_text())["bos_token_id"] == start
    read = AutoTokenizer.from_pretrained(folder)(["ab"])["input_ids"]
    assert read[0][0] == start
    ours = torch.tensor([[BOS, *read[0][1:]]])
    with torch.no_grad():
        expected = run.model({}, ours)
        theirs = AutoModelForCausalLM.from_pretrained(folder)(torch.tensor(read)).logits
    torch.testing.assert_close(theirs, expected, rtol=1e-4, atol=1e-5)


def test_another_stack_is_refused_with_the_way_that_fits(tmp_path: Path) -> None:
    run = open_run(made(tmp_path / "run", GRU))
    with pytest.raises(RunError, match="--onnx DIR"):
        export_hugging_face(run, tmp_path / "hf")
    assert not (tmp_path / "hf").exists()
