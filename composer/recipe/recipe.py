"""The recipe: its stages from a file to canonical form, and its sections.

Nothing here imports torch.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from blocks.core.fixes import Fix, as_fix
from composer.atomic_io import sha256_of_file
from composer.errors import Fault, KeyPath, Mark, RecipeError, RunError, fault_at, format_path
from composer.metrics.table import SAMPLE, decodes_all
from composer.recipe import edits, schema_generator
from composer.recipe.canonical_form import check_block_count, fill_defaults
from composer.recipe.choices import Decoder
from composer.recipe.data_sections import Data as DataSection
from composer.recipe.earlier_versions import earlier_settings, without_removed_settings
from composer.recipe.extends_and_overrides import (
    apply_override,
    apply_overrides,
    extend,
    lost_settings,
)
from composer.recipe.fingerprints import fingerprints
from composer.recipe.interpolation import escape, substitute, unused_variables
from composer.recipe.locations import Location, locate
from composer.recipe.model_sections import Model
from composer.recipe.schema_reader import Schema, is_block_path
from composer.recipe.section import read_choice, read_section
from composer.recipe.training_sections import Evaluation, Logging, Trainer, Training
from composer.recipe.yaml_reader import Node, dump, parse, to_data
from composer.run_dir import RunDir

if TYPE_CHECKING:
    from composer.checks.planner import Plan
    from composer.data.tokenizer_kinds import TokenizerKind
    from composer.model.encoder_decoder import EncoderDecoder


Stored = dict[str, Any]
"""The canonical recipe that a run stores; {} of a run of version 0.1.0, which stored none."""


def load(
    path: str | Path,
    overrides: Sequence[str] = (),
    data_dir: str | Path | None = None,
    root: Node | None = None,
) -> Recipe:
    """Return the recipe in a file, with `key=value` settings laid over it.

    `root` is its YAML if that has been read.

    The recipe of a run, in its folder, keeps its meaning: defaults that have changed since the run
    was trained are written into it. Raises RecipeError with every fault of the first stage that has
    any: reading, inheritance, variables, schema.
    """
    file = Path(path)
    run = RunDir.of_recipe(file)
    return load_node(file, root, overrides, data_dir, None if run is None else stored_by(run))


def load_text(
    text: str,
    file: str | Path = "recipe.yaml",
    overrides: Sequence[str] = (),
    stored: Stored | None = None,
) -> Recipe:
    """Return the recipe in a YAML text, as if it stood in `file`, which need not exist.

    `extends` and data files are looked up from there.

    stored: Of the recipe of a run, see `load_node`. Raises RecipeError like `load`.
    """
    return load_node(Path(file), parse(text, str(file)), overrides, stored=stored)


def load_checkpoint_text(text: str) -> Recipe:
    """Return the recipe in the text of a checkpoint, which an earlier version may have written."""
    file = "recipe.yaml"
    return load_node(Path(file), without_removed_settings(parse(text, file)))


def load_node(
    file: Path,
    root: Node | None,
    overrides: Sequence[str] = (),
    data_dir: str | Path | None = None,
    stored: Stored | None = None,
) -> Recipe:
    """Return the recipe in a mapping of YAML, by default that in `file`.

    stored: The canonical recipe in run.json, by which a run's recipe keeps its meaning; None of
    other recipes.
    Raises RecipeError like `load`.
    """
    extended = extend(file, root)
    rules = schema_generator.load()
    if stored is not None:
        extended = without_removed_settings(extended)
        extended = _as_trained(from_node(file, substitute(extended), rules), extended, stored)
    overridden = apply_overrides(extended, overrides, rules)
    recipe = from_node(
        file, substitute(overridden), rules, data_dir, extended if overrides else None
    )
    _refuse_unused_variables(extended)
    return replace(recipe, warnings=tuple(lost_settings(extended, extended.mark.file)))


def as_trained(recipe: Recipe, stored: Stored) -> Recipe:
    """Return a recipe with the meaning that it had for the version that trained a run.

    stored: see `load_node`.
    """
    root = _as_trained(recipe, recipe.root, stored)
    trained = from_node(recipe.file, root, recipe.rules, recipe.data_dir, recipe.unchanged)
    return replace(trained, warnings=recipe.warnings)


def stored_by(run: RunDir) -> Stored | None:
    """Return the canonical recipe that a run stores.

    {} if it is of another text than the run's recipe now; None without run.json.
    """
    try:
        record = run.read()
        is_its_own = sha256_of_file(run.recipe) == record.recipe_sha256
    except (RunError, OSError):  # which who reads these files raises
        return None
    return dict(record.canonical or {}) if is_its_own else {}


def _as_trained(recipe: Recipe, root: Node, stored: Stored) -> Node:
    """Return the mapping `root` of a run's recipe with the defaults of the run's version."""
    settings = earlier_settings(recipe.explicit, recipe.canonical, recipe.rules, stored)
    for path, value in settings:
        location = recipe.locate(path)
        # `model.dropout` did not reach a setting that is newer
        if not location.is_written or location.path == ("model", "dropout"):
            key, text = ".".join(map(str, path)), json.dumps({"default": value})
            mark = Mark(DEFAULTS_SOURCE, 1, 1, len(key), key)
            root = apply_override(
                root, key, mark, parse(text, mark.file).value["default"], recipe.rules
            )
    return root


DEFAULTS_SOURCE = "run.json"
"""The file to which what an earlier version trained with is ascribed."""


def _refuse_unused_variables(extended: Node) -> None:
    """Raise RecipeError if nothing reads a variable of the recipe's own file.

    A fragment may have more.
    """
    faults = []
    for name, node in unused_variables(extended).items():
        if node.place.file == extended.mark.file:
            hint = f"write `${name}` where it is wanted, or remove it"
            message = f"nothing reads the variable `{name}`"
            faults.append(fault_at(node.place, "unused", f"vars.{name}", message, hint))
    if faults:
        raise RecipeError(faults)


def from_node(
    file: Path,
    root: Node,
    rules: Schema,
    data_dir: str | Path | None = None,
    unchanged: Node | None = None,
) -> Recipe:
    """Return the recipe in a mapping without `extends` and open variables; `file` is where it lies.

    `unchanged` is the mapping before overrides or a sweep's axes, with open variables.

    Raises RecipeError with every fault that the schema or the consistency checks find.
    """
    # jsonschema takes a tenth of a second to import, and a run's stored recipe is read by many
    # commands
    from composer.checks import sections
    from composer.recipe.validation import validate

    validate(root, rules)
    explicit = {key: value for key, value in to_data(root).items() if key != "vars"}
    explicit.setdefault("name", default_name(file))
    canonical = fill_defaults(explicit, rules, default_name(file))
    data_dir = None if data_dir is None else Path(data_dir)
    recipe = Recipe(file, explicit, canonical, root, rules, data_dir, unchanged=unchanged)
    sections.refuse(recipe)
    check_block_count(canonical["model"], recipe.fault)
    return recipe


def default_name(file: Path) -> str:
    """Return the name of a recipe that gives none: its file's, in letters of `RECIPE_NAME`."""
    # ü is u
    decomposed = unicodedata.normalize("NFKD", file.stem)
    letters = "".join(char for char in decomposed if not unicodedata.combining(char))
    plain = re.sub(r"[^A-Za-z0-9._-]", "-", letters)
    return plain.lstrip("._-")[:100] or "recipe"


@dataclass(frozen=True, eq=False)
class Recipe:
    """A validated recipe.

    `explicit` holds only what its files say, with `extends` and variables resolved. In `canonical`
    every default is filled in and every block is a single-key mapping with all its settings. `root`
    is `explicit` with source locations, and `rules` the schema. `warnings` are those of its text;
    `unchanged` is the recipe before overrides or a sweep's axes, None without any.
    `begins_with_bos`: of a run of an early version, bos stood before its single document.
    """

    file: Path
    explicit: dict[str, Any]
    canonical: dict[str, Any]
    root: Node = field(repr=False)
    rules: Schema = field(repr=False)
    data_dir: Path | None = None
    warnings: tuple[Fault, ...] = ()
    unchanged: Node | None = field(default=None, repr=False)
    begins_with_bos: bool = False

    @property
    def name(self) -> str:
        """The name of the recipe and of its runs."""
        return self.canonical["name"]

    @cached_property
    def model(self) -> Model:
        """The model."""
        return read_section(Model, self.canonical["model"], ("model",))

    @cached_property
    def data(self) -> DataSection:
        """What is trained on."""
        return read_section(DataSection, self.canonical["data"], ("data",))

    @cached_property
    def training(self) -> Training:
        """How the model is trained."""
        return read_section(Training, self.canonical["training"], ("training",))

    @cached_property
    def decoding(self) -> Decoder:
        """How answers are searched for."""
        chosen: Decoder = read_choice("decoders", self.canonical["decoding"], ("decoding",))
        return chosen

    @cached_property
    def evaluation(self) -> Evaluation:
        """How outputs are compared with their references."""
        return read_section(Evaluation, self.canonical["evaluation"], ("evaluation",))

    @cached_property
    def logging(self) -> Logging:
        """Where metrics go."""
        return read_section(Logging, self.canonical["logging"], ("logging",))

    @cached_property
    def trainer(self) -> Trainer:
        """The machine."""
        return read_section(Trainer, self.canonical["trainer"], ("trainer",))

    @cached_property
    def tokenizer(self) -> TokenizerKind:
        """The kind of its tokenizers, which looks up files where the recipe does."""
        named_in = Path(self.locate(self.data.tokenizer.at).node.mark.file).parent
        folders = [*self.folders(), named_in]
        return cast("TokenizerKind", self.data.tokenizer).with_folders(folders)

    def tokenizer_faults(self) -> list[Fault]:
        """Return the faults of the file of its tokenizer, if it is in one."""
        try:
            self.tokenizer.max_size(target=True)
        except RunError as error:
            path = (*self.data.tokenizer.at, "path")
            return [
                self.fault(fault.code, path, fault.message, fault.hint) for fault in error.faults
            ]
        prefix = self.data.prefix
        if prefix is None:
            return []
        faults = []
        special = self.tokenizer.without_ids()
        for side in (*self.sources, "target"):
            for token in special:
                if token in (prefix.of_side(side) or ""):
                    message = f"`{token}` is a special token of the file, which has no id here"
                    hint = "remove it: a source ends with eos, and an answer begins with bos"
                    faults.append(self.fault("prefix", (*prefix.at, side), message, hint))
        return faults

    @property
    def joint(self) -> bool:
        """True if all sides share one tokenizer."""
        return self.tokenizer.joint

    @cached_property
    def fingerprints(self) -> dict[str, str]:
        """SHA-256 of `model`, `data` and `run`; the same for every way to write the same recipe."""
        return fingerprints(self.canonical, self.rules)

    def folders(self, data_dir: str | Path | None = None) -> list[Path]:
        """Return the folders where data files are looked up, in order. Raises RunError."""
        data_dir = self.data_dir if data_dir is None else Path(data_dir)
        if data_dir is not None and not data_dir.is_dir():
            message = (
                "this is a file, and no folder" if data_dir.exists() else "there is no such folder"
            )
            raise RunError.of(
                message, "check what follows `--data`, or leave it out", str(data_dir)
            )
        return [*([] if data_dir is None else [data_dir]), self.file.parent]

    def settings_at(self, path: KeyPath) -> Any:
        """Return the settings of the block at a path of `canonical`, or what else is there."""
        settings: Any = self.canonical
        for step in path:
            settings = settings[step]
        return settings

    def dump(self) -> str:
        """Return the recipe as YAML, without `extends` and variables; it loads as it is."""
        return self._yaml

    @cached_property
    def _yaml(self) -> str:
        return dump(escape(self.explicit))

    def plan(self, vocabularies: Mapping[str, int] | None = None) -> Plan:
        """Return widths, parameters, FLOPs and state bytes per block.

        Raises RecipeError with every fault.

        vocabularies: their sizes by data key; by default the upper bounds that the tokenizer's
        settings give.
        """
        from composer.checks.planner import plan

        return plan(self, vocabularies)

    def build(self) -> EncoderDecoder:
        """Return the model, sized by the vocabularies' upper bounds.

        Raises RecipeError with every fault.
        """
        from composer.model.builder import build, vocabulary_bounds

        return build(self, vocabulary_bounds(self))

    def fault(self, code: str, path: KeyPath, message: str, fix: str | Fix = "") -> Fault:
        """Return a fault at a path of `canonical`, with the place and the path as written.

        A value is pointed at itself; a block, a switch, a list and what may not be where it is, by
        its key. A setting from `model.BLOCK` or `model.dropout` is pointed at there, so that all
        blocks that use it give one fault. A default is pointed at by the nearest thing around it
        that was written. Of a list of names, the one that the message quotes is pointed at.
        """
        location = self.locate(path)
        text, change = as_fix(fix)
        edit = edits.of_change(self.root, self.locate(change.path), change) if change else None
        mark = _mark_of(location, code, message, is_block_path(path))
        return fault_at(mark, code, format_path(location.path), message, text, edit)

    @property
    def validates_by_search(self) -> bool:
        """True if validation decodes all lines as the recipe does, for `val/bleu`, not a sample."""
        sample, stopping = self.training.validation_sample, self.training.early_stopping
        watched = stopping.metric if stopping else ""
        is_all = (sample.lines, sample.decoding) == (None, self.decoding)
        return decodes_all(watched) or (is_all and not watched.startswith(SAMPLE))

    @property
    def sources(self) -> list[str]:
        """The inputs of the encoders: `source`, or the encoders' names in the order of the file.

        Where people write or see the texts of several encoders, on a line or as files, they have
        this order.
        """
        if self.model.encoders:
            return list(self.explicit["model"]["encoders"])
        return ["source"] if self.model.encoder else []

    @property
    def reads_text(self) -> bool:
        """True if its data are a text: `data.text`, or a hub column without encoders."""
        return bool(self.data.text or (self.data.hub and not self.sources))

    @property
    def window(self) -> int | None:
        """Tokens of the windows of a text in training; None for documents or pairs."""
        return self.training.window if self.reads_text else None

    @property
    def begins_after_end(self) -> bool:
        """True if the token before each document is eos, as in windows, rather than bos."""
        return self.window is not None and not self.begins_with_bos

    @property
    def carries_state(self) -> bool:
        """Whether the state goes from one window of the text to the next."""
        return self.window is not None and self.training.carry

    def locate(self, path: KeyPath) -> Location:
        """Return the location of a path of `canonical` in its files."""
        return locate(self.root, self.rules, path)


def _mark_of(location: Location, code: str, message: str, is_block: bool) -> Mark:
    """Return the part of the text that a fault points at."""
    node, path, is_written = location
    value = node.value
    if is_written and not is_block and isinstance(value, (dict, list)):
        for item in value.values() if isinstance(value, dict) else value:
            if isinstance(item.value, str) and f"`{item.value}`" in message:
                node = item
                break
    is_scalar = not isinstance(node.value, (bool, list, dict))
    at_value = is_written and is_scalar and not is_block and code != "causality"
    mark = node.value_mark if at_value else node.place
    return mark if path else mark._replace(length=1)


def source_path(recipe: Recipe, path: KeyPath) -> str:
    """Return a path of `canonical` as the recipe writes it: `model.encoder[0].residual[0].rnn`."""
    return format_path(recipe.locate(path).path)
