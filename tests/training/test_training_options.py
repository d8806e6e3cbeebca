"""Training options: a goal, gradient noise, scheduled sampling, initialization."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from composer.errors import RecipeError
from composer.model.initializations import Orthogonal, UniformScaling
from composer.model.special_tokens import BOS, EOS, PAD
from composer.model.weights import initialize, matrices_with_layouts
from composer.recipe.sections import EarlyStopping, GradientNoise
from composer.run_dir import checkpoint_weights, list_checkpoints
from composer.training.callback import TrainingLoopCallback
from composer.training.checkpointing import CheckpointManager
from composer.training.early_stopping import should_stop
from composer.training.module import (
    Seq2SeqModule,
    add_gradient_noise,
    predict_tokens,
    replacement_rate,
    sample_decoder_inputs,
)
from composer.training.train import train
from tests.training.interruptions import killed_in_batch
from tests.training.test_resume import values
from tests.training.tiny_recipes import Tiny, Undisturbed, same_weights

NOISE = "training.gradient_noise={scale: 0.3}"
SAMPLING = "training.scheduled_sampling={rate: 0.8, warmup: 0.5, choose: sample}"
ORTHOGONAL = "training.initialization={orthogonal: 1.4}"
FOUR = ("training.max_steps=4",)
SETS = (
    "model.encoder=[{repeat: {times: length, relaxation: {sets: 2}, stack: [{linear: {activation:"
    " tanh}}]}}]"
)

# ------------------------------------------------------------------------------------------- a goal


@pytest.mark.parametrize(("metric", "better"), [("val/loss", -1.0), ("val/exact_match", 1.0)])
def test_a_goal_respects_the_direction_of_its_metric(metric: str, better: float) -> None:
    history = [{metric: 0.5 + better * step / 10} for step in (-1, 0, 1)]
    rule = EarlyStopping(metric=metric, patience=None, goal=0.5)
    ended = [should_stop(rule, history[: count + 1]) for count in range(3)]
    assert ended == [False, True, True]


def test_patience_applies_beside_a_goal_and_can_be_unlimited() -> None:
    history = [{"val/loss": 1.0}] * 9
    assert should_stop(EarlyStopping(patience=5, goal=0.1), history)
    assert not should_stop(EarlyStopping(patience=None, goal=0.1), history)
    assert not should_stop(EarlyStopping(patience=None), history)


def test_a_goal_ends_a_training(tiny: Tiny, tmp_path: Path) -> None:
    easy = "training.early_stopping={metric: val/perplexity, goal: 1000, patience: null}"
    assert train(tiny(easy), tmp_path / "run").record.steps == 4


def test_an_unreachable_goal_is_refused(tiny: Tiny) -> None:
    with pytest.raises(
        RecipeError, match=r"`val/exact_match` is never above 1, and the goal is 99"
    ):
        tiny("training.early_stopping={metric: val/exact_match, goal: 99}")
    tiny("training.early_stopping={metric: val/bleu, goal: 99}")


def test_among_equal_scores_the_checkpoint_with_the_lowest_loss_is_the_best(tmp_path: Path) -> None:
    losses = {1.0: 3.0, 2.0: 1.0, 3.0: 2.0}
    history = [
        {"step": step, "val/exact_match": 0.5, "val/loss": loss} for step, loss in losses.items()
    ]
    best = CheckpointManager(tmp_path, metric="val/exact_match").best(history)
    assert best is not None
    assert best.stem == "step-00000002"


# ------------------------------------------------------------------------------------------- noise


def noise(shape: tuple[int, ...], seed: int, step: int, **settings: float) -> torch.Tensor:
    """What is added to a gradient of zeros."""
    parameter = nn.Parameter(torch.zeros(shape))
    parameter.grad = torch.zeros(shape)
    add_gradient_noise(
        [parameter, nn.Parameter(torch.zeros(3))], seed, step, GradientNoise(**settings)
    )
    return parameter.grad


def test_noise_has_the_variance_of_its_step() -> None:
    for step, scale, decay in ((0, 1.0, 0.55), (0, 0.01, 0.55), (15, 1.0, 0.5), (99, 0.3, 0.0)):
        drawn = noise((200, 200), 1, step, scale=scale, decay=decay) / math.sqrt(
            scale / (1 + step) ** decay
        )
        assert abs(drawn.mean()) < 4 / 200  # four deviations of a mean of 40,000
        assert abs(drawn.square().mean() - 1) < 4 * math.sqrt(2) / 200


def test_noise_is_a_function_of_seed_and_step() -> None:
    settings = {"scale": 1.0, "decay": 0.0}
    first = noise((8, 8), 1, 7, **settings)
    torch.rand(5)
    assert torch.equal(first, noise((8, 8), 1, 7, **settings))
    others = [noise((8, 8), seed, step, **settings) for seed, step in ((2, 7), (1, 8), (17, 7))]
    assert all(
        abs(torch.corrcoef(torch.stack((first.flatten(), item.flatten())))[0, 1]) < 0.6
        for item in others
    )


def test_noise_is_added_after_clipping_without_global_random_numbers(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gradient that is clipped to next to nothing leaves the noise alone."""
    steps: list[float] = []
    real = Seq2SeqModule.configure_gradient_clipping

    def measured(self: Seq2SeqModule, *given: Any, **named: Any) -> None:
        before = torch.get_rng_state()
        real(self, *given, **named)
        assert torch.equal(before, torch.get_rng_state())
        squares = [item.grad.square().sum() for item in self.parameters() if item.grad is not None]
        count = sum(item.numel() for item in self.parameters())
        steps.append(float(torch.stack(squares).sum()) / count)

    monkeypatch.setattr(Seq2SeqModule, "configure_gradient_clipping", measured)
    train(
        tiny("training.clip_norm=1e-9", "training.gradient_noise={scale: 4.0, decay: 1.0}", *FOUR),
        tmp_path / "run",
    )
    assert steps == pytest.approx([4.0 / (1 + step) for step in range(4)], rel=0.2)


# ------------------------------------------------------------------------------------------- tokens
# of its own


def test_the_replacement_rate_rises_linearly() -> None:
    chances = [replacement_rate(spent, rate=0.4, warmup=0.5) for spent in (0.0, 0.25, 0.5, 1.0)]
    assert chances == [0.0, 0.2, 0.4, 0.4]
    assert replacement_rate(0.0, rate=0.4, warmup=0.0) == 0.4


def test_a_prediction_replaces_the_token_after_it() -> None:
    target = torch.tensor([[BOS, 5, 6, 7], [BOS, 4, PAD, PAD]])
    logits = nn.functional.one_hot(torch.tensor([[8, 9, 10, 11], [8, 9, 10, 11]]), 12).float()
    assert sample_decoder_inputs(target, logits, 1.0, "argmax").tolist() == [
        [BOS, 8, 9, 10],
        [BOS, 8, PAD, PAD],
    ]
    assert torch.equal(sample_decoder_inputs(target, logits, 0.0, "argmax"), target)


def test_the_share_of_replaced_tokens_is_the_rate() -> None:
    target = torch.full((100, 101), 4)
    logits = nn.functional.one_hot(torch.full((100, 101), 5), 6).float()
    share = (sample_decoder_inputs(target, logits, 0.3, "argmax") == 5).float().mean()
    assert abs(share - 0.3) < 4 * math.sqrt(0.3 * 0.7 / 10_000)


def test_pad_bos_and_eos_are_never_predicted() -> None:
    logits = torch.zeros(40, 50, 6).index_fill(-1, torch.tensor([PAD, BOS, EOS]), 9.0)
    for choose in ("argmax", "sample"):
        assert set(predict_tokens(logits, choose).unique().tolist()) <= {3, 4, 5}  # type: ignore[arg-type]


def test_tokens_are_sampled_by_their_probabilities() -> None:
    torch.manual_seed(0)
    p = torch.tensor([0.0, 0.0, 0.0, 0.5, 0.3, 0.2])
    sampled = predict_tokens(p.log().expand(100, 200, 6), "sample")
    for token, share in enumerate(p.tolist()):
        assert abs((sampled == token).float().mean() - share) <= 4 * math.sqrt(
            share * (1 - share) / 20_000
        )


@pytest.mark.parametrize("precision", ["32", "bf16-mixed"])
def test_the_second_pass_learns_and_the_first_does_not(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    read: list[bool] = []
    reached: list[bool] = []
    real = Seq2SeqModule.decoder_input, Seq2SeqModule.on_before_optimizer_step

    def reads(self: Seq2SeqModule, batch: Any, spent: float) -> torch.Tensor:
        result = real[0](self, batch, spent)
        read.append(torch.equal(result, batch["target_in"]))
        assert torch.equal(result == PAD, batch["target_in"] == PAD)
        return result

    def steps(self: Seq2SeqModule, optimizer: Any) -> None:
        reached.append(
            all(item.grad is not None and bool(item.grad.any()) for item in self.parameters())
        )
        real[1](self, optimizer)

    monkeypatch.setattr(Seq2SeqModule, "decoder_input", reads)
    monkeypatch.setattr(Seq2SeqModule, "on_before_optimizer_step", steps)
    train(
        tiny(SAMPLING, f"training.precision={precision}", "training.tokens_per_batch=300", *FOUR),
        tmp_path / "run",
    )
    assert read == [True] + 3 * [False]  # at the first step the chance is 0
    assert all(reached)


def test_scheduled_sampling_needs_a_decoder_that_reads_tokens(tiny: Tiny) -> None:
    grid = (
        "model.encoder=[{grid: {columns: 1, max_length_ratio: 2}}, {select_column: 0}]",
        "model.decoder=[source_state]",
    )
    tied = "model.output.tie=[]"
    path = "training.scheduled_sampling"
    assert path not in [warning.path for warning in tiny(*grid, tied).plan().warnings]
    (warning,) = [
        warning for warning in tiny(*grid, tied, SAMPLING).plan().warnings if warning.path == path
    ]
    assert "reads no tokens" in warning.message


# ------------------------------------------------------------------------------------------- other
# matrices


@pytest.mark.parametrize("shape", [(5, 5), (3, 7), (12, 4), (10, 4)])
def test_orthogonal_initialization_has_orthogonal_rows(shape: tuple[int, int]) -> None:
    result = Orthogonal(gain=2.0).draw(torch.zeros(shape))
    for part in result.split(shape[1]):  # the gates of a cell, one below the other
        torch.testing.assert_close(part @ part.T, 4.0 * torch.eye(len(part)))


def test_uniform_scaling_preserves_the_scale_of_the_input() -> None:
    result = UniformScaling(gain=1.8).draw(torch.zeros(300, 100))
    assert result.abs().max() <= 1.8 * math.sqrt(3 / 100)
    x = torch.randn(2000, 100)
    assert abs((x @ result.T).square().mean().sqrt() - 1.8) < 0.05


def test_only_matrices_of_blocks_are_initialized(tiny: Tiny) -> None:
    recipe = tiny(
        "model.encoder=[{positions: learned}, {rnn: {norm: gates, initial_state: learned}}, {conv:"
        " {kernel: 3}}, norm]",
        "model.decoder=[{linear: {weight_norm: true}}, {cross_attention: {heads: 2, score:"
        " additive}}]",
    )
    model = recipe.build()
    before = {name: value.clone() for name, value in model.named_parameters()}
    initialize(model, UniformScaling(gain=3.0))
    changed = {
        name for name, value in model.named_parameters() if not torch.equal(value, before[name])
    }
    known = {id(item) for item, _ in matrices_with_layouts(model)}
    assert changed == {name for name, value in model.named_parameters() if id(value) in known}
    endings = {name.rpartition(".")[2] for name in changed}
    assert endings == {"weight", "arriving", "recurrent"}
    left = {name for name in before if name not in changed}
    assert not [
        name for name in changed if "embedding" in name or "output" in name or "table" in name
    ]
    assert {name.rpartition(".")[2] for name in left} >= {
        "weight",
        "bias",
        "gain",
        "learned",
        "vectors",
    }
    one = next(
        value.detach() for name, value in model.named_parameters() if name.endswith("arriving")
    )
    assert float(one.std()) == pytest.approx(3.0 / math.sqrt(one.shape[1]), rel=0.1)


def test_a_shared_matrix_is_initialized_once(tiny: Tiny) -> None:
    recipe = tiny("model.encoder=[{repeat: {times: 3, share: true, stack: [{rnn: {cell: gru}}]}}]")
    result = [id(item) for item, _ in matrices_with_layouts(recipe.build())]
    assert len(result) == len(set(result)) > 0


def test_only_a_run_from_random_weights_is_initialized(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = ("training.max_steps=1",)
    begun: list[torch.Tensor] = []
    real = TrainingLoopCallback.on_train_start
    name = "decoder.blocks.0.layers.0.gates.weight"

    def seen(self: TrainingLoopCallback, trainer: Any, module: Seq2SeqModule) -> None:
        begun.append(module.model.state_dict()[name].clone())
        real(self, trainer, module)

    monkeypatch.setattr(TrainingLoopCallback, "on_train_start", seen)
    train(tiny(*once), tmp_path / "plain")
    train(tiny(*once, ORTHOGONAL), tmp_path / "orthogonal")
    train(tiny(*once, ORTHOGONAL), tmp_path / "from", start_from=tmp_path / "plain")
    plain, orthogonal, started = begun
    for gate in orthogonal.split(orthogonal.shape[1]):
        torch.testing.assert_close(gate @ gate.T, 1.4**2 * torch.eye(len(gate)))
    assert not torch.equal(plain, orthogonal)
    assert torch.equal(started, load_file(tmp_path / "plain" / "model.safetensors")[name])


# ------------------------------------------------------------------------------------------- sets
# that become one


def test_parameter_sets_join_during_training(tiny: Tiny, tmp_path: Path) -> None:
    train(tiny(SETS, "training.average_checkpoints=3"), tmp_path / "run")
    joined = {
        path.stem: [
            value.item()
            for name, value in checkpoint_weights(path).items()
            if name.endswith("joined")
        ]
        for path in list_checkpoints(tmp_path / "run" / "checkpoints")
    }
    kept = load_file(tmp_path / "run" / "model.safetensors")
    assert [value.item() for name, value in kept.items() if name.endswith("joined")] == [True]
    assert joined == {"step-00000004": [False], "step-00000008": [True], "step-00000012": [True]}


# -------------------------------------------------------------------------------------------
# stopped and gone on with


def test_a_killed_training_with_all_options_resumes_bit_for_bit(
    tiny: Tiny, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    recipe = tiny(
        NOISE, SAMPLING, ORTHOGONAL, SETS, "training.early_stopping={goal: 0.0, patience: null}"
    )
    reference = undisturbed(recipe)
    with killed_in_batch(7):
        train(recipe, tmp_path / "cut")
    train(recipe, tmp_path / "cut", resume=True)
    assert same_weights(reference, tmp_path / "cut")
    assert values(reference) == values(tmp_path / "cut")
