"""run.json: what a run folder says of its training, typed; what is read is checked.

A key that this version does not know is not read, and a key that is missing has its default.
Importing this module imports pydantic: `composer.run_dir` does it late.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, NotRequired, Required

from pydantic import Field, StringConstraints, TypeAdapter, ValidationError
from typing_extensions import TypedDict  # pydantic refuses that of typing in Python 3.11

from composer.formatting import null_where_not_finite

Text = Annotated[str, Field(max_length=4000)]
Sha256 = Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")]
Size = Annotated[int, Field(ge=0, lt=1 << 63)]
Count = Annotated[int, Field(ge=1, lt=1 << 63)]
Scalar = bool | Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)] | float | Text | None

RESULTS = ("scores", "signatures", "by_length")
"""What run.json says of the final weights; `results_sha256` is its SHA-256, which runs of 0.1.0
lack.
"""
HASHED = {
    "recipe_sha256": "recipe.yaml",
    "tokenizer_sha256": "tokenizer.json",
    "weights_sha256": "model.safetensors",
}
"""Files whose SHA-256 is in run.json, by its key there."""


@dataclass(frozen=True)
class Budget:
    """Limits of a training; the first reached ends it. At least one of the three is given.

    until_step: The step after which another budget took its place, or `--finish` ended the
    training.
    validated: Whether there was a validation after that step.
    """

    max_steps: Size | None = None
    max_epochs: Size | None = None
    max_minutes: int | float | None = None  # fingerprints tell 1 from 1.0
    until_step: Size | None = None
    validated: bool = False

    @property
    def limits(self) -> dict[str, float | None]:
        """Its limits by their keys in a recipe."""
        return {
            "max_steps": self.max_steps,
            "max_epochs": self.max_epochs,
            "max_minutes": self.max_minutes,
        }

    def as_dict(self) -> dict[str, float | bool]:
        """Return the limits that are set: all that decides about the weights."""
        limits = {key: value for key, value in asdict(self).items() if value is not None}
        if self.until_step is None:
            del limits["validated"]
        return limits

    def spent(self, steps: int, epochs: float, minutes: float | None) -> float:
        """Return the share of the budget that is used up, 0 to 1. minutes: None if unknown."""
        amounts = ((steps, self.max_steps), (epochs, self.max_epochs), (minutes, self.max_minutes))
        share = 0.0
        for used, limit in amounts:
            if used is not None and limit is not None:
                share = max(share, used / limit)
        return min(1.0, share)


class Fingerprints(TypedDict):
    """SHA-256 of `model`, `data` and `run`, of the recipe's text; `version` of fingerprints."""

    model: Sha256
    data: Sha256
    run: Sha256
    recipe: Sha256
    version: NotRequired[Text]


@dataclass(frozen=True)
class FingerprintParts:
    """What fingerprints are made of beside the recipe.

    lines: SHA-256 of the data's lines, "" where they are not known. processes: How many drew random
    numbers. training_changes: Names of the TRAINING_CHANGES with which the run began.
    """

    lines: Sha256
    processes: Size
    training_changes: tuple[Text, ...] = ()


@dataclass(frozen=True)
class InitialWeights:
    """SHA-256 of the weights and the tokenizer that a training starts from."""

    weights: Sha256
    tokenizer: Sha256


@dataclass(frozen=True)
class TeacherRun:
    """The run that a distilled model learned from, and SHA-256 of its weights and tokenizer."""

    run: Text
    weights: Sha256
    tokenizer: Sha256


@dataclass(frozen=True)
class Transferred:
    """Numbers of parameters of each block that were taken from another run, and that are new.

    from_attention: What blocks in the place of an attention took from it.
    """

    taken: Mapping[Text, Size]
    new: Mapping[Text, Size]
    from_attention: Mapping[Text, tuple[Text, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Reproduces:
    """The run that is reproduced, all that is known to differ and, at the end, the result."""

    run: Text
    weights_sha256: Sha256 | None
    differs: tuple[Text, ...]
    fingerprint: Text = ""
    same: bool | None = None
    message: Text = ""


@dataclass(frozen=True)
class Averaged:
    """The run that was averaged: the weights are the mean of its checkpoints."""

    run: Text
    weights_sha256: Sha256 | None = None


@dataclass(frozen=True)
class Imported:
    """The published checkpoint that the weights are from.

    sha256: Over its configuration, weights and tokenizer. license: As its card states it.
    """

    source: Text
    sha256: Sha256
    license: Text = ""


@dataclass(frozen=True)
class RecordedData:
    """Folders of the data, and the number of pairs of each split.

    val_unknown: The share of tokens that are unknown.
    """

    folders: tuple[Text, ...] = ()
    pairs: Mapping[Text, Size] = field(default_factory=dict)
    train_pairs_used: Size | None = None
    sha256: Sha256 | None = None
    val_sha256: Sha256 | None = None
    val_unknown: float | None = None


@dataclass(frozen=True)
class ChosenMetrics:
    """The metrics that suited the data, the best first; why BLEU is none of them."""

    names: tuple[Text, ...]
    bleu_tokenizer: Text
    left_out: Text


@dataclass(frozen=True)
class UsedCheckpoints:
    """The checkpoints that the final weights are made of. how: `best`, `average` or `last`."""

    how: Text
    checkpoints: tuple[Text, ...]


@dataclass(frozen=True)
class Commit:
    """The commit of the repository around the recipe.

    dirty: Whether it had changes; early versions recorded it.
    """

    commit: Text
    dirty: bool | None = None


PlugIn = TypedDict(
    "PlugIn",
    {
        "from": Text | None,
        "distribution": Text | None,
        "version": Text | None,
        "sha256": Text | None,
    },
    total=False,
)
"""Where a block of a recipe comes from that is not of this package."""


class LengthRow(TypedDict, total=False):
    """Scores of the lines whose source has so many `words`, or `characters`."""

    words: int | Text
    characters: Text
    lines: Required[Size]
    bleu: float
    exact_match: float
    positional_accuracy: float
    bits: float | None  # of a model whose weights are not finite


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """All of run.json.

    optimizer_parts: Of an optimizer that is several, such as `muon`, the names of the parameters of
    each.
    """

    name: Text = ""
    status: Text = ""
    fingerprints: Fingerprints | None = None
    fingerprint_parts: FingerprintParts | None = None
    canonical: dict[str, Any] | None = None
    budgets: tuple[Budget, ...] = ()
    recipe_budget: Budget | None = None
    seed: Size | None = None
    versions: Mapping[Text, Text] = field(default_factory=dict)
    source: Sha256 | None = None
    plug_ins: Mapping[Text, PlugIn] = field(default_factory=dict)
    machine: Mapping[Text, Scalar | tuple[Text, ...]] = field(default_factory=dict)
    git: Commit | None = None
    started_at: Text | None = None
    ended_at: Text | None = None
    resumed_with: tuple[Text, ...] = ()
    finished_early: bool = False
    start_from: Text | None = None
    initial_weights: InitialWeights | None = None
    transferred: Transferred | None = None
    teacher: TeacherRun | None = None
    reproduces: Reproduces | None = None
    averaged: Averaged | None = None
    imported: Imported | None = None
    data: RecordedData = RecordedData()
    metrics: ChosenMetrics | None = None
    recipe_sha256: Sha256 | None = None
    tokenizer_sha256: Sha256 | None = None
    weights_sha256: Sha256 | None = None
    hypotheses_sha256: Mapping[Text, Sha256] = field(default_factory=dict)
    vocabularies: Mapping[Text, Count] = field(default_factory=dict)
    parameters: Size | None = None
    optimizer_parts: Mapping[Text, tuple[Text, ...]] = field(default_factory=dict)
    wandb_id: Text = ""
    minutes: float | None = None
    steps: Size | None = None
    epochs: float | None = None
    planned_steps: Mapping[Size, Size] | None = None
    checkpoints_used: UsedCheckpoints | None = None
    scores: Mapping[Text, float | None] = field(default_factory=dict)
    signatures: Mapping[Text, Text] = field(default_factory=dict)
    by_length: Mapping[Text, tuple[LengthRow, ...]] = field(default_factory=dict)

    @property
    def processes(self) -> int:
        """How many processes trained."""
        count = self.machine.get("processes", 1)
        return count if isinstance(count, int) else 1

    @property
    def is_finished(self) -> bool:
        """Whether the training has finished, and so has final weights."""
        return self.status == "finished"

    def as_data(self) -> dict[str, Any]:
        """Return it as plain data, with the SHA-256 of its results."""
        data = null_where_not_finite(_ADAPTER.dump_python(self, mode="json"))
        data["budgets"] = [budget.as_dict() for budget in self.budgets]
        data["recipe_budget"] = self.recipe_budget.as_dict() if self.recipe_budget else None
        return data | {"results_sha256": results_sha256(data)}


_ADAPTER = TypeAdapter(RunRecord)


class WrongKey(ValueError):
    """A key of run.json, and that no training writes what it has."""


def parse_record(text: str | bytes) -> RunRecord:
    """Return run.json from its text.

    Raises WrongKey of the first key whose value is none that a training writes, ValueError where it
    is no JSON object.
    """
    try:
        return _ADAPTER.validate_json(text, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
    if not first["loc"]:
        raise ValueError(first["msg"])
    raise WrongKey(str(first["loc"][0])[:100])


def results_sha256(record: Mapping[str, object]) -> str | None:
    """Return the SHA-256 of the results in run.json; None where there are none."""
    results = {key: record[key] for key in RESULTS if key in record}
    text = json.dumps(null_where_not_finite(results), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest() if results else None
