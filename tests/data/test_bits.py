"""The tokenizer `bits`: which word has which id, and what a model is told of it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from blocks.core.fixes import Fix, Set
from composer.data.tokenizer import Tokenizers
from composer.data.tokenizer_kinds import Bits
from composer.data.tokenizer_training import train_tokenizers
from composer.model.special_tokens import BOS, EOS, PAD, UNK

PLAIN = {"size": 2, "marks": [";"], "numbers": False}
FULL = {"size": 3, "marks": ["?", ";"], "numbers": True}


def trained(settings: dict) -> Tokenizers:
    return train_tokenizers({"tokenizer": {"bits": settings}}, {"source": [], "target": []})


def test_a_fix_names_all_that_the_vectors_need() -> None:
    fix = Bits(size=4).unknown_fix("00101101@0.62", False, ["00101101@0.62 11001100"])
    assert fix == Fix("write `bits: {size: 8, numbers: true}`")
    fix = Bits(size=4, numbers=True).unknown_fix("00", True, ["00 11"])
    assert fix == Fix("write `bits: {size: 2, numbers: true}`", Set(("size",), 2))
    fix = Bits(size=2).unknown_fix("00@0.62", False, ["00@0.62"])
    assert fix == Fix("add `numbers: true` to `bits`", Set(("numbers",), True))
    assert Bits(size=2).unknown_fix("a", False, ["a"]).change == Set(("data", "tokenizer"), "word")


def test_ids_of_vectors_are_in_numeric_order_after_the_marks() -> None:
    tokenizers = trained(PLAIN)
    assert tokenizers.encode("source", ["; 00 01 10 11"]) == [[4, 5, 6, 7, 8]]
    assert tokenizers.encode("target", ["00 01 10 11"]) == [[4, 5, 6, 7]]
    (ids,) = trained(FULL).encode("source", ["? ; 000@-1.00 000@-0.99 000@1.00 001@-1.00 111@1.00"])
    assert ids == [4, 5, 6, 7, 206, 207, 6 + 8 * 201 - 1]


@pytest.mark.parametrize("settings", [PLAIN, FULL])
def test_every_word_is_decoded_to_itself(settings: dict) -> None:
    tokenizers = trained(settings)
    for side in ("source", "target"):
        words = Bits(**settings).vocabulary(side == "target")
        (ids,) = tokenizers.encode(side, [" ".join(words)])
        assert ids == list(range(4, tokenizers.sizes[side]))
        assert tokenizers.sizes[side] == Bits(**settings).max_size(side == "target")
        assert tokenizers.decode(side, [[BOS, *ids, EOS, PAD]]) == [" ".join(words)]


def test_a_channel_of_zero_is_the_vector_alone() -> None:
    tokenizers = trained(FULL)
    (ids,) = tokenizers.encode("source", ["000 101@0.00 101@0.01 101"])
    assert ids[1] == ids[3] == ids[2] - 1
    assert tokenizers.decode("source", [ids]) == ["000 101 101@0.01 101"]


@pytest.mark.parametrize(
    "word",
    ["0", "0000", "012", "000@", "000@0.5", "000@1.01", "000@-0.00", "000@0.001", ":", "⟨pad⟩"],
)
def test_a_word_without_an_id_is_unknown(word: str) -> None:
    assert trained(FULL).encode("source", [f"000 {word} 111"])[0][1] == UNK


def test_a_target_is_of_vectors_alone() -> None:
    assert trained(FULL).encode("target", ["101 ; 101@0.50 ?"]) == [[4 + 5, UNK, UNK, UNK]]


def test_features_are_the_digits_marks_and_numbers_of_the_words() -> None:
    features = Bits(**FULL).features(target=False)
    tokenizers = trained(FULL)
    (ids,) = tokenizers.encode("source", ["? ; 101@-0.37 011"])
    assert features.shape == (tokenizers.sizes["source"], 2 + 2 + 3 + 1)
    bos, eos, question, mark = np.eye(8)[:4]
    expected = [question, mark, [0, 0, 0, 0, 1, 0, 1, -0.37], [0, 0, 0, 0, 0, 1, 1, 0]]
    assert np.allclose(features[ids], expected)
    assert np.allclose(features[[PAD, BOS, EOS, UNK]], [0 * bos, bos, eos, 0 * bos])
    assert features.dtype == torch.float32


def test_a_side_has_the_features_that_it_can_have() -> None:
    assert Bits(**PLAIN).features(target=False).shape == (9, 2 + 1 + 2)
    assert Bits(**PLAIN).features(target=True).tolist()[4:] == [
        [0, 0, 0, 0],
        [0, 0, 0, 1],
        [0, 0, 1, 0],
        [0, 0, 1, 1],
    ]
    assert Bits(**FULL).features(target=True).shape == (4 + 8, 2 + 3)
    assert (
        len(np.unique(Bits(**FULL).features(target=False), axis=0)) == 3 + 2 + 8 * 201 - 1
    )  # pad and unk are the same


def test_bits_learn_nothing_from_the_lines(tmp_path) -> None:
    seen = train_tokenizers({"tokenizer": {"bits": FULL}}, {"source": ["101"], "target": ["x y z"]})
    assert seen.sha256 == trained(FULL).sha256
    seen.save(tmp_path / "t.json")
    loaded = Tokenizers.load(tmp_path / "t.json")
    assert loaded.encode("source", ["101@0.50 ;"]) == seen.encode("source", ["101@0.50 ;"])
    assert loaded.sha256 == seen.sha256


def test_a_repeated_mark_has_one_id() -> None:
    twice = {**PLAIN, "marks": [";", ";"]}
    assert Bits(**twice).vocabulary(target=False) == Bits(**PLAIN).vocabulary(target=False)
    assert (
        Bits(**twice).features(target=False).tolist()
        == Bits(**PLAIN).features(target=False).tolist()
    )
