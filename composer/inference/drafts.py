"""A draft for speculative decoding: a model that proposes tokens, and counts of those accepted."""

from __future__ import annotations

from dataclasses import dataclass

from composer.model.encoder_decoder import EncoderDecoder


@dataclass
class Draft:
    """A smaller model that proposes tokens.

    `tokens` were made in `steps` of the model that answers, the first of each answer left out.
    """

    model: EncoderDecoder
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
