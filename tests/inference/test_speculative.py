"""Speculative decoding: what is written is what would have been written, and drawn by the same
probabilities.
"""

from __future__ import annotations

import copy
import io
import itertools
import math
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor

import composer
from composer.cli import main
from composer.errors import RunError
from composer.inference.decoders.speculative import (
    FIRST_DRAFTED,
    MOST_DRAFTED,
    MOST_UNREAD,
    check_draft,
)
from composer.inference.draft_runs import open_draft
from composer.inference.drafts import Draft
from composer.inference.methods import Beam, Greedy, Mbr, Sample
from composer.inference.run import open_run
from composer.model.encoder_decoder import EncoderDecoder
from composer.model.special_tokens import BOS, EOS
from tests.inference.small_models import CROSS, LSTM, PLACES, SELF, Written, decode, model_of, sized
from tests.inference.untrained import LANGUAGE, made
from tests.model.test_ctc import model_of as ctc_model

NORM: dict[str, Any] = {"norm": {}}
LANGUAGE_MODELS: dict[str, list[Any]] = {
    "lstm": [LSTM, NORM],
    "transformer": [PLACES, SELF, NORM],
    "hybrid": [{"residual": {"stack": [{"gated_delta_net": {"heads": 2}}]}}, SELF, NORM],
}
TRANSLATING = [PLACES, SELF, CROSS, NORM]
PREFIXES = [[], [3, 5], [3, 4, 5, 6, 3] * 4]
GREEDY = Greedy(max_length=50)


@pytest.fixture(autouse=True)
def in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Caches grow in place whatever their size."""
    monkeypatch.setattr("blocks.core.kv_cache.SMALL", 0)


def model(name: str) -> Any:
    """A model whose answers are long, and do not turn in a circle at once."""
    made = model_of(
        LANGUAGE_MODELS.get(name, TRANSLATING),
        seed=2,
        target=11,
        source=name == "translation",
        sharp=3.0,
    )
    with torch.no_grad():
        made.output.bias[EOS] = -2.0
    return made


def neighbour(model: EncoderDecoder) -> EncoderDecoder:
    """A model that is right now and then about what another one writes."""
    other = copy.deepcopy(model)
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(0.1 * parameter.std() * torch.randn_like(parameter))
    return other


def drafts_of(model: Any) -> dict[str, Draft]:
    return {
        "neighbour": Draft(neighbour(model)),
        "itself": Draft(model),
        "language model": Draft(
            model_of([PLACES, SELF, NORM], seed=7, target=11, source=False).to(model.output.weight)
        ),
    }


def sources_of(model: EncoderDecoder) -> dict[str, list[list[int]]]:
    return {"source": [[3, 4, 5, 6, 7], [8, 9], [4] * 9]} if len(model.encoders) else {}


# ------------------------------------------------------------------------------------------- greedy


@pytest.mark.parametrize("draft", ["neighbour", "itself", "language model"])
@pytest.mark.parametrize("name", [*LANGUAGE_MODELS, "translation"])
def test_greedy_is_the_same_token_for_token(name: str, draft: str) -> None:
    exact = model(name).double()
    proposing, sources = drafts_of(exact)[draft], sources_of(exact)
    plain = decode([exact], sources, GREEDY, PREFIXES)
    drafted = decode([exact], sources, GREEDY, PREFIXES, draft=proposing)
    assert [best.ids for best, *_ in drafted] == [best.ids for best, *_ in plain]
    assert [best.ended for best, *_ in drafted] == [best.ended for best, *_ in plain]
    assert [best.score for best, *_ in drafted] == pytest.approx(
        [best.score for best, *_ in plain], abs=1e-4
    )
    assert proposing.drafted > 0
    assert (
        proposing.accepted == proposing.drafted
        if draft == "itself"
        else proposing.accepted < proposing.drafted
    )
    if draft in ("neighbour", "itself"):
        assert proposing.accepted > 0
        assert proposing.tokens > proposing.steps


@pytest.mark.parametrize("name", LANGUAGE_MODELS)
def test_greedy_differs_in_float32_only_where_two_tokens_are_equally_probable(name: str) -> None:
    rough = model(name)
    for prefix in PREFIXES:
        plain, drafted = (
            decode([rough], {}, GREEDY, [prefix], draft=draft)[0][0].ids
            for draft in (None, Draft(neighbour(rough)))
        )
        place = next(
            (at for at, pair in enumerate(zip(plain, drafted, strict=False)) if pair[0] != pair[1]),
            None,
        )
        if place is not None or len(plain) != len(drafted):
            common = plain[: place if place is not None else min(len(plain), len(drafted))]
            with torch.no_grad():
                best, second = (
                    rough({}, torch.tensor([[BOS, *common]]))[0, -1].topk(2).values.tolist()
                )
            assert best - second < 1e-4


def test_tokens_are_shown_as_they_come() -> None:
    answering, tokens = model("transformer"), list[int]()
    ((best,),) = decode(
        [answering], {}, GREEDY, [[3, 4]], draft=Draft(neighbour(answering)), on_token=tokens.append
    )
    assert [3, 4, *tokens] == [*best.ids, EOS][: len(tokens) + 2]
    assert len(tokens) == len(best.ids) - 2 + best.ended


def test_no_position_is_read_that_a_model_has_not(tmp_path: Path) -> None:
    """Learned positions end: those of the model where its text ends, those of the draft where it
    says nothing more.
    """
    bounded = [{"positions": {"kind": "learned", "max_length": 12}}, SELF, NORM]
    models: list[Any] = [
        model_of(stack, seed=4, target=11, source=False) for stack in (bounded, TRANSLATING[:2])
    ]
    short, long = (one.double() for one in models)
    for answering, proposing in ((short, long), (long, short), (short, short)):
        answering.output.bias.data[EOS] = -9.0
        for prefix in ([], [3] * 9, [3] * 11, *([[3] * 14] if answering is long else [])):
            draft = Draft(proposing)
            plain, drafted = (
                decode([answering], {}, GREEDY, [prefix], draft=one)[0][0] for one in (None, draft)
            )
            assert drafted.ids == plain.ids
            assert draft.drafted > 0 or len(prefix) >= 11


def step_lengths(model: Any) -> list[int]:
    """How many tokens each step of a model reads from now on."""
    lengths, step = list[int](), model.step

    def counted_step(ids: Tensor, *rest: Any) -> Any:
        lengths.append(ids.shape[1])
        return step(ids, *rest)

    model.step = counted_step
    return lengths


def test_one_token_more_is_drafted_than_were_accepted() -> None:
    answering = model("lstm").double()
    same, lengths = copy.deepcopy(answering), step_lengths(answering)
    decode([answering], {}, GREEDY, [[3]], draft=Draft(same))
    # each reads the last token, too
    expected = [1 + count for count in range(FIRST_DRAFTED, MOST_DRAFTED + 1)]
    assert lengths[1 : 1 + len(expected)] == expected
    assert max(lengths) == expected[-1]


def test_few_tokens_are_read_again() -> None:
    """Where drafts are always rejected, the accepted tokens that the state has not read are read
    without drafts.
    """
    answering = model("lstm")
    step, wrong = answering.step, copy.deepcopy(answering)
    lengths = step_lengths(answering)

    def wrong_step(ids: Tensor, *rest: Any) -> Any:
        logits, state = step(ids, *rest)
        return -logits, state

    wrong.step = wrong_step
    decode([answering], {}, GREEDY, [[3]], draft=Draft(wrong))
    assert max(lengths) == MOST_UNREAD + 1
    assert lengths[2:4] == [3, 4]  # one token is drafted each time


# -------------------------------------------------------------------------------------------
# sampling

A, B, C = 3, 4, 5
TABLE: dict[int, dict[int, float]] = {
    0: {A: 0.5, B: 0.3, C: 0.15, EOS: 0.05},
    A: {A: 0.1, B: 0.55, C: 0.25, EOS: 0.1},
    B: {A: 0.4, B: 0.2, C: 0.3, EOS: 0.1},
    C: {A: 0.28, B: 0.22, C: 0.45, EOS: 0.05},
}
OTHER: dict[int, dict[int, float]] = {
    0: {A: 0.5, B: 0.3, C: 0.15, EOS: 0.05},
    A: {A: 0.06, B: 0.82, C: 0.07, EOS: 0.05},
    B: {A: 0.75, B: 0.09, C: 0.11, EOS: 0.05},
    C: {A: 0.1, B: 0.06, C: 0.8, EOS: 0.04},
}
"""It is surer of the most probable token, so what is rejected goes to all the others."""
DRAWS, LENGTH, PROMPT = 1000, 3, (A, B, C, A, B, C)
SETTINGS: dict[str, dict[str, float]] = {
    "plain": {},
    "temperature": {"temperature": 0.6},
    "top_k": {"top_k": 2},
    "top_p": {"top_p": 0.75},
    "min_p": {"min_p": 0.4},
    "repetition_penalty": {"repetition_penalty": 1.5},
    "all": {"temperature": 1.3, "top_k": 3, "top_p": 0.95, "min_p": 0.2, "repetition_penalty": 1.2},
}


def next_probabilities(
    table: Mapping[int, Mapping[int, float]],
    text: Sequence[int],
    temperature: float = 1.0,
    top_k: float = 99,
    top_p: float = 1.0,
    min_p: float = 0.0,
    repetition_penalty: float = 1.0,
) -> dict[int, float]:
    """The probabilities by which `sample` draws, by their definitions."""
    logits = {token: math.log(p) for token, p in table[text[-1] if text else 0].items()}
    logits = {
        t: v * (repetition_penalty if t in text and t != EOS else 1) / temperature
        for t, v in logits.items()
    }
    total = sum(map(math.exp, logits.values()))
    left = sorted(
        ((math.exp(value) / total, token) for token, value in logits.items()), reverse=True
    )[: int(top_k)]
    total, before, inside = sum(p for p, _ in left), 0.0, []
    for p, token in left:
        if before < top_p and p >= min_p * left[0][0]:
            inside.append((p, token))
        before += p / total
    total = sum(p for p, _ in inside)
    return {token: p / total for p, token in inside}


def exact_distribution(
    table: Mapping[int, Mapping[int, float]], **settings: float
) -> dict[tuple[int, ...], float]:
    """The probability of each answer of at most `LENGTH` tokens."""
    answers: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(LENGTH):
        longer: dict[tuple[int, ...], float] = {}
        for answer, p in answers.items():
            ended = answer[-1:] == (EOS,)
            following: dict[Any, float] = (
                {None: 1.0} if ended else next_probabilities(table, [*PROMPT, *answer], **settings)
            )
            for token, share in following.items():
                longer[answer if token is None else (*answer, token)] = p * share
        answers = longer
    return answers


class Markov(Written):
    """A model whose next token depends on the last one alone."""

    def __init__(self, table: Mapping[int, Mapping[int, float]]) -> None:
        super().__init__(lambda tokens: table[tokens[-1]], 6)
        self.rows = torch.stack(
            [self.logits([BOS, token if token in table else 0]) for token in range(6)]
        )

    def step(
        self, ids: Tensor, state: Tensor, memories: Mapping[str, Any]
    ) -> tuple[Tensor, Tensor]:
        return self.rows[ids], ids[:, -1:]


def markov(table: Mapping[int, Mapping[int, float]]) -> EncoderDecoder:
    return cast("EncoderDecoder", Markov(table))


def chi_square(
    counts: Mapping[tuple[int, ...], int], exact: Mapping[tuple[int, ...], float]
) -> float:
    """Pearson's statistic in standard deviations above its mean; rare answers count as one."""
    rare = {answer for answer, p in exact.items() if p * DRAWS < 5}
    pairs = [
        (counts.get(answer, 0), p * DRAWS) for answer, p in exact.items() if answer not in rare
    ]
    if rare:
        pairs.append(
            (
                sum(counts.get(answer, 0) for answer in rare),
                sum(exact[answer] for answer in rare) * DRAWS,
            )
        )
    freedom = len(pairs) - 1
    return float((sum((seen - p) ** 2 / p for seen, p in pairs) - freedom) / math.sqrt(2 * freedom))


QUICK, SLOW = ("plain", "top_p", "repetition_penalty", "all"), ("temperature", "top_k", "min_p")


@pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(case, marks=pytest.mark.slow) for case in SLOW)]
)
def test_samples_have_the_distribution_of_the_model(name: str) -> None:
    settings, draft = SETTINGS[name], Draft(markov(OTHER))
    sampling = Sample(**settings, max_length=LENGTH, seed=4)
    (answers,) = decode([markov(TABLE)], {}, sampling, [PROMPT], n_best=DRAWS, draft=draft)
    counts = Counter((*one.ids[len(PROMPT) :], *([EOS] if one.ended else [])) for one in answers)
    exact = exact_distribution(TABLE, **settings)
    assert sum(exact.values()) == pytest.approx(1.0)
    assert set(counts) <= set(exact)
    assert chi_square(counts, exact) < 4
    assert (
        chi_square(
            counts, {a: exact_distribution(OTHER, **settings).get(a, 0) + 1e-9 for a in exact}
        )
        > 20
    )
    assert 0 < draft.accepted < draft.drafted
    tokens = [0, *answers[0].ids, *([EOS] if answers[0].ended else [])]
    score = sum(math.log(TABLE[before][token]) for before, token in itertools.pairwise(tokens))
    assert answers[0].score == pytest.approx(score, abs=1e-4)


def test_an_answer_depends_on_its_seed_and_its_number_alone() -> None:
    answering = model("transformer")
    sampling = Sample(max_length=30, seed=2)
    prefixes = [[3], [4, 5], [6]]
    draft = Draft(neighbour(answering))
    together = decode([answering], {}, sampling, prefixes, draft=draft)
    alone = decode([answering], {}, sampling, prefixes[1:2], numbers=[1], draft=draft)
    assert alone[0][0].ids == together[1][0].ids
    assert decode([answering], {}, sampling, prefixes, numbers=[7, 8, 9], draft=draft) != together


# -------------------------------------------------------------------------------------------
# refusals


@pytest.mark.parametrize(
    ("decoding", "count", "message"),
    [
        (Beam(size=2), 1, "`beam` compares several answers"),
        (Mbr(), 1, "`mbr` compares several answers"),
        (GREEDY, 2, "an ensemble"),
        (Sample(no_repeat_ngram=2), 1, "`no_repeat_ngram`"),
    ],
)
def test_what_cannot_be_drafted_is_refused(
    decoding: dict[str, Any], count: int, message: str
) -> None:
    answering = model("lstm")
    with pytest.raises(RunError, match=message):
        check_draft([answering] * count, decoding)


def test_models_that_do_not_answer_token_by_token_are_refused() -> None:
    with pytest.raises(RunError, match="each length"):
        check_draft([sized("plain")], GREEDY)
    for weight in (0.5, 1.0):
        with pytest.raises(RunError, match="log p of CTC"):
            check_draft([ctc_model(weight)], GREEDY)
    by_the_decoder = Greedy(max_length=9, ctc_weight=0.0)
    plain, drafted = (
        decode([ctc_model(0.5).double()], {"source": [[3, 4]]}, by_the_decoder, draft=draft)[0][
            0
        ].ids
        for draft in (None, Draft(ctc_model(0.5).double().with_ctc_weight(0.0)))
    )
    assert drafted == plain


@pytest.fixture(scope="module")
def language(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(
        tmp_path_factory.mktemp("language") / "run", LANGUAGE, decoding="{greedy: {max_length: 20}}"
    )


@pytest.mark.parametrize(
    ("draft", "run", "message"),
    [
        ("characters", "language", "its target vocabulary is not that"),
        (
            "gru",
            "same_words",
            "reads a `source`, and the run that it drafts for has no such encoder",
        ),
        ("nowhere", "gru", "is no run"),
    ],
)
def test_drafts_that_do_not_fit_are_refused(
    draft: str, run: str, message: str, gru: Path, language: Path, tmp_path: Path
) -> None:
    runs = {"gru": gru, "language": language, "nowhere": tmp_path / "nowhere"}
    runs["characters"] = made(tmp_path / "characters", LANGUAGE, "char")
    runs["same_words"] = made(tmp_path / "same_words", LANGUAGE, like=gru)
    with pytest.raises(RunError, match=message):
        open_draft(runs[draft], [open_run(runs[run])], GREEDY)
    # which reads no source
    assert open_draft(runs["same_words"], [open_run(gru)], GREEDY).model is not None


def test_a_beam_of_the_recipe_is_refused_with_what_to_write(gru: Path) -> None:
    with pytest.raises(RunError, match="`beam` compares several answers") as raised:
        open_run(gru).translate(["eins zwei"], draft=gru)
    assert "decoding=greedy" in raised.value.faults[0].hint


# -------------------------------------------------------------------------------------------
# commands


def test_generate_writes_the_same_text(
    language: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = made(
        tmp_path / "small", "decoder: [{linear: {activation: tanh}}]", seed=3, like=language
    )
    expected = composer.generate(language, ["eins zwei", "drei"])
    for draft in (small, open_run(small)):
        assert composer.generate(language, ["eins zwei", "drei"], draft=draft) == expected
    capsys.readouterr()
    with pytest.raises(SystemExit, match="0"):
        main.main(["generate", str(language), "--prompt", "eins zwei", "--draft", str(small)])
    shown = capsys.readouterr()
    assert shown.out == f"{expected[0]}\n"
    assert "tokens accepted" in shown.err


def test_translate_writes_the_same_lines(
    gru: Path,
    attention: Path,
    capfdbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines, overrides = (
        ["eins zwei drei", "", "vier fünf eins zwei"],
        ["decoding={greedy: {max_length: 15}}"],
    )
    expected = composer.translate(gru, lines, overrides)
    assert composer.translate(gru, lines, overrides, draft=attention) == expected
    text = "".join(f"{line}\n" for line in lines).encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    capfdbinary.readouterr()
    with pytest.raises(SystemExit, match="0"):
        main.main(["translate", str(gru), *overrides, "--draft", str(attention)])
    shown = capfdbinary.readouterr()
    assert shown.out.decode() == "".join(f"{line}\n" for line in expected)
    assert b"tokens accepted" in shown.err
