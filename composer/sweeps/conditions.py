"""Conditions over axes and costs (`when`, `where`): a subset of Python expressions.

`ast` parses the text with each number, text and name replaced by an identifier of the same length,
so that the columns of syntax nodes are those of the text. Nodes outside a whitelist are refused.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

from composer.errors import error_at
from composer.recipe.yaml_reader import Node
from composer.suggest import did_you_mean

Value = str | int | float | bool | None
Values = Mapping[str, Value]
Evaluate = Callable[[Values], Value]
Kind = Literal["number", "text", "truth", "none", "mixed"]
"""`mixed` is an axis whose values are of several kinds."""

MAX_LENGTH = 256
"""Characters of a condition, which bounds its nesting."""
UNITS = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
CONSTANTS: dict[str, Value] = {"true": True, "false": False, "none": None}
ORDERS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
SIGNS: dict[type, str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}
ARITHMETIC = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}
INSTEAD = {"=": "write `==`", "!": "write `not`, or `!=`", "&": "write `and`", "|": "write `or`"}
COMPARE = "compare it, for example with `<` or `==`"
INSTEAD |= {quote: f"close the text with another `{quote}`" for quote in "\"'"}
_TOKEN = re.compile(
    r"(?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)"
    r"(?P<unit>[A-Za-z_][A-Za-z0-9_]*)?"
    r"|(?P<text>\"[^\"]*\"|'[^']*')"
    r"|(?P<sign>not\s+in\b|(?:and|or|not|in)\b|<=|>=|==|!=|[-+*/<>()\[\],])"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<other>\S)"
)


class Operand(NamedTuple):
    """An axis or cost that a condition can name: its kind, and its values if they are listed."""

    kind: Kind
    values: tuple[Value, ...] | None = None
    may_be_inactive: bool = False


@dataclass(frozen=True)
class Condition:
    """A checked condition: its text, the names in it, and the function that evaluates it."""

    text: str
    names: frozenset[str]
    evaluate: Evaluate


def holds(condition: Condition, values: Values) -> bool:
    """True if a condition is true at a point. A name without a value there is `none`."""
    return condition.evaluate(values) is True


def parse_condition(node: Node, path: str, names: Mapping[str, Operand]) -> Condition:
    """Parse and type-check a condition. Raises RecipeError with the first fault."""
    try:
        return _Parser(node.value, names).parse()
    except _ConditionError as error:
        span, message, hint = error.args
        mark, column = node.mark, node.mark.column - 1 + node.quoted
        # a text that is folded or has escapes has other columns than the file
        if mark.text[column : column + len(node.value)] == node.value:
            length = max(1, span.end - span.start)
            mark = mark._replace(column=column + span.start + 1, length=length)
        raise error_at(mark, "condition", path, message, hint) from None


class _Span(NamedTuple):
    start: int
    end: int


class _ConditionError(Exception):
    """A fault of a condition; its arguments are its span, its message and its hint."""


class _Token(NamedTuple):
    kind: str  # number, text, name or sign
    text: str
    span: _Span


class _Part(NamedTuple):
    """A checked part of a condition: an axis or cost by its `name`, a quoted `literal`, or both."""

    kind: Kind
    span: _Span
    evaluate: Evaluate
    name: str = ""
    literal: str | None = None


class _Parser:
    """Parses one text and checks the kinds of all parts, so that it has a value at every point."""

    def __init__(self, text: str, names: Mapping[str, Operand]) -> None:
        if len(text) > MAX_LENGTH:
            message = f"a condition has at most {MAX_LENGTH} characters"
            raise _ConditionError(_Span(0, 1), message, "write several, in a list")
        self.text, self.names = text, names
        self.tokens = [*_tokens(text)]
        operands = [token for token in self.tokens if token.kind != "sign"]
        self.operands = {token.span.start: self.operand(token) for token in operands}

    def is_after_value(self) -> bool:
        if not self.tokens:
            return False
        last = self.tokens[-1]
        return last.kind != "sign" or last.text in (")", "]")

    def parse(self) -> Condition:
        masked = [" "] * len(self.text)
        for token in self.tokens:
            masked[slice(*token.span)] = "x" * len(token.text)
            if token.kind == "sign":
                masked[slice(*token.span)] = re.sub(r"\s", " ", token.text)
        source = "".join(masked).lstrip()  # leading blanks would be an indentation
        self.shift = len(masked) - len(source)
        try:
            tree = ast.parse(source, mode="eval")
        except SyntaxError as error:
            raise self.explain(error) from None
        root = self.build(tree.body)
        _require([root], "truth", "a condition is true or false", COMPARE)
        names = frozenset(part.name for part in self.operands.values() if part.name)
        return Condition(self.text.strip(), names, root.evaluate)

    def explain(self, error: SyntaxError) -> _ConditionError:
        """Translate an error of Python's parser into the terms of conditions."""
        # of two values without a comma Python marks both; the second is at fault
        is_pair = "comma" in error.msg
        offset = error.end_offset if is_pair else error.offset
        start = self.shift + offset - (2 if is_pair else 1) if offset else len(self.text)
        index = sum(token.span.end <= start for token in self.tokens)
        missing = "write a number, a text in quotes or a name"
        if "never closed" in error.msg:
            token = self.tokens[index]
            return _ConditionError(token.span, f"this `{token.text}` is never closed", "close it")
        if index >= len(self.tokens) - 1 and not self.is_after_value():
            end = max(0, len(self.text.rstrip()) - 1)
            return _ConditionError(_Span(end, end + 1), "a value is missing at the end", missing)
        token = self.tokens[min(index, len(self.tokens) - 1)]
        del self.tokens[index:]
        if self.is_after_value():
            message = f"`{token.text}` cannot follow a value"
            hint = "join conditions by `and` or `or`, and values by commas"
            return _ConditionError(token.span, message, hint)
        return _ConditionError(token.span, f"a value is missing before `{token.text}`", missing)

    def operand(self, token: _Token) -> _Part:
        if token.kind == "text":
            text = token.text[1:-1]
            return _Part("text", token.span, lambda _: text, literal=text)
        if token.kind == "number":
            unit = token.text[-1] if token.text[-1] in UNITS else ""
            number = float(token.text.removesuffix(unit)) * UNITS[unit]
            return _Part("number", token.span, lambda _: number)
        if token.text in CONSTANTS:
            constant = CONSTANTS[token.text]
            return _Part("none" if constant is None else "truth", token.span, lambda _: constant)
        if token.text in self.names:
            name = token.text
            return _Part(self.names[name].kind, token.span, lambda values: values.get(name), name)
        message = f"there is no axis or cost `{token.text}`"
        if any(token.text in (operand.values or ()) for operand in self.names.values()):
            raise _ConditionError(token.span, message, f'write "{token.text}", in quotes')
        hint = f"the names are {', '.join(self.names)}"
        raise _ConditionError(token.span, f"{message}{did_you_mean(token.text, self.names)}", hint)

    def build(self, node: ast.expr) -> _Part:
        """Return the part of a syntax node; raise for nodes outside the whitelist."""
        span = _Span(self.shift + node.col_offset, self.shift + (node.end_col_offset or 0))
        match node:
            case ast.Name():
                return self.operands[span.start]
            case ast.BoolOp():
                word, combine = ("and", all) if isinstance(node.op, ast.And) else ("or", any)
                parts = [self.build(value) for value in node.values]
                _require(parts, "truth", f"`{word}` joins conditions", COMPARE)
                tests = [_is_true(part) for part in parts]
                return _Part("truth", span, lambda values: combine(t(values) for t in tests))
            case ast.UnaryOp(op=ast.Not()):
                part = self.build(node.operand)
                hint = "put brackets around it: `not (a == b)`"
                _require([part], "truth", "`not` negates a condition", hint)
                is_true = _is_true(part)
                return _Part("truth", span, lambda values: not is_true(values))
            case ast.UnaryOp(op=ast.USub()):
                part = self.build(node.operand)
                _require([part], "number", "`-` negates a number", "use only numbers")
                negate = partial(_compute, "-", 0.0)
                return _Part("number", span, lambda values: negate(part.evaluate(values)))
            case ast.BinOp() if type(node.op) in SIGNS:
                return self.arithmetic(node, span)
            case ast.Compare():
                return self.comparison(node, span)
        hint = "compare values, joined by `and` or `or`"
        raise _ConditionError(span, "this is not allowed in a condition", hint)

    def arithmetic(self, node: ast.BinOp, span: _Span) -> _Part:
        sign, left, right = SIGNS[type(node.op)], self.build(node.left), self.build(node.right)
        _require([left, right], "number", f"`{sign}` needs numbers", "use only numbers")
        if sign == "/" and right.evaluate({}) == 0:
            raise _ConditionError(span, "this divides by zero", "divide by another number")
        compute = partial(_compute, sign)
        return _Part(
            "number", span, lambda values: compute(left.evaluate(values), right.evaluate(values))
        )

    def comparison(self, node: ast.Compare, span: _Span) -> _Part:
        left, right, sign = self.build(node.left), node.comparators[0], self.sign_after(node.left)
        if len(node.ops) > 1:
            message = "comparisons cannot be chained"
            raise _ConditionError(self.sign_after(right).span, message, "write `a < b and b < c`")
        if not isinstance(node.ops[0], ast.In | ast.NotIn):
            return _Part("truth", span, self.compare(sign, left, self.build(right)))
        if not isinstance(right, ast.List):
            hint = 'write `in ["a", "b"]`'
            raise _ConditionError(self.build(right).span, "`in` needs a list after it", hint)
        is_negated = isinstance(node.ops[0], ast.NotIn)
        sign = sign._replace(text="!=" if is_negated else "==")
        combine = all if is_negated else any
        tests = [self.compare(sign, left, self.build(item)) for item in right.elts]
        return _Part("truth", span, lambda values: combine(t(values) is True for t in tests))

    def compare(self, sign: _Token, left: _Part, right: _Part) -> Evaluate:
        self.check_kinds(sign, left, right)
        # the one comparison that an axis without a value can pass
        if "none" in (left.kind, right.kind):
            some = [part for part in (left, right) if part.kind != "none"]
            return lambda values: (
                all(part.evaluate(values) is None for part in some) is (sign.text == "==")
            )
        return lambda values: _compare(sign.text, left.evaluate(values), right.evaluate(values))

    def sign_after(self, node: ast.expr) -> _Token:
        """Return the comparison sign after a node, whose place `ast` does not keep."""
        end = self.shift + (node.end_col_offset or 0)
        after = [token for token in self.tokens if token.span.start >= end]
        return next(token for token in after if token.text not in (")", "]"))

    def check_kinds(self, sign: _Token, left: _Part, right: _Part) -> None:
        """Raise if a sign cannot compare two kinds, or an axis never has the other value."""
        kinds = {left.kind, right.kind}
        if "none" in kinds and sign.text not in ("==", "!="):
            hint = "write `== none` or `!= none`"
            raise _ConditionError(sign.span, "`none` is not a number", hint)
        if len(kinds) > 1 and not kinds & {"none", "mixed"}:
            hint = "compare values of one kind"
            if kinds == {"text", "number"}:
                hint = "write numbers without quotes, and texts in quotes"
            message = f"a {left.kind} is never {sign.text} a {right.kind}"
            raise _ConditionError(right.span, message, hint)
        if sign.text in ORDERS and kinds != {"number"}:
            hint = "write `==`, `!=` or `in [...]`"
            raise _ConditionError(sign.span, f"`{sign.text}` compares numbers", hint)
        for axis, other in ((left, right), (right, left)):
            if not axis.name:
                continue
            _, values, may_be_inactive = self.names[axis.name]
            if "none" in kinds and not may_be_inactive:
                hint = 'write "none", in quotes' if "none" in (values or ()) else "remove it"
                raise _ConditionError(axis.span, f"`{axis.name}` always has a value", hint)
            text = other.literal
            if values is not None and text is not None and text not in values:
                labels = [str(value) for value in values]
                message = f"`{axis.name}` is never `{text}`{did_you_mean(text, labels)}"
                raise _ConditionError(other.span, message, f"it is one of {', '.join(labels)}")


def _tokens(text: str) -> Iterator[_Token]:
    value_end = -1  # of the last number, text, name or word, where another may not begin
    for token in _TOKEN.finditer(text):
        span = _Span(*token.span())
        if (other := token["other"]) is not None:
            hint = INSTEAD.get(other, "write, for example, `parameters < 20M and flops < 2G`")
            raise _ConditionError(span, f"`{other}` is not allowed in a condition", hint)
        if (unit := token["unit"] or "") not in UNITS:
            hint = "the units are k, M, G and T: thousands, millions, billions and trillions"
            raise _ConditionError(_Span(*token.span("unit")), f"`{unit}` is not a unit", hint)
        kind = next(kind for kind in ("number", "text", "sign", "name") if token[kind] is not None)
        if kind != "sign" or token.group()[0].isalpha():
            if span.start == value_end:
                message = f"`{token.group()}` needs a space before it"
                hint = "write a space or an operator between them"
                hint += "; numbers have no thousands separators"
                raise _ConditionError(span, message, hint)
            value_end = span.end
        yield _Token(kind, token.group(), span)


def _is_true(part: _Part) -> Callable[[Values], bool]:
    return lambda values: part.evaluate(values) is True


def _require(parts: Sequence[_Part], kind: Kind, reason: str, hint: str) -> None:
    for part in parts:
        if part.kind != kind:
            raise _ConditionError(part.span, f"{reason}, and this is a {part.kind}", hint)


def _compute(sign: str, left: Value, right: Value) -> float | None:
    """Return the result of an operator; None if an operand has no value, NaN for division by 0."""
    if not isinstance(left, int | float) or not isinstance(right, int | float):
        return None
    return float("nan") if sign == "/" and not right else float(ARITHMETIC[sign](left, right))


def _compare(sign: str, left: Value, right: Value) -> bool:
    """Compare two values. No comparison holds with an axis that has no value."""
    if left is None or right is None:
        return False
    if sign in ("==", "!="):
        return (left == right) == (sign == "==")
    return not isinstance(left, str) and not isinstance(right, str) and ORDERS[sign](left, right)
