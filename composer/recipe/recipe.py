"""A recipe that has been read, resolved, validated and frozen. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from composer.errors import Fault, format_path
from composer.recipe import schema
from composer.recipe.defaults import fill_defaults, fingerprints
from composer.recipe.node import Node, fault_at, to_data
from composer.recipe.registry import CHOICES
from composer.recipe.yaml_reader import dump, parse

if TYPE_CHECKING:
    from composer.model.encoder_decoder import EncoderDecoder
    from composer.model.planner import Plan
from composer.recipe.inheritance import extend, extend_node
from composer.recipe.interpolation import escape, substitute
from composer.recipe.overrides import apply_overrides

Steps = tuple[str | int, ...]


def load(path: str | Path, overrides: Sequence[str] = (), data_dir: str | Path | None = None) -> Recipe:
    """Return the recipe in a file, with `key=value` settings laid over it.

    Raises:
        RecipeError: With every fault of the first stage (reading, inheritance, variables, schema) that has any.
    """
    file = Path(path)
    return _finish(extend(file), file, overrides, data_dir)


def load_text(
    text: str,
    file: str | Path = "recipe.yaml",
    overrides: Sequence[str] = (),
    data_dir: str | Path | None = None,
    source: str | None = None,
) -> Recipe:
    """Return the recipe in a YAML text, as if it stood in `file`, which need not exist; `extends` and data start there.

    `source` is what faults call the text, `file` if None. Raises RecipeError like `load`.
    """
    own = parse(text, str(file) if source is None else source)
    return _finish(extend_node(own, Path(file)), Path(file), overrides, data_dir)


def _finish(extended: Node, file: Path, overrides: Sequence[str], data_dir: str | Path | None) -> Recipe:
    rules = schema.load()
    overridden = apply_overrides(extended, overrides, lambda path: first_setting(rules, path))
    return from_node(file, substitute(overridden), rules, data_dir)


def from_node(file: Path, root: Node, rules: dict[str, Any], data_dir: str | Path | None = None) -> Recipe:
    """The recipe that a resolved mapping is; `file` is where it stands. Raises RecipeError with every fault."""
    # jsonschema takes a tenth of a second to import, and a run's stored recipe is read by many commands
    from composer.recipe.validation import validate

    validate(root, rules)
    written = {key: value for key, value in to_data(root).items() if key != "vars"}
    written.setdefault("name", default_name(file))
    frozen = fill_defaults(written, rules, default_name(file))
    return Recipe(file, written, frozen, root, rules, None if data_dir is None else Path(data_dir))


def default_name(file: Path) -> str:
    """The name of a recipe that gives none: its file's."""
    return "".join(char if char.isalnum() or char in "._-" else "-" for char in file.stem).lstrip("._-") or "recipe"


@dataclass(frozen=True, eq=False)
class Recipe:
    """A recipe.

    `written` is the recipe as it was written, without `extends`, `vars` and `$name`; `frozen` its canonical form, in
    which every default stands and every block is a single-key mapping with all its settings.
    """

    file: Path
    written: dict[str, Any]
    frozen: dict[str, Any]
    root: Node = field(repr=False)
    rules: dict[str, Any] = field(repr=False)
    data_dir: Path | None = None

    @property
    def name(self) -> str:
        """The name of the recipe and of its runs."""
        return self.frozen["name"]

    @property
    def dataset(self) -> dict[str, Any]:
        """The frozen section `data`."""
        return self.frozen["data"]

    @property
    def model(self) -> dict[str, Any]:
        """The frozen section `model`."""
        return self.frozen["model"]

    @property
    def training(self) -> dict[str, Any]:
        """The frozen section `training`."""
        return self.frozen["training"]

    @property
    def decoding(self) -> dict[str, Any]:
        """The frozen section `decoding`: a single-key mapping."""
        return self.frozen["decoding"]

    @property
    def logging(self) -> dict[str, Any]:
        """The frozen section `logging`."""
        return self.frozen["logging"]

    @property
    def trainer(self) -> dict[str, Any]:
        """The frozen section `trainer`."""
        return self.frozen["trainer"]

    @property
    def joint(self) -> bool:
        """Whether all sides share one tokenizer."""
        ((kind, settings),) = self.dataset["tokenizer"].items()
        return kind == "integers" or bool(settings.get("joint", False))

    @cached_property
    def fingerprints(self) -> dict[str, str]:
        """SHA-256 of `model`, `data` and `run`; the same for every way to write the same recipe."""
        return fingerprints(self.frozen)

    def folders(self, data_dir: str | Path | None = None) -> list[Path]:
        """Where data files are looked up, in this order: `data_dir`, then beside the recipe."""
        chosen = self.data_dir if data_dir is None else Path(data_dir)
        return [*([] if chosen is None else [chosen]), self.file.parent]

    def settings_at(self, path: Steps) -> dict[str, Any]:
        """The frozen settings of the block at a path of `frozen`."""
        found: Any = self.frozen
        for step in path:
            found = found[step]
        return found

    def dump(self) -> str:
        """The recipe as YAML: resolved, and runnable as it is."""
        return dump(escape(self.written))

    def fault(self, code: str, path: Steps, message: str, hint: str = "") -> Fault:
        """A fault at a path of `frozen`, with the place and the path at which it was written.

        A value is pointed at itself; a block, a switch, a list and what may not stand where it stands, by the key. What
        was not written is pointed at by the nearest thing around it that was. Of a list of names, the one that the
        message tells is pointed at.
        """
        node, steps, exact = self.written_at(path)
        node = _mentioned(node, message) if exact and not is_block_path(path) else node
        by_key = not exact or is_block_path(path) or code == "causality" or isinstance(node.value, (bool, list, dict))
        empty = node.value is None and not node.text
        mark = node.place if by_key or empty else node.mark
        return fault_at(mark if steps else mark._replace(length=1), code, format_path(steps), message, hint)

    def plan(self) -> Plan:
        """What the model will cost. Raises RecipeError with every fault."""
        from composer.model.planner import plan

        return plan(self)

    def build(self) -> EncoderDecoder:
        """The model, with the vocabularies' upper bounds for sizes. Raises RecipeError with every fault."""
        from composer.model.builder import build
        from composer.model.planner import vocabulary_bounds

        return build(self, vocabulary_bounds(self))

    def written_at(self, path: Steps) -> tuple[Node, Steps, bool]:
        """The node written for a path of `frozen`, its path as written, and whether it is the very thing."""
        node: Node = self.root
        steps: Steps = ()
        for index, step in enumerate(path):
            inner = _child(node, step)
            if inner is not None:
                node, steps = inner, (*steps, step)
            elif not self._is_short(node, step, path[:index]):
                inherited = self._inherited(path[: index + 1])
                block = steps if steps[-1:] == path[index - 1 : index] else (*steps, *path[index - 1 : index])
                return (node, steps, False) if inherited is None else (inherited, (*block, step), True)
        return node, steps, True

    def _is_short(self, node: Node, step: str | int, place: Steps) -> bool:
        """Whether a node stands for its own part: a bare name, a block's first setting, the only item of a list."""
        if isinstance(node.value, dict) or node.value == place[-1]:
            return False
        return node.value == step or step in (0, first_setting(self.rules, place))

    def _inherited(self, path: Steps) -> Node | None:
        """What is written under `model` for a setting of a block that is not written at the block."""
        if len(path) < 3 or not is_block_path(path[:-1]):
            return None
        name, setting = path[-2:]
        model = self.root.value["model"].value
        written = model.get(name)
        if written is not None and isinstance(setting, str) and name != "dropout":
            found = _child(written, setting)
            if found is not None or self._is_short(written, setting, ("model", name)):
                return found or written
        is_dropout = setting == "dropout" or (name, setting) == ("dropout", "rate")
        return model.get("dropout") if is_dropout else None


def source_path(recipe: Recipe, path: Steps) -> str:
    """A path of `frozen` as the recipe writes it: `model.encoder[0].residual[0].rnn`."""
    return format_path(recipe.written_at(path)[1])


def _child(node: Node, step: str | int) -> Node | None:
    if isinstance(node.value, dict):
        return node.value.get(step)
    if isinstance(node.value, list) and isinstance(step, int):
        return node.value[step] if step < len(node.value) else None
    return None


def _mentioned(node: Node, message: str) -> Node:
    """The single value inside a node that a message tells between backticks, or the node itself."""
    inner = node.value.values() if isinstance(node.value, dict) else node.value if isinstance(node.value, list) else ()
    return next((each for each in inner if isinstance(each.value, str) and f"`{each.value}`" in message), node)


def is_block_path(path: Steps) -> bool:
    """Whether a path of `frozen` ends with a block: its name, in an item of a list."""
    return len(path) > 1 and isinstance(path[-1], str) and isinstance(path[-2], int)


_CHOICE_PATHS: dict[Steps, str] = {choice.key: table for table, choice in CHOICES.items()}


def first_setting(rules: dict[str, Any], place: Steps) -> str | None:
    """What a scalar or a list at a path sets, if a block, a block's defaults, an optimizer, ... stands there."""
    if not place or not isinstance(place[-1], str):
        return None
    table = (
        "block" if is_block_path(place) else "defaults" if place[:-1] == ("model",) else _CHOICE_PATHS.get(place[:-1])
    )
    return rules["$defs"].get(f"{table}.{place[-1]}", {}).get("x-first")
