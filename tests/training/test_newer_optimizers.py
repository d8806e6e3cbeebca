"""`muon`, `adafactor` and `schedule_free` against the equations of their papers; which parameters,
weights and settings are theirs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

import composer
from composer.checks import machine
from composer.errors import RecipeError
from composer.inference.run import open_run
from composer.model.builder import build
from composer.model.trained_parameters import TrainedParameters, optimizer_parts
from composer.recipe.recipe import load_text
from composer.run_dir import RunDir, checkpoint_path, checkpoint_weights, read_checkpoint
from composer.run_dir import read_metrics as rows_of
from composer.training.module import Seq2SeqModule
from composer.training.optimizers import Adafactor, AdamW, Muon, ScheduleFree
from composer.training.train import train
from composer.training.weight_average import OptimizerAverage
from tests.training.interruptions import killed_in_batch
from tests.training.tiny_recipes import Tiny, Undisturbed, same_weights

NEW = ("muon", "adafactor", "schedule_free")
CONSTANT = "training.schedule={constant: {warmup_steps: 3}}"


def stepped(optimizer: torch.optim.Optimizer, steps: list[dict[Parameter, Tensor]]) -> None:
    for gradients in steps:
        for parameter, gradient in gradients.items():
            parameter.grad = gradient.clone()
        optimizer.step()


def orthogonalized(matrix: Tensor) -> Tensor:
    """`newtonschulz5` of kellerjordan.github.io/posts/muon."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrix.bfloat16() / (matrix.bfloat16().norm() + 1e-7)
    if matrix.shape[0] > matrix.shape[1]:
        x = x.T
    for _ in range(5):
        product = x @ x.T
        x = a * x + (b * product + c * product @ product) @ x
    return (x.T if matrix.shape[0] > matrix.shape[1] else x).float()


@pytest.mark.parametrize("shape", [(6, 20), (20, 6)])
@pytest.mark.parametrize("scale", ["match_rms_adamw", "original"])
def test_a_step_of_muon_is_the_orthogonalized_momentum(shape: tuple[int, int], scale: Any) -> None:
    torch.manual_seed(1)
    matrix = Parameter(torch.randn(shape))
    kind = Muon(learning_rate=0.1, momentum=0.9, scale=scale, weight_decay=0.2)
    initial, mean = matrix.detach().clone(), torch.zeros(shape)
    expected = initial
    gradients = [torch.randn(shape) for _ in range(3)]
    stepped(
        kind.build(TrainedParameters([matrix], hidden={id(matrix)})),
        [{matrix: gradient} for gradient in gradients],
    )
    rows, columns = shape
    factor = 0.2 * max(shape) ** 0.5 if scale != "original" else max(1.0, rows / columns) ** 0.5
    for gradient in gradients:
        mean = 0.9 * mean + 0.1 * gradient
        step = orthogonalized(0.1 * gradient + 0.9 * mean)
        expected = expected * (1 - 0.1 * 0.2) - 0.1 * factor * step
    # bfloat16 has two digits
    assert (matrix.detach() - expected).norm() < 0.05 * (expected - initial).norm()
    size = (step.square().mean().sqrt() * factor).item()
    assert scale == "original" or 0.15 < size < 0.25  # as Adam's


def test_what_is_no_hidden_matrix_is_trained_by_adamw() -> None:
    torch.manual_seed(1)
    matrix, table = Parameter(torch.randn(4, 3)), Parameter(torch.randn(4, 3))
    alone = Parameter(table.detach().clone())
    settings = {"weight_decay": 0.2, "beta2": 0.9, "eps": 1e-6}
    muon = Muon(learning_rate=0.1, adamw_learning_rate=0.03, **settings)
    optimizer = muon.build(TrainedParameters([matrix, table], hidden={id(matrix)}))
    gradients = [torch.randn(4, 3) for _ in range(3)]
    rates = [group["factor"] * 0.1 for group in optimizer.param_groups]
    assert rates == pytest.approx([0.1, 0.03])  # what a training sets
    stepped(optimizer, [{matrix: one, table: one} for one in gradients])
    adamw = AdamW(learning_rate=0.03, **settings).build(TrainedParameters([alone]))
    stepped(adamw, [{alone: one} for one in gradients])
    assert torch.equal(alone, table)
    assert not torch.equal(matrix, table)


MIXED = """recipe: 1
data: {generate: copy, tokenizer: {char: {joint: true}}}
model:
  width: 8
  encoder: [{positions: learned}, {conv: 3}, self_attention, {rnn: {cell: lstm, width: 8}}, norm]
  decoder: [{mlstm: {heads: 2}}, {slstm: {heads: 2}}, {cross_attention: {heads: 2}}, {feed_forward: 16}]
  output: {TIE}
training: {optimizer: muon}
"""


@pytest.mark.parametrize("tie", ["{tie: [source, target]}", "{tie: []}"])
def test_hidden_matrices_are_those_of_blocks_alone(tie: str) -> None:
    recipe = load_text(MIXED.replace("{TIE}", tie))
    model = build(recipe, {"source": 12, "target": 12})
    parts = optimizer_parts(recipe, model)
    every = [name for name, _ in model.named_parameters()]
    assert sorted([*parts["muon"], *parts["adamw"]]) == sorted(every)
    matrices = {
        "encoders.source.stack.blocks.2": {"project.weight", "merge.weight"},  # q, k and v in one
        "encoders.source.stack.blocks.3.layers.0": {"arriving", "recurrent"},  # four gates in each
        "decoder.blocks.0": {"query_key.weight", "value.weight", "gate.weight", "merge.weight"}
        | {"input_forget.weight"},
        "decoder.blocks.2": {"query.weight", "project.weight", "merge.weight"},
        "decoder.blocks.3": {"expand.weight", "contract.weight"},
    }
    expected = {f"{block}.{name}" for block, names in matrices.items() for name in names}
    assert {*parts["muon"]} == expected


def test_run_json_says_which_parameters_muon_has(tiny: Tiny, undisturbed: Undisturbed) -> None:
    run = undisturbed(tiny("training.optimizer=muon", CONSTANT))
    parts = RunDir(run).read().optimizer_parts
    assert parts["muon"]
    assert "output.weight" not in parts["muon"]
    assert RunDir(undisturbed(tiny())).read().optimizer_parts == {}


def test_steps_of_adafactor_are_those_of_the_paper() -> None:
    """Algorithms 4 and 5, with the constants of section 9."""
    torch.manual_seed(1)
    matrix, vector = Parameter(torch.randn(4, 3)), Parameter(torch.zeros(5))
    expected = [matrix.detach().clone(), vector.detach().clone()]
    rows, columns, squares = torch.zeros(4, 1), torch.zeros(1, 3), torch.zeros(5)
    gradients = [(1e-4 * torch.randn(4, 3), torch.randn(5)) for _ in range(3)]
    gradients[0][0][1] = 0.0  # a token that is in no sentence
    stepped(
        Adafactor(learning_rate=0.01).build(TrainedParameters([matrix, vector])),
        [{matrix: one, vector: other} for one, other in gradients],
    )
    for t, (of_matrix, of_vector) in enumerate(gradients, start=1):
        beta2 = 1 - t**-0.8
        squared = of_matrix.square() + 1e-30
        rows = beta2 * rows + (1 - beta2) * squared.sum(1, keepdim=True)
        columns = beta2 * columns + (1 - beta2) * squared.sum(0, keepdim=True)
        squares = beta2 * squares + (1 - beta2) * (of_vector.square() + 1e-30)
        estimates = rows @ columns / rows.sum(), squares
        for at, gradient in enumerate((of_matrix, of_vector)):
            step = gradient / estimates[at].sqrt()
            step = step / max(1.0, step.square().mean().sqrt().item())
            size = max(1e-3, expected[at].square().mean().sqrt().item())
            expected[at] = expected[at] - size * min(0.01, t**-0.5) * step
    torch.testing.assert_close(matrix.detach(), expected[0], rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(vector.detach(), expected[1], rtol=1e-5, atol=1e-9)


def test_the_average_of_schedule_free_is_that_of_the_paper() -> None:
    """Algorithm 1 in 64 bits: z takes Adam's steps, x is their mean by the squares of the rates."""
    torch.manual_seed(1)
    y = Parameter(torch.randn(3, dtype=torch.float64))
    optimizer = ScheduleFree(learning_rate=0.1, beta1=0.8, beta2=0.9, weight_decay=0.1).build(
        TrainedParameters([y])
    )
    x = z = y.detach().clone()
    squares, weights = torch.zeros(3, dtype=torch.float64), 0.0
    for t in range(1, 7):
        rate = 0.1 * min(1.0, t / 3)
        optimizer.param_groups[0]["lr"] = rate  # as the warm-up of `constant` sets it
        expected = 0.2 * z + 0.8 * x
        torch.testing.assert_close(y.detach(), expected)
        y.grad = torch.sin(y.detach() + t)
        squares = 0.9 * squares + 0.1 * y.grad.square()
        step = y.grad / ((squares / (1 - 0.9**t)).sqrt() + 1e-8) + 0.1 * expected
        optimizer.step()
        z = z - rate * step
        weights += rate**2
        x = x + (z - x) * rate**2 / weights
    average = OptimizerAverage()
    average.parameters, average.optimizer = {"y": y}, optimizer
    torch.testing.assert_close(average.averages()["y"], x)


def test_what_is_validated_and_kept_is_the_average(tiny: Tiny, undisturbed: Undisturbed) -> None:
    run = undisturbed(tiny("training.optimizer={schedule_free: {beta1: 0.7}}", CONSTANT))
    path = checkpoint_path(run / "checkpoints", 12)
    content, average = read_checkpoint(path), checkpoint_weights(path)
    module = Seq2SeqModule(**content["hyper_parameters"])
    module.load_state_dict(content["state_dict"])
    optimizer: Any = module.configure_optimizers()
    optimizer.load_state_dict(content["optimizer_states"][0])
    y = {name: value.clone() for name, value in module.model.state_dict().items()}
    optimizer.eval()  # the package moves the weights to x
    for name, value in module.model.state_dict().items():
        assert torch.equal(value, average[name]), name
    assert any(not torch.allclose(average[name], value, atol=1e-3) for name, value in y.items())
    (row,) = [
        row for row in rows_of(run / "metrics.jsonl") if row["step"] == 12 and "val/loss" in row
    ]
    at_end = open_run(run, checkpoint="last").evaluate("val")["val/loss"]
    assert at_end == pytest.approx(row["val/loss"], rel=1e-5)
    (used,) = RunDir(run).read().checkpoints_used.checkpoints
    best = checkpoint_weights(run / "checkpoints" / used)
    final = open_run(run).model.state_dict()
    assert all(torch.equal(value, best[name]) for name, value in final.items())


MORE = (
    "training.accumulate=2",
    "training.precision=bf16-mixed",
    "training.parameter_groups=[{blocks: encoder, factor: 0.5}, {blocks: output, weight_decay: 0.1}]",
)


@pytest.mark.parametrize("more", [(), MORE], ids=["plain", "more"])
@pytest.mark.parametrize("word", NEW)
def test_it_resumes_to_the_bit(
    tiny: Tiny, tmp_path: Path, undisturbed: Undisturbed, word: str, more: tuple[str, ...]
) -> None:
    recipe = tiny(f"training.optimizer={{{word}: {{weight_decay: 0.01}}}}", CONSTANT, *more)
    reference, run = undisturbed(recipe), tmp_path / "cut"
    with killed_in_batch(14 if more else 7):
        train(recipe, run)
    train(recipe, run, resume=True)
    assert same_weights(reference, run)
    losses = [
        [row.get("val/loss", row.get("train/loss")) for row in rows_of(one / "metrics.jsonl")]
        for one in (reference, run)
    ]
    assert losses[0] == losses[1]


@pytest.mark.parametrize(
    ("overrides", "path", "told"),
    [
        (("training.schedule=cosine",), "training.schedule", "in place of a decaying"),
        (("training.ema={}",), "training.ema", "averages the weights already"),
        (("training.average_checkpoints=2",), "training.average_checkpoints", "already"),
        (("training.precision=bf16-true",), "training.precision", "16 bits"),
    ],
)
def test_what_does_not_go_with_schedule_free_is_refused(
    tiny: Tiny, overrides: tuple[str, ...], path: str, told: str
) -> None:
    with pytest.raises(RecipeError, match=told) as raised:
        tiny("training.optimizer=schedule_free", "training.schedule=constant", *overrides)
    (fault,) = raised.value.faults
    assert fault.path == path


def test_adafactor_is_not_sharded(tiny: Tiny) -> None:
    with pytest.raises(RecipeError, match="`adafactor` does not train a model") as raised:
        tiny("training.optimizer=adafactor", "trainer={strategy: fsdp, accelerator: cpu}")
    assert [fault.path for fault in raised.value.faults] == ["trainer.strategy"]


def test_a_missing_package_is_named(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "missing_packages", lambda names: [*names])
    (fault,) = composer.check(tiny("training.optimizer=schedule_free", CONSTANT))
    assert (fault.code, fault.path) == ("package", "training.optimizer")
    assert "needs the package `schedulefree`" in fault.message
