"""Code without its checks: a recipe that has been built keeps every rule, so what refuses others cannot be reached.

A branch that ends with raising one of this project's errors goes, and so does what is left without anything to do.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Sequence

from composer.exporters.text_edits import Edit, Places, docstring_of, edited

ERRORS = frozenset({"BlockError", "RunError"})
ASKING = frozenset({"read", "named", "stack", "named_stack", "dry_build", "define", "merge", "exit_loop"})
"""The methods of a site and its names that leave a trace there."""
IsIdle = Callable[[ast.Call], bool]
"""Whether a call, whose value nobody takes, does nothing."""


def pruned(text: str, idle: Callable[[ast.Module], IsIdle]) -> str:
    """A module's text without its checks. `idle` tells of a tree which calls in it do nothing."""
    while True:
        tree = ast.parse(text)
        pruner = Pruner(text, errors_made(tree), idle(tree))
        pruner.body(tree.body)
        if not pruner.edits:
            return text
        text = edited(text, pruner.edits)


def errors_made(tree: ast.Module) -> frozenset[str]:
    """The functions and methods that give one of our errors."""
    made = ((each.name, each.returns) for each in ast.walk(tree) if isinstance(each, ast.FunctionDef))
    return frozenset(name for name, returns in made if isinstance(returns, ast.Name) and returns.id in ERRORS)


class Pruner:
    """Collects what is to be taken out of one text."""

    def __init__(self, text: str, makers: frozenset[str], idle: IsIdle) -> None:
        # of `site.names.unknown_name(...)`, whose class stands elsewhere
        self.makers = makers | {"unknown"}
        self.places, self.idle = Places(text), idle
        self.edits: list[Edit] = []
        self.taken: frozenset[str] | None = None  # the names whose values the function around here takes

    def body(self, body: Sequence[ast.stmt]) -> None:
        """Edits of some statements one below the other; one that would leave none puts `pass` there."""
        going = [each for each in body if self.goes(each)]
        if body and len(going) == len(body):
            self._remove(body[0], f"{' ' * body[0].col_offset}pass\n")
            going = going[1:]
        for each in going:
            self._remove(each)
        for each in body:
            if not self.goes(each):
                self._inside(each)

    def goes(self, node: ast.stmt) -> bool:
        """Whether a statement is a check, and nothing else."""
        match node:
            case ast.Raise():
                return self.raises([node])
            case ast.Expr(value=ast.Call() as call):
                return self.idle(call) and not asking_in(call)
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if self.taken is not None:
                return name not in self.taken and only_looks(value)
            case ast.For(iter=over, body=body, orelse=[]):
                return only_looks(over) and all(map(self.goes, body))
            case ast.If(test=test, body=body, orelse=orelse):
                return only_looks(test) and self.raises_or_goes(body) and self.raises_or_goes(orelse)
        return False

    def raises_or_goes(self, body: Sequence[ast.stmt]) -> bool:
        """Whether a branch does nothing but check."""
        return self.raises(body) or all(map(self.goes, body))

    def raises(self, body: Sequence[ast.stmt]) -> bool:
        """Whether a branch ends with one of our errors."""
        match body[-1] if body else None:
            case ast.Raise(exc=ast.Call(func=ast.Name(id=name))):
                return name in ERRORS
            case ast.Raise(exc=ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=attribute))):
                return name in ERRORS or attribute in self.makers
            case ast.Raise(exc=ast.Call(func=ast.Attribute(attr=attribute))):
                return attribute in self.makers
            case ast.If(body=inner, orelse=orelse):
                return bool(orelse) and self.raises(inner) and self.raises(orelse)
        return False

    def _inside(self, node: ast.stmt) -> None:
        match node:
            case ast.Expr(value=ast.Call() as call) if self.idle(call):
                self._asked(node, asking_in(call))
            case ast.If(test=test) if self.raises(node.body) and not only_looks(test):
                if not node.orelse:
                    self._asked(node, [test])
            case ast.If():
                self._branches(node)
            case ast.Try() if all(self.raises(each.body) for each in node.handlers) and not node.finalbody:
                self._freed(node, node.body)
            case ast.FunctionDef() | ast.ClassDef():
                before, self.taken = self.taken, loaded(node) if isinstance(node, ast.FunctionDef) else None
                self.body(node.body[1:] if docstring_of(node.body) and len(node.body) > 1 else node.body)
                self.taken = before
            case ast.For() | ast.While() | ast.With():
                self.body(node.body)
            case ast.Match():
                for case in node.cases:
                    self.body(case.body)

    def _branches(self, node: ast.If) -> None:
        """An `if` without the branches that only raise; the one after the first takes its place."""
        if self.raises(node.body):
            self._without_first(node, node.orelse)
        elif node.orelse and self.raises_or_goes(node.orelse):
            self.edits.append(self.places.rows(self._last(node.body) + 1, self._last([node])))
            self.body(node.body)
        else:
            self.body(node.body)
            self.body(node.orelse)

    def _without_first(self, node: ast.If, after: Sequence[ast.stmt]) -> None:
        begins = 2 * self._is_elif(node)
        if len(after) == 1 and self._is_elif(after[0]):
            self.edits.append(Edit(self.places.span(node)[0] + begins, self.places.span(after[0])[0] + 2))
        elif begins:
            otherwise = f"{' ' * node.col_offset}else:\n"
            self.edits.append(self.places.rows(node.lineno, self.places.first_line(after[0]) - 1, otherwise))
        else:
            self._freed(node, after)

    def _is_elif(self, node: ast.stmt) -> bool:
        return self.places.line(node.lineno).lstrip().startswith("elif")

    def _freed(self, node: ast.stmt, body: Sequence[ast.stmt]) -> None:
        """A body in place of what it stands in."""
        first, last = self.places.first_line(body[0]), self._last(body)
        text = self.places.dedented(first, last, body[0].col_offset - node.col_offset)
        self.edits.append(self.places.rows(node.lineno, self._last([node]), text))

    def _asked(self, node: ast.stmt, parts: Sequence[ast.expr]) -> None:
        """The parts of a check that do more than look, in place of it."""
        room = " " * node.col_offset
        text = "".join(f"{room}{ast.unparse(each)}\n" for each in parts)
        self.edits.append(self.places.rows(node.lineno, self._last([node]), text))

    def _remove(self, node: ast.stmt, instead: str = "") -> None:
        self.edits.append(self.places.rows(self.places.first_line(node), self._last([node]), instead))

    def _last(self, body: Sequence[ast.stmt]) -> int:
        return body[-1].end_lineno or body[-1].lineno


# ------------------------------------------------------------------------------------------- what does nothing


def does_nothing(function: ast.FunctionDef) -> bool:
    """Whether calling a function for nothing changes nothing: it gives what it finds, if it gives anything at all."""
    body = function.body[1:] if docstring_of(function.body) else function.body
    return all(_idle(each) for each in body)


def _idle(node: ast.stmt) -> bool:
    match node:
        case ast.Pass():
            return True
        case ast.Return(value=value) | ast.Assign(value=value):
            return value is None or not any(
                isinstance(each, ast.Call) and not _is_plain(each) for each in ast.walk(value)
            )
        case ast.If(body=body, orelse=orelse) | ast.For(body=body, orelse=orelse):
            return all(map(_idle, (*body, *orelse)))
    return False


def _is_plain(call: ast.Call) -> bool:
    """Whether a call is one of Python's own, or looks into a mapping."""
    if isinstance(call.func, ast.Attribute):
        return call.func.attr in ("get", "items", "keys", "values")
    return isinstance(call.func, ast.Name) and hasattr(builtins, call.func.id)


def asking_in(call: ast.Call) -> list[ast.expr]:
    """The arguments of a call that do more than look."""
    return [each for each in (*call.args, *(each.value for each in call.keywords)) if not only_looks(each)]


def only_looks(node: ast.expr) -> bool:
    """Whether an expression changes nothing: what is read of a site, or built there, is remembered."""
    return not any(_asks(each) for each in ast.walk(node) if isinstance(each, ast.Call))


def _asks(call: ast.Call) -> bool:
    if isinstance(call.func, ast.Attribute):
        return call.func.attr in ASKING
    said = (*call.args, *(each.value for each in call.keywords))
    return any(isinstance(each, ast.Name) and each.id == "site" for each in said)


def loaded(node: ast.FunctionDef) -> frozenset[str]:
    """The names whose values are taken somewhere in a function."""
    return frozenset(
        each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)
    )
