"""What a family of published models must say to be imported."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol, Self

from torch import Tensor

from composer.importers.checkpoint import GENERATION, Checkpoint, Config
from composer.importers.vocabulary import Roles, Vocabulary
from composer.inference.lines import write_note


class Theirs(Protocol):
    """The tensors of a published model."""

    def __contains__(self, name: str) -> bool:
        """True if there is a tensor of this name."""
        ...

    def take(self, name: str, *shape: int) -> Tensor:
        """Return a tensor of this shape."""
        ...

    def take_copy(self, name: str, original: Tensor) -> None:
        """Take a tensor that is stored twice."""
        ...


ACTIVATIONS: Mapping[str, str] = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
"""Our activation by theirs."""

TEXTS = "  text: {train: train.txt, val: val.txt, test: test.txt}\n"
PAIRS = """\
  parallel:
    train: {source: train.source, target: train.target}
    val: {source: val.source, target: val.target}
    test: {source: test.source, target: test.target}
"""


class Family(ABC):
    """A family of models: its configuration, read, as a recipe and as our tensors.

    model_types: Of config.json. sides: Of the texts in the recipe. constants: Pattern of tensors
    that follow from config.json, though some checkpoints store them. left_out: Pattern of tensors
    of parts that are not imported. is_encoder_alone: It has no
    decoder. is_exported: `export --hf` writes it.
    """

    model_types: ClassVar[tuple[str, ...]]
    sides: ClassVar[tuple[str, ...]]
    constants: ClassVar[str] = ""
    left_out: ClassVar[str] = ""
    is_encoder_alone: ClassVar[bool] = False
    is_exported: ClassVar[bool] = True

    @classmethod
    @abstractmethod
    def read(cls, config: Config) -> Self:
        """Return what a configuration says. Raises RunError for what no block can say."""

    @abstractmethod
    def roles(self, checkpoint: Checkpoint) -> Roles:
        """Return the ids of special tokens. Raises RunError if nothing ends a text."""

    @abstractmethod
    def recipe(self) -> str:
        """Return the section `model` of the recipe."""

    def data(self) -> str:
        """Return what the section `data` of the recipe reads."""
        return PAIRS if "source" in self.sides else TEXTS

    def prefixes(self) -> Mapping[str, str]:
        """Return what lines begin with, by their side."""
        return {}

    @classmethod
    def of_recipe(cls, model: Mapping[str, Any]) -> Self:
        """Return what the canonical section `model` of a recipe says, as far as a family can.

        Raises KeyError, IndexError, TypeError or ValueError where it is of another form.
        """
        raise ValueError("no model of this family is exported")

    def as_exported(self) -> Self:
        """Return the model that is written for this one; what it has beside is 0."""
        return self

    def config(self) -> dict[str, object]:
        """Return config.json without the ids of tokens."""
        return {}

    @abstractmethod
    def weights(self, theirs: Theirs, vocabulary: Vocabulary, rows: int) -> dict[str, Tensor]:
        """Return our tensors by name. rows: Of their embedding. Raises RunError."""


def generation_values(checkpoint: Checkpoint) -> dict[str, object]:
    """Return the keys of config.json, and over them those of how texts are generated."""
    own = checkpoint.optional(GENERATION)
    return {
        **checkpoint.config.values,
        **{key: value for key, value in own.items() if value is not None},
    }


def first_id(values: Mapping[str, object], key: str) -> int | None:
    """Return an id, or the first of several; None if there is none."""
    value = values.get(key)
    if isinstance(value, list) and value:
        value = value[0]
    return value if type(value) is int else None


def end_of(checkpoint: Checkpoint, values: Mapping[str, object]) -> int | None:
    """Return the id that ends a text; say it where there are others that will not."""
    end, several = first_id(values, "eos_token_id"), values.get("eos_token_id")
    if isinstance(several, list) and len(several) > 1:
        listed = ", ".join(map(str, several))
        write_note(f"{checkpoint.folder}: of the ends {listed} the first alone ends a text here")
    return end


def language_model_roles(checkpoint: Checkpoint) -> Roles:
    """Return the special ids of a language model, which may begin texts with what ends them.

    Raises RunError if nothing ends a text.
    """
    values = generation_values(checkpoint)
    end, start = end_of(checkpoint, values), first_id(values, "bos_token_id")
    if end is None:
        checkpoint.config.refuse("eos_token_id", "nothing ends a text")
    return Roles(end if start is None else start, end)


def sequence_roles(checkpoint: Checkpoint) -> Roles:
    """Return the special ids of an encoder-decoder. Raises RunError if one is missing."""
    values = generation_values(checkpoint)
    start, end = first_id(values, "decoder_start_token_id"), end_of(checkpoint, values)
    if start is None:
        checkpoint.config.refuse("decoder_start_token_id", "nothing begins an answer")
    if end is None:
        checkpoint.config.refuse("eos_token_id", "nothing ends an answer")
    return Roles(start, end)


def layers_of(stack: Sequence[Any], at: int) -> tuple[int, list[Any]]:
    """Return how often the `repeat` at a place of a canonical stack is done, and its stack."""
    settings = stack[at]["repeat"]
    return settings["times"], settings["stack"]


def part_of(layer: Any, at: int, word: str) -> dict[str, Any]:
    """Return the settings of a block at a place of a canonical `residual`."""
    settings: dict[str, Any] = layer["residual"]["stack"][at][word]
    return settings
