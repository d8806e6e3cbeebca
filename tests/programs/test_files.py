"""Programs as files: each weight once, attention as an output, and nothing half done."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
import torch

import composer
from blocks.core.contract import Records
from composer.errors import RecipeError, RunError
from composer.inference.run import open_run
from composer.model.builder import build
from composer.model.encoder_decoder import EncoderDecoder, StepInputs
from composer.programs import files
from composer.programs.files import open_program, program_file, quantised, write_programs
from composer.programs.graphs import NotExportable
from composer.programs.parts import ATTENTION, Example, Sizes
from composer.recipe.recipe import load_text
from tests.exporters.sizes import assert_exported
from tests.inference.untrained import GRU, made

TIED = """
recipe: 1
data: {generate: copy, tokenizer: {word: {joint: true}}}
model:
  width: 32
  encoder: [positions, {residual: [{self_attention: {heads: 2}}]}]
  decoder: [{rnn: {cell: lstm}}, {residual: [{cross_attention: {heads: 2}}]}]
  output: {tie: [source, target]}
"""
LOOP = """
recipe: 1
data: {generate: copy}
model:
  width: 16
  encoder: [{repeat: {times: length, share: true, stack: [linear, activation]}}]
  decoder: [{residual: [{cross_attention: {heads: 2}}]}]
"""
CNN = TIED.replace("{tie: [source, target]}", "{kind: {cnn: {kernels: [1, 2], features: [3, 4]}}}")
GROWING = """
encoder:
- rnn: {cell: gru}
- recurrent: {stack: [{concat: prev.y}, linear, {self_attention: {heads: 2, as: y}}]}
decoder: [{residual: [{cross_attention: {heads: 2}}]}]
"""


def model_of(text: str) -> EncoderDecoder:
    torch.manual_seed(1)
    return build(load_text(text), {"source": 500, "target": 500}).eval()


def test_every_weight_is_stored_once_a_tied_one_too(tmp_path: Path) -> None:
    """The embedding stands in `encode` and, as embedding and as output, in `step`."""
    model = model_of(TIED)
    write_programs(model, tmp_path)
    parameters = 4 * sum(parameter.numel() for parameter in model.parameters())
    embedding = 4 * 500 * 32
    assert embedding > 0.4 * parameters
    assert 0.9 * parameters < (tmp_path / files.WEIGHTS).stat().st_size < 1.05 * parameters


@pytest.mark.slow
def test_weights_of_8_bits_take_a_quarter_of_the_bytes(tmp_path: Path) -> None:
    model, sizes = model_of(TIED), []
    for int8 in (False, True):
        folder = tmp_path / str(int8)
        folder.mkdir()
        write_programs(model, folder, int8=int8)
        sizes.append((folder / files.WEIGHTS).stat().st_size)
    tied = 4 * 500 * 32  # the table is read by rows, and multiplied by columns: stored twice
    assert sizes[1] < 0.26 * (sizes[0] + tied)
    inputs = Example.of(model, Sizes(2, 6, 3)).tensors()
    answers = []
    for int8 in (False, True):
        session = open_program(tmp_path / str(int8), "step")
        read = {node.name: inputs[node.name].numpy() for node in session.get_inputs()}
        answers.append(torch.from_numpy(session.run(["log_probs"], read)[0]))
    difference = (answers[0] - answers[1]).abs().max()
    assert 1e-6 < difference < 0.2


@pytest.mark.slow
def test_a_loop_without_outputs_is_quantised_too(tmp_path: Path) -> None:
    write_programs(model_of(LOOP), tmp_path, int8=True)
    assert set(open_program(tmp_path, "encode").get_outputs()[0].shape) > {16}


def test_attention_is_the_mean_over_blocks_and_heads(tmp_path: Path) -> None:
    model = model_of(TIED)
    write_programs(model, tmp_path, attention=True)
    example = Example.of(model, Sizes(3, 8, 2))
    session = open_program(tmp_path, "step")
    inputs = example.tensors()
    read = {node.name: inputs[node.name].numpy() for node in session.get_inputs()}
    actual = torch.from_numpy(session.run([ATTENTION], read)[0])
    records: Records = {}
    with torch.no_grad():
        model.step(example.ids, example.state, example.memories, StepInputs(records))
    ((weights,),) = [value for record, value in records.items() if record.name == "weights"]
    assert torch.allclose(actual, weights[:, 0].mean(1), atol=1e-5)
    assert torch.allclose(actual.sum(1), torch.ones(3), atol=1e-5)


def test_words_whose_vectors_would_be_made_at_every_token_are_refused() -> None:
    with pytest.raises(NotExportable, match="`cnn` computes the vectors") as raised:
        files.programs_of(model_of(CNN))
    assert raised.value.path == ("model", "output", "kind")


def test_an_encoder_that_no_block_reads_is_refused() -> None:
    unread = TIED.replace(", {residual: [{cross_attention: {heads: 2}}]}]\n  output", "]\n  output")
    with pytest.raises(NotExportable, match="no block reads the encoder"):
        files.programs_of(model_of(unread))


@pytest.mark.slow
def test_a_state_that_begins_as_a_parameter_is_exported() -> None:
    assert_exported(model_of(TIED.replace("lstm", "gru, initial_state: learned")))


@pytest.mark.slow
def test_a_joint_model_of_ctc_is_exported_though_its_logarithms_are_far_apart() -> None:
    assert_exported(model_of(TIED.replace("{tie: [source, target]}", "{ctc: {weight: 0.3}}")))


def test_a_state_that_grows_in_a_loop_is_refused_at_its_line(tmp_path: Path) -> None:
    run = open_run(made(tmp_path / "run", GROWING))
    with pytest.raises(RecipeError) as raised:
        composer.export(run, tmp_path / "out", to="onnx")
    (fault,) = raised.value.faults
    line = (tmp_path / "run" / "recipe.yaml").read_text().splitlines()[fault.line - 1]
    assert fault.code == "export"
    assert "grows" in fault.message
    assert "recurrent" in line
    assert not (tmp_path / "out").exists()


def test_a_size_that_becomes_a_constant_is_refused_with_its_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forward(self: Any, x: torch.Tensor, state: Any, context: Any) -> tuple[torch.Tensor, Any]:
        return x * int(x.shape[1]), state

    run = open_run(made(tmp_path / "run", GRU.replace("encoder: [", "encoder: [identity, ")))
    monkeypatch.setattr("blocks.identity.Identity.forward", forward)
    with pytest.raises(RecipeError) as raised:
        composer.export(run, tmp_path / "out", to="onnx")
    assert raised.value.faults[0].path.endswith("encoder[0]")


@pytest.mark.slow
def test_a_program_that_differs_from_its_model_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forward(self: Any, x: torch.Tensor, state: Any, context: Any) -> tuple[torch.Tensor, Any]:
        return (x + 1.0 if torch.compiler.is_exporting() else x), state

    run = open_run(made(tmp_path / "run", GRU.replace("encoder: [", "encoder: [identity, ")))
    monkeypatch.setattr("blocks.identity.Identity.forward", forward)
    with pytest.raises(RunError, match="would differ from the model"):
        composer.export(run, tmp_path / "out", to="onnx")
    assert list(tmp_path.glob("*out*")) == []


def test_a_folder_that_exists_is_left_as_it_is(tmp_path: Path) -> None:
    run, out = made(tmp_path / "run", GRU), tmp_path / "out"
    out.mkdir()
    with pytest.raises(RunError, match="exists already"):
        composer.export(run, out, to="onnx")
    assert list(out.iterdir()) == []


@pytest.mark.slow
def test_a_disk_that_fills_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    run = made(tmp_path / "run", GRU)
    monkeypatch.setattr("composer.exporters.description.Path.write_text", full)
    before = {path.name for path in tmp_path.iterdir()}
    with pytest.raises(RunError, match="no space left"):
        composer.export(run, tmp_path / "out", to="onnx")
    assert {path.name for path in tmp_path.iterdir()} == before


def test_a_package_that_is_missing_is_named_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = made(tmp_path / "run", GRU)
    monkeypatch.setattr("composer.exporters.onnx_export.PROGRAMS", ("onnx", "no_such_package"))
    with pytest.raises(RunError) as raised:
        composer.export(run, tmp_path / "out", to="onnx")
    assert "no_such_package" in raised.value.faults[0].message
    assert "pip install onnx no_such_package" in raised.value.faults[0].hint


@pytest.mark.slow
def test_a_program_that_is_damaged_is_one_error(tmp_path: Path) -> None:
    write_programs(model_of(TIED), tmp_path)
    (tmp_path / program_file("step")).write_bytes(b"no program")
    with pytest.raises(RunError, match="cannot be opened"):
        open_program(tmp_path, "step")


@pytest.mark.slow
def test_quantisation_leaves_small_tensors_and_says_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write_programs(model_of(TIED), tmp_path)
    graph = quantised(tmp_path / program_file("step"))
    assert graph.graph.outputs[0].name == "log_probs"
    assert capfd.readouterr() == ("", "")
