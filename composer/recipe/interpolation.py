"""Variable interpolation: `vars`, `$name` as a whole value and `${name}` inside a text.

A whole value, `$name` or `${name}`, becomes the variable's value with its type. `$$name` is the
text `$name`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from composer.errors import Fault, KeyPath, RecipeError, fault_at, format_path
from composer.formatting import map_scalars
from composer.recipe.schema_reader import scalar_text
from composer.recipe.yaml_reader import (
    MAX_DEPTH,
    MAX_VALUES,
    Node,
    dump_on_line,
    reachable,
    strings_in,
    to_data,
)
from composer.suggest import did_you_mean

MAX_TEXT = 4096  # characters that variables may make of one text

_NAME = r"[A-Za-z_][A-Za-z0-9_-]*"
_BRACED = re.compile(r"\$\{([^{}]*)\}?")
_BARE = re.compile(rf"\$({_NAME})")
_ESCAPED = re.compile(rf"\$(\$+{_NAME})")


def substitute(root: Node) -> Node:
    """Return the recipe with its `$name` and `${name}` replaced.

    Raise RecipeError with all that cannot be.
    """
    return _substitute(root, _Variables(recipe_variables(root)))


def substitute_known(root: Node) -> tuple[Node, dict[KeyPath, list[str]]]:
    """Replace a recipe part's own variables; return the missing ones by reader.

    The value of such a reader is empty, whatever its type must be. Raise RecipeError with all else
    that is at fault.
    """
    variables = _Variables(recipe_variables(root), is_part=True)
    return _substitute(root, variables), variables.missing


def _substitute(root: Node, variables: _Variables) -> Node:
    value = {}
    for key, node in root.value.items():
        value[key] = node if key == "vars" else variables.replace(node, (key,))
    for name in variables.nodes:  # the unused ones too, so that their faults are reported
        variables.value(name)
    if variables.faults:
        raise RecipeError(variables.faults)
    return replace(root, value=value)


def escape(data: object) -> Any:
    """Return plain data in which every text that would be read as `$name` is written `$$name`."""

    def escaped(leaf: object) -> Any:
        is_variable = isinstance(leaf, str) and (_BARE.fullmatch(leaf) or _ESCAPED.fullmatch(leaf))
        return f"${leaf}" if is_variable else leaf

    return map_scalars(data, escaped)


def recipe_text(data: object) -> str:
    """Return plain data as recipe text on one line, quoted where needed, `$` doubled in `$name`.

    A text with `${`, or with a character such as NUL, no recipe can have.
    """
    return dump_on_line(escape(data))


def recipe_variables(root: Node) -> dict[str, Node]:
    """Return the nodes under `vars` by name."""
    node = root.value.get("vars")
    return node.value if node is not None and isinstance(node.value, dict) else {}


def unused_variables(root: Node) -> dict[str, Node]:
    """Return the variables that nothing, or only an unused variable, reads, by name."""
    variables = recipe_variables(root)
    used = reachable(
        [node for key, node in root.value.items() if key != "vars"], variables, _references
    )
    return {name: node for name, node in variables.items() if name not in used}


def _references(node: Node) -> Iterator[str]:
    """Yield the names of the variables that a node reads."""
    for text in strings_in(to_data(node)):
        bare = _BARE.fullmatch(text)
        yield from [bare[1]] if bare else _BRACED.findall(text)


def unknown_variable(name: str, variables: Iterable[str]) -> tuple[str, str]:
    """Return the message for an unknown variable, and the fix."""
    names = ", ".join(f"`{variable}`" for variable in variables)
    hint = f"the variables are {names}" if names else "give it a value under `vars`"
    return f"there is no variable `{name}`{did_you_mean(name, variables)}", hint


@dataclass
class _Variables:
    """The variables of a recipe, each evaluated once."""

    nodes: dict[str, Node]
    values: dict[str, Any] = field(default_factory=dict)
    evaluating: list[str] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    num_values: int = 0
    is_part: bool = False
    missing: dict[KeyPath, list[str]] = field(default_factory=dict)

    def replace(self, node: Node, path: KeyPath) -> Node:
        """Return a node with the variables in it replaced by their values."""
        if isinstance(node.value, dict):
            return replace(
                node, value={k: self.replace(v, (*path, k)) for k, v in node.value.items()}
            )
        if isinstance(node.value, list):
            return replace(
                node, value=[self.replace(v, (*path, i)) for i, v in enumerate(node.value)]
            )
        if not _has_variable(node.value):
            return node
        value = self._interpolate(node, path)
        if not isinstance(value, list):
            return replace(
                node, value=value, text=scalar_text(value), quoted=isinstance(value, str)
            )
        self.num_values += len(value)
        # a short recipe must not grow without bound: 1000 uses of a list of 1000
        if self.num_values > MAX_VALUES:
            message = f"variables make more than {MAX_VALUES} values"
            raise RecipeError(
                [*self.faults, fault_at(node.mark, "size", "", message, "use shorter lists")]
            )
        items = [Node(item, node.mark, text=scalar_text(item)) for item in value]
        return replace(node, value=items, text="", quoted=False)

    def value(self, name: str) -> Any:
        """Return the value of a variable; its own variables are evaluated first."""
        if name not in self.values:
            self.evaluating.append(name)
            self.values[name] = self._evaluate(self.nodes[name], ("vars", name))
            self.evaluating.pop()
        return self.values[name]

    def _interpolate(self, node: Node, path: KeyPath) -> Any:
        """Return a text with its variables replaced; of a variable alone, its value."""
        if escaped := _ESCAPED.fullmatch(node.value):
            return escaped.group(1)
        if alone := _BARE.fullmatch(node.value) or _BRACED.fullmatch(node.value):
            return self._lookup(alone, node, path)
        text = _BRACED.sub(lambda match: self._lookup_text(match, node, path), node.value)
        if len(text) > MAX_TEXT:
            message = f"variables make a text of {len(text)} characters"
            self._fault(node, None, "size", path, message, "use shorter texts")
            return ""
        if "${" in text:  # a run stores the text, and reads it again
            message = "variables make a text with `${`, which would begin another variable"
            self._fault(node, None, "variable", path, message, "write `$` and `{` apart")
        return text

    def _lookup_text(self, match: re.Match[str], node: Node, path: KeyPath) -> str:
        value = self._lookup(match, node, path)
        if value is None or isinstance(value, list):
            kind = "null" if value is None else "a list"
            message = f"`{match.group(1)}` is {kind} and cannot be part of a text"
            self._fault(node, match, "variable", path, message, f"write `${match.group(1)}` alone")
            return ""
        return scalar_text(value)

    def _lookup(self, match: re.Match[str], node: Node, path: KeyPath) -> object:
        name = match.group(1)
        if match.group().startswith("${") and not match.group().endswith("}"):
            self._fault(
                node, match, "variable", path, "this `${` is never closed", "write `${name}`"
            )
        elif name not in self.nodes and self.is_part:
            self.missing.setdefault(path, []).append(name)
        elif name not in self.nodes:
            self._fault(node, match, "variable", path, *unknown_variable(name, self.nodes))
        elif name in self.evaluating:
            circle = " -> ".join((*self.evaluating[self.evaluating.index(name) :], name))
            self._fault(
                node,
                match,
                "cycle",
                path,
                f"these variables need each other: {circle}",
                "give one a value",
            )
        elif len(self.evaluating) == MAX_DEPTH:
            message = f"more than {MAX_DEPTH} variables refer to each other in a chain"
            self._fault(node, match, "depth", path, message, "use fewer")
        else:
            value = self.value(name)
            if names := self.missing.get(("vars", name)):
                self.missing.setdefault(path, []).extend(names)
            return value
        return ""

    def _evaluate(self, node: Node, path: KeyPath) -> object:
        if isinstance(node.value, list):
            items = [self._evaluate(item, (*path, i)) for i, item in enumerate(node.value)]
            nested = [
                item
                for item, value in zip(node.value, items, strict=True)
                if isinstance(value, list)
            ]
            for item in nested:
                self._fault(
                    item,
                    None,
                    "variable",
                    path,
                    "a list in `vars` holds single values",
                    "use two variables",
                )
            return [] if nested else items
        if isinstance(node.value, dict):
            message = "a variable is a single value or a list of them, not a mapping"
            hint = "put stacks under `model.stacks`, and whole sections into a file that you extend"
            self._fault(node, None, "variable", path, message, hint)
            return ""
        return self._interpolate(node, path) if _has_variable(node.value) else node.value

    def _fault(
        self,
        node: Node,
        match: re.Match[str] | None,
        code: str,
        path: KeyPath,
        message: str,
        hint: str,
    ) -> None:
        mark = node.mark
        if match is not None:
            # a text over several lines, or with escapes, is pointed at as a whole
            column = mark.text.find(match.group(), mark.column - 1)
            mark = (
                mark if column < 0 else mark._replace(column=column + 1, length=len(match.group()))
            )
        self.faults.append(fault_at(mark, code, format_path(path), message, hint))


def _has_variable(value: object) -> bool:
    """True for a text with `$name`, the escape `$$name`, or `${`."""
    if not isinstance(value, str):
        return False
    return "${" in value or bool(_BARE.fullmatch(value) or _ESCAPED.fullmatch(value))
