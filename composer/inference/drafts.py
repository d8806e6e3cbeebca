"""Drafts of speculative decoding: what proposes tokens, how many pay, and n-grams of what has been read and written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from composer.model.encoder_decoder import EOS, EncoderDecoder

MOST_DRAFTED = 8
"""Tokens that are drafted at once, at most."""
POSITION_COST = 0.1
"""What another position costs in a step of several, as a share of a step of one."""
MODULE_COST = 100_000
"""Weights that a step reads in the time that calling a module takes at least, on a CPU or to launch kernels."""
STEP_MODULES = 20
"""Modules that could be called in the time that a step takes beside its modules."""
RETRY_TOKENS = 32
"""Tokens after which a draft that did not pay is tried again."""
MEMORY = 0.95
"""What a judged token counts after the next one is judged."""
NGRAMS = range(6, 1, -1)
"""Lengths of n-grams that are looked up, the longest first."""


@dataclass
class Draft:
    """What proposes tokens, a smaller model or, without one, n-grams; and how many of them were accepted.

    `source`: the encoder whose source has the ids of the answer's vocabulary, "" for none; n-grams are taken from it.
    `tokens` were made in `steps` of the model that answers, the first of each answer left out.
    """

    model: EncoderDecoder | None = None
    source: str = ""
    drafted: int = 0
    accepted: int = 0
    tokens: int = 0
    steps: int = 0

    def __str__(self) -> str:
        share = f" ({self.accepted / self.drafted:.0%})" if self.drafted else ""
        speed = f"{self.tokens / max(self.steps, 1):.2f} tokens a step of the model"
        return f"draft: {self.accepted:,} of {self.drafted:,} tokens accepted{share}, {speed}"

    def count(self, drafted: int, accepted: int, tokens: int) -> None:
        """Count what one step has read and made."""
        self.drafted, self.accepted = self.drafted + drafted, self.accepted + accepted
        self.tokens, self.steps = self.tokens + tokens, self.steps + 1

    def cost(self, model: EncoderDecoder) -> float:
        """Return what one of its steps costs, as a share of a step of `model`."""
        return 0.0 if self.model is None else step_cost(self.model) / step_cost(model)


def step_cost(model: EncoderDecoder) -> int:
    """Return what a step of one token costs, counted and not timed: the weights it reads, and the modules it calls."""
    parts = nn.ModuleList([model.decoder, model.output])
    modules = sum(not any(module.children()) for module in parts.modules())
    return sum(parameter.numel() for parameter in parts.parameters()) + MODULE_COST * (STEP_MODULES + modules)


class DraftLength:
    """How many tokens to draft: as many as pay by how many were accepted lately in this answer, or none.

    k tokens of which each is accepted with probability a make (1 - a^(k+1)) / (1 - a) tokens of a step (Leviathan et
    al. 2023, equation 1), which then costs 1 + k (c + e): c is a step of the draft, e another position of this one.
    It drafts the k for which their ratio is largest, at most `MOST_DRAFTED`. a is (1 + accepted) / (2 + judged), where
    older tokens count less. Where drafting does not pay, one token is tried again after every `RETRY_TOKENS`.
    No clock decides: the same command writes the same text.
    """

    def __init__(self, cost: float) -> None:
        self.cost = cost + POSITION_COST
        self.accepted = self.judged = 0.0
        self.without = 0  # tokens since it was tried

    def choose(self) -> int:
        """Return how many tokens to draft now."""
        share = (1 + self.accepted) / (2 + self.judged)

        def speed(count: int) -> float:
            return (1 - share ** (count + 1)) / (1 - share) / (1 + count * self.cost)

        best = max(range(MOST_DRAFTED + 1), key=speed)
        return best or int(self.without >= RETRY_TOKENS)

    def update(self, drafted: int, accepted: int) -> None:
        """Learn how many of the tokens of a step were accepted; those after the first that was not tell nothing."""
        self.without = 0 if drafted else self.without + 1
        for token in range(min(drafted, accepted + 1)):
            self.accepted = MEMORY * self.accepted + (token < accepted)
            self.judged = MEMORY * self.judged + 1


class NgramIndex:
    """A text that grows, and where each of its n-grams was last followed by a token (prompt lookup, Saxena 2023)."""

    def __init__(self, ids: Sequence[int]) -> None:
        self.ids: list[int] = []
        self.followed: dict[tuple[int, ...], int] = {}
        self.extend(ids)

    def extend(self, ids: Sequence[int]) -> None:
        """Append tokens."""
        for token in ids:
            for size in NGRAMS:
                if size <= len(self.ids):
                    self.followed[tuple(self.ids[-size:])] = len(self.ids)
            self.ids.append(token)

    def continuation(self, count: int) -> list[int]:
        """Return what followed the last n tokens when they last occurred, for the largest n; nothing after eos."""
        text = [*self.ids]
        place = next((self.followed[key] for size in NGRAMS if (key := tuple(text[-size:])) in self.followed), None)
        while place is not None and len(text) < len(self.ids) + count and EOS not in text[len(self.ids) :]:
            text.append(text[place])  # of a text that repeats itself it reads what it has just appended
            place += 1
        return text[len(self.ids) :]
