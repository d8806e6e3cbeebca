"""CTC against sums over all paths, against PyTorch's, and joint decoding against all answers."""

from __future__ import annotations

import copy
import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from blocks.core.contract import Output, Penalties, Stream, reduce_penalties
from composer.checks.planner import plan
from composer.errors import ComposerError, RecipeError
from composer.evaluation.scores import evaluate
from composer.inference.decode import Row, decode_all
from composer.inference.decoders.search import Options
from composer.inference.methods import Beam
from composer.model.builder import build
from composer.model.ctc import Ctc, CtcModel, JointModel
from composer.model.encoder_decoder import EncoderDecoder, StepInputs
from composer.model.special_tokens import EOS, PAD
from composer.recipe.recipe import Recipe, load_text
from composer.run_dir import read_metrics
from composer.testing import check_model
from composer.training.preflight import check_recipe
from composer.training.train import train
from tests.training.tiny_recipes import same_weights

SIZE, FRAMES = 7, 5
LABELS = range(EOS + 1, SIZE)
ANSWERS = [answer for length in range(4) for answer in itertools.product(LABELS, repeat=length)]
LENGTHS = (5, 3, 4)


def frames_of(ctc: Ctc) -> Output:
    torch.manual_seed(1)
    mask = torch.arange(FRAMES) < torch.tensor(LENGTHS)[:, None]
    return Output(2 * torch.randn(3, FRAMES, ctc.in_features, dtype=torch.double), mask)


def random_ctc() -> Ctc:
    torch.manual_seed(0)
    return Ctc("encoder", Stream(4), SIZE).double()


def over_paths(p: Any, answer: tuple[int, ...]) -> float:
    """The sum over all paths of labels and blanks that spell the answer. p: (S, V)"""
    total = 0.0
    p = p.detach()
    for path in itertools.product([PAD, *LABELS], repeat=len(p)):
        if tuple(label for label, _ in itertools.groupby(path) if label != PAD) == answer:
            total += math.prod(float(p[frame, label]) for frame, label in enumerate(path))
    return total


def taught(ctc: Ctc, memory: Output, answer: tuple[int, ...], pad: int = 0) -> torch.Tensor:
    """log p of an answer, token by token, for each row. -> (B,)"""
    ids = torch.tensor([[1, *answer, *[PAD] * pad]]).expand(len(memory.mask), -1)
    log_p, _ = ctc.step(ids, ctc.start(memory))
    following = torch.tensor([*answer, EOS]).expand(len(ids), -1)
    return log_p[:, : len(answer) + 1].gather(2, following[..., None])[..., 0].sum(1)


@pytest.mark.parametrize("answer", [(), (3,), (3, 3), (4, 5, 4), (4, 4, 6)])
def test_tokens_add_up_to_all_paths_and_to_torch(answer: tuple[int, ...]) -> None:
    ctc = random_ctc()
    memory = frames_of(ctc)
    paths = [
        over_paths(row[:length].exp(), answer)
        for row, length in zip(ctc(memory.states), LENGTHS, strict=True)
    ]
    own = taught(ctc, memory, answer, pad=2)
    torch.testing.assert_close(
        own.exp(), torch.tensor(paths, dtype=torch.double), atol=1e-12, rtol=1e-10
    )
    labels = torch.tensor([[*answer, PAD]]).expand(3, -1)
    possible = own > -100
    torch.testing.assert_close(
        -ctc.path_cost(memory, labels)[possible], own[possible], atol=1e-10, rtol=0
    )


def test_gradients_are_those_of_torch() -> None:
    ctc = random_ctc()
    memory, answer = frames_of(ctc), (4, 5, 4)
    (own,) = torch.autograd.grad(-taught(ctc, memory, answer).sum(), ctc.map.weight)
    labels = torch.tensor([answer]).expand(3, -1)
    (theirs,) = torch.autograd.grad(ctc.path_cost(memory, labels).sum(), ctc.map.weight)
    torch.testing.assert_close(own, theirs, atol=1e-10, rtol=0)


def test_single_precision_is_finite() -> None:
    ctc = random_ctc().float()
    memory = frames_of(ctc)
    # some labels have a probability of 0
    memory = Output(1000 * memory.states.float(), memory.mask)
    frames, real, *prefix = ctc.start(memory)
    single = tuple(
        part.float() if part.is_floating_point() else part for part in (frames, real, *prefix)
    )
    log_p, _ = ctc.step(torch.tensor([[1, 4, 4, 5]]).expand(3, -1), single)
    assert log_p.isfinite().all()


def test_probabilities_of_the_next_token_add_up_to_one() -> None:
    ctc = random_ctc()
    log_p, _ = ctc.step(torch.tensor([[1, 4, 4, 5]]).expand(3, -1), ctc.start(frames_of(ctc)))
    torch.testing.assert_close(log_p.exp().sum(-1), torch.ones(3, 4, dtype=torch.double))


def test_thousands_of_frames_are_exact_and_impossible_answers_cost_nothing() -> None:
    ctc = random_ctc()
    states = torch.randn(1, 3000, 4, dtype=torch.double)
    memory, answer = Output(states, torch.ones(1, 3000, dtype=torch.bool)), (3, 4, 4, 5) * 10
    own = taught(ctc, memory, answer)
    torch.testing.assert_close(
        -ctc.path_cost(memory, torch.tensor([answer])), own, atol=0, rtol=1e-9
    )
    short = Output(states[:, :4], memory.mask[:, :4])
    assert ctc.path_cost(short, torch.tensor([[3, 3, 3]])).tolist() == [0.0]
    assert taught(ctc, short, (3, 3, 3)) < -1000


TEXT = """recipe: 1
data: {generate: {copy: {train: 9, val: 3, test: 3, symbols: 3}}}
model:
  width: 8
  encoder: [{rnn: {bidirectional: true}}]
"""
DECODER = "  decoder: [rnn, {residual: [cross_attention]}]\n"
SIZES = {"source": SIZE, "target": SIZE}


def model_of(weight: float) -> Any:
    text = TEXT + (DECODER if weight < 1 else "") + f"  output: {{ctc: {{weight: {weight}}}}}\n"
    torch.manual_seed(3)
    return build(load_text(text), SIZES).eval()


@pytest.mark.parametrize("weight", [0.3, 1])
def test_laws(weight: float) -> None:
    check_model(model_of(weight))


def scores(model: EncoderDecoder, source: list[int], weight: float) -> dict[tuple[int, ...], float]:
    """What joint decoding ranks by of all short answers: (1 - w) log p of the decoder plus w log p
    of all paths.
    """
    ids = torch.tensor([[*source, EOS]])
    with torch.no_grad():
        memories = model.encode({"source": ids})
        frames = model.ctc(memories["encoder"].states)[0].exp()
        results = {}
        for answer in ANSWERS:
            logits, _ = EncoderDecoder.step(
                model,
                torch.tensor([[1, *answer]]),
                EncoderDecoder.start(model, memories, 1),
                memories,
            )
            log_q = logits[0].log_softmax(-1).gather(1, torch.tensor([*answer, EOS])[:, None]).sum()
            p = over_paths(frames, answer)
            results[answer] = (1 - weight) * float(log_q) + weight * (math.log(p) if p else -1e9)
    return results


@pytest.mark.parametrize("weight", [0.0, 0.3, 0.8])
def test_joint_decoding_finds_the_best_of_all_answers(weight: float) -> None:
    model, source = model_of(0.5), [3, 5, 4]
    with torch.no_grad():
        model.output.bias[EOS] += 2.0  # ends are likely enough for short answers
    expected = scores(model, source, weight)
    settings = {"size": 40, "length_penalty": 0.0, "max_length": 4, "ctc_weight": weight}
    best = decode_all([model], [Row({"source": source})], Beam(**settings), Options(n_best=5))[0]
    ranked = sorted(expected, key=lambda answer: -expected[answer])[:5]
    assert [tuple(one.ids) for one in best] == ranked
    assert [one.score for one in best] == pytest.approx(
        [expected[answer] for answer in ranked], abs=1e-4
    )


def test_the_loss_weighs_the_decoder_and_ctc() -> None:
    model = model_of(0.25).train()
    assert isinstance(model, JointModel)
    assert model.decoder_share == 0.75
    source, target = torch.tensor([[3, 5, 4, 2]]), torch.tensor([[1, 4, 6]])
    penalties: Penalties = {}
    answer = torch.tensor([[4, 6, 2]])
    model({"source": source}, target, StepInputs(None, penalties), answer)
    (cost,) = reduce_penalties(penalties).values()
    alone = model.ctc.path_cost(
        model.encode({"source": source})["encoder"], torch.tensor([[4, 6]])
    ).sum()
    torch.testing.assert_close(cost, 0.25 * alone)


@pytest.mark.parametrize("weight", [0.0, 0.8, 1.0])
def test_a_model_with_another_weight_is_made_once(weight: float) -> None:
    """A compiled step is kept for a model, and would be loaded again with every batch else."""
    model = model_of(0.5)
    other = model.with_ctc_weight(weight)
    assert model.with_ctc_weight(weight) is other
    assert model.with_ctc_weight(0.5) is model
    assert model.with_ctc_weight(0.3) is not other
    model.train()
    assert model.with_ctc_weight(weight).training
    model.decoder = copy.deepcopy(model.decoder)
    assert model.with_ctc_weight(weight).decoder is model.decoder


def test_ctc_alone_trains_on_what_it_decodes_by() -> None:
    model = model_of(1)
    assert isinstance(model, CtcModel)
    source, target, answer = (
        {"source": torch.tensor([[3, 5, 4, 2]])},
        torch.tensor([[1, 4, 6]]),
        torch.tensor([[4, 6, 2]]),
    )
    cost = model.train()(source, target, answer=answer).sum()
    log_p = (
        model.eval()(source, target, answer=answer)
        .log_softmax(-1)
        .gather(2, answer[..., None])
        .sum()
    )
    torch.testing.assert_close(cost, -log_p.to(cost.dtype))


def of_output(output: str, decoder: str = DECODER, more: str = "") -> str:
    return f"{TEXT}{decoder}  output: {{{output}}}\n{more}"


GRID = "    - grid: {columns: 2}\n    - cgru\n    - sum_columns\n"
MISTAKES: dict[str, tuple[str, int, str]] = {
    "no decoder": (of_output("ctc: {weight: 0.5}", ""), 3, "`decoder` is missing"),
    "a decoder beside CTC alone": (
        of_output("ctc: {weight: 1}"),
        6,
        "a decoder would learn nothing",
    ),
    "a length": (of_output("length: 3, ctc: {weight: 0.5}"), 7, "`length` does not go with CTC"),
    "an unknown memory": (
        of_output("ctc: {from: encoder.x}"),
        7,
        "no memory is called `encoder.x`",
    ),
    "levels of CTC alone": (
        of_output("ctc: {weight: 1}", "", "training: {curriculum: {}}\n"),
        7,
        "`curriculum` does not go with CTC",
    ),
    "room for an answer": (
        of_output("ctc: {weight: 0.5}").replace(
            "  encoder: [{rnn: {bidirectional: true}}]\n", f"  encoder:\n{GRID}"
        ),
        10,
        "CTC cannot be combined with `grid`",
    ),
}


WITHOUT_EFFECT: dict[str, tuple[str, int, str]] = {
    "a tied head beside CTC alone": (
        of_output("tie: [target], ctc: {weight: 1}", ""),
        6,
        "CTC is alone",
    ),
    "smoothing of CTC alone": (
        of_output("ctc: {weight: 1}", "", "training: {label_smoothing: 0.1}\n"),
        7,
        "CTC is alone",
    ),
    "a weight of nothing": (
        f"{TEXT}{DECODER}decoding: {{beam: {{ctc_weight: 0.5}}}}\n",
        7,
        "the model has no CTC",
    ),
}


@pytest.mark.parametrize("case", WITHOUT_EFFECT)
def test_what_changes_nothing_is_a_warning_at_its_line(case: str) -> None:
    text, line, message = WITHOUT_EFFECT[case]
    assert (line, True) in {
        (fault.line, message in fault.message) for fault in plan(load_text(text)).warnings
    }


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_refused_at_their_line(mistake: str) -> None:
    text, line, message = MISTAKES[mistake]
    with pytest.raises(RecipeError) as caught:
        plan(load_text(text))
    reported = {(fault.line, message in fault.message) for fault in caught.value.faults}
    assert (line, True) in reported, caught.value


POSSIBLE, IMPOSSIBLE_ANSWERS = ["0 1 2", "1 0 1", "0", "1 1", "2"], ["0 1 1", "0 0 0", "0 1 2 3"]
"""Answers of three frames: each token takes one, and one that repeats the token before another."""
FILES = """recipe: 1
data: {tokenizer: {integers: {below: 4}}, parallel: {train: FILES, val: FILES}}
model:
  width: 8
  encoder: [{rnn: {bidirectional: true}}]
MODEL
training: {max_steps: 3, validate_every: 1, tokens_per_batch: 30}
decoding: {greedy: {max_length: 4}}
logging: {wandb: false}
"""


@pytest.mark.parametrize("weight", [0.5, 1])
def test_answers_that_ctc_cannot_write_are_reported_and_in_no_loss(
    weight: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = (DECODER if weight < 1 else "") + f"  output: {{ctc: {{weight: {weight}}}}}"

    def recipe_of(name: str, answers: list[str]) -> Recipe:
        # eos is the third frame
        for side, lines in (("source", ["0 1"] * len(answers)), ("target", answers)):
            (tmp_path / f"{side}.{name}").write_text("\n".join(lines) + "\n")
        text = FILES.replace("MODEL", model).replace(
            "FILES", f"{{source: source.{name}, target: target.{name}}}"
        )
        return load_text(text, tmp_path / f"{name}.yaml")

    some, few = (
        recipe_of("some", (IMPOSSIBLE_ANSWERS + POSSIBLE) * 4),
        recipe_of("few", POSSIBLE * 4),
    )
    warnings = [
        warning for warning in check_recipe(some).warnings if warning.path == "model.output.ctc"
    ]
    assert [warning.code for warning in warnings] == ["length"]
    assert "24 of 64 answers need more CTC frames than the encoder leaves" in warnings[0].message
    assert not [
        warning for warning in check_recipe(few).warnings if warning.path == "model.output.ctc"
    ]
    results = []
    for recipe, is_told in ((some, True), (few, False)):
        results.append(train(recipe, tmp_path / f"run-{recipe.name}").run_dir)
        assert (
            "24 of 64 answers need more CTC frames than the encoder leaves"
            in capsys.readouterr().out
        ) == is_told
    assert same_weights(*results)
    losses = [
        [row["val/loss"] for row in read_metrics(run / "metrics.jsonl") if "val/loss" in row]
        for run in results
    ]
    assert losses[0] == losses[1]
    scores, other = (evaluate(run, "val") for run in results)
    assert scores["val/impossible"].startswith(
        "12 of 32 answers need more CTC frames than the encoder leaves"
    )
    assert "val/impossible" not in other
    assert scores["val/loss"] == other["val/loss"] == pytest.approx(losses[0][-1])


def test_where_ctc_can_write_no_answer_there_is_nothing_to_learn(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("0 1 2 3\n" * 9)
    (tmp_path / "b.txt").write_text("1 1\n" * 9)
    text = FILES.replace("MODEL", "  output: {ctc: {weight: 1}}").replace("val: FILES", "val: 2")
    for files in ("{source: b.txt, target: a.txt}", "{source: a.txt, target: b.txt}"):
        recipe = load_text(text.replace("FILES", files), tmp_path / "recipe.yaml")
        if "source: a" in files:  # five frames
            check_recipe(recipe)
            continue
        with pytest.raises(ComposerError, match="every answer needs more frames than CTC has"):
            check_recipe(recipe)
