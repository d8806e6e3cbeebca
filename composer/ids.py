"""The ids that mean the same in every vocabulary: padding, the beginning, the end, and what is not known."""

PAD, BOS, EOS, UNK = 0, 1, 2, 3
SPECIAL = 4
"""How many there are: a token's own id is this or more."""
