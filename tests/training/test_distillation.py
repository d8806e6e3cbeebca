"""`training.distillation`: a frozen teacher's probabilities, hidden outputs, and what is refused."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from blocks.core.contract import Output
from composer.checks.teacher import teacher_faults
from composer.errors import ComposerError, RunError
from composer.fingerprint import fingerprints
from composer.inference.run import open_run
from composer.recipe.recipe import Recipe
from composer.run_dir import RunDir, read_metrics
from composer.training.distillation import Teacher, softened_divergence, squared_difference
from composer.training.module import Seq2SeqModule
from composer.training.train import train
from composer.training.training_plan import plan_training
from tests.training.interruptions import killed_in_batch
from tests.training.tiny_recipes import Tiny, Undisturbed, same_weights

WIDE = (
    "model.encoder=[{rnn: {cell: gru, width: 12, as: states}}]",
    "model.decoder=[{rnn: {cell: gru, width: 12, as: inner}}, {linear: 8}, cross_attention, norm]",
)
TEACHER = ("training.max_steps=4", "training.validate_every=4")
SHORT = ("training.max_steps=6", "training.validate_every=2")


def distillation(settings: str = "", teacher: str = "teacher") -> str:
    return f"training.distillation={{teacher: {teacher}{settings}}}"


@pytest.fixture
def teacher(tiny: Tiny, undisturbed: Undisturbed, tmp_path: Path) -> Path:
    """A run beside the recipe, under the name by which the recipe finds it."""
    run = undisturbed(tiny(*TEACHER))
    return Path(shutil.copytree(run, tmp_path / "recipes" / "teacher"))


def test_the_divergence_is_that_of_the_paper() -> None:
    torch.manual_seed(1)
    logits = torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True)
    teacher = torch.randn(2, 3, 5, dtype=torch.float64)
    target = torch.tensor([[4, 4, 0], [4, 0, 0]])  # three real tokens
    temperature = 3.0
    expected = torch.zeros((), dtype=torch.float64)
    for row, position in ((0, 0), (0, 1), (1, 0)):
        p = (logits[row, position] / temperature).exp()
        q = (teacher[row, position] / temperature).exp()
        p, q = p / p.sum(), q / q.sum()
        expected = expected + temperature**2 * (q * (q / p).log()).sum()
    loss = softened_divergence(logits, teacher, target, temperature)
    torch.testing.assert_close(loss, expected)
    (gradient,) = torch.autograd.grad(loss, logits)
    (wanted,) = torch.autograd.grad(expected, logits)
    torch.testing.assert_close(gradient, wanted)


def losses(run: Path, name: str = "train/loss") -> list[float]:
    return [row[name] for row in read_metrics(RunDir(run).metrics) if name in row]


def test_the_loss_is_the_mixture(tiny: Tiny, teacher: Path, tmp_path: Path) -> None:
    """In the first step, of one model: (1 - w) CE + w T^2 KL."""
    once = ("training.max_steps=1", "training.validate_every=1", "model.dropout=0")
    first = {}
    for weight in (0.0, 0.25, 1.0):
        recipe = tiny(*once, distillation(f", weight: {weight}, temperature: 4"))
        train(recipe, tmp_path / str(weight))
        first[weight] = losses(tmp_path / str(weight))[0]
        divergence = losses(tmp_path / str(weight), "train/distillation")[0]
        assert divergence == pytest.approx(first[1.0] if weight == 1.0 else divergence)
    train(tiny(*once), tmp_path / "plain")
    assert first[0.0] == pytest.approx(losses(tmp_path / "plain")[0])
    assert first[0.25] == pytest.approx(0.75 * first[0.0] + 0.25 * first[1.0])


def test_a_student_approaches_its_teacher(tiny: Tiny, teacher: Path, tmp_path: Path) -> None:
    settings = ("training.max_steps=60", "training.validate_every=60", "model.dropout=0")
    train(tiny(*settings, distillation(", weight: 1.0")), tmp_path / "run")
    divergences = losses(tmp_path / "run", "train/distillation")
    assert divergences[-1] < 0.5 * divergences[0]


def test_the_teacher_is_frozen_and_in_no_checkpoint(
    tiny: Tiny, teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[bool, bool]] = []
    original = Teacher.loss

    def watched(self: Teacher, *arguments: torch.Tensor) -> object:
        parameters = [*self.model.parameters()]
        is_still = not any(one.requires_grad or one.grad is not None for one in parameters)
        seen.append((self.model.training, is_still))
        return original(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Teacher, "loss", watched)
    train(tiny(*SHORT, "training.ema={decay: 0.9}", distillation()), tmp_path / "run")
    train(tiny(*SHORT, "training.ema={decay: 0.9}"), tmp_path / "plain")
    assert len(seen) == 6
    assert set(seen) == {(False, True)}
    names = []
    for run in ("run", "plain"):
        path = sorted((tmp_path / run / "checkpoints").glob("*.ckpt"))[-1]
        content = torch.load(path, weights_only=True)
        average = content["callbacks"]["WeightAverage"]["average"]
        state = content["optimizer_states"][0]["state"]
        names.append((content["state_dict"].keys(), average.keys(), len(state)))
    assert names[0] == names[1]


HIDDEN = distillation(
    ", hidden: [{student: inner, teacher: inner},"
    " {student: encoder.states, teacher: encoder.states}]"
)


@pytest.mark.parametrize("settings", [(distillation(),), (HIDDEN, *WIDE)])
def test_it_resumes_to_the_last_bit(
    tiny: Tiny, undisturbed: Undisturbed, tmp_path: Path, settings: tuple[str, ...]
) -> None:
    named = [setting.replace("width: 12", "width: 10") for setting in WIDE]
    source = undisturbed(tiny(*TEACHER, *(named if settings[1:] else ())))
    shutil.copytree(source, tmp_path / "recipes" / "teacher")
    recipe = tiny(*SHORT, *settings)
    train(recipe, tmp_path / "whole")
    with killed_in_batch(5):
        train(recipe, tmp_path / "cut")
    train(recipe, tmp_path / "cut", resume=True)
    assert same_weights(tmp_path / "whole", tmp_path / "cut")
    hidden = losses(tmp_path / "cut", "train/hidden")
    assert bool(hidden) == bool(settings[1:])


def test_hidden_outputs_are_compared_through_a_map(
    tiny: Tiny, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    named = [setting.replace("width: 12", "width: 10") for setting in WIDE]
    source = undisturbed(tiny(*TEACHER, *named))
    run = open_run(source)
    recipe = tiny(*WIDE, HIDDEN)
    module = Seq2SeqModule.from_recipe(recipe, run.tokenizers)
    module.learn_from(run)
    assert [tuple(one.weight.shape) for one in module.projections] == [(10, 12), (10, 12)]
    optimizer = module.configure_optimizers()
    trained = {id(one) for group in optimizer.param_groups for one in group["params"]}
    assert {id(one) for one in module.projections.parameters()} <= trained
    assert not trained & {id(one) for one in run.model.parameters()}


def test_a_masked_position_does_not_count() -> None:
    mask = torch.tensor([[True, True, False]])
    own = Output(torch.tensor([[[1.0, 2.0], [0.0, 0.0], [9.0, 9.0]]]), mask)
    theirs = Output(torch.tensor([[[1.0, 0.0], [2.0, 0.0], [0.0, 0.0]]]), mask)
    assert squared_difference(own, theirs, torch.nn.Identity()).item() == 2.0  # (4 / 2 + 4 / 2) / 2


def test_the_run_records_its_teacher(tiny: Tiny, teacher: Path, tmp_path: Path) -> None:
    recipe = tiny(*SHORT, distillation())
    record = train(recipe, tmp_path / "run").record
    theirs = RunDir(teacher).read()
    assert record.teacher is not None
    assert (record.teacher.weights, record.teacher.tokenizer) == (
        theirs.weights_sha256,
        theirs.tokenizer_sha256,
    )
    assert record.fingerprints is not None
    assert fingerprints(recipe)["run"] == record.fingerprints["run"]
    teacher.rename(teacher.with_name("moved"))
    moved = tiny(*SHORT, distillation(teacher="moved"))
    assert fingerprints(moved)["run"] == record.fingerprints["run"]
    weights = RunDir(teacher.with_name("moved")).weights
    weights.write_bytes(weights.read_bytes() + b" ")
    assert fingerprints(moved)["run"] != record.fingerprints["run"]


def test_another_teacher_is_refused_on_resuming(tiny: Tiny, teacher: Path, tmp_path: Path) -> None:
    with killed_in_batch(5):
        train(tiny(*SHORT, distillation()), tmp_path / "run")
    shutil.rmtree(teacher)
    train(tiny(*TEACHER, "training.seed=2"), teacher)
    with pytest.raises(RunError, match="has other weights than when it began"):
        train(tiny(*SHORT, distillation()), tmp_path / "run", resume=True)


def test_the_tokenizer_is_the_teachers(tiny: Tiny, teacher: Path, tmp_path: Path) -> None:
    fewer = "data.generate.reverse.train=40"
    train(tiny(*SHORT, fewer, distillation()), tmp_path / "run")
    files = [(run / "tokenizer.json").read_bytes() for run in (teacher, tmp_path / "run")]
    assert files[0] == files[1]


def refusal(recipe: Callable[[], Recipe], folder: Path) -> str:
    with pytest.raises(ComposerError) as raised:
        train(recipe(), folder)
    assert not folder.exists()
    return raised.value.render()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ((distillation(teacher="nobody"),), r"error\[file\]: no run folder `nobody` in"),
        ((distillation(), "data.tokenizer=word"), r"error\[tokenizer\]: the teacher has another"),
        ((distillation(), "data.lowercase=true"), r"error\[tokenizer\]: the teacher has another"),
        (
            (distillation(), "model.output={kind: {sampled: {samples: 3}}}"),
            "`sampled` trains without the logits of all tokens",
        ),
        ((distillation(), "model.output.ctc={}", "model.output.tie=[]"), "`ctc` adds up all ways"),
        ((distillation(", hidden: [{student: a, teacher: b}]"),), "the student has no output"),
    ],
)
def test_what_does_not_suit_the_teacher_is_refused(
    tiny: Tiny, teacher: Path, tmp_path: Path, settings: tuple[str, ...], message: str
) -> None:
    text = refusal(lambda: tiny(*SHORT, *settings), tmp_path / "run")
    assert re.search(message, text), text


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("model.output={kind: {sampled: {samples: 3}}}", "the teacher has `sampled`"),
        ("model.output={length: 5}", "other tokens are impossible"),
    ],
)
def test_teachers_without_all_logits_are_refused(
    tiny: Tiny, tmp_path: Path, settings: str, message: str
) -> None:
    task = "data.generate.reverse={symbols: 6, min_length: 3, max_length: 3, train: 60, val: 8, test: 4}"
    teacher = tiny(*TEACHER, task, "training.label_smoothing=0", settings)
    train(teacher, tmp_path / "recipes" / "teacher")
    assert message in refusal(lambda: tiny(*SHORT, task, distillation()), tmp_path / "run")


def test_check_finds_a_missing_teacher(tiny: Tiny) -> None:
    recipe = tiny(distillation(teacher="nobody"))
    (fault,) = teacher_faults(recipe, recipe.folders(), may_be_missing=False)
    assert fault.path == "training.distillation.teacher"
    assert not teacher_faults(recipe, recipe.folders(), may_be_missing=True)


def test_the_teacher_takes_memory(tiny: Tiny, teacher: Path) -> None:
    plain, taught = plan_training(tiny()).memory, plan_training(tiny(distillation())).memory
    size = sum(one.nbytes for one in open_run(teacher).model.parameters())
    assert taught.weight_bytes - plain.weight_bytes >= size
    assert taught.activation_bytes >= plain.activation_bytes
