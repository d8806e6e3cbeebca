"""`data.prefix`: each line of a side begins with a text, which no answer shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from tokenizers import Tokenizer, models

from composer.data.documents import Piece
from composer.data.encoding import load_data
from composer.data.sources import DataSource
from composer.data.token_cache import cached_ids
from composer.data.tokenizer import Tokenizers
from composer.data.tokenizer_cache import cached_tokenizers
from composer.data.tokenizer_training import train_tokenizers
from composer.fingerprint import fingerprints
from composer.inference.answers import encoded_lines
from composer.inference.run import open_run
from composer.recipe.recipe import Recipe, load
from tests.exporters.runs import exported
from tests.inference.untrained import GRU, LANGUAGE, WORDS, made

SOURCE, TARGET = "translate Deutsch to: ", ">>deu<< "
PREFIX = f"\n  prefix: {{source: '{SOURCE}', target: '{TARGET}'}}"
KINDS = (
    "word",
    "word: {split: spaces}",
    "char",
    "byte",
    "bpe: {size: 330}",
    "unigram: {size: 330}",
)
LINES = [" ".join(WORDS[at : at + 3]) for at in range(8)]
Make = Callable[..., Recipe]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Writes a recipe with this section `data` beside two files, and loads it."""

    def _make(encoder: Mapping[str, Any] | None = None, **data: Any) -> Recipe:
        for side in ("s", "t"):
            (tmp_path / side).write_text("Eins zwei\ndrei vier\n\n", encoding="utf-8")
        parallel = {"parallel": {"train": {"source": "s", "target": "t"}}}
        reads = {"encoder": ["rnn"]} if encoder is None else encoder
        model = {"width": 8, **reads, "decoder": ["rnn"]}
        written = {"recipe": 1, "name": "t", "data": parallel | data, "model": model}
        (tmp_path / "t.yaml").write_text(yaml.safe_dump(written), encoding="utf-8")
        return load(tmp_path / "t.yaml")

    return _make


def tokenizers_of(kind: str, **prefix: str) -> Tokenizers:
    section = {"tokenizer": yaml.safe_load(f"{{{kind}}}" if ":" in kind else f"{{{kind}: {{}}}}")}
    return train_tokenizers(section | {"prefix": prefix}, {"source": LINES, "target": LINES})


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_comes_back_without_the_prefix_that_its_ids_have(kind: str) -> None:
    tokenizers = tokenizers_of(kind, target=TARGET)
    plain = tokenizers.with_prefixes({})
    ids = tokenizers.encode("target", LINES)
    assert ids == plain.encode("target", [TARGET + line for line in LINES])
    assert tokenizers.decode("target", ids) == LINES
    assert plain.decode("target", ids) == [TARGET + line for line in LINES]
    assert tokenizers.encode("source", LINES) == plain.encode("source", LINES)
    begun = tokenizers.beginning("target")
    assert begun
    assert all(row[: len(begun)] == begun for row in ids)
    assert tokenizers.decode("target", [begun]) == [""]
    assert tokenizers.encode("target", [""]) == [[]]
    assert tokenizers.encode_beginnings("target", ["", LINES[0]]) == [begun, ids[0]]


def test_a_prefix_that_a_tokenizer_cannot_spell_is_taken_off_as_it_reads_it() -> None:
    tokenizers = tokenizers_of("word").with_prefixes({"target": "never  seen: "})
    assert tokenizers.decode("target", tokenizers.encode("target", LINES)) == LINES


def test_the_file_of_a_tokenizer_keeps_prefixesand_one_without_is_as_it_was(
    tmp_path: Path,
) -> None:
    tokenizers = tokenizers_of("char", source=SOURCE, target="")
    tokenizers.save(tmp_path / "tokenizer.json")
    assert Tokenizers.load(tmp_path / "tokenizer.json").prefixes == {"source": SOURCE}
    assert "prefix" not in tokenizers_of("char").text


def test_lowercase_leaves_a_prefix_as_it_is(make: Make, tmp_path: Path) -> None:
    recipe = make(tokenizer="char", lowercase=True, prefix={"target": "DE: "})
    data = load_data(recipe, [tmp_path])
    assert data.train is not None
    target = [data.train.target[row] for row in range(len(data.train))]
    plain = data.tokenizers.with_prefixes({})
    # the third pair has no text, so it is left out, whatever the prefix
    assert plain.decode("target", target) == ["DE: eins zwei", "DE: drei vier"]


def test_sides_that_share_a_tokenizer_share_no_ids_in_the_cache() -> None:
    tokenizers = tokenizers_of("bpe: {size: 330}", source=SOURCE, target=TARGET)
    rows = []
    for side in ("source", "target"):
        _, ids = cached_ids("0" * 64, iter([Piece("eins", True)]), 4, side, tokenizers)
        rows.append(ids[0])
    assert rows == [tokenizers.encode(side, ["eins"])[0] for side in ("source", "target")]


def test_tokenizers_in_the_cache_are_those_of_a_prefix(make: Make, tmp_path: Path) -> None:
    for text in ("a: ", "b: "):
        recipe = make(tokenizer="word", prefix={"target": text})
        assert cached_tokenizers(DataSource(recipe, [tmp_path])).prefixes == {"target": text}


def test_a_fingerprint_changes_with_a_prefix_alone(make: Make, tmp_path: Path) -> None:
    prints = [
        fingerprints(make(**data), tmp_path)["data"]
        for data in ({}, {"prefix": {"target": ""}}, {"prefix": {"target": "a"}})
    ]
    assert prints[0] == prints[1] != prints[2]


@pytest.mark.parametrize("kind", ["word", "{bpe: {size: 330}}", "char"])
def test_answers_begin_with_the_prefix_and_do_not_show_it(kind: str, tmp_path: Path) -> None:
    run = open_run(made(tmp_path / "run", GRU, kind + PREFIX))
    begun = run.tokenizers.beginning("target")
    forced = [TARGET + word for word in ["", *WORDS[:7]]]
    plain = open_run(run)
    plain = type(plain)(run.run_dir, run.recipe, run.tokenizers.with_prefixes({}), run.model)
    shown = run.translate(LINES, scores=True)
    asked = [SOURCE + line for line in LINES]
    same = plain.translate(asked, prefix=[TARGET.rstrip()] * len(LINES), scores=True)
    for answer, other in zip(shown, same, strict=True):
        assert other.text.startswith(TARGET.rstrip())
        assert answer.score == pytest.approx(other.score)
        assert answer.text == other.text.removeprefix(TARGET.rstrip()).removeprefix(" ")
    begins = run.translate(LINES, prefix=["", *WORDS[:7]])
    expected = plain.translate(asked, prefix=[TARGET.rstrip(), *forced[1:]])
    assert begins == [text.removeprefix(TARGET.rstrip()).removeprefix(" ") for text in expected]
    data = load_data(run.recipe, run.folders())
    lines = [(line,) for line in data.pairs["test"].sides["source"]]
    rows = encoded_lines(run.tokenizers, lines, data.splits["test"]).rows
    assert all(list(row.prefix) == begun for row in rows)
    targets = [TARGET + line for line in LINES[1:]]
    totals = [scored.total for scored in run.score(LINES, ["", *LINES[1:]])]
    expected_scores = plain.score(asked, [TARGET.rstrip(), *targets])
    assert totals == pytest.approx([scored.total for scored in expected_scores], rel=1e-4)


def test_a_language_model_writes_after_a_prefix_that_is_not_printed(tmp_path: Path) -> None:
    kind = "char\n  prefix: {target: 'system: '}"
    run = open_run(made(tmp_path / "run", LANGUAGE, kind, decoding="{greedy: {max_length: 9}}"))
    plain = type(run)(run.run_dir, run.recipe, run.tokenizers.with_prefixes({}), run.model)
    pieces: list[str] = []
    (text,) = run.generate(["eins"], on_text=lambda _, piece: pieces.append(piece))
    assert text.startswith("eins")
    assert "".join(pieces) == text
    assert plain.generate(["system: eins"]) == [f"system: {text}"]
    (free,) = run.generate()
    assert plain.generate(["system:"]) in ([f"system: {free}"], [f"system:{free}"])
    total = plain.score(["system: eins"])[0].total
    assert run.score(["eins"])[0].total == pytest.approx(total)


@pytest.mark.parametrize("kind", ["word", "{bpe: {size: 330}}", "char"])
@pytest.mark.parametrize("model", [GRU, LANGUAGE], ids=["pairs", "language"])
def test_an_export_answers_as_translate_does(model: str, kind: str, tmp_path: Path) -> None:
    prefix = PREFIX if model == GRU else f"\n  prefix: {{target: '{TARGET}'}}"
    run = open_run(made(tmp_path / "run", model, kind + prefix))
    runner = exported(run, tmp_path / "export")
    begun = [WORDS[at] if at % 2 else "" for at in range(len(LINES))] if model == GRU else None
    for prefixes in (None, begun):
        native = run.translate(LINES, prefix=prefixes, scores=True)
        answers = runner.translate(LINES, prefixes)
        for answer, (own,) in zip(native, answers, strict=True):
            assert own.text == answer.text
            assert own.score == pytest.approx(answer.score, abs=1e-3)


def test_a_special_token_of_a_file_is_no_prefix(make: Make, tmp_path: Path) -> None:
    part = Tokenizer(models.BPE({"a": 0}, []))
    part.add_special_tokens(["<s>"])
    part.save(str(tmp_path / "own.json"))
    for text, count in (("<s>", 1), ("s", 0)):
        recipe = make(tokenizer={"file": {"path": "own.json"}}, prefix={"source": text})
        assert [fault.path for fault in recipe.tokenizer_faults()] == ["data.prefix.source"] * count
