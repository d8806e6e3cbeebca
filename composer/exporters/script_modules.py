"""Modules as they are taken apart: what each defines at its top, without its checks, and what its names stand for."""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from composer.errors import RunError
from composer.exporters.pruning import IsIdle, does_nothing, pruned
from composer.exporters.text_edits import Edit, Places, docstring_of, edited, without_raises

TAKEN = frozenset({"composer", "blocks"})
"""The packages whose code is written out; a plug-in's is one more."""
GIVEN = frozenset({"torch", *sys.stdlib_module_names})
"""What a script may import."""
SITE = ("blocks.core.contract", "blocks.core.scope")
"""Where the methods stand that every block asks in its constructor."""


class Target(NamedTuple):
    """What a name stands for: something in a module, or with the name "" the module itself."""

    module: str
    name: str

    @property
    def package(self) -> str:
        return self.module.partition(".")[0]


class Definition(NamedTuple):
    """One statement at the top of a module, with its comments and the text below it that says what it is."""

    target: Target
    node: ast.stmt
    start: int
    stop: int


class Module:
    """One module, pruned."""

    def __init__(self, name: str, text: str, idle: Callable[[Module, ast.Module], IsIdle]) -> None:
        self.name = name
        self.imports = dict(imported(ast.parse(text)))
        self.before = functions_of(ast.parse(text))
        self.text = plain_annotated(pruned(text, lambda tree: idle(self, tree)))
        self.tree = ast.parse(self.text)
        self.after = functions_of(self.tree)
        self.places = Places(self.text)

    @cached_property
    def definitions(self) -> dict[str, Definition]:
        """The statements that bind a name, by the name, in order."""
        found = {}
        for node, following in zip(self.tree.body, [*self.tree.body[1:], None], strict=True):
            for name in bound_by(node):
                last = following if following is not None and docstring_of([following]) else node
                start = self.places.starts[self.places.first_line(node) - 1]
                stop = self.places.starts[last.end_lineno or last.lineno]
                found[name] = Definition(Target(self.name, name), node, start, stop)
        return found

    @property
    def said(self) -> str:
        """The first line of the module's text about itself."""
        return (ast.get_docstring(self.tree) or "").partition("\n")[0]


class Library:
    """Every module that is asked for. `packages` are those whose code may be taken."""

    def __init__(self, packages: Iterable[str] = ()) -> None:
        self.packages = TAKEN.union(packages)
        self.modules: dict[str, Module] = {}

    def module(self, name: str) -> Module:
        """A module of ours, or of a plug-in. Raises RunError where it has no source."""
        if name not in self.modules:
            self.modules[name] = Module(name, source_of(name), self.idle)
        return self.modules[name]

    def resolve(self, module: str, name: str) -> Target | None:
        """What a name in a module stands for; None where it is Python's own."""
        if module.partition(".")[0] not in self.packages or name in self.module(module).definitions:
            return Target(module, name)
        target = self.module(module).imports.get(name)
        if target is None or not target.name:
            return target
        if target.package in self.packages and is_module(target):
            return Target(f"{target.module}.{target.name}", "")
        return self.resolve(*target) if target.package in self.packages else target

    def idle(self, module: Module, tree: ast.Module) -> IsIdle:
        """Which calls in a module do nothing, now that it and others have lost their checks."""
        here = functions_of(tree)

        def is_idle(call: ast.Call) -> bool:
            match call.func:
                case ast.Name(id=name) if name in here:
                    return lost(module.before.get(name), here[name])
                case ast.Name(id=name) if name in module.imports and module.imports[name].package in self.packages:
                    target = module.imports[name]
                    other = self.module(target.module)
                    return lost(other.before.get(target.name), other.after.get(target.name))
                case ast.Attribute(value=ast.Name(id="self"), attr=name):
                    return lost(module.before.get(f".{name}"), here.get(f".{name}"))
                case ast.Attribute(attr=name) if module.name not in SITE:
                    return any(
                        lost(each.before.get(f".{name}"), each.after.get(f".{name}")) for each in map(self.module, SITE)
                    )
            return False

        return is_idle


def lost(before: ast.FunctionDef | None, after: ast.FunctionDef | None) -> bool:
    """Whether a function had checks, and does nothing without them."""
    if before is None or after is None or not does_nothing(after):
        return False
    return ast.dump(before) != ast.dump(after)


def functions_of(tree: ast.Module) -> dict[str, ast.FunctionDef]:
    """The functions at the top by their names, and the methods by a dot and theirs, where only one class has it."""
    found = {each.name: each for each in tree.body if isinstance(each, ast.FunctionDef)}
    methods = [
        method
        for each in tree.body
        if isinstance(each, ast.ClassDef)
        for method in each.body
        if isinstance(method, ast.FunctionDef)
    ]
    names = [each.name for each in methods]
    return found | {f".{each.name}": each for each in methods if names.count(each.name) == 1}


def source_of(name: str) -> str:
    """The text of a module. Raises RunError where it has none."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        raise RunError.of(
            f"`{name}` cannot be written into a script: it has no Python source",
            "use blocks that are written in Python",
        )
    return Path(spec.origin).read_text(encoding="utf-8")


def is_module(target: Target) -> bool:
    """Whether `from MODULE import NAME` gives a module."""
    try:
        return importlib.util.find_spec(f"{target.module}.{target.name}") is not None
    except ModuleNotFoundError:
        return False


def imported(tree: ast.Module) -> Iterator[tuple[str, Target]]:
    """What the imports of a module bind, those for annotations alone as well."""
    for node in tree.body:
        if isinstance(node, ast.If):
            yield from imported(ast.Module(node.body, []))
        elif isinstance(node, ast.Import):
            yield from map(_whole, node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from ((alias.asname or alias.name, Target(node.module, alias.name)) for alias in node.names)


def _whole(alias: ast.alias) -> tuple[str, Target]:
    """What `import A.B` and `import A.B as C` bind."""
    first, (parent, _, leaf) = alias.name.partition(".")[0], alias.name.rpartition(".")
    if alias.asname is None:
        return first, Target(first, "")
    return alias.asname, Target(parent, leaf) if parent else Target(leaf, "")


def bound_by(node: ast.stmt) -> list[str]:
    """The names that a statement at the top of a module defines."""
    match node:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
        case ast.Assign(targets=targets):
            return [each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)]
    return []


def plain_annotated(text: str) -> str:
    """Types without the bounds that are for a schema, and texts without what they say of errors."""
    tree, places = ast.parse(text), Places(text)
    edits = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id == "Annotated":
            said = node.slice.elts[0] if isinstance(node.slice, ast.Tuple) else node.slice
            edits.append(Edit(*places.span(node), ast.unparse(said)))
        elif isinstance(node, ast.FunctionDef | ast.ClassDef) and (doc := docstring_of(node.body)):
            start, stop = places.span(doc)
            edits.append(Edit(start, stop, without_raises(text.encode()[start:stop].decode())))
    return edited(text, edits)
