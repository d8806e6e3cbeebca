"""Small models with random weights, and one whose probabilities are written down."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from composer.inference.decode import SourceIds, decode_all, make_rows
from composer.inference.decoders.search import Hypothesis, Options
from composer.model.builder import build
from composer.model.encoder_decoder import EncoderDecoder
from composer.recipe.choices import Decoder
from composer.recipe.data_sections import Data
from composer.recipe.model_sections import Model
from composer.recipe.section import read_section

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

CHAIN: list[Any] = [{"source_state": {}}, {"concat": {"of": "input"}}]
TAPE: dict[str, Any] = {"active_memory": {"stack": [{"cgru": {"with": "tape"}}]}}
SIZED: dict[str, tuple[list[Any], list[Any]]] = {
    "plain": ([{"select_column": {}}], [{"source_state": {}}]),
    "markov": ([{"select_column": {}}], CHAIN),
    "extended": ([], [TAPE, {"select_column": {}}]),
    "recurrent": ([{"sum_columns": {}}], [{"rnn": {}}, CROSS]),
}
"""Models to which the size of an answer matters: how the encoder ends that begins with a grid, and
the decoder.
"""


def model_of(
    decoder: str | list[Any] = "mixed",
    seed: int = 0,
    target: int = TARGET,
    source: bool = True,
    sharp: float = 2.0,
) -> EncoderDecoder:
    """A model with random weights; the larger `sharp`, the surer it is of its next token."""
    encoder = [PLACES, SELF, {"norm": {}}] if source else None
    stack = DECODERS[decoder] if isinstance(decoder, str) else decoder
    return built(encoder, stack, seed, target, sharp)


def sized(
    kind: str, seed: int = 0, target: int = TARGET, ratio: float = 2.0, sharp: float = 2.0
) -> EncoderDecoder:
    """A Neural GPU with random weights, one of `SIZED`; ends are rare enough for answers of several
    sizes.
    """
    end, decoder = SIZED[kind]
    steps = {"repeat": {"times": "length", "share": True, "stack": [{"cgru": {}}]}}
    model = built(
        [{"grid": {"columns": 2, "max_length_ratio": ratio}}, steps, *end],
        decoder,
        seed,
        target,
        sharp,
    )
    with torch.no_grad():
        model.output.bias[2] = -3.0
    return model


def built(
    encoder: list[Any] | None, decoder: list[Any], seed: int, target: int, sharp: float
) -> EncoderDecoder:
    torch.manual_seed(seed)
    output = {"tie": [], "kind": "linear", "length": None, "ctc": None, "bias": True}
    settings = {
        "width": 8,
        "embedding": "learned",
        "embedding_dropout": 0.0,
        "encoder": encoder,
        "decoder": decoder,
        "output": output,
        "stacks": {},
    }
    recipe: Any = SimpleNamespace(
        model=read_section(Model, settings, ("model",)),
        data=Data(),
        joint=False,
        begins_after_end=False,
        fault=None,
    )
    model = build(recipe, {"source": SOURCE, "target": target}).eval()
    with torch.no_grad():
        model.output.weight.mul_(sharp)
    return model


class Written(nn.Module):
    """A language model that says what `table` says: from the tokens so far to the probabilities of
    the next one.
    """

    has_impossible_tokens = True

    def __init__(
        self, table: Callable[[tuple[int, ...]], Mapping[int, float]], vocabulary: int
    ) -> None:
        super().__init__()
        self.table = table
        self.output, self.vocabulary, self.device = (
            nn.Linear(1, vocabulary),
            vocabulary,
            torch.device("cpu"),
        )
        self.encoders = nn.ModuleDict()
        self.max_target_ratio, self.max_positions = 0.0, None
        self.steps = 0

    def log_probs(self, logits: Tensor) -> Tensor:
        return logits.log_softmax(-1)

    def encode(
        self, sources: Mapping[str, Tensor], target_mask: Tensor | None = None
    ) -> dict[str, Any]:
        return {}

    def start(self, memories: Mapping[str, Any], batch: int) -> Tensor:
        return torch.zeros(batch, 0, dtype=torch.long)

    def step(
        self, ids: Tensor, state: Tensor, memories: Mapping[str, Any]
    ) -> tuple[Tensor, Tensor]:
        self.steps += 1
        state = torch.cat((state, ids), 1)
        length, taken = state.shape[1], ids.shape[1]
        ends = range(length - taken + 1, length + 1)
        return torch.stack(
            [torch.stack([self.logits(row[:end]) for end in ends]) for row in state.tolist()]
        ), state

    def logits(self, tokens: Sequence[int]) -> Tensor:
        probabilities = self.table(tuple(tokens[1:]))
        values = torch.full((self.vocabulary,), -torch.inf)
        for token, probability in probabilities.items():
            values[token] = torch.tensor(probability).log()
        return values


def decode(
    models: Sequence[EncoderDecoder],
    sources: Mapping[str, Sequence[SourceIds]],
    how: Decoder,
    prefixes: Sequence[Sequence[int]] | None = None,
    numbers: Sequence[int] | None = None,
    on_batch: Callable[[float], None] = lambda share: None,
    **options: Any,
) -> list[list[Hypothesis]]:
    """Decode columns of sources and prefixes; `options` as in `Options`."""
    rows = make_rows(sources, prefixes, numbers)
    return decode_all(models, rows, how, Options(**options), on_batch)


def forward_score(
    model: EncoderDecoder, source: Sequence[int], ids: Sequence[int], ended: bool
) -> float:
    """log p of an answer, all positions at once."""
    return forward_scores(model, source, [[*ids, 2] if ended else ids])[0]


def forward_scores(
    model: EncoderDecoder, source: Sequence[int], answers: Sequence[Sequence[int]]
) -> list[float]:
    """log p of equally long answers, with their ends."""
    targets = torch.tensor(answers, dtype=torch.long)
    before = torch.cat((torch.ones(len(answers), 1, dtype=torch.long), targets[:, :-1]), 1)
    with torch.no_grad():
        logits = model({"source": torch.tensor([[*source, 2]] * len(answers))}, before)
    return logits.log_softmax(-1).gather(2, targets[..., None]).sum((1, 2)).tolist()


def every_answer(
    model: EncoderDecoder,
    source: Sequence[int],
    most: int,
    prefix: tuple[int, ...] = (),
    alpha: float = 0.0,
) -> list[tuple[float, list[int]]]:
    """All answers with fewer than `most` words after a prefix, each with its normalised score, the
    best first.
    """
    words, results = range(3, model.output.out_features), []
    for count in range(most):
        answers = [[*prefix, *more] for more in itertools.product(words, repeat=count)]
        norm = ((6 + len(prefix) + count) / 6) ** alpha
        scores = forward_scores(model, source, [[*ids, 2] for ids in answers])
        results += [(score / norm, ids) for score, ids in zip(scores, answers, strict=True)]
    return sorted(results, reverse=True)
