"""Packed rows train with the losses of the unpacked; what cannot be packed is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from composer.errors import RecipeError
from composer.model.special_tokens import BOS, PAD
from composer.run_dir import RunDir, read_metrics
from composer.training.datamodule import RecipeDataModule
from composer.training.module import sample_decoder_inputs
from composer.training.train import train
from tests.training.tiny_recipes import Tiny

EXACT = (
    "model.dropout=0",
    "training.precision=64",
    "training.optimizer={sgd: {}}",  # Adam would make a step of a rounding
    "training.tokens_per_batch=2000",  # rows of all lengths in one batch, and so in several buckets
    "training.max_steps=3",
    "training.validate_every=3",
    "training.validation_sample.lines=0",
    "trainer.log_every_n_steps=1",
)
HYBRID = (
    "[positions, {gated_delta_net: {heads: 2}}, rnn, {self_attention: {heads: 2, positions:"
    " rotary}}, feed_forward]"
)
EXPERTS = "mixture_of_experts: {stack: [linear], experts: 3, top_k: 1}"
FACTORS = "parallel: [[linear], [source_state]]"
MODELS = {
    "initial_state": (
        (
            "model.decoder=[{rnn: {cell: lstm, initial_state: encoder}}, {cross_attention: {heads:"
            " 2}}]"
        ),
    ),
    "dropped_weights": (
        "model.decoder=[{rnn: {cell: lstm, weight_dropout: 0.5}}, {cross_attention: {heads: 2}}]",
    ),
    "hybrid": (
        f"model.encoder={HYBRID}",
        f"model.decoder=[{HYBRID[1:-1]}, {{cross_attention: {{heads: 2}}}}, norm]",
    ),
    "loop": (
        (
            "model.decoder=[{recurrent: [{concat: [input, prev.h]}, {rnn: {as: h}}]},"
            " {cross_attention: {heads: 2}}]"
        ),
    ),
    "recomputed": (
        f"model.decoder=[recurrent: [repeat: {{times: 2, recompute: true, stack: [{FACTORS}]}}]]",
    ),
    "experts": (
        f"model.decoder=[mamba2: {{head_width: 4}}, cross_attention: {{heads: 2}}, {EXPERTS}]",
    ),
}


def losses(run: Path) -> list[float]:
    return [row["train/loss"] for row in read_metrics(RunDir(run).metrics) if "train/loss" in row]


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow) if name == "loop" else name for name in MODELS],
)
def test_a_packed_training_has_the_losses_of_the_unpacked_one(
    name: str, tiny: Tiny, tmp_path: Path
) -> None:
    for packing in ("false", "true"):
        train(tiny(*EXACT, *MODELS[name], f"data.packing={packing}"), tmp_path / packing)
    unpacked, packed = losses(tmp_path / "false"), losses(tmp_path / "true")
    assert len(set(unpacked)) == 3
    assert packed == pytest.approx(unpacked, abs=1e-6)


def test_rows_of_a_batch_stand_in_one_without_padding(tiny: Tiny) -> None:
    settings = "training.tokens_per_batch=2000"  # rows of all lengths in one batch
    padded, packed = (
        next(
            iter(RecipeDataModule(tiny(settings, f"data.packing={packing}")).split_loader("train"))
        )
        for packing in ("false", "true")
    )
    real = padded["target_in"] != PAD
    assert not real.all()  # or there was nothing to save
    assert torch.equal(packed["target_in"][0], padded["target_in"][real])
    assert torch.equal(packed["target_out"][0], padded["target_out"][real])
    source = padded["sources"]["source"]
    assert torch.equal(packed["sources"]["source"][0], source[source != PAD])
    documents = packed["packed"]["target"]
    assert torch.equal(documents.starts, packed["target_in"] == BOS)
    assert torch.equal(
        documents.split(packed["target_in"])[documents.there], packed["target_in"][0]
    )
    assert len(documents.row) == len(packed["packed"]["source"].row) == len(real)


def test_scheduled_sampling_leaves_the_beginning_of_each_document() -> None:
    target = torch.tensor([[BOS, 5, 6, BOS, 7, 8, BOS, 9]])
    sampled = sample_decoder_inputs(target, torch.randn(1, 8, 12), 1.0, "argmax")
    assert torch.equal(sampled == BOS, target == BOS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "tolerance"), [("compile=true", 1e-6), ("precision=bf16-mixed", 0.02)]
)
def test_packed_rows_train_compiled_and_in_bfloat16(
    setting: str, tolerance: float, tiny: Tiny, tmp_path: Path
) -> None:
    settings = (*EXACT, "model.decoder=[self_attention: {heads: 2}, feed_forward]")
    settings = (*settings, "data.packing=true", "model.encoder=null", "model.output.tie=[]")
    train(tiny(*settings), tmp_path / "plain")
    train(tiny(*settings, f"training.{setting}"), tmp_path / "other")
    assert losses(tmp_path / "other") == pytest.approx(losses(tmp_path / "plain"), rel=tolerance)


READS = "cross_attention: {heads: 2}"
REFUSED = {
    "model.encoder=[grid: 2, select_column: 0]": (
        "`grid` cannot be trained on packed rows: it works on a grid"
    ),
    "model.encoder=[{pool: {}}, identity]": (
        "`pool` cannot be trained on packed rows: it changes the number of"
    ),
    "model.encoder=[repeat: {times: length, share: true, stack: [linear]}]": (
        "it runs as often as a row is long"
    ),
    f"model.decoder=[stack_memory: {{}}, {READS}]": (
        "`stack_memory` cannot be trained on packed rows: what it has put"
    ),
    f"model.decoder=[rnn: {{cell: gru, initial_state: {{copy: encoder.last}}}}, {READS}]": (
        "it copies the last state"
    ),
    "training.curriculum={}": (
        "a curriculum counts the mistakes of rows: `training.curriculum` is set"
    ),
    "model.output.length=6": "an answer of a fixed length has no padding",
}


@pytest.mark.parametrize("setting", REFUSED)
def test_what_cannot_be_packed_is_refused_at_its_line(setting: str, tiny: Tiny) -> None:
    settings = (
        "training.label_smoothing=0",
        "model.encoder=[dropout, {rnn: {cell: gru, as: last}}]",
        setting,
    )
    tiny(*settings).plan()
    with pytest.raises(RecipeError) as caught:
        tiny("data.packing=true", *settings).plan()
    assert REFUSED[setting] in str(caught.value)
    assert [fault.code for fault in caught.value.faults] == ["packing"]
    assert "<command line>:1:" in str(caught.value)


def test_a_state_that_is_copied_is_what_has_to_go(tiny: Tiny) -> None:
    packed = (
        "training.label_smoothing=0",
        "data.packing=true",
        "model.encoder=[{rnn: {cell: gru, as: last}}]",
    )
    decoder = f"model.decoder=[rnn: {{cell: gru, initial_state: {{copy: encoder.last}}}}, {READS}]"
    with pytest.raises(RecipeError) as caught:
        tiny(*packed, decoder).plan()
    (fault,) = caught.value.faults
    assert fault.path.endswith("rnn.initial_state")
    assert fault.hint == "remove `initial_state`, or `data.packing`"
    tiny(*packed, decoder.replace(", initial_state: {copy: encoder.last}", "")).plan()
