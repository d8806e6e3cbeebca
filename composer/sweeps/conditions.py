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
from typing import Literal, NamedTuple

from composer.errors import error_at
from composer.recipe.yaml_reader import Node
from composer.suggest import did_you_mean

Value = str | int | float | bool | None
Values = Mapping[str, Value]
Evaluate = Callable[[Values], Value]
Token = re.Match[str]
Span = tuple[int, int]
"""Where a part of a condition begins and ends."""
Kind = Literal["number", "text", "truth", "none", "mixed"]
"""`mixed` is an axis whose values are of several kinds."""

MAX_LENGTH = 256
"""Characters of a condition, which bounds its nesting."""
UNITS = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
CONSTANTS: dict[str, Value] = {"true": True, "false": False, "none": None}
ORDERS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
SIGNS: dict[type, str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}
ARITHMETIC = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}
COMPARE = "compare it, for example with `<` or `==`"
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
        (start, end), message, hint = error.args
        mark, column = node.mark, node.mark.column - 1 + node.quoted
        # a text that is folded or has escapes has other columns than the file
        if mark.text[column : column + len(node.value)] == node.value:
            mark = mark._replace(column=column + start + 1, length=max(1, end - start))
        raise error_at(mark, "condition", path, message, hint) from None


class _ConditionError(Exception):
    """A fault of a condition; its arguments are its span, its message and its hint."""


class _Part(NamedTuple):
    """A checked part of a condition: an axis or cost by its `name`, a quoted `literal`, or both."""

    kind: Kind
    span: Span
    evaluate: Evaluate
    name: str = ""
    literal: str | None = None


class _Parser:
    """Parses one text and checks the kinds of all parts, so that it has a value at every point."""

    def __init__(self, text: str, names: Mapping[str, Operand]) -> None:
        if len(text) > MAX_LENGTH:
            message = f"a condition has at most {MAX_LENGTH} characters"
            raise _ConditionError((0, 1), message, "write several, in a list")
        self.text, self.names = text, names
        self.tokens = [*_tokens(text)]
        operands = [token for token in self.tokens if not token["sign"]]
        self.operands = {token.start(): self.operand(token) for token in operands}

    def parse(self) -> Condition:
        masked = _TOKEN.sub(lambda token: token["sign"] or "x" * len(token.group()), self.text)
        source = re.sub(r"\s", " ", masked).lstrip()  # leading blanks would be an indentation
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
        """Return an error of Python's parser as a fault at a token, or at the end."""
        hint = "write an operator or a comma between values, and close every bracket"
        # of two values without a comma Python marks both; the second is at fault
        offset = (error.end_offset or 0) - 1 if "comma" in error.msg else error.offset or 0
        for token in self.tokens:
            if token.end() >= self.shift + offset > 0:
                message = f"`{token.group()}` cannot stand here"
                return _ConditionError(token.span(), message, hint)
        end = len(self.text.rstrip())
        return _ConditionError((max(0, end - 1), end), "a value is missing at the end", hint)

    def operand(self, token: Token) -> _Part:
        word, span = token.group(), token.span()
        if token["text"]:
            return _Part("text", span, lambda _: word[1:-1], literal=word[1:-1])
        if token["number"]:
            number = float(token["number"]) * UNITS[token["unit"] or ""]
            return _Part("number", span, lambda _: number)
        if word in CONSTANTS:
            constant = CONSTANTS[word]
            return _Part("none" if constant is None else "truth", span, lambda _: constant)
        if word in self.names:
            return _Part(self.names[word].kind, span, lambda values: values.get(word), word)
        hint = f"the names are {', '.join(self.names)}; texts are in quotes"
        message = f"there is no axis or cost `{word}`{did_you_mean(word, self.names)}"
        raise _ConditionError(span, message, hint)

    def build(self, node: ast.expr) -> _Part:
        """Return the part of a syntax node; raise for nodes outside the whitelist."""
        span = self.shift + node.col_offset, self.shift + (node.end_col_offset or 0)
        match node:
            case ast.Name():
                return self.operands[span[0]]
            case ast.BoolOp():
                word, combine = ("and", all) if isinstance(node.op, ast.And) else ("or", any)
                parts = [self.build(value) for value in node.values]
                _require(parts, "truth", f"`{word}` joins conditions", COMPARE)
                return _Part(
                    "truth", span, lambda values: combine(p.evaluate(values) is True for p in parts)
                )
            case ast.UnaryOp(op=ast.Not()):
                part = self.build(node.operand)
                hint = "put brackets around it: `not (a == b)`"
                _require([part], "truth", "`not` negates a condition", hint)
                return _Part("truth", span, lambda values: part.evaluate(values) is not True)
            case ast.UnaryOp(op=ast.USub()):
                return self.arithmetic("-", _Part("number", span, lambda _: 0), node.operand, span)
            case ast.BinOp() if type(node.op) in SIGNS:
                return self.arithmetic(
                    SIGNS[type(node.op)], self.build(node.left), node.right, span
                )
            case ast.Compare():
                return _Part("truth", span, self.comparison(node))
        hint = "compare values, joined by `and` or `or`"
        raise _ConditionError(span, "this is not allowed in a condition", hint)

    def arithmetic(self, sign: str, left: _Part, second: ast.expr, span: Span) -> _Part:
        right = self.build(second)
        _require([left, right], "number", f"`{sign}` needs numbers", "use only numbers")
        return _Part(
            "number",
            span,
            lambda values: _compute(sign, left.evaluate(values), right.evaluate(values)),
        )

    def comparison(self, node: ast.Compare) -> Evaluate:
        left, right, sign = self.build(node.left), node.comparators[0], self.sign_after(node.left)
        if len(node.ops) > 1:
            span, message = self.sign_after(right).span(), "comparisons cannot be chained"
            raise _ConditionError(span, message, "write `a < b and b < c`")
        if not isinstance(node.ops[0], ast.In | ast.NotIn):
            return self.compare(sign, sign.group(), left, self.build(right))
        if not isinstance(right, ast.List):
            hint = 'write `in ["a", "b"]`'
            raise _ConditionError(self.build(right).span, "`in` needs a list after it", hint)
        word, combine = ("==", any) if isinstance(node.ops[0], ast.In) else ("!=", all)
        tests = [self.compare(sign, word, left, self.build(item)) for item in right.elts]
        return lambda values: combine(test(values) is True for test in tests)

    def sign_after(self, node: ast.expr) -> Token:
        """Return the comparison sign after a node, whose place `ast` does not keep."""
        end = self.shift + (node.end_col_offset or 0)
        after = (token for token in self.tokens if token.start() >= end)
        return next(token for token in after if token.group() not in (")", "]"))

    def compare(self, token: Token, sign: str, left: _Part, right: _Part) -> Evaluate:
        """Return a comparison; raise if two kinds cannot be compared, or an axis has no such value.

        sign: What is compared by at the place of a token, `==` for each item after `in`.
        """
        kinds = {left.kind, right.kind}
        if len(kinds) > 1 and not kinds & {"none", "mixed"}:
            message = f"a {left.kind} is never {sign} a {right.kind}"
            hint = "compare values of one kind: numbers without quotes, texts in quotes"
            raise _ConditionError(right.span, message, hint)
        if sign in ORDERS and kinds != {"number"}:
            hint = "write `==`, `!=` or `in [...]`"
            raise _ConditionError(token.span(), f"`{sign}` compares numbers", hint)
        for axis, other in ((left, right), (right, left)):
            if axis.name:
                self.check_value(axis, other)
        # the one comparison that an axis without a value can pass
        has_none = "none" in kinds
        return lambda values: _compare(
            sign, left.evaluate(values), right.evaluate(values), has_none
        )

    def check_value(self, axis: _Part, other: _Part) -> None:
        """Raise if an axis, or a cost, never has the value of the other part."""
        _, values, may_be_inactive = self.names[axis.name]
        if other.kind == "none" and not may_be_inactive:
            hint = 'remove it, or write "none", in quotes'
            raise _ConditionError(axis.span, f"`{axis.name}` always has a value", hint)
        text = other.literal
        if values is not None and text is not None and text not in values:
            labels = [str(value) for value in values]
            message = f"`{axis.name}` is never `{text}`{did_you_mean(text, labels)}"
            raise _ConditionError(other.span, message, f"it is one of {', '.join(labels)}")


def _tokens(text: str) -> Iterator[Token]:
    value_end = -1  # of the last number, text, name or word, where another may not begin
    for token in _TOKEN.finditer(text):
        word, span, unit = token.group(), token.span(), token["unit"] or ""
        if token["other"]:
            hint = 'write, for example, `parameters < 20M and encoder == "rnn"`'
            raise _ConditionError(span, f"`{word}` is not allowed in a condition", hint)
        if unit not in UNITS:
            hint = "the units are k, M, G and T: thousands, millions, billions and trillions"
            raise _ConditionError(token.span("unit"), f"`{unit}` is not a unit", hint)
        if not token["sign"] or word[0].isalpha():
            if token.start() == value_end:
                hint = "write a space or an operator between them"
                hint += "; numbers have no thousands separators"
                raise _ConditionError(span, f"`{word}` needs a space before it", hint)
            value_end = token.end()
        yield token


def _require(parts: Sequence[_Part], kind: Kind, reason: str, hint: str) -> None:
    for part in parts:
        if part.kind != kind:
            raise _ConditionError(part.span, f"{reason}, and this is a {part.kind}", hint)


def _compute(sign: str, left: Value, right: Value) -> float | None:
    """Return the result of an operator; None if an operand has no value, NaN for division by 0."""
    if not isinstance(left, int | float) or not isinstance(right, int | float):
        return None
    return float("nan") if sign == "/" and not right else float(ARITHMETIC[sign](left, right))


def _compare(sign: str, left: Value, right: Value, has_none: bool) -> bool:
    """Compare two values. No comparison but with `none` holds with an axis that has no value."""
    if not has_none and None in (left, right):
        return False
    if sign in ("==", "!="):
        return (left == right) == (sign == "==")
    if not isinstance(left, int | float) or not isinstance(right, int | float):
        return False
    return ORDERS[sign](left, right)
