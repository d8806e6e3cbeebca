"""Answers that equal the references have the perfect value in every metric, or a sentence says why
they cannot.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import composer
from composer.data.pairs import TARGET
from composer.data.round_trips import lost_references
from composer.data.tokenizer import Tokenizers
from composer.data.tokenizer_training import train_tokenizers
from composer.errors import Fault
from composer.metrics.bleu import describe_short
from composer.metrics.choice import TextMetrics
from composer.metrics.references import compare, references_of
from composer.metrics.table import METRICS, text_metrics
from composer.run_dir import read_metrics
from composer.text_lines import answer_line
from composer.training.preflight import check_recipe

SCRIPTS = (
    "aZ e\u00e9\u0301\u00df I\u0131\u0130i 漢字かなカ 한글 กำ हिन्दी עברית العربية 0٣"
    "\u2177\ufb01 \U0001f600\U0001f469\u200d\U0001f527"
    "\u00a0\u2003\u200b\u200f\u2028\x85\x0b .,'\"!?\u2026\u2014-\ufffd\uffed\u27e8\u27e9<unk>"
)
"""Letters of many scripts, marks, spaces of many kinds, and what prints nothing."""
CHARACTERS = st.sampled_from(SCRIPTS) | st.characters(
    exclude_categories=["Cs"], exclude_characters="\n\r"
)
LINES = st.text(CHARACTERS, max_size=40)
PERFECT = {
    name: 0.0 if metric.lower_is_better else metric.highest for name, metric in METRICS.items()
}
KNOWN = [
    "A small text of words, with marks.",
    "ein \u0130 und \u0131",
    "漢字 かな",
    "हिन्दी",
    "a  b",
]


def tokenizers_of(kind: str, lowercase: bool) -> Tokenizers:
    section: dict[str, Any] = {"tokenizer": {kind: {}}, "lowercase": lowercase}
    return train_tokenizers(section, {TARGET: KNOWN})


TOKENIZERS = [
    tokenizers_of(kind, case)
    for kind in ("word", "char", "byte", "bpe", "unigram")
    for case in (False, True)
]


@given(
    st.lists(LINES, min_size=1, max_size=6),
    st.lists(LINES, min_size=6, max_size=6),
    st.sampled_from([0, 3, 6]),
)
@settings(max_examples=150, deadline=None)
@example(["a b c d", "two words"], [""] * 6, 0)
@example(["a\u00a0b c d e"], [" "] * 6, 6)
@example(["\u200b", "x"], ["y"] * 6, 3)
def test_answers_that_equal_the_references_are_perfect_by_every_metric(
    lines: list[str], others: list[str], blank: int
) -> None:
    further = [*[""] * blank, *others][: len(lines)]
    references = [lines, further]
    outputs = [(references_of(row) or ["anything"])[-1] for row in zip(*references, strict=True)]
    metrics = TextMetrics(tuple(text_metrics()), "char")
    scores, compared = metrics.scores(outputs, references), compare(outputs, references)
    assert bool(scores) == bool(compared.rows)
    for name, score in scores.items():
        if name == "bleu" and describe_short(compared, "char"):
            continue
        assert score == pytest.approx(PERFECT[name]), name


@given(st.lists(LINES, min_size=1, max_size=6), st.sampled_from(TOKENIZERS))
@settings(max_examples=150, deadline=None)
@example(["A small text"], TOKENIZERS[1])
@example(["a  b c\u00a0d"], TOKENIZERS[0])
@example(["a\u2028b"], TOKENIZERS[4])
def test_what_a_tokenizer_cannot_write_is_counted_and_bounds_exact_match(
    lines: list[str], tokenizers: Tokenizers
) -> None:
    outputs = [
        answer_line(text) for text in tokenizers.decode(TARGET, tokenizers.encode(TARGET, lines))
    ]
    metrics = TextMetrics(tuple(text_metrics()), "char")
    scores, lost = metrics.scores(outputs, [lines]), lost_references(tokenizers, [lines])
    if not scores:
        assert lost.lines == 0
        return
    assert scores["exact_match"] == pytest.approx(1 - lost.lost / lost.lines)
    assert bool(lost.describe()) == (scores["exact_match"] < 1)
    if not lost.lost:
        rest = {name: score for name, score in scores.items() if name != "bleu"}
        assert rest == pytest.approx({name: PERFECT[name] for name in rest})


KINDS = {
    "lowercase": ("lowercase: true, tokenizer: word", "A b C d", "12 of 12", "0 %"),
    "Turkish": ("lowercase: true, tokenizer: char", "\u0130 b c \u0131", "12 of 12", "0 %"),
    "no-break space": ("tokenizer: word", "a\u00a0b c d", "12 of 12", "0 %"),
    "runs of spaces": ("tokenizer: word", "a  b c d", "12 of 12", "0 %"),
    "separators": ("tokenizer: char", "a\u2028b c d", "12 of 12", "0 %"),
    "unknown": ("tokenizer: {word: {min_count: 15}}", "rare b c d", "12 of 12", "0 %"),
    "exact": ("tokenizer: bpe", "A  b\u00a0c İ", "", ""),
}
RECIPE = """recipe: 1
data: {parallel: {train: {source: s, target: t}, val: {source: vs, target: vt}}, DATA}
model: {width: 4, encoder: [rnn], decoder: [{rnn: {initial_state: encoder}}]}
training: {max_steps: 1}
decoding: {greedy: {max_length: 4}}
logging: {wandb: false}
"""


def warnings_of(file: Path, code: str) -> list[Fault]:
    return [
        warning for warning in check_recipe(composer.load(file)).warnings if warning.code == code
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_check_train_and_evaluate_say_what_a_tokenizer_cannot_write(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, line, count, most = KINDS[kind]
    texts = {
        "s": ["a b c d"] * 30,
        "t": [*["a b c d"] * 18, *[line] * 12],
        "vs": ["a b c d"] * 12,
        "vt": [line] * 12,
    }
    for name, lines in texts.items():
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    (tmp_path / "recipe.yaml").write_text(RECIPE.replace("DATA", data), encoding="utf-8")
    warnings = warnings_of(tmp_path / "recipe.yaml", "unwritable")
    composer.train(tmp_path / "recipe.yaml", run=tmp_path / "run")
    printed = capsys.readouterr().out
    scores = composer.evaluate(tmp_path / "run", "val")
    if kind == "exact":
        assert not warnings
        assert "cannot be written" not in printed
        assert "val/unwritable" not in scores
        return
    expected = (
        f"{count} references cannot be written by this tokenizer: exact match is at most {most}"
    )
    assert len(warnings) == 1
    assert expected in warnings[0].message
    assert expected in " ".join(printed.split())
    assert scores["val/unwritable"].startswith(expected)
    (tmp_path / "more").write_text("a b c d\n" * 12, encoding="utf-8")
    files = {
        "sources": [tmp_path / "vs"],
        "targets": [tmp_path / "vt", tmp_path / "more"],
        "name": "more",
    }
    assert "more/unwritable" not in composer.evaluate(tmp_path / "run", **files)


def test_tokenised_references_are_reported_as_sacrebleu_does(tmp_path: Path) -> None:
    for name in ("s", "t", "vs", "vt"):
        (tmp_path / name).write_text("a b c d .\n" * 120, encoding="utf-8")
    file = tmp_path / "recipe.yaml"
    for data, count in (("tokenizer: bpe", 1), ("tokenizer: bpe, max_length: 60", 1)):
        file.write_text(RECIPE.replace("DATA", data), encoding="utf-8")
        assert len(warnings_of(file, "tokenised")) == count
    file.write_text(
        RECIPE.replace("DATA", "tokenizer: bpe") + "evaluation: {metrics: [chrf]}\n",
        encoding="utf-8",
    )
    assert not warnings_of(file, "tokenised")


TEXT = """recipe: 1
data: {text: {train: NAME, val: NAME}, tokenizer: KIND, lowercase: CASE}
model: {width: 4, decoder: [rnn]}
training: {max_steps: 1, seed: 2}
logging: {wandb: false}
"""


@pytest.mark.parametrize("kind", ["word", "{word: {split: spaces}}"])
@pytest.mark.parametrize("unit", ["line", "file"])
def test_bits_per_byte_are_of_the_text_that_the_tokens_hold(
    kind: str, unit: str, tmp_path: Path
) -> None:
    text = "A small text, of İ words.\nAnd one more of them\n" * 9
    scores = []
    for name, content in (("one", text.lower()), ("other", text.replace(" ", "   \u00a0"))):
        (tmp_path / name).write_text(content, encoding="utf-8")
        file = tmp_path / f"{name}.yaml"
        recipe = TEXT.replace("NAME", name).replace("KIND", kind).replace("CASE", "true")
        file.write_text(
            recipe.replace(f"val: {name}", f"val: {name}, unit: {unit}"), encoding="utf-8"
        )
        composer.train(file, run=tmp_path / f"run-{name}")
        own = composer.evaluate(tmp_path / f"run-{name}", "val")
        rows = [
            row
            for row in read_metrics(tmp_path / f"run-{name}/metrics.jsonl")
            if "val/bits_per_byte" in row
        ]
        names = ("loss", "bits_per_byte", "bits_per_character", "word_perplexity")
        scores.append([own[f"val/{key}"] for key in names])
        assert rows[-1]["val/bits_per_byte"] == pytest.approx(own["val/bits_per_byte"], rel=1e-5)
    assert scores[0] == pytest.approx(scores[1], rel=1e-5)


def test_references_that_are_longer_than_answers_may_be_are_reported_with_the_setting(
    tmp_path: Path,
) -> None:
    for name, text in (("s", "ab"), ("t", "ab"), ("vs", "ab" * 40), ("vt", "ab" * 300)):
        (tmp_path / name).write_text(f"{text}\n" * 6, encoding="utf-8")
    file = tmp_path / "recipe.yaml"
    text = RECIPE.replace("DATA", "tokenizer: byte").replace(
        "greedy: {max_length: 4}", "greedy: {SETTINGS}"
    )
    file.write_text(text.replace("SETTINGS", ""), encoding="utf-8")
    (warning,) = warnings_of(file, "cut")
    assert warning.message.startswith("6 of 6 references have more tokens, up to 601,")
    assert warning.hint == "write `greedy: {max_length: 601, max_ratio: 7}`, or more"
    assert train_warns(file, tmp_path / "run")
    file.write_text(text.replace("SETTINGS", "max_length: 601, max_ratio: 7"), encoding="utf-8")
    assert not warnings_of(file, "cut")


def train_warns(file: Path, run: Path) -> bool:
    with pytest.MonkeyPatch.context() as patch:
        lines = list[str]()
        patch.setattr(
            "composer.training.loggers.ProgressDisplay.say", lambda self, text: lines.append(text)
        )
        composer.train(file, run=run)
    return any("warning[cut]" in line for line in lines)
