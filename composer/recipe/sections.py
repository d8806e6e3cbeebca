"""The recipe language except its blocks: every key, its type, bounds, default and meaning.

The classes are a recipe's sections at run time, and what a recipe in Python is made of. The schema
is generated from their constructors and from the sections `Settings:` of their docstrings, exactly
as it is from the blocks. Importing this module imports no torch.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from blocks.core.settings import Kind
from composer.atomic_io import atomic_write, os_errors_as_run_errors
from composer.errors import RunError
from composer.recipe import recipe as loaded_recipe
from composer.recipe.choices import Decoder, default
from composer.recipe.data_sections import (
    AudioFeatures,
    Babi,
    Corpus,
    Data,
    Hub,
    Identifier,
    ImageAugment,
    LogMel,
    MeasuredSplit,
    Parallel,
    SpecAugment,
    Split,
    Table,
    TableColumn,
    Text,
    WeightedFile,
)
from composer.recipe.interpolation import escape
from composer.recipe.model_sections import Ctc, Model, Output
from composer.recipe.schema_reader import RECIPE_NAME, VERSION
from composer.recipe.section import Section
from composer.recipe.serialization import PYTHON_SOURCE, to_plain
from composer.recipe.training_sections import (
    Adapters,
    Asgd,
    Curriculum,
    Distillation,
    EarlyStopping,
    Ema,
    Evaluation,
    GradientNoise,
    HiddenPair,
    Logging,
    Lora,
    ParameterGroup,
    ScheduledSampling,
    Trainer,
    Training,
    ValidationSample,
    WandB,
)
from composer.recipe.yaml_reader import dump, parse

RecipeName = Annotated[str, Kind("recipe_name")]


@dataclass(frozen=True, kw_only=True)
class RecipeFile(Section):
    """What a file says beside the sections; in Python there are variables, and
    `dataclasses.replace`.

    Settings:
        recipe: The version of the recipe language.
        extends: A recipe, or a list of recipes in which later wins, that this one changes; `null`
            removes a key. Each is a path from this file, `composer:papers/vaswani2017_base` for a
            recipe of this package, or `{pull: REF, sha256: HEX}`: what `seqcomposer pull REF` put
            into the cache.
        vars: Values with names; `$name` stands for one anywhere in the recipe, `${name}` for one
            inside a text.
    """

    recipe: Literal[1]
    extends: Annotated[str | dict[str, str] | list[str | dict[str, str]], Kind("bases")] | None = (
        None
    )
    vars: dict[Identifier, Annotated[Any, Kind("any")]] | None = None


@dataclass(frozen=True, kw_only=True)
class Recipe(Section):
    """A seqcomposer recipe: what to train, on what, and how.

    Settings:
        name: The name of the recipe and of its runs; the file's name without it.
        description: What it is for, in a sentence.
        data: Data set and tokenizer.
        model: Model.
        training: Training.
        decoding: Decoding method.
        evaluation: How outputs are compared with their references.
        trainer: Lightning's own arguments.
        logging: Where metrics go.
    """

    name: RecipeName | None = None
    description: Text | None = None
    data: Data
    model: Model
    training: Training = Training()
    decoding: Annotated[Decoder, Kind("choice:decoders")] = default("greedy")
    evaluation: Evaluation = Evaluation()
    trainer: Trainer = Trainer()
    logging: Logging = Logging()

    @classmethod
    def of(cls, recipe: loaded_recipe.Recipe) -> Recipe:
        """Return the sections of a loaded recipe as one object, with its blocks' defaults."""
        stacks = recipe.model.encoders
        # in the order of a line's texts
        encoders = {name: stacks[name] for name in recipe.sources} if stacks else None
        return cls(
            name=recipe.name,
            description=recipe.explicit.get("description"),
            data=recipe.data,
            model=replace(recipe.model, encoders=encoders),
            training=recipe.training,
            decoding=recipe.decoding,
            evaluation=recipe.evaluation,
            trainer=recipe.trainer,
            logging=recipe.logging,
        )

    def yaml(self) -> str:
        """Return it as YAML, without settings that equal their defaults.

        Raises RecipeError if it holds what no recipe can.
        """
        return dump({"recipe": VERSION, **escape(to_plain(self))})

    def recipe(
        self,
        folder: str | Path = ".",
        overrides: Sequence[str] = (),
        data_dir: str | Path | None = None,
    ) -> loaded_recipe.Recipe:
        """Return the validated recipe with its defaults, as `composer.load` does.

        folder: Where it would lie: data files are looked up from there. overrides: `key=value`
        settings laid over it.
        Raises RecipeError with every fault; its lines are those of the YAML.
        """
        # its file would be called as its runs are, if it has a plain name
        is_plain = isinstance(self.name, str) and re.fullmatch(RECIPE_NAME, self.name)
        file = Path(folder) / f"{self.name if is_plain else 'recipe'}.yaml"
        return loaded_recipe.load_node(file, parse(self.yaml(), PYTHON_SOURCE), overrides, data_dir)

    def save(self, path: str | Path, overwrite: bool = False) -> Path:
        """Write it as YAML, and return the path.

        Raises RunError if the file exists and `overwrite` is False, or if it cannot be written.
        """
        file, text = Path(path), self.yaml()
        if file.exists() and not overwrite:
            raise RunError.of(
                "this file exists already",
                "choose another name, or pass `overwrite=True`",
                str(file),
            )
        with os_errors_as_run_errors(file, "this file cannot be written", "name another"):
            atomic_write(file, text.encode())
        return file


__all__ = [
    "Adapters",
    "Asgd",
    "AudioFeatures",
    "Babi",
    "Corpus",
    "Ctc",
    "Curriculum",
    "Data",
    "Distillation",
    "EarlyStopping",
    "Ema",
    "Evaluation",
    "GradientNoise",
    "HiddenPair",
    "Hub",
    "ImageAugment",
    "LogMel",
    "Logging",
    "Lora",
    "MeasuredSplit",
    "Model",
    "Output",
    "Parallel",
    "ParameterGroup",
    "Recipe",
    "ScheduledSampling",
    "SpecAugment",
    "Split",
    "Table",
    "TableColumn",
    "Trainer",
    "Training",
    "ValidationSample",
    "WandB",
    "WeightedFile",
]
