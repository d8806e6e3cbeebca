"""The special tokens, which every vocabulary begins with. Importing this imports no torch."""

from __future__ import annotations

PAD, BOS, EOS, UNK = 0, 1, 2, 3
SPECIAL_TOKENS = ["⟨pad⟩", "⟨bos⟩", "⟨eos⟩", "⟨unk⟩"]
"""The special tokens by id. Text cannot produce one: `bpe` and `unigram` know only bytes, `char`
only characters, and the tokenizers of words take the brackets off or map such a word to unk.
"""
NUM_SPECIAL = len(SPECIAL_TOKENS)
"""A token's own id is this or more."""
