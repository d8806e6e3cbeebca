"""Each precision computes in its type, compiling changes nothing, no step synchronizes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch._dynamo import lookup_backend
from torch._dynamo.exc import BackendCompilerFailed
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import composer
from composer.errors import RecipeError, RunFailed
from composer.model.builder import vocabulary_bounds
from composer.recipe.recipe import Recipe, load, load_text
from composer.run_dir import RunDir, checkpoint_weights, list_checkpoints, read_metrics
from composer.training import loss, module
from composer.training.callback import TrainingLoopCallback
from composer.training.module import Seq2SeqModule
from composer.training.train import train
from tests.recipes.model_sizes import size_overrides
from tests.training.interruptions import killed_in_batch
from tests.training.tiny_recipes import Tiny, Undisturbed, same_weights

RECIPES = Path(__file__).parents[2] / "recipes"
TRANSFORMER = (
    "model.encoder=[{residual: [{self_attention: {heads: 2}}]}, norm]",
    (
        "model.decoder=[{residual: [{self_attention: {heads: 2}}]}, {residual: [{cross_attention:"
        " {heads: 2}}]}, norm]"
    ),
)
UNDROPPED = "model.dropout=0"  # what is compiled draws its dropout in another way
KINDS = {"bf16-mixed": torch.float32, "bf16-true": torch.bfloat16, "64": torch.float64}


# -------------------------------------------------------------------------------------------
# precision


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "kind"), KINDS.items())
def test_a_precision_trains_decodes_and_resumes_bit_for_bit(
    tiny: Tiny, tmp_path: Path, undisturbed: Undisturbed, precision: str, kind: torch.dtype
) -> None:
    recipe = tiny(f"training.precision={precision}")
    reference, plain = undisturbed(recipe), undisturbed(tiny())
    runs = [RunDir(run).read() for run in (reference, plain)]
    assert runs[0].scores["val/loss"] == pytest.approx(runs[1].scores["val/loss"], rel=0.02)
    assert not same_weights(reference, plain)
    assert str(load(reference / "recipe.yaml").training.precision) == precision
    assert runs[0].fingerprints["run"] != runs[1].fingerprints["run"]
    with killed_in_batch(6):
        train(recipe, tmp_path / "cut")
    train(recipe, tmp_path / "cut", resume=True)
    assert same_weights(reference, tmp_path / "cut")
    last = list_checkpoints(tmp_path / "cut" / "checkpoints")[-1]
    assert {value.dtype for value in checkpoint_weights(last).values()} == {kind}
    assert {
        value.dtype for value in load_file(tmp_path / "cut" / "model.safetensors").values()
    } == {torch.float32}
    (written,) = composer.open_run(tmp_path / "cut").translate(["abc"])
    assert len(written) > 0


NUMBERS = """recipe: 1
data: {generate: {priority_sort: {train: 4, val: 2, test: 2}}, tokenizer: {bits: {size: 8,
  numbers: true}}}
model: {width: 4, encoder: [rnn], decoder: [cross_attention], embedding: linear,
  output: {kind: sigmoid}}
training: {max_steps: 1, precision: bf16-true}
"""


def test_final_weights_in_16_bits_are_measured_with_tables_in_32() -> None:
    recipe = load_text(NUMBERS)
    tokenizers = SimpleNamespace(text="", sizes=vocabulary_bounds(recipe))
    trained = Seq2SeqModule(recipe.dump(), "", (recipe, cast(Any, tokenizers)))
    exact = trained.model.readers()["source"].embedding.features.clone()
    trained.bfloat16()
    final = trained.unsharded_model().readers()["source"].embedding.features
    assert final.dtype == torch.float32
    assert torch.equal(final, exact)


@pytest.mark.parametrize(
    ("machine", "told"),
    [("accelerator: cpu", "a CPU does not train"), ("strategy: fsdp", "`fsdp` does not train")],
)
def test_an_impossible_precision_is_an_error_at_its_line(
    tiny: Tiny, machine: str, told: str
) -> None:
    with pytest.raises(RecipeError, match=told) as raised:
        tiny("training.precision=16-mixed", f"trainer={{{machine}}}")
    (fault,) = raised.value.faults
    assert fault.code == "conflict"


def test_float16_without_a_gpu_is_refused(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lightning trains in bf16-mixed then, and says so in a warning at most."""
    for better in (torch.cuda, torch.backends.mps):
        monkeypatch.setattr(better, "is_available", lambda: False)
    with pytest.raises(RecipeError, match="there is no GPU") as raised:
        train(tiny("training.precision=16-mixed"), tmp_path / "run")
    (fault,) = raised.value.faults
    assert fault.path == "training.precision"
    assert "bf16-mixed" in fault.hint
    assert not (tmp_path / "run").exists()


# -------------------------------------------------------------------------------------------
# compiling


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Has the quickest backend compile; the sizes of the graphs that it was given."""
    result: list[int] = []
    real = torch.compile

    def compiled(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        result.append(len(graph.graph.nodes))
        return lookup_backend("aot_eager")(graph, inputs)

    torch.compiler.reset()
    monkeypatch.setattr(torch, "compile", lambda model: real(model, backend=compiled))
    yield result
    torch.compiler.reset()


@pytest.mark.slow
def test_a_compiled_training_ends_with_the_same_weights(
    tiny: Tiny, tmp_path: Path, graphs: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches of two shapes and more are one graph or two, without breaks; nothing is compiled for
    the validation.
    """
    overrides = (
        *TRANSFORMER,
        UNDROPPED,
        "training.optimizer=sgd",
        "training.max_steps=6",
        "training.validate_every=3",
    )
    shapes: set[tuple[int, ...]] = set()
    before: list[int] = []
    real = Seq2SeqModule.training_step

    def step(self: Seq2SeqModule, batch: Any, batch_idx: int) -> Tensor:
        shapes.add(tuple(batch["target_in"].shape))
        return real(self, batch, batch_idx)

    monkeypatch.setattr(Seq2SeqModule, "training_step", step)
    monkeypatch.setattr(
        TrainingLoopCallback, "on_validation_start", lambda *_: before.append(len(graphs))
    )
    train(tiny(*overrides), tmp_path / "eager")
    assert not graphs
    train(tiny(*overrides, "training.compile=true"), tmp_path / "compiled")
    assert len(shapes) > 3
    assert 1 < len(graphs) < 4
    assert before[-1] == len(graphs)  # nor for the test part after it
    eager, compiled = (
        load_file(tmp_path / name / "model.safetensors") for name in ("eager", "compiled")
    )
    for name, value in eager.items():
        torch.testing.assert_close(compiled[name], value, atol=1e-5, rtol=1e-4)
    rows, others = (
        read_metrics(tmp_path / name / "metrics.jsonl") for name in ("eager", "compiled")
    )
    for row, other in zip(rows, others, strict=True):
        for name in ("train/loss", "val/loss"):
            assert row.get(name, 0.0) == pytest.approx(other.get(name, 0.0), rel=1e-4)


@pytest.mark.slow
def test_a_model_that_recompiles_too_often_trains_without_compilation(
    tiny: Tiny, tmp_path: Path, graphs: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    """Dynamo would go on in silence: a loop over positions is another program for each length."""
    overrides = (
        "model.encoder=[{rnn: {cell: gru}}]",
        UNDROPPED,
        "training.optimizer=sgd",
        "training.max_steps=6",
    )
    overrides = (*overrides, "training.tokens_per_batch=30")
    train(tiny(*overrides), tmp_path / "eager")
    capsys.readouterr()
    with torch._dynamo.config.patch(recompile_limit=1):
        train(tiny(*overrides, "training.compile=true"), tmp_path / "compiled")
    assert len(graphs) == 1
    assert capsys.readouterr().out.count(module.UNCOMPILED) == 1
    eager, compiled = (
        load_file(tmp_path / name / "model.safetensors") for name in ("eager", "compiled")
    )
    for name, value in eager.items():
        torch.testing.assert_close(compiled[name], value, atol=1e-5, rtol=1e-4)


def test_a_missing_compiler_is_an_error(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        raise RuntimeError("no working C++ compiler was found")

    real = torch.compile
    monkeypatch.setattr(torch, "compile", lambda model: real(model, backend=broken))
    with pytest.raises(RunFailed, match="no working C") as raised:
        train(
            tiny("model.encoder=[norm]", "training.max_steps=2", "training.compile=true"),
            tmp_path / "run",
        )
    assert isinstance(raised.value.__cause__, BackendCompilerFailed)
    assert "compile: false" in raised.value.render()
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "failed"


# -------------------------------------------------------------------------------------------
# waiting for the device

WAITS = {
    Tensor.item,
    Tensor.tolist,
    Tensor.cpu,
    Tensor.numpy,
    Tensor.__bool__,
    Tensor.__float__,
    Tensor.__int__,
    Tensor.__index__,
    Tensor.nonzero,
    Tensor.masked_select,
}


DATA_DEPENDENT = {
    torch.ops.aten._local_scalar_dense,
    torch.ops.aten.nonzero,
    torch.ops.aten.masked_select,
    torch.ops.aten.unique_dim,
}


class Waits(TorchFunctionMode):
    """Counts what would make a GPU wait, by the functions that a program calls."""

    def __init__(self, found: list[str]) -> None:
        self.found = found

    def __torch_function__(
        self, function: Any, types: Any, given: Any = (), named: Any = None
    ) -> Any:
        if function in WAITS:
            self.found.append(str(function))
        return function(*given, **(named or {}))


class Reads(TorchDispatchMode):
    """Counts the same by the operators that run, in whatever function: in the backward pass too."""

    def __init__(self, found: list[str]) -> None:
        super().__init__()
        self.found = found

    def __torch_dispatch__(
        self, operator: Any, types: Any, given: Any = (), named: Any = None
    ) -> Any:
        if operator.overloadpacket in DATA_DEPENDENT:
            self.found.append(str(operator))
        return operator(*given, **(named or {}))


@contextmanager
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[int, list[str]]]:
    """What each step waited for, by its number, from before its forward pass to after the
    optimizer's.
    """
    result: dict[int, list[str]] = {}
    modes: list[Any] = []
    step, ended = Seq2SeqModule.training_step, TrainingLoopCallback.on_train_batch_end

    def begins(self: Seq2SeqModule, *given: Any) -> Tensor:
        if not modes:
            now = result.setdefault(self.trainer.global_step, [])
            modes.extend([Waits(now), Reads(now)])
            for mode in modes:
                mode.__enter__()
        return step(self, *given)

    def ends(self: TrainingLoopCallback, *given: Any) -> None:
        while modes:
            modes.pop().__exit__(None, None, None)
        ended(self, *given)

    monkeypatch.setattr(Seq2SeqModule, "training_step", begins)
    monkeypatch.setattr(TrainingLoopCallback, "on_train_batch_end", ends)
    yield result


SIZES = "{train: 60, val: 8, test: 8}"
QUICKSTART = RECIPES / "quickstart.yaml"
QUICK_SIZES = {"width": 16, "hidden": 16, "heads": 2, "times": 1}
QUICK = (
    f"data.generate.number_words={SIZES}",
    "data.tokenizer={char: {joint: true}}",
    "training.tokens_per_batch=200",
    "training.max_steps=5",
    "training.gradient_noise={scale: 0.01}",
    "training.accumulate=2",
    "decoding={greedy: {max_length: 8}}",
    "logging.wandb=false",
)
MORE = ("training.precision=bf16-mixed", "training.scheduled_sampling={rate: 0.5}")


def quick(*more: str) -> Recipe:
    """The quickstart, small."""
    return load(QUICKSTART, [*size_overrides(QUICKSTART, QUICK_SIZES), *QUICK, *more])


@pytest.mark.parametrize("more", [(), MORE])
def test_no_step_synchronises_with_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...]
) -> None:
    with watched(monkeypatch) as result:
        train(quick(*more), tmp_path / "run")
    assert result == {step: [] for step in range(5)}


WAITING = {
    "item": lambda loss: loss * float(loss.item() != 0.0),
    "tolist": lambda loss: loss * len(str(loss.tolist())),
    "truth": lambda loss: loss if loss > 0.0 else -loss,
    "cpu": lambda loss: loss.cpu(),
    "shape": lambda loss: loss[None].masked_select(loss[None] > 0.0).sum(),
    "in the backward pass": lambda loss: Hooked.apply(loss),
}


class Hooked(torch.autograd.Function):
    """Reads a gradient, where no mode for functions of a program is on."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor) -> Tensor:
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] * float(gradients[0].item() != 0.0)


@pytest.mark.slow
@pytest.mark.parametrize("wait", WAITING)
def test_a_step_that_synchronises_is_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wait: str
) -> None:
    real = loss.sum_loss

    def waiting(logits: Tensor, target: Tensor, smoothing: float = 0.0) -> Tensor:
        return cast("Tensor", WAITING[wait](real(logits, target, smoothing)))

    monkeypatch.setattr(loss, "sum_loss", waiting)
    with watched(monkeypatch) as result:
        train(quick("training.max_steps=1"), tmp_path / "run")
    assert result[0]
