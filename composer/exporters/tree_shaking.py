"""What some roots need, and nothing else: definitions and methods that can be reached, as one text."""

from __future__ import annotations

import ast
import builtins
import importlib
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence

from composer.errors import RunError
from composer.exporters.name_resolution import Use, used
from composer.exporters.script_modules import GIVEN, Definition, Library, Module, Target
from composer.exporters.text_edits import Edit, edited

WIDTH = 120
ANY = Target("typing", "Any")


class Shaken:
    """All that is reached from some definitions. A method is reached where its name is asked of anything.

    `asked` are methods that are asked besides, and `reserved` names that nothing can have.
    """

    def __init__(
        self, library: Library, roots: Iterable[Target], asked: Iterable[str] = (), reserved: Iterable[str] = ()
    ) -> None:
        self.library, self.reserved = library, reserved
        self.reached: dict[Target, None] = {}
        self.outside: dict[Target, None] = {}
        self.attributes = set(asked)
        self.methods: dict[tuple[Target, str], ast.FunctionDef] = {}
        self.waiting: dict[tuple[Target, str], ast.FunctionDef] = {}
        for root in roots:
            self._reach(library.resolve(*root) or root)
        self._names = self._named()

    # ------------------------------------------------------------------------------------------- reaching

    def _reach(self, target: Target) -> None:
        if target in self.reached:
            return
        self.reached[target] = None
        definition = self.definition(target)
        if isinstance(definition.node, ast.ClassDef):
            self._reach_class(target, definition.node)
        else:
            self._follow(target.module, definition.node)

    def _reach_class(self, target: Target, node: ast.ClassDef) -> None:
        for each in (*node.bases, *node.decorator_list):
            self._follow(target.module, each)
        for part in node.body:
            if not isinstance(part, ast.FunctionDef):
                self._follow(target.module, part)
            elif self._is_asked_from_outside(target, part.name):
                self._reach_method(target, part)
            else:
                self.waiting[target, part.name] = part
        self._reach_asked()

    def _reach_method(self, owner: Target, node: ast.FunctionDef) -> None:
        self.methods[owner, node.name] = node
        self._follow(owner.module, node)

    def _reach_asked(self) -> None:
        for key in [key for key in self.waiting if key[1] in self.attributes]:
            if key in self.waiting:
                self._reach_method(key[0], self.waiting.pop(key))

    def _is_asked_from_outside(self, owner: Target, name: str) -> bool:
        """Whether Python or torch may call a method by itself: its name is special, or that of a base's method."""
        bases = getattr(importlib.import_module(owner.module), owner.name).__mro__[1:]
        theirs = [base for base in bases if base.__module__.partition(".")[0] not in self.library.packages]
        return name.startswith("__") or any(name in vars(base) for base in theirs)

    def _follow(self, module: str, node: ast.AST) -> None:
        use = used(node)
        self.attributes.update(each.attr for each in use.attributes if not self._is_library(module, each.value, use))
        self._reach_asked()
        for expression, target in self.references(module, node, use):
            if target.package in self.library.packages:
                self._reach(target)
            elif target.package in GIVEN:
                self.outside[target] = None
            elif expression in use.annotations:
                self.outside[ANY] = None
            else:
                raise RunError.of(
                    f"`{module}` needs the library `{target.package}`, and a script has PyTorch alone",
                    "use blocks that import torch and Python's own library only",
                )

    def _is_library(self, module: str, node: ast.expr, use: Use) -> bool:
        """Whether a name is that of something outside, whose attributes are no methods of ours."""
        if not isinstance(node, ast.Name) or node not in use.found:
            return False
        target = self.library.resolve(module, node.id)
        return target is not None and target.package not in self.library.packages

    def references(self, module: str, node: ast.AST, use: Use) -> Iterator[tuple[ast.expr, Target]]:
        """The expressions in a node that stand for something outside it, and what that is."""
        around = {each.value: each for each in ast.walk(node) if isinstance(each, ast.Attribute)}
        for name in use.found:
            target = self.library.resolve(module, name.id)
            if target is None:
                continue
            outer: ast.expr = name
            while not target.name and target.package not in GIVEN and outer in around:
                attribute = around[outer]
                outer, target = attribute, self._part(target, attribute.attr)
            yield outer, target

    def _part(self, target: Target, name: str) -> Target:
        if target.package not in self.library.packages:
            return Target(target.module, name)
        return self.library.resolve(target.module, name) or Target(target.module, name)

    def definition(self, target: Target) -> Definition:
        return self.library.module(target.module).definitions[target.name]

    # ------------------------------------------------------------------------------------------- names

    def _named(self) -> dict[Target, str]:
        """A name for everything; where two would have the same, the later one has its module's beside it."""
        names: dict[Target, str] = {}
        taken = {*dir(builtins), *self.reserved}
        for target in (*self.outside, *self.ordered()):
            local = local_name(target)
            own = target.package in self.library.packages
            name = f"{local}_{target.module.rpartition('.')[2]}" if own and local in taken else local
            names[target] = name
            taken.add(name)
        return names

    def name(self, target: Target) -> str:
        """How something is called in the text."""
        return self._names[self.library.resolve(*target) or target]

    def ordered(self) -> list[Target]:
        """What was reached: modules after those that they import, definitions as they stand there."""
        found = []
        for name in self._modules():
            module = self.library.module(name)
            found += [Target(name, each) for each in module.definitions if Target(name, each) in self.reached]
        return found

    def _modules(self) -> list[str]:
        done: dict[str, None] = {}

        def visit(name: str, way: frozenset[str]) -> None:
            for other in sorted(self._needed_first(name) - way):
                if other not in done:
                    visit(other, way | {name})
            done[name] = None

        for name in sorted({target.module for target in self.reached}):
            if name not in done:
                visit(name, frozenset({name}))
        return list(done)

    def _needed_first(self, name: str) -> set[str]:
        """The modules whose definitions one needs while it is being read: bases, decorators, values."""
        found = set()
        module = self.library.module(name)
        for target in self.reached:
            if target.module == name:
                use = used(*at_once(module.definitions[target.name].node))
                names = (self.library.resolve(name, each.id) for each in use.found if each not in use.annotations)
                found |= {each.module for each in names if each and each.package in self.library.packages}
        return found - {name}

    # ------------------------------------------------------------------------------------------- text

    def text(self) -> str:
        """The definitions, module after module."""
        parts = []
        for name in self._modules():
            module = self.library.module(name)
            own = [each for key, each in module.definitions.items() if Target(name, key) in self.reached]
            whole = {each.start: each for each in own}  # one statement may bind several names
            said = module.said if 2 * len(own) >= len(module.definitions) else ""
            parts.append(heading(name, said) + "".join(self.spaced(module, [*whole.values()])))
        return "\n\n\n".join(parts)

    def written(self, module: Module, definition: Definition) -> str:
        """The text of one definition: names as they are called here, without what nobody reaches."""
        edits = []
        if isinstance(definition.node, ast.ClassDef):
            edits = [
                self._without(module, definition.node, part)
                for part in definition.node.body
                if (definition.target, getattr(part, "name", "")) in self.waiting
            ]
        use = used(definition.node)
        for expression, target in self.references(module.name, definition.node, use):
            start, stop = module.places.span(expression)
            new = "Any" if target not in self._names else self.name(target)
            edits.append(Edit(start, stop, new))
        edits += self._renamed(module, definition)
        inside = [each for each in edits if definition.start <= each.start]
        gone = [each for each in inside if not each.text]
        kept = [each for each in inside if each.text and not any(out.start <= each.start < out.stop for out in gone)]
        shifted = [
            Edit(each.start - definition.start, each.stop - definition.start, each.text) for each in (*gone, *kept)
        ]
        text = module.text.encode()[definition.start : definition.stop].decode()
        return edited(text, shifted).rstrip()

    def spaced(self, module: Module, definitions: Sequence[Definition]) -> Iterator[str]:
        """The texts of definitions, with the empty lines before each that a formatter puts there."""
        before: ast.stmt | None = None
        for each in definitions:
            wide = any(isinstance(node, ast.FunctionDef | ast.ClassDef) for node in (before, each.node))
            yield ("\n\n\n" if wide else "\n\n") + self.written(module, each)
            before = each.node

    def _renamed(self, module: Module, definition: Definition) -> Iterator[Edit]:
        """The name in a definition itself, where it is another one here."""
        node = definition.node
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            start = module.places.span(node)[0] + len("def " if isinstance(node, ast.FunctionDef) else "class ")
            yield Edit(start, start + len(node.name.encode()), self.name(definition.target))
            return
        for each in (each for target in targets_of(node) for each in ast.walk(target) if isinstance(each, ast.Name)):
            yield Edit(*module.places.span(each), self.name(Target(module.name, each.id)))

    def _without(self, module: Module, owner: ast.ClassDef, part: ast.stmt) -> Edit:
        """A class without a method, and without the empty lines before it."""
        first = module.places.first_line(part)
        while not module.places.line(first - 1).strip():
            first -= 1
        return module.places.rows(first, part.end_lineno or part.lineno)

    def imports(self) -> str:
        """The imports of all that was reached, as an import sorter has them."""
        torch: list[Target] = []
        python: list[Target] = []
        for each in sorted(self.outside):
            (torch if each.package == "torch" else python).append(each)
        groups = [[f"import {each.module}" for each in group if is_whole(each)] for group in (python, torch)]
        named = [from_imports([each for each in group if not is_whole(each)]) for group in (python, torch)]
        return "\n\n".join("\n".join(whole + part) for whole, part in zip(groups, named, strict=True))


def local_name(target: Target) -> str:
    """What something is called where it is defined; torch.nn.functional is F, as everywhere."""
    if target.module == "torch.nn.functional" or target == Target("torch.nn", "functional"):
        return "F"
    return target.name or target.module.rpartition(".")[2]


def is_whole(target: Target) -> bool:
    """Whether something is imported by `import MODULE`."""
    return not target.name and "." not in target.module


def from_imports(targets: Iterable[Target]) -> list[str]:
    """`from MODULE import ...`, a line each module, longer ones in brackets."""
    found: dict[str, set[str]] = {}
    for target in targets:
        name = target.name or target.module.rpartition(".")[2]
        module = target.module if target.name else target.module.rpartition(".")[0]
        local = local_name(target)
        found.setdefault(module, set()).add(name if name == local else f"{name} as {local}")
    return [in_brackets(module, sorted(names, key=sorting)) for module, names in sorted(found.items())]


def sorting(name: str) -> tuple[int, str]:
    """Constants, then classes, then the rest, as an import sorter has them."""
    leaf = name.partition(" ")[0]
    return (0 if leaf.isupper() and len(leaf) > 1 else 1 if leaf[0].isupper() else 2, name)


def in_brackets(module: str, names: list[str]) -> str:
    """One import, on as few lines as a formatter makes of it."""
    line = f"from {module} import {', '.join(names)}"
    if len(line) <= WIDTH:
        return line
    return f"from {module} import (\n" + "".join(f"    {name},\n" for name in names) + ")"


def targets_of(node: ast.stmt) -> list[ast.expr]:
    """What an assignment binds."""
    if isinstance(node, ast.Assign):
        return node.targets
    return [node.target] if isinstance(node, ast.AnnAssign) else []


def at_once(node: ast.stmt) -> list[ast.AST]:
    """What of a definition is computed while its module is being read."""
    if isinstance(node, ast.FunctionDef):
        return [*node.decorator_list, *node.args.defaults, *(each for each in node.args.kw_defaults if each)]
    if not isinstance(node, ast.ClassDef):
        return [node]
    inner = [part for each in node.body for part in at_once(each)]
    return [*node.bases, *node.decorator_list, *inner]


def heading(module: str, said: str) -> str:
    """Where a part comes from, and what it says of itself."""
    name = module.removeprefix("composer.").removeprefix("exports.")
    words = [name, *re.sub(r"^`\w+`: ", "", said).split()]
    lines = textwrap.wrap(f"{words[0]}: {' '.join(words[1:])}" if said else name, WIDTH - 2)
    return "\n".join([f"# {'-' * 100}", *(f"# {line}" for line in lines)])
