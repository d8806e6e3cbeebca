"""What a recipe chooses by a word: `optimizer: {adam: {learning_rate: 1e-3}}`.

The tables of words are in the rooms that do the work (`composer.recipe.registry.CHOICES`). Nothing
here imports torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    Protocol,
    dataclass_transform,
)

from blocks.core.settings import Bounds, Seed
from composer.recipe.section import ChoiceField, Section

if TYPE_CHECKING:
    from torch import Tensor, optim

    from composer.model.encoder_decoder import OutputHead, TokenEmbedding


def default(word: str | None) -> Any:
    """Return the field of a choice whose default is a word without settings, or None."""
    return ChoiceField(word)


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Choice(Section, ABC):
    """A section that a recipe chooses by its word. Subclasses become frozen dataclasses."""

    word: ClassVar[str]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        dataclass(frozen=True, kw_only=True)(cls)


class TrainedParameters(Protocol):
    """The parameters that an optimizer trains."""

    @property
    def parameters(self) -> Sequence[Tensor]:
        """All of them."""

    def split(self) -> tuple[TrainedParameters, TrainedParameters]:
        """Return the hidden matrices, which are no embedding and no output, and all others."""

    def groups(self, weight_decay: float, decay: str) -> list[dict[str, Any]]:
        """Return PyTorch's parameter groups. decay: what weight decay falls on."""

    def is_on_cpu(self) -> bool:
        """True if all are on a CPU."""


class Optimizer(Choice):
    """How weights follow their gradients.

    averages: it averages the weights of its steps; what is validated and decoded with is the
    average. takes_schedule: it works with schedules other than `constant`. shards: it trains a
    model of which each process has a part. packages: what must be installed for it.
    """

    averages: ClassVar[bool] = False
    takes_schedule: ClassVar[bool] = True
    shards: ClassVar[bool] = True
    packages: ClassVar[tuple[str, ...]] = ()
    if TYPE_CHECKING:  # each declares them where its short form and its page want them
        learning_rate: float
        weight_decay: float

    @property
    @abstractmethod
    def falls_on(self) -> str:
        """What weight decay falls on."""

    @property
    def states(self) -> int:
        """How many numbers it remembers of each parameter."""
        return 2

    def count_states(self, trained: TrainedParameters) -> int:
        """Return how many numbers it remembers of all these parameters."""
        return self.states * count_numbers(trained.parameters)

    def divide(self, trained: TrainedParameters) -> Mapping[str, Sequence[Tensor]]:
        """Return the parameters of each optimizer in it by its name; {} if it is only one."""
        return {}

    def groups(self, trained: TrainedParameters) -> list[dict[str, Any]]:
        """Return PyTorch's groups of these parameters, each with its weight decay."""
        return trained.groups(self.weight_decay, self.falls_on)

    @abstractmethod
    def build(self, trained: TrainedParameters) -> optim.Optimizer:
        """Return PyTorch's optimizer of these parameters."""


def count_numbers(tensors: Iterable[Tensor]) -> int:
    """Return how many numbers there are in tensors."""
    return sum(tensor.numel() for tensor in tensors)


class Progress(NamedTuple):
    """Progress of a training before its next optimizer step, which a schedule depends on.

    `spent` is the share of the budget used up, 0 to 1; `losses` are the validation losses so far,
    in order; `epochs` those trained on, with the fraction of the current one.
    """

    step: int
    spent: float
    losses: tuple[float, ...] = ()
    epochs: float = 0.0


Precision = Literal["float32", "bfloat16", "int8"]
"""What a decoder computes with."""
Engine = Literal["torch", "onnxruntime"]
"""What runs the model while a decoder searches."""


class Decoder(Choice):
    """How answers are searched for.

    draws: its answers are draws, of which several may be equal. one_answer: it finds one answer,
    and never the n best. first_order: it needs models whose next token depends on the last one
    alone. takes_draft: it reads tokens that a draft proposes.
    """

    draws: ClassVar[bool] = False
    one_answer: ClassVar[bool] = False
    first_order: ClassVar[bool] = False
    takes_draft: ClassVar[bool] = False
    if TYPE_CHECKING:
        precision: Precision
        engine: Engine
        max_length: int
        max_ratio: float

    @property
    def state_problem(self) -> str:
        """The error of a `first_order` decoder with a model that has a state."""
        return (
            f"`{self.word}` needs a decoder whose next token depends on the last one alone, and"
            " this one has a state"
        )

    def num_hypotheses(self, models: Sequence[Any]) -> int:
        """Return the number of hypotheses per row at once, which limits the batch size."""
        return 1

    @abstractmethod
    def decode(self, search: Any) -> list[list[Any]]:
        """Return the n best hypotheses of each row of a `Search`.

        Raises RunError where there are no n.
        """


class Wait(NamedTuple):
    """What has to pass before a learning rate first falls, and the setting that says so."""

    setting: str
    validations: int = 0
    epochs: int = 0


class Schedule(Choice):
    """How the learning rate changes over the budget."""

    if TYPE_CHECKING:
        warmup_steps: float

    @property
    def wait(self) -> Wait | None:
        """What it waits for; None where it goes by the steps alone."""
        return None

    @abstractmethod
    def factor_at(self, progress: Progress) -> float:
        """Return the factor of the learning rate."""


class Initialization(Choice):
    """Initial values of the matrices of blocks. `keeps_matrices`: those that the blocks drew."""

    keeps_matrices: ClassVar[bool] = False

    @abstractmethod
    def draw(self, matrix: Tensor) -> Tensor:
        """Return the initial values of a matrix. (outputs, inputs) -> (outputs, inputs)"""


class Tokenizer(Choice):
    """How a text becomes tokens.

    gives_bits: its tokens are vectors of bits, of `size` digits. is_of_characters: a token is a
    character or less. has_letters: its tokens can have some.
    """

    gives_bits: ClassVar[bool] = False
    is_of_characters: ClassVar[bool] = False
    has_letters: ClassVar[bool] = True

    @property
    def size(self) -> int:
        """The most ids of a side, or the digits of a vector; only of kinds with such a setting."""
        raise NotImplementedError

    @property
    def splits_at_spaces(self) -> bool:
        """Whether a token is what stands between spaces."""
        return False

    def features(self, target: bool) -> Tensor:
        """Return the vectors of ids, if tokens are vectors. -> (ids, features) float32"""
        raise NotImplementedError


NumPairs = Annotated[int, Bounds(minimum=1, maximum=100_000_000)]
NumTraining = Annotated[NumPairs, "training {pairs} of an epoch"]
Endless = Annotated[bool, "whether every epoch has new training {pairs}"]
"""Settings that tasks have. A word in braces is what their class says of itself."""


class Task(Choice):
    """Generated pairs: a function of the settings, the split, the seed and the epoch.

    pairs: what its examples are called. has_capitals: its texts have some.
    """

    pairs: ClassVar[str] = "pairs"
    has_capitals: ClassVar[bool] = False
    train: NumTraining = 20_000
    val: Annotated[NumPairs, "validation {pairs}"] = 500
    test: Annotated[NumPairs, "test {pairs}"] = 1_000
    seed: Annotated[Seed, "what the draws start from"] = 1
    endless: Endless = True

    @abstractmethod
    def generate(self, split: str, epoch: int = 0) -> tuple[list[str], list[str]]:
        """Return the sources and the targets of a split, line by line."""


class TokenPlace(NamedTuple):
    """Where tokens are embedded or predicted.

    vocabulary: how many there are. width: of their vectors, or of what arrives. is_target: of the
    side that is written. has_bias: each token of an output may have one.
    """

    vocabulary: int
    width: int
    tokenizer: Tokenizer
    is_target: bool = True
    has_bias: bool = True


class EmbeddingKind(Choice):
    """What the vectors of tokens are.

    is_of_bits: they are made of the bits of tokens. has_rows: a matrix has a row for each token,
    which an output can share. depends_on_size: how wide they are depends on the size of the
    vocabulary.
    """

    is_of_bits: ClassVar[bool] = False
    has_rows: ClassVar[bool] = False
    depends_on_size: ClassVar[bool] = False

    @abstractmethod
    def build(self, place: TokenPlace) -> TokenEmbedding:
        """Return an embedding for a place. Raises BlockError where its settings do not suit it."""


class OutputKind(Choice):
    """How logits are computed, and the training cost.

    is_of_bits: it predicts the bits of tokens. has_rows: as of embeddings. depends_on_size: whether
    it can be built may depend on the size of the vocabulary. has_impossible_tokens,
    evaluates_on_cost: as of `OutputHead`. has_end: it can predict the end of an answer.
    compile_problem: why it is not compiled.
    """

    is_of_bits: ClassVar[bool] = False
    has_rows: ClassVar[bool] = False
    depends_on_size: ClassVar[bool] = True
    has_impossible_tokens: ClassVar[bool] = False
    evaluates_on_cost: ClassVar[bool] = False
    has_end: ClassVar[bool] = True
    compile_problem: ClassVar[str] = ""

    @property
    def trains_on_cost(self) -> bool:
        """Whether it trains without the logits of all tokens."""
        return False

    @abstractmethod
    def build(self, place: TokenPlace) -> OutputHead:
        """Return a head for a place. Raises BlockError where its settings do not suit it."""
