"""`vars` and `${name}`: values said once. A text that is nothing but `${name}` becomes the value, with its type."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from composer.errors import Fault, RecipeError, did_you_mean, format_path
from composer.recipe.node import Node, fault_at
from composer.recipe.yaml_reader import MAX_DEPTH, MAX_VALUES

MAX_TEXT = 4096  # characters that variables may make of one text

Steps = tuple[str | int, ...]

_VARIABLE = re.compile(r"\$\{([^{}]*)\}?")


def substitute(root: Node) -> Node:
    """The recipe with every `${name}` replaced. Raises RecipeError with all unknown variables and cycles."""
    variables = _Variables(recipe_variables(root))
    value = {key: node if key == "vars" else variables.replace(node, (key,)) for key, node in root.value.items()}
    variables.check_unused()
    if variables.faults:
        raise RecipeError(variables.faults)
    return replace(root, value=value)


def recipe_variables(root: Node) -> dict[str, Node]:
    """What stands under `vars`."""
    node = root.value.get("vars")
    return node.value if node is not None and isinstance(node.value, dict) else {}


def variables_hint(names: Iterable[str]) -> str:
    """What can be written instead of an unknown variable."""
    listed = ", ".join(f"`{name}`" for name in names)
    return f"the variables are {listed}" if listed else "give it a value under `vars`"


class _Variables:
    """The values of the variables, each worked out once."""

    def __init__(self, nodes: dict[str, Node]) -> None:
        self.nodes = nodes
        self.values: dict[str, Any] = {}
        self.open: list[str] = []
        self.faults: list[Fault] = []
        self.made = 0

    def replace(self, node: Node, path: Steps) -> Node:
        if isinstance(node.value, dict):
            return replace(node, value={k: self.replace(v, (*path, k)) for k, v in node.value.items()})
        if isinstance(node.value, list):
            return replace(node, value=[self.replace(v, (*path, i)) for i, v in enumerate(node.value)])
        if not isinstance(node.value, str) or "${" not in node.value:
            return node
        return self._placed(self._text(node, path), node)

    def _placed(self, value: Any, node: Node) -> Node:
        if isinstance(value, list):
            self._count(len(value), node)
            items = [Node(item, node.mark, text=_to_text(item)) for item in value]
            return replace(node, value=items, text="", quoted=False)
        return replace(node, value=value, text=_to_text(value), quoted=isinstance(value, str))

    def _count(self, number: int, node: Node) -> None:
        self.made += number
        if self.made > MAX_VALUES:
            message = f"variables make more than {MAX_VALUES} values"
            raise RecipeError([*self.faults, fault_at(node.mark, "size", "", message, "use shorter lists")])

    def _text(self, node: Node, path: Steps) -> Any:
        """What a text with variables stands for: the value itself where it is nothing but one variable."""
        whole = _VARIABLE.fullmatch(node.value)
        if whole is not None:
            return self._lookup(whole, node, path)
        text = _VARIABLE.sub(lambda found: self._inside(self._lookup(found, node, path), found, node, path), node.value)
        if len(text) > MAX_TEXT:
            message = f"variables make a text of {len(text)} characters"
            self._fault(node, None, "size", path, message, "use shorter texts")
            return ""
        return text

    def _inside(self, value: Any, found: re.Match[str], node: Node, path: Steps) -> str:
        if value is None or isinstance(value, list):
            what = "null" if value is None else "a list"
            self._fault(
                node,
                found,
                "variable",
                path,
                f"`{found.group(1)}` is {what} and cannot stand inside a text",
                "use it alone",
            )
            return ""
        return _to_text(value)

    def _lookup(self, found: re.Match[str], node: Node, path: Steps) -> Any:
        name = found.group(1)
        if not found.group().endswith("}"):
            self._fault(node, found, "variable", path, "this `${` is never closed", "write `${name}`")
            return ""
        if name not in self.nodes:
            self._fault(
                node,
                found,
                "variable",
                path,
                f"there is no variable `{name}`{did_you_mean(name, self.nodes)}",
                variables_hint(self.nodes),
            )
            return ""
        if name in self.open:
            circle = " -> ".join((*self.open[self.open.index(name) :], name))
            self._fault(node, found, "cycle", path, f"these variables need each other: {circle}", "give one a value")
            return ""
        if len(self.open) == MAX_DEPTH:
            self._fault(node, found, "depth", path, f"more than {MAX_DEPTH} variables lead to each other", "use fewer")
            return ""
        return self._value(name)

    def _value(self, name: str) -> Any:
        if name not in self.values:
            self.open.append(name)
            self.values[name] = self._worked_out(self.nodes[name], ("vars", name))
            self.open.pop()
        return self.values[name]

    def _worked_out(self, node: Node, path: Steps) -> Any:
        if isinstance(node.value, list):
            items = [self._worked_out(item, (*path, i)) for i, item in enumerate(node.value)]
            nested = [item for item, value in zip(node.value, items, strict=True) if isinstance(value, list)]
            for item in nested:
                self._fault(item, None, "variable", path, "a list in `vars` holds single values", "use two variables")
            return [] if nested else items
        if isinstance(node.value, dict):
            self._fault(
                node,
                None,
                "variable",
                path,
                "a variable is a single value or a list of them, not a mapping",
                "put stacks under `model.stacks`, and whole sections into a file that you extend",
            )
            return ""
        return self._text(node, path) if isinstance(node.value, str) and "${" in node.value else node.value

    def check_unused(self) -> None:
        """Works out the variables that nothing uses too, so that their faults are told."""
        for name in self.nodes:
            self._value(name)

    def _fault(self, node: Node, found: re.Match[str] | None, code: str, path: Steps, message: str, hint: str) -> None:
        mark = node.mark
        if found is not None:
            # a text over several lines, or with escapes, is pointed at as a whole
            column = mark.text.find(found.group(), mark.column - 1)
            mark = mark if column < 0 else mark._replace(column=column + 1, length=len(found.group()))
        self.faults.append(fault_at(mark, code, format_path(path), message, hint))


def _to_text(value: Any) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
