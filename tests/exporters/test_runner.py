"""`run.py` of an export finds the answers that this project finds."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from composer.data import images
from composer.data.audio import read_sound, wav_file
from composer.data.images import read_image
from composer.data.tokenizer import Tokenizers
from composer.data.tokenizer_files import File
from composer.data.tokenizer_kinds import (
    JOINER,
    Bits,
    Bpe,
    Byte,
    Char,
    Integers,
    TokenizerKind,
    Unigram,
    Word,
)
from composer.exporters import runner as module
from composer.exporters.description import preparation
from composer.exporters.runner import Answer, Runner, RunnerError, Settings
from composer.inference.answers import Translation
from composer.inference.decode import best_over_lengths, num_positions
from composer.inference.decoders.sampling import token_probabilities
from composer.inference.decoders.search import Hypothesis
from composer.inference.generate import generate
from composer.inference.methods import Beam, Greedy, Sample
from composer.inference.run import open_run, translate_lines
from composer.inference.target_lengths import LengthConstraint, LengthQuery, answer_sizes
from composer.model.special_tokens import EOS
from composer.recipe.data_sections import AudioFeatures, LogMel, TableColumn
from tests.exporters.conftest import KINDS, Exports
from tests.exporters.runs import exported, file_run, size_run, story_run
from tests.inference.untrained import LANGUAGE, WORDS, made

LINES = [" ".join(WORDS[(at * 3 + n * n) % 10] for n in range(at % 9)) for at in range(24)]
PREFIXES = [" ".join(WORDS[: at % 4]) for at in range(24)]
CLOSE = 1e-4
"""Two answers whose scores are as close as this may change places."""


def lines_of(kind: str) -> list[str]:
    """Lines for a run; of two encoders with a tab between, some of which have one text alone."""
    return [f"{line}\t{LINES[-at]}" for at, line in enumerate(LINES)] if kind == "two" else LINES


def assert_same(native: Sequence[Sequence[Translation]], answers: list[list[Answer]]) -> None:
    """Both have the same answers, and say the same of each; close ones may change places."""
    assert len(native) == len(answers)
    for line, (expected, actual) in enumerate(zip(native, answers, strict=True)):
        assert len(expected) == len(actual)
        for one, other in zip(expected, actual, strict=True):
            assert other.score == pytest.approx(one.score, abs=CLOSE), line
            close = [
                each
                for each in expected
                if each.score == one.score or abs(each.score - one.score) <= CLOSE
            ]
            assert (other.text, other.ended) in [(each.text, each.ended) for each in close], line


def native_of(answers: list[list[Answer]]) -> list[list[Translation]]:
    return [[Translation(*answer) for answer in row] for row in answers]


# ---------------------------------------------------------------------------------------- searches


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_search_finds_the_same(kind: str, exports: Exports) -> None:
    run, runner = exports(kind)
    native = translate_lines([run], lines_of(kind), Greedy(max_length=14))
    assert_same(native, runner.translate(lines_of(kind), method="greedy", max_length=14))
    assert {answer.ended for (answer,) in native} == {True, False}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 3, 5])
@pytest.mark.parametrize("length_penalty", [0.0, 0.6, 2.0])
def test_a_beam_finds_the_same_with_each_length_penalty(
    kind: str, size: int, length_penalty: float, exports: Exports
) -> None:
    run, runner = exports(kind)
    decoding = Beam(size=size, length_penalty=length_penalty, max_length=12)
    native = translate_lines([run], lines_of(kind), decoding)
    settings = {"beam": size, "length_penalty": length_penalty, "max_length": 12}
    assert_same(native, runner.translate(lines_of(kind), **settings))


@pytest.mark.parametrize("kind", KINDS)
def test_the_n_best_of_a_beam_are_the_same_different_texts(kind: str, exports: Exports) -> None:
    run, runner = exports(kind)
    native = translate_lines([run], lines_of(kind), Beam(size=5, max_length=12), n_best=4)
    assert_same(native, runner.translate(lines_of(kind), n_best=4, beam=5, max_length=12))


def test_a_cut_answer_ranks_behind_those_that_ended(exports: Exports) -> None:
    run, runner = exports("gru")
    decoding = Beam(size=5, max_length=3, length_penalty=2.0)
    native = translate_lines([run], LINES, decoding, n_best=5)
    assert_same(native, runner.translate(LINES, n_best=5, beam=5, max_length=3, length_penalty=2.0))
    ends = [[answer.ended for answer in row] for row in native]
    assert any(True in row and False in row for row in ends)


@pytest.mark.parametrize("kind", ["gru", "attention", "two"])
@pytest.mark.parametrize("size", [1, 4])
def test_prefixes_of_several_lengths_begin_the_answers_and_count(
    kind: str, size: int, exports: Exports
) -> None:
    run, runner = exports(kind)
    decoding = Beam(size=size, max_length=10, length_penalty=1.5)
    native = translate_lines([run], lines_of(kind), decoding, PREFIXES, n_best=size)
    settings = {"beam": size, "max_length": 10, "length_penalty": 1.5}
    answers = runner.translate(lines_of(kind), PREFIXES, size, **settings)
    assert_same(native, answers)
    begun = zip(answers, lines_of(kind), PREFIXES, strict=True)
    assert all(row[0].text.startswith(prefix) for row, line, prefix in begun if line.strip())


@pytest.mark.parametrize("kind", ["attention", "language"])
@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("ngram", [1, 2, 3])
def test_no_ngram_is_repeated_nor_that_of_the_prefix(
    kind: str, size: int, ngram: int, exports: Exports
) -> None:
    run, runner = exports(kind)
    prefixes = PREFIXES if kind == "attention" else None
    decoding = Beam(size=size, max_length=14, no_repeat_ngram=ngram)
    native = translate_lines([run], LINES, decoding, prefixes)
    settings = {"beam": size, "max_length": 14, "no_repeat_ngram": ngram}
    assert_same(native, runner.translate(LINES, prefixes, **settings))


def test_blank_lines_stay_empty_and_lines_keep_their_order(exports: Exports) -> None:
    run, runner = exports("attention")
    lines = ["", *LINES, " \u200b ", "zehn", "\t"]
    answers = runner.translate(lines, beam=3, max_length=9)
    assert_same(translate_lines([run], lines, Beam(size=3, max_length=9)), answers)
    blank = [at for at, line in enumerate(lines) if not line.strip(" \u200b\t")]
    assert all(answers[at] == [Answer("", 0.0)] for at in blank)


@pytest.mark.parametrize("batch", [1, 3])
def test_batches_of_any_size_find_the_same(
    batch: int, exports: Exports, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, runner = exports("attention")
    expected = runner.translate(LINES, n_best=3, beam=3, max_length=9)
    monkeypatch.setattr(runner, "batch", batch)
    answers = runner.translate(LINES, n_best=3, beam=3, max_length=9)
    assert_same(native_of(expected), answers)


@pytest.mark.parametrize(("length", "ratio"), [(512, 0.01), (7, 3.0), (60, 4.0)])
def test_limits_of_length_and_ratio_are_the_same(
    length: int, ratio: float, exports: Exports
) -> None:
    run, runner = exports("gru")
    decoding = Greedy(max_length=length, max_ratio=ratio)
    settings = {"method": "greedy", "max_length": length, "max_ratio": ratio}
    assert_same(translate_lines([run], LINES, decoding), runner.translate(LINES, **settings))


def test_the_settings_are_those_of_the_recipe(exports: Exports) -> None:
    run, runner = exports("gru")
    assert_same(translate_lines([run], LINES, run.recipe.decoding), runner.translate(LINES))


def test_the_n_best_are_different_texts_though_tokens_may_spell_one_twice(tmp_path: Path) -> None:
    run = open_run(made(tmp_path / "run", LANGUAGE, "{bpe: {size: 300}}"))
    runner = exported(run, tmp_path / "export")
    lines = ["eins", "zwei drei"]
    native = translate_lines([run], lines, Beam(size=9, max_length=6), n_best=6)
    assert_same(native, runner.translate(lines, n_best=6, beam=9, max_length=6))
    ids = runner.search([runner.prompt("eins", 0, 0, NINE)], NINE, 9)[0]
    texts = [" ".join(runner.to_answer(one).text.splitlines()) for one in ids]
    assert len({*texts}) < len(texts)


NINE = Settings("beam", beam=9, max_length=6)


def test_the_end_has_its_place_where_an_answer_has_a_size(exports: Exports) -> None:
    _, runner = exports("gru")
    search = module.Search(runner, NINE, 1, lambda one: None)
    scores = torch.arange(7.0)
    for exact in (True, False):
        for ids in ((), (4,), (4, 5)):
            query = module.Query(0, 0, {}, (6,), 3, size=4, exact=exact)
            log_p = np.concatenate([[-np.inf] * EOS, scores]).astype(np.float32)
            search.exclude_impossible(log_p, module.Hypothesis(query, (6, *ids), 0.0))
            native = LengthConstraint(*(torch.tensor([value]) for value in (4, 3, exact)))
            expected = native.allowed(scores[None], torch.tensor([0]), len(ids))[0]
            assert log_p[EOS:].tolist() == expected.tolist()


def test_an_answer_of_several_sizes_counts_at_its_best() -> None:
    random = np.random.default_rng(0)
    for _ in range(50):
        sizes = [module.Query(0, 0, {}, (), 9, size=size) for size in (3, 4, 5)]
        own: list[module.Hypothesis] = []
        for query in sizes:
            for score in random.normal(size=3).tolist():
                ids = (int(random.integers(4, 7)),)
                ended = bool(random.integers(2))
                own.append(module.Hypothesis(query, ids, score, score, ended))
        results = [
            [
                Hypothesis([*one.ids], one.score, one.rank, one.ended)
                for one in own
                if one.query is query
            ]
            for query in sizes
        ]
        queries = [LengthQuery(0, query.size) for query in sizes]
        expected = best_over_lengths(queries, results, 9)[0]
        ranked = module.best_first(own, cut_last=True)
        assert [(one.score, one.ended) for one in ranked] == [
            (one.score, one.ended) for one in expected
        ]


# ----------------------------------------------------------------------------------------- sources


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 3])
def test_each_size_of_an_answer_is_tried(size: int, tmp_path: Path) -> None:
    run = size_run(tmp_path)
    runner = exported(run, tmp_path / "export")
    vocabulary = run.tokenizers.vocabulary("source")[4:]
    lines = [" ".join(vocabulary[at % 3 : at % 3 + 1 + at % 4]) for at in range(12)]
    prefixes = [vocabulary[0] if at % 3 == 0 else "" for at in range(12)]
    for begun in (None, prefixes):
        native = translate_lines([run], lines, Beam(size=size), begun, n_best=size)
        assert_same(native, runner.translate(lines, begun, size, beam=size))


def test_stories_and_questions_are_read_as_they_were(tmp_path: Path) -> None:
    run = story_run(tmp_path)
    runner = exported(run, tmp_path / "export")
    story = "A went to Hall!  b went to office. A went to garden. C went to hall. B went to hall"
    lines = [f"Where is {who} ?\t{story[cut:]}" for who in "ABC" for cut in (0, 17, 35)]
    native = translate_lines([run], lines, Greedy())
    assert_same(native, runner.translate(lines, method="greedy"))
    native = translate_lines([run], lines, Beam(size=30), n_best=30)  # more than can be
    assert_same(native, runner.translate(lines, n_best=30, beam=30))
    with pytest.raises(RunnerError, match="line 1: a sentence of this story has 7 words"):
        runner.translate(["where is a\tone two three four five six seven."])


@pytest.mark.parametrize("kind", ["vectors", "image", "strides", "audio"])
def test_files_are_read_as_they_were(kind: str, tmp_path: Path) -> None:
    run, names = file_run(tmp_path, kind)
    runner = exported(run, tmp_path / "export")
    native = translate_lines([run], names, Beam(size=3, max_length=12), n_best=2)
    assert_same(native, runner.translate(names, n_best=2, beam=3, max_length=12))
    with pytest.raises(RunnerError, match="line 2: `nothing` cannot be read"):
        runner.translate([names[0], "nothing"])


@pytest.mark.parametrize("bits", ["PCM_16", "PCM_24", "PCM_32", "PCM_U8"])
@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("seconds", [None, 0.25, 0.3])
def test_a_sound_has_the_same_frames(
    bits: str, channels: int, seconds: float | None, tmp_path: Path
) -> None:
    import soundfile

    samples = 0.4 * np.random.default_rng(0).normal(size=(3001, channels)).clip(-2, 2)
    soundfile.write(tmp_path / "a.wav", samples, 11_025, bits)
    column = TableColumn(column="x", kind="audio", rate=11_025, seconds=seconds)
    if seconds is not None:
        log_mel = LogMel(fft=300, padding="reflect")
        column = replace(column, features=AudioFeatures(log_mel=log_mel), normalize="range")
    expected = read_sound(io.BytesIO((tmp_path / "a.wav").read_bytes()), column, None).array
    frames = module.read_sound(tmp_path / "a.wav", column.as_data(), (40,))
    np.testing.assert_allclose(frames, expected, atol=2e-3)


def test_a_sound_of_another_rate_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(wav_file(np.zeros(100), 16_000))
    settings = TableColumn(column="x", kind="audio", rate=8000).as_data()
    with pytest.raises(ValueError, match="it has 16,000 samples a second; convert it to 8,000"):
        module.read_sound(tmp_path / "a.wav", settings, (40,))


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "P", "1"])
@pytest.mark.parametrize("positions", ["rows", "columns"])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [(6, 20), (40, 7), (5, 5)])
def test_a_picture_has_the_same_pixels(
    mode: str, positions: str, channels: int, size: tuple[int, int], tmp_path: Path
) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (*size, 4), dtype=np.uint8)
    pixels = pixels if mode == "RGBA" else pixels[..., :3]
    Image.fromarray(pixels).convert(mode).save(tmp_path / "a.png")
    settings: dict[str, Any] = {"size": (12, 16), "channels": channels, "positions": positions}
    column = TableColumn(column="x", kind="image", **settings)
    expected = read_image(io.BytesIO((tmp_path / "a.png").read_bytes()), column).array
    shape = (16 if positions == "rows" else 12, channels)
    grid = module.read_image(tmp_path / "a.png", settings, shape)
    assert grid.shape == (len(expected), *shape)
    width = expected.shape[1]
    np.testing.assert_array_equal(grid[:, :width], expected / np.float32(255))
    assert np.isnan(grid[:, width:]).all()
    upright = expected.transpose(1, 0, 2) if positions == "columns" else expected
    np.save(tmp_path / "a.npy", upright[..., 0] if channels == 1 else upright)
    np.testing.assert_array_equal(module.read_image(tmp_path / "a.npy", settings, shape), grid)


def test_a_long_source_is_cut_with_a_note(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "long.npy", np.zeros((12_000, 5)))
    source = module.Source("x", "vectors", None, (5,), {}, 0.0)
    assert len(source.read(str(tmp_path / "long.npy"))) == 10_000
    note = "run.py: a line has 12,000 positions, and its first 10,000 are read\n"
    assert capsys.readouterr().err == note


def test_sizes_of_answers_count_the_padding_of_a_picture(exports: Exports, tmp_path: Path) -> None:
    _, runner = exports("gru")
    np.save(tmp_path / "narrow.npy", np.zeros((6, 2, 1), np.uint8))
    column = {"size": [8, 9], "channels": 1, "positions": "rows"}
    source = module.Source("picture", "image", None, (9, 1), column, 1.5)
    settings = Settings("beam", beam=2, max_length=99)
    reader = replace_attribute(runner, sources=[source])
    queries = reader.queries_of(str(tmp_path / "narrow.npy"), 0, 0, "", settings)
    positions = num_positions(torch.tensor(source.read(str(tmp_path / "narrow.npy"))))
    sizes = answer_sizes([("picture", 1.5)], {"picture": positions}, 0, Beam(max_length=99))
    assert [query.size for query in queries] == [*sizes]
    assert (positions, {query.limit for query in queries}) == (54, {*range(54, 82)})


@pytest.mark.parametrize("problem", ["format", "bomb"])
def test_a_picture_that_is_not_opened_is_refused(
    problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.png"
    Image.new("RGB", (20, 20)).save(file, "ICO" if problem == "format" else "PNG")
    if problem == "bomb":
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    column = {"size": [8, 9], "channels": 1, "positions": "rows"}
    source = module.Source("picture", "image", None, (9, 1), column, 0.0)
    with pytest.raises(RunnerError, match=r"a\.png` cannot be read"):
        source.read(str(file))
    assert module.FORMATS == images.FORMATS


TEXTS = [
    "Eins, zwei: it's „drei“!",
    "EINS  zwei\u2028drei ",
    "e\u0301te हिन्दी",
    "a-b ⟨unk⟩ c",
    "",
    "0110 1001@-0.37 ; 0000@0.00 1",
    "3 17 29 x",
    "é€\U0001f600",
]


@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize(
    "kind",
    [
        Word(size=30),
        Word(split="spaces"),
        Char(),
        Byte(),
        Bpe(size=300),
        Unigram(size=300),
        Bits(size=4, numbers=True),
        Integers(below=20),
    ],
    ids=lambda kind: kind.word,
)
def test_texts_have_the_same_ids(kind: TokenizerKind, lowercase: bool, tmp_path: Path) -> None:
    (part,) = kind.train({"source": TEXTS[:4]})
    assert_same_texts(Tokenizers(kind, {}, lowercase, {"source": 0}, (part,)), tmp_path, TEXTS)


def test_texts_of_a_foreign_tokenizer_have_the_same_ids(tmp_path: Path) -> None:
    (part,) = Word(split="spaces").train({"source": ["eins zwei"]})
    content = json.loads(part.to_str())
    content["model"]["vocab"] = {"[UNK]": 0, "eins": 1, "zwei": 2}
    content["model"]["unk_token"] = "[UNK]"
    (tmp_path / "t.json").write_text(json.dumps(content), encoding="utf-8")
    kind = File(path="t.json").with_folders([tmp_path])
    tokenizers = Tokenizers(kind, {}, False, {"source": 0}, tuple(kind.train({})))
    assert_same_texts(tokenizers, tmp_path, [*TEXTS, "eins \U0010ffffzwei drei"])
    assert tokenizers.decode("source", [[3, 4]]) == ["⟨unk⟩ eins"]


def assert_same_texts(tokenizers: Tokenizers, folder: Path, lines: list[str]) -> None:
    (folder / "t.json").write_text(tokenizers.parts[0].to_str(), encoding="utf-8")
    prepare = preparation(tokenizers.kind)
    joiner = JOINER if prepare == "marks" else ""
    entry = {"lowercase": tokenizers.lowercase, "prepare": prepare, "joiner": joiner, "prefix": ""}
    text = module.text_of(folder, {**entry, "tokenizer": "t.json"})
    rows = [text.encode(line) for line in lines]
    assert rows == tokenizers.encode("source", lines)
    assert [text.decode(row) for row in rows] == tokenizers.decode("source", rows)
    assert text.decode([1, *rows[0], 2, 0]) == text.decode(rows[0])
    cut = [row[:-1] for row in rows]
    ended = [False] * len(cut)
    expected = tokenizers.decode_answers("source", cut, ended)
    assert [text.decode(row, ended=False) for row in cut] == expected


# ---------------------------------------------------------------------------------------- sampling


def test_draws_depend_on_the_seed_and_the_line_alone(exports: Exports) -> None:
    _, runner = exports("attention")
    settings = {"method": "sample", "max_length": 8}
    first = runner.translate(LINES, n_best=2, **settings)
    assert_same(native_of(first[5:9]), runner.translate(LINES[5:9], n_best=2, first=5, **settings))
    assert runner.translate(LINES, n_best=2, seed=2, **settings) != first
    assert any(row[0].text != row[1].text for row in first)
    assert all(row[0].score >= row[1].score for row in first)


def test_one_token_to_draw_among_is_greedy_search(exports: Exports) -> None:
    _, runner = exports("language")
    greedy = runner.translate(LINES, method="greedy", max_length=9)
    for only in ({"top_k": 1}, {"top_p": 1e-9}, {"min_p": 1.0}, {"temperature": 1e-4}):
        assert runner.translate(LINES, method="sample", max_length=9, **only) == greedy


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"temperature": 0.5},
        {"top_k": 3},
        {"top_p": 0.7},
        {"min_p": 0.3},
        {"repetition_penalty": 1.6},
    ],
)
def test_tokens_are_drawn_by_the_same_probabilities(
    settings: dict[str, Any], exports: Exports
) -> None:
    _, runner = exports("language")
    logits = np.random.default_rng(3).normal(size=9).astype(np.float32)
    log_p = logits - np.log(np.exp(logits[EOS:]).sum())
    log_p[:EOS] = -np.inf
    history = torch.tensor([[4, 6]])
    tensors = torch.tensor(log_p)[None, EOS:], torch.tensor(logits)[None, EOS:]
    expected = token_probabilities(Sample(**settings), *tensors, history)[0].numpy()
    own = Settings.of({"sample": {}}, ["sample"], settings)
    search = module.Search(runner, own, 1, lambda one: None)
    query = module.Query(0, 0, {}, (4, 6), 9)
    search.random = {query: np.random.default_rng(0)}
    one = module.Hypothesis(query, (4, 6), 0.0)
    drawn = np.array([search.choose(log_p, logits, one)[0] for _ in range(4000)])
    shares = np.bincount(drawn, minlength=9)[EOS:] / len(drawn)
    np.testing.assert_allclose(shares, expected / expected.sum(), atol=0.03)
    assert not shares[expected == 0].any()


# --------------------------------------------------------------------------------- language models


def test_a_language_model_writes_the_same_texts(exports: Exports) -> None:
    run, runner = exports("language")
    prompts = ["eins zwei", "drei", "vier fünf sechs"]
    expected = generate(run, prompts, beam=1, max_length=9, scores=True)
    pieces: list[tuple[int, str]] = []

    def on_text(place: int, text: str) -> None:
        pieces.append((place, text))

    answers = runner.generate(prompts, on_text, method="greedy", max_length=9)
    assert_same([expected], [answers])
    for at, answer in enumerate(answers):
        assert [text for place, text in pieces if place == at][-1] == answer.text
    assert len(pieces) > len(prompts)


def test_a_text_from_its_beginning_is_the_same(exports: Exports) -> None:
    run, runner = exports("language")
    expected = generate(run, None, beam=3, max_length=9, scores=True)
    assert_same([expected], [runner.generate(beam=3, max_length=9)])
    with pytest.raises(RunnerError, match="prompt 2: it is empty"):
        runner.generate(["eins", ""])


def test_a_prompt_longer_than_the_positions_is_refused(exports: Exports) -> None:
    _, runner = exports("language")
    limited = replace_attribute(runner, max_positions=4)
    assert limited.translate(["eins zwei"], method="greedy", max_length=9)[0][0].text.count(" ") < 5
    with pytest.raises(RunnerError, match="line 1: it has 4 tokens, and this model reads 3"):
        limited.translate(["eins zwei drei vier"])


def replace_attribute(runner: Runner, **values: Any) -> Runner:
    other = object.__new__(Runner)
    other.__dict__ = {**runner.__dict__, **values}
    return other


def test_positions_limit_what_is_written_after_a_prompt(tmp_path: Path) -> None:
    model = "decoder: [{positions: {kind: learned, max_length: 6}}, {rnn: {cell: gru}}]"
    run = open_run(made(tmp_path / "run", model))
    runner = exported(run, tmp_path / "export")
    lines = ["eins", "eins zwei drei"]
    for size in (1, 3):
        native = translate_lines([run], lines, Beam(size=size))
        assert_same(native, runner.translate(lines, beam=size, max_length=512))
