"""Small models with random weights, and one whose probabilities are written down."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from composer.build import build
from composer.model import EncoderDecoder

SOURCE, TARGET = 12, 7
SELF = {"residual": {"stack": [{"self_attention": {"heads": 2}}]}}
CROSS = {"residual": {"stack": [{"cross_attention": {"heads": 2}}]}}
LSTM = {"residual": {"stack": [{"rnn": {"cell": "lstm"}}]}}
CONV = {"residual": {"stack": [{"conv": {"kernel": 3, "activation": "glu"}}]}}
PLACES: dict[str, Any] = {"positions": {}}
DECODERS = {
    "attention": [PLACES, SELF, CROSS, {"norm": {}}],
    "lstm": [LSTM, CROSS, {"norm": {}}],
    "conv": [PLACES, CONV, CROSS, {"norm": {}}],
    "mixed": [PLACES, SELF, LSTM, CROSS, CONV, {"norm": {}}],
}


def model_of(
    decoder: str | list[Any] = "mixed", seed: int = 0, target: int = TARGET, source: bool = True, sharp: float = 2.0
) -> EncoderDecoder:
    """A model with random weights; the larger `sharp`, the surer it is of its next token."""
    torch.manual_seed(seed)
    encoder = [PLACES, SELF, {"norm": {}}] if source else None
    stack = DECODERS[decoder] if isinstance(decoder, str) else decoder
    model = {"width": 8, "encoder": encoder, "decoder": stack, "output": {"tie": []}, "stacks": {}}
    recipe: Any = SimpleNamespace(model=model, joint=False, fault=None)
    built = build(recipe, {"source": SOURCE, "target": target}).eval()
    with torch.no_grad():
        built.output.weight.mul_(sharp)
    return built


class Written(nn.Module):
    """A language model that says what `table` says: from the tokens so far to the probabilities of the next one."""

    def __init__(self, table: Callable[[tuple[int, ...]], Mapping[int, float]], vocabulary: int) -> None:
        super().__init__()
        self.table = table
        self.output = nn.Linear(1, vocabulary)
        self.encoders = nn.ModuleDict()
        self.steps = 0

    def encode(self, sources: Mapping[str, Tensor]) -> dict[str, Any]:
        return {}

    def start(self, memories: Mapping[str, Any], batch: int) -> Tensor:
        return torch.zeros(batch, 0, dtype=torch.long)

    def step(self, ids: Tensor, state: Tensor, memories: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        self.steps += 1
        state = torch.cat((state, ids), 1)
        length, taken = state.shape[1], ids.shape[1]
        ends = range(length - taken + 1, length + 1)
        return torch.stack([torch.stack([self.logits(row[:end]) for end in ends]) for row in state.tolist()]), state

    def logits(self, tokens: Sequence[int]) -> Tensor:
        told = self.table(tuple(tokens[1:]))
        values = torch.full((self.output.out_features,), -torch.inf)
        for token, probability in told.items():
            values[token] = torch.tensor(probability).log()
        return values


def forward_score(model: EncoderDecoder, source: Sequence[int], ids: Sequence[int], ended: bool) -> float:
    """log p of an answer, all positions at once."""
    answer = [*ids, 2] if ended else list(ids)
    with torch.no_grad():
        logits = model({"source": torch.tensor([[*source, 2]])}, torch.tensor([[1, *answer[:-1]]]))[0]
    return float(logits.log_softmax(-1).gather(1, torch.tensor(answer)[:, None]).sum())
