"""Tokenizers: what goes in comes out; what was saved is what is loaded."""

from __future__ import annotations

import json
import os
import random
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from composer.data import tokenizer_kinds
from composer.data.tokenizer import Tokenizers
from composer.data.tokenizer_kinds import MANY_TEXTS, THREADS, TokenizerKind, Word
from composer.data.tokenizer_training import train_tokenizers
from composer.errors import RunError
from composer.model.special_tokens import UNK

SOURCE = [
    "A man, sleeping.",
    "two dogs run (fast)",
    'he says: "no"',
    "the man's hat",
    "a dog a man a dog",
] * 4
TARGET = [
    "Ein Mann schläft.",
    "zwei Hunde rennen",
    "er sagt: „nein“",
    "der Hut des Mannes",
    "ein Hund ein Mann",
] * 4
BOTH = {"source": SOURCE, "target": TARGET}
SPECIAL = "<pad> ⟨pad⟩ ⟨eos⟩ [UNK] </s> ⟨unk⟩"
KINDS = [
    {"word": {}},
    {"char": {"joint": True}},
    {"bpe": {"size": 320}},
    {"unigram": {"size": 310}},
    {"bpe": {"size": 300, "joint": False}},
    {"word": {"split": "spaces"}},
    {"byte": {}},
]


def tokens(tokenizers: Tokenizers, line: str) -> list[str]:
    """Return the tokens of a line, as the tokenizer names them."""
    names = tokenizers.vocabulary("source")
    return [names[token] for token in tokenizers.encode("source", [line])[0]]


def trained(kind: dict, **data) -> Tokenizers:
    return train_tokenizers({"tokenizer": kind, **data}, BOTH)


@pytest.fixture(scope="module")
def on_bytes() -> list[Tokenizers]:
    return [
        trained({"bpe": {"size": 400}}),
        trained({"unigram": {"size": 310}}),
        trained({"byte": {}}),
    ]


@given(text=st.text(max_size=40) | st.text(alphabet="aAä \t'\"￭▁Ġ⟨⟩<>pad", max_size=20))
@settings(max_examples=60, deadline=None)
def test_byte_level_tokenizers_decode_every_text_exactly(on_bytes, text):
    for tokenizers in on_bytes:
        (ids,) = tokenizers.encode("target", [text])
        assert min(ids, default=4) > UNK
        assert tokenizers.decode("target", [ids]) == [text]


@given(text=st.text(alphabet=sorted({*"".join(SOURCE)}), max_size=30))
@settings(max_examples=40, deadline=None)
def test_seen_characters_are_decoded_exactly(text):
    tokenizers = trained({"char": {}})
    assert tokenizers.decode("source", tokenizers.encode("source", [text])) == [text]


@pytest.mark.parametrize("kind", KINDS)
def test_training_lines_are_decoded_exactly(kind):
    tokenizers = trained(kind)
    for side, lines in BOTH.items():
        assert tokenizers.decode(side, tokenizers.encode(side, lines)) == lines
        assert all(
            4 <= index < tokenizers.sizes[side]
            for row in tokenizers.encode(side, lines)
            for index in row
        )


@pytest.mark.parametrize("kind", KINDS)
def test_no_text_encodes_to_a_special_token(kind):
    tokenizers = trained(kind)
    (ids,) = tokenizers.encode("source", [SPECIAL])
    assert min(ids) >= UNK
    assert tokenizers.encode("source", ["", "  "])[0] == []


@pytest.mark.parametrize("kind", KINDS)
def test_one_file_restores_the_tokenizers(kind, tmp_path):
    tokenizers = trained(kind, lowercase=True)
    tokenizers.save(tmp_path / "tokenizer.json")
    loaded = Tokenizers.load(tmp_path / "tokenizer.json")
    assert loaded.sha256 == tokenizers.sha256
    assert loaded.sides == tokenizers.sides
    assert [file.name for file in tmp_path.iterdir()] == ["tokenizer.json"]
    for side, lines in BOTH.items():
        upper = [line.upper() for line in lines]
        ids = tokenizers.encode(side, [line.lower() for line in upper])
        assert loaded.encode(side, upper) == ids
        assert loaded.decode(side, ids) == tokenizers.decode(side, ids)


def test_joint_sides_share_one_vocabulary():
    assert trained({"bpe": {"size": 300, "joint": True}}).sides == {"source": 0, "target": 0}
    separate = trained({"char": {"size": 10}})
    assert separate.sides == {"source": 0, "target": 1}
    assert separate.sizes["target"] == 10
    assert Word(size=7).train(BOTH)[0].get_vocab_size() == 7


def test_the_text_is_written_once():
    """Several parts of a training ask for it, and that of a large vocabulary takes a tenth of a
    second.
    """
    tokenizers = trained({"bpe": {"size": 300}})
    assert tokenizers.text is tokenizers.text


def test_bpe_and_word_and_char_are_the_same_twice():
    for kind in KINDS:
        if "unigram" not in kind:
            assert trained(kind).sha256 == trained(kind).sha256


@pytest.mark.parametrize(("few", "merging"), [(10_000, "false"), (0, "true")])
def test_one_thread_merges_the_pairs_of_a_short_text(few, merging, monkeypatch):
    seen = []

    def train_part(self, part, texts, trainer):
        lines = list(texts)
        seen.append(os.environ.get(THREADS))
        part.train_from_iterator(lines, trainer)

    kind = {"bpe": {"size": 300, "joint": False}}
    expected = trained(kind).text
    monkeypatch.setattr(tokenizer_kinds, "SINGLE_THREAD_CHARACTERS", few)
    monkeypatch.setattr(TokenizerKind, "train_part", train_part)
    monkeypatch.setenv(THREADS, "true")
    assert trained(kind).text == expected
    assert seen == [merging, merging]
    assert os.environ[THREADS] == "true"


@pytest.mark.parametrize(
    "word", ["हिन्दी", "cafe\N{COMBINING ACUTE ACCENT}s", "İstanbul".lower(), "สวัสดี", "كِتَاب"]
)
def test_an_accent_or_a_vowel_sign_is_part_of_its_word(word):
    tokenizers = train_tokenizers({"tokenizer": {"word": {}}}, {"source": [word]})
    assert tokens(tokenizers, f'"{word}", {word}.') == [
        "⟨unk⟩",
        word,
        "⟨unk⟩",
        "⟨unk⟩",
        word,
        "⟨unk⟩",
    ]
    line = f'{word}-{word} ("{word}")'
    tokenizers = train_tokenizers({"tokenizer": {"word": {}}}, {"source": [line]})
    assert tokenizers.decode("source", tokenizers.encode("source", [line])) == [line]


def test_decoding_puts_marks_where_they_were():
    tokenizers = trained({"word": {}})
    assert tokens(tokenizers, "the man's hat") == ["the", "man", "￭'￭", "s", "hat"]
    (ids,) = tokenizers.encode("source", ["a  zebra, man"])
    assert ids.count(UNK) == 1
    assert tokenizers.decode("source", [[1, *ids, 2, 0]]) == ["a ⟨unk⟩, man"]
    assert trained({"word": {"min_count": 5}}).encode("source", ["hat"]) == [[UNK]]


TOKENS = sorted({token for line in SOURCE for token in line.split()})


@given(
    tokens=st.lists(st.sampled_from(TOKENS)),
    spaces=st.lists(st.sampled_from([" ", "  ", "\t", "\u00a0"])),
)
@settings(max_examples=40, deadline=None)
def test_seen_tokens_are_decoded_with_single_spaces(tokens, spaces):
    tokenizers = trained({"word": {"split": "spaces"}})
    between = [*spaces, *[" "] * len(tokens)]
    line = "".join(f"{token}{space}" for token, space in zip(tokens, between, strict=False))
    (ids,) = tokenizers.encode("source", [line])
    assert len(ids) == len(tokens)
    assert UNK not in ids
    assert tokenizers.decode("source", [ids]) == [" ".join(tokens)]


def test_tokenized_text_is_split_at_spaces_alone():
    tokenizers = trained({"word": {"split": "spaces"}})
    assert tokens(tokenizers, "the man's (fast)") == ["the", "man's", "(fast)"]
    (ids,) = tokenizers.encode("source", ["a zebra \N{HALFWIDTH BLACK SQUARE} man's"])
    assert tokenizers.decode("source", [[1, *ids, 2, 0]]) == ["a ⟨unk⟩ ⟨unk⟩ man's"]


def test_a_token_that_looks_special_is_unknown():
    lines = ["⟨pad⟩ ⟨bos⟩ ⟨eos⟩ ⟨unk⟩ a b"] * 3
    tokenizers = train_tokenizers({"tokenizer": {"word": {"split": "spaces"}}}, {"target": lines})
    assert tokenizers.encode("target", lines[:1]) == [[UNK] * 4 + [4, 5]]
    assert tokenizers.sizes["target"] == 6


@given(text=st.text(max_size=20), cut=st.data())
@settings(max_examples=40, deadline=None)
def test_bytes_have_their_ids_and_half_a_character_is_replaced(text, cut):
    tokenizers = trained({"byte": {}})
    (ids,) = tokenizers.encode("source", [text])
    assert ids == [byte + 4 for byte in text.encode()] == tokenizers.parts[0].encode(text).ids
    assert tokenizers.sizes == {"source": 260, "target": 260}
    start, end = sorted(cut.draw(st.tuples(*[st.integers(0, len(ids))] * 2)))
    decoded = tokenizers.decode("target", [ids[start:end]])
    assert decoded == [text.encode()[start:end].decode(errors="replace")]


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_a_word_without_end_is_not_trained_on_to_its_end(kind):
    started = time.process_time()
    train_tokenizers(
        {"tokenizer": {kind: {"size": 300}}}, {"source": ["a b", "ab" * 100_000], "target": ["c"]}
    )
    assert time.process_time() - started < 3.0


def test_a_file_without_split_means_marks(tmp_path):
    tokenizers = trained({"word": {"split": "marks"}})
    tokenizers.save(tmp_path / "t.json")
    content = json.loads((tmp_path / "t.json").read_text())
    del content["settings"]["word"]["split"]
    (tmp_path / "t.json").write_text(json.dumps(content))
    loaded = Tokenizers.load(tmp_path / "t.json")
    assert loaded.encode("source", SOURCE) == tokenizers.encode("source", SOURCE)
    assert loaded.decode("source", loaded.encode("source", SOURCE)) == SOURCE


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"format": "seqcomposer tokenizer 9"}', "\x00"]
)
def test_a_broken_tokenizer_file_is_refused(text, tmp_path):
    (tmp_path / "t.json").write_text(text)
    with pytest.raises(RunError, match=r"t\.json"):
        Tokenizers.load(tmp_path / "t.json")
    with pytest.raises(RunError):
        Tokenizers.load(tmp_path / "none.json")


def test_a_tokenizer_file_with_a_broken_part_is_refused(tmp_path):
    trained({"word": {}}).save(tmp_path / "t.json")
    content = json.loads((tmp_path / "t.json").read_text())
    (tmp_path / "t.json").write_text(
        json.dumps({**content, "parts": [{"model": {"type": "WordLevel"}}]})
    )
    with pytest.raises(RunError):
        Tokenizers.load(tmp_path / "t.json")


CORRUPTIONS: dict[str, tuple[str, str, object]] = {
    "a library that panics": ("model", "continuing_subword_prefix", "x" * 100),
    "pieces by chance": ("model", "dropout", 0.5),
    "an id without a row": ("vocab", "a", 10**6),
    "text for text": (
        "",
        "normalizer",
        {"type": "Replace", "pattern": {"Regex": "(a*)*b"}, "content": "c"},
    ),
    "padding": (
        "",
        "truncation",
        {"direction": "Right", "max_length": 1, "strategy": "LongestFirst", "stride": 0},
    ),
}


def test_bytes_with_other_ids_are_refused() -> None:
    content = json.loads(trained({"byte": {}}).text)
    vocabulary = content["parts"][0]["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    with pytest.raises(RunError, match="the ids of the bytes are others"):
        Tokenizers.from_text(json.dumps(content))


@pytest.mark.parametrize("case", CORRUPTIONS)
def test_a_tokenizer_that_no_training_writes_is_refused(case: str) -> None:
    where, key, value = CORRUPTIONS[case]
    content = json.loads(trained({"bpe": {"size": 400}}).text)
    (part,) = content["parts"]
    {"": part, "model": part["model"], "vocab": part["model"]["vocab"]}[where][key] = value
    with pytest.raises(RunError, match="the tokenizer cannot be read"):
        Tokenizers.from_text(json.dumps(content))


@pytest.mark.parametrize(
    "kind",
    [
        {"word": {}},
        {"word": {"split": "spaces"}},
        {"char": {}},
        {"bits": {"size": 2}},
        {"integers": {}},
    ],
)
@pytest.mark.parametrize("spaces", [" \t\xa0\u3000\x85\u2028", " \x1c\x1f"])
def test_many_lines_have_the_ids_that_the_library_gives_each(
    kind: dict[str, dict[str, Any]], spaces: str
) -> None:
    draw, alphabet = random.Random(0), f"abc.,!⟨unk⟩é\u0301न\u093f😀\u200b01{spaces}"
    lines = ["".join(draw.choices(alphabet, k=draw.randrange(12))) for _ in range(3 * MANY_TEXTS)]
    tokenizers = train_tokenizers({"tokenizer": kind}, {"source": lines[:50], "target": lines[:50]})
    assert tokenizers.encode("source", lines) == [
        tokenizers.encode("source", [line])[0] for line in lines
    ]
