"""`generate`: what a language model writes, and how it is sampled."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import composer
from composer.cli import main
from composer.errors import ComposerError, RunError
from composer.inference.decoders.search import Search
from composer.inference.generate import TextStream, generation_settings
from composer.inference.methods import Beam, Greedy, Sample
from composer.inference.run import open_run
from composer.model.special_tokens import BOS
from tests.inference.small_models import Written, decode
from tests.inference.untrained import LANGUAGE, made

LEARNED = (
    "decoder: [positions: {kind: learned, max_length: 12}, residual: [self_attention: {heads: 2}],"
    " norm]"
)


@pytest.fixture(scope="module")
def language(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(
        tmp_path_factory.mktemp("language") / "run", LANGUAGE, decoding="{greedy: {max_length: 20}}"
    )


@pytest.fixture(scope="module")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizer = "{bpe: {size: 300}}"
    return made(
        tmp_path_factory.mktemp("pieces") / "run",
        LANGUAGE,
        tokenizer,
        decoding="{greedy: {max_length: 30}}",
    )


@pytest.fixture(scope="module")
def bounded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("bounded") / "run", LEARNED, decoding="greedy")


def command(capsys: pytest.CaptureFixture[str], *arguments: Any) -> str:
    """What a command prints that succeeds."""
    capsys.readouterr()
    with pytest.raises(SystemExit, match="0"):
        main.main(["generate", *map(str, arguments)])
    return capsys.readouterr().out


# -------------------------------------------------------------------------------------------
# sampling


@pytest.mark.parametrize(
    ("min_p", "allowed"), [(0.1, {3, 4, 5}), (0.5, {3, 4}), (0.61, {3}), (1.0, {3})]
)
def test_min_p_is_a_share_of_the_highest_probability(min_p: float, allowed: set[int]) -> None:
    model = Written(lambda tokens: {2: 1.0} if tokens else {3: 0.5, 4: 0.3, 5: 0.2}, 8)
    results = decode([model], {}, Sample(min_p=min_p), prefixes=[[]], n_best=200)[0]  # type: ignore[list-item]
    assert {best.ids[0] for best in results} == allowed


def test_repetitions_are_penalised_as_by_keskar_2019(language: Path) -> None:
    """At each step the most probable token of the logits of which those of earlier tokens are
    divided or multiplied.
    """
    run, prompt = open_run(language), "eins zwei"
    settings = {"top_k": 1, "repetition_penalty": 1.7, "max_length": 12}
    (result,) = run.generate([prompt], scores=True, **settings)
    (ids,) = run.tokenizers.encode("target", [prompt])
    score, signs = 0.0, set()
    for _ in range(12):
        logits = run.model({}, torch.tensor([[BOS, *ids]]))[0, -1].detach()
        signs |= {float(logits[token]) > 0 for token in ids}
        penalised = [
            value if token not in ids else value / 1.7 if value > 0 else value * 1.7
            for token, value in enumerate(logits.tolist())
        ]
        best = max(range(2, len(penalised)), key=penalised.__getitem__)
        score += float(logits.log_softmax(-1)[best])
        if best == 2:
            break
        ids.append(best)
    assert signs == {True, False}
    assert result.text == run.tokenizers.decode("target", [ids])[0]
    prefix = sum(run.score([prompt])[0].log_probabilities[:-1])
    assert result.score == pytest.approx(score + prefix, abs=1e-2)  # the model's own probabilities
    assert result.text != run.generate([prompt], top_k=1, max_length=12)[0]


# ------------------------------------------------------------------------------------------- in
# Python


@pytest.mark.parametrize("prompt", ["кот \udcd0", "\ud83d"])
def test_a_prompt_that_ends_within_a_character_is_refused(language: Path, prompt: str) -> None:
    with pytest.raises(RunError) as raised:
        composer.generate(language, ["eins", prompt])
    assert raised.value.faults[0].code == "run"
    raised.value.faults[0].render().encode()  # a terminal can show it


def test_no_prompts_have_no_texts(language: Path) -> None:
    run = open_run(language)
    assert run.generate([]) == run.generate([], samples=2) == run.translate([]) == []
    assert len(run.generate()) == 1
    with pytest.raises(RunError, match="expected a string, got `3`"):
        run.generate([3])  # type: ignore[list-item]


def test_it_continues_prompts_together_as_one_by_one(language: Path) -> None:
    run = open_run(language)
    prompts = ["eins", "drei vier fünf", "neun"]
    texts = run.generate(prompts)
    assert texts == [run.generate([prompt])[0] for prompt in prompts] == run.translate(prompts)
    assert all(text.startswith(prompt) for text, prompt in zip(texts, prompts, strict=True))
    assert run.generate() == run.generate(samples=1, max_length=20)
    assert composer.generate(language, prompts) == composer.generate(run, prompts) == texts
    assert composer.generate(language, prompts, ["decoding.greedy.max_length=2"]) == run.generate(
        prompts, max_length=2
    )


def test_nothing_is_shown_after_the_end_of_a_text(
    language: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU is seldom asked which rows are done, unless somebody watches."""
    run, shown = open_run(language), dict[int, str]()
    (expected,) = run.generate(["eins"], samples=4, seed=4)
    is_due = Search.is_check_due
    on_gpu = SimpleNamespace(type="cuda")
    monkeypatch.setattr(
        Search,
        "is_check_due",
        lambda search, step: is_due(SimpleNamespace(device=on_gpu, options=search.options), step),  # type: ignore[arg-type]
    )
    watched = run.generate(
        ["eins"],
        4,
        seed=4,
        on_text=lambda at, piece: shown.__setitem__(at, shown.get(at, "") + piece),
    )
    assert [*shown.values()] == watched[0] == expected


def test_samples_depend_on_the_seed_and_their_place_alone(language: Path) -> None:
    run = open_run(language)
    three, five = (run.generate(["eins"], samples=samples, seed=4) for samples in (3, 5))
    assert three[0] == five[0][:3]
    assert len(set(five[0])) > 1
    assert three == run.generate(["eins"], samples=3, seed=4)
    assert three != run.generate(["eins"], samples=3, seed=5)
    watched: dict[int, str] = {}
    listened = run.generate(
        ["eins"],
        3,
        seed=4,
        on_text=lambda at, piece: watched.__setitem__(at, watched.get(at, "") + piece),
    )
    assert listened == three
    assert [*watched.values()] == three[0]
    assert [len(row) for row in run.generate(["eins", "zwei"], samples=2)] == [2, 2]


def test_pieces_of_a_text_make_the_text(pieces: Path) -> None:
    run = open_run(pieces)
    for settings in ({}, {"seed": 3}, {"beam": 2}):
        for prompt in ("fünf", "eins zw", None):
            parts: list[str] = []
            prompts = None if prompt is None else [prompt]
            (text,) = run.generate(
                prompts, **settings, on_text=lambda _, piece, parts=parts: parts.append(piece)
            )
            assert "".join(parts) == text == run.generate(prompts, **settings)[0]
            assert len(parts) > 2 or "beam" in settings


def test_a_character_of_several_bytes_comes_as_a_whole(pieces: Path) -> None:
    tokenizers, parts = open_run(pieces).tokenizers, list[str]()
    ids = tokenizers.encode("target", ["a 日本語 b"])[0]
    stream = TextStream(tokenizers, parts.append)
    for token in ids:
        stream.add(token)
    stream.end(ids)
    assert "".join(parts) == "a 日本語 b"
    assert len(ids) > len(parts)
    assert not any("\ufffd" in part for part in parts)


def test_a_text_that_is_cut_within_a_character_ends_before_it(pieces: Path) -> None:
    tokenizers, parts = open_run(pieces).tokenizers, list[str]()
    cut = tokenizers.encode("target", ["a 日"])[0][:-1]
    assert tokenizers.decode("target", [cut]) == ["a \ufffd"]
    assert tokenizers.decode_answers("target", [cut, cut], [True, False]) == ["a \ufffd", "a "]
    stream = TextStream(tokenizers, parts.append)
    for token in cut:
        stream.add(token)
    stream.end(cut, ended=False)
    assert "".join(parts) == "a "


def test_the_recipe_s_own_settings_stay(language: Path) -> None:
    recipe = open_run(
        language, ["decoding={sample: {temperature: 0.5, top_k: 3, max_length: 9}}"]
    ).recipe
    assert generation_settings(recipe, {"seed": 2}) == Sample(
        temperature=0.5, top_k=3, seed=2, max_length=9
    )
    assert generation_settings(recipe, {}, beam=2) == Beam(size=2, max_length=9)
    greedy = open_run(language).recipe
    assert generation_settings(greedy, {}, samples=2).word == "sample"
    assert generation_settings(greedy, {}, max_length=7) == Greedy(max_length=7)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"prompts": [""]}, "the prompt `` is empty"),
        ({"prompts": ["eins", "  "]}, "the prompt ` *` is empty"),
        ({"beam": 2, "top_k": 2}, "`--top-k` is a setting of sampling"),
        ({"beam": 2, "samples": 2}, "`--samples` is a setting of sampling"),
        ({"samples": 0}, "no 0 samples"),
        ({"beam": 0}, "cannot have the size 0"),
        ({"temperature": 0}, "write `decoding=greedy`, and remove the settings of sampling"),
        ({"temperature": -1, "top_k": 3}, "`--temperature` takes a number above 0; `-1` is not"),
        ({"min_p": 1.5}, "`min_p` takes a number"),
        ({"top_p": 0.0}, "`top_p` takes a number, above 0"),
        ({"repetition_penalty": 0.5}, "`repetition_penalty` takes a number"),
        ({"max_length": 0}, "`max_length` takes a whole number"),
    ],
)
def test_what_cannot_be_is_one_error(
    language: Path, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ComposerError, match=message) as raised:
        open_run(language).generate(**settings)
    (fault,) = raised.value.faults
    assert (fault.file, fault.excerpt) == ("", "")


def test_a_model_with_an_encoder_translates(gru: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RunError, match="this model has an encoder: it answers a source"):
        open_run(gru).generate(["eins"])
    with pytest.raises(SystemExit, match="2"):
        main.main(["generate", str(gru)])
    assert f"fix: use `seqcomposer translate {gru}`" in capsys.readouterr().err


def test_a_text_ends_where_the_positions_do(bounded: Path) -> None:
    """The table has rows for bos and 11 tokens, after the last of which one more is written."""
    run = open_run(bounded)
    with torch.no_grad():
        run.model.output.bias[2] = -1e4
    prompts = [" ".join(["eins"] * count) for count in (1, 4, 11)]
    (short, *_), together = run.generate(prompts[:1]), run.generate(prompts, scores=True)
    assert [len(text.text.split()) for text in together] == [12, 12, 12]
    assert [text.ended for text in together] == [False] * 3
    assert together[0].text == short
    with pytest.raises(RunError, match="has 12 tokens, and this model reads 11 at most"):
        run.generate(["eins " * 12])


# ------------------------------------------------------------------------------------------- the
# command


def test_the_command_prints_texts_or_objects(
    language: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, sampled = open_run(language), ("--seed", 3, "--samples", 2, "--temperature", 0.7)
    texts = run.generate(["eins", "zwei"], samples=2, seed=3, temperature=0.7)
    out = command(capsys, language, "--prompt", "eins", "--prompt", "zwei", *sampled)
    assert out == "\n---------------\n".join([*texts[0], *texts[1]]) + "\n"
    rows = [
        json.loads(line)
        for line in command(capsys, language, "--prompt", "eins", *sampled, "--json").splitlines()
    ]
    assert [row["text"] for row in rows] == texts[0]
    assert {row["prompt"] for row in rows} == {"eins"}
    assert all(
        math.isfinite(row["log_probability"]) and row["ended"] in (True, False) for row in rows
    )
    assert command(capsys, language, "--max-length", 3) == run.generate(max_length=3)[0] + "\n"
    assert (
        command(capsys, language, "decoding={beam: {size: 2}}")
        == run.generate(beam=2, max_length=512)[0] + "\n"
    )


def test_a_prompt_that_the_tokenizer_does_not_know_is_reported(
    language: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="0"):
        main.main(
            [
                "generate",
                str(language),
                "--prompt",
                "eins",
                "--prompt",
                "eins 食",
                "--max-length",
                "1",
            ]
        )
    assert (
        capsys.readouterr().err
        == "note: the tokenizer of this run does not know all of the prompt `eins 食`\n"
    )


def test_on_a_terminal_words_are_shown_as_they_come(
    language: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    printed: list[str] = []
    monkeypatch.setattr(
        "composer.cli.options.echo", lambda text, nl=True, **_: printed.append(text + "\n" * nl)
    )
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    with pytest.raises(SystemExit, match="0"):
        main.main(["generate", str(language), "--samples", "2", "--prompt", "eins"])
    (texts,) = open_run(language).generate(["eins"], samples=2)
    assert "".join(printed) == "\n---------------\n".join(texts) + "\n"
    assert len(printed) > len("".join(texts).split()) / 2
