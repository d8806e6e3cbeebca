"""Conditions over the axes and costs of a point: numbers, texts, names, arithmetic, comparisons, `and`, `or`, `not`.

A tokenizer and a recursive descent of our own: a condition computes and compares, and can do nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from composer.errors import RecipeError, did_you_mean
from composer.recipe.node import Mark, Node, fault_at

MAX_LENGTH = 1000
MAX_DEPTH = 32
UNITS = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
CONSTANTS: dict[str, Value] = {"true": True, "false": False, "none": None}
ORDERS = ("<", "<=", ">", ">=")

_TOKEN = re.compile(
    r"(?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?(?P<unit>[A-Za-z_][A-Za-z0-9_]*)?)"
    r"|(?P<text>\"[^\"]*\"|'[^']*')"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<sign><=|>=|==|!=|[-+*/<>()\[\],])"
)


class _Token(NamedTuple):
    kind: str  # number, text, name, sign, end
    text: str
    at: int


def parse_condition(node: Node, path: str, names: Mapping[str, Operand]) -> Condition:
    """The condition that a text of a file holds. Raises RecipeError at the column of its first fault."""
    if not isinstance(node.value, str):
        message = "a condition is a text"
        raise RecipeError([fault_at(node.mark, "type", path, message, "write, for example, `parameters < 20M`")])
    try:
        return _Parser(node.value, names).whole()
    except _Wrong as wrong:
        fault = fault_at(_mark(node, wrong.at, wrong.length), "condition", path, wrong.message, wrong.hint)
        raise RecipeError([fault]) from None


def _mark(node: Node, at: int, length: int) -> Mark:
    """The place of a part of a text; the whole of it where it is folded or escaped."""
    mark = node.mark
    start = mark.column - 1 + node.quoted
    if mark.text[start : start + len(node.value)] != node.value:
        return mark
    return mark._replace(column=start + at + 1, length=max(1, length))


class _Wrong(Exception):
    """A fault of a condition, at a character of its text."""

    def __init__(self, at: int, length: int, message: str, hint: str) -> None:
        super().__init__(message)
        self.at, self.length, self.message, self.hint = at, length, message, hint


def _tokens(text: str) -> Iterator[_Token]:
    end = 0
    while True:
        end += len(text[end:]) - len(text[end:].lstrip())
        if end == len(text):
            break
        found = _TOKEN.match(text, end)
        if found is None:
            raise _Wrong(end, 1, f"`{text[end]}` means nothing in a condition", _sign_meant(text[end]))
        yield _token(found)
        end = found.end()
    yield _Token("end", "", max(0, len(text.rstrip()) - 1))


def _sign_meant(sign: str) -> str:
    meanings = {
        "=": "write `==`",
        "!": "write `not`, or `!=`",
        "&": "write `and`",
        "|": "write `or`",
        '"': 'close the text with another `"`',
        "'": "close the text with another `'`",
    }
    return meanings.get(sign, "write, for example, `parameters < 20M and flops < 2G`")


def _token(found: re.Match[str]) -> _Token:
    kind = next(kind for kind in ("number", "text", "name", "sign") if found[kind] is not None)
    unit = found["unit"] or ""
    if unit not in UNITS:
        message = f"`{unit}` is no unit of a number"
        raise _Wrong(found.start("unit"), len(unit), message, "the units are K, M, G and T: thousands to billions")
    return _Token(kind, found.group(), found.start())


def _number(text: str) -> float:
    unit = text[-1] if text[-1] in UNITS else ""
    return float(text.removesuffix(unit) if unit else text) * UNITS[unit]


class _Parser:
    """Recursive descent, from `or` down to a single value."""

    def __init__(self, text: str, names: Mapping[str, Operand]) -> None:
        if len(text) > MAX_LENGTH:
            raise _Wrong(0, 1, f"a condition has at most {MAX_LENGTH} characters", "write several, in a list")
        self.text, self.names = text, names
        self.tokens = list(_tokens(text))
        self.index = 0
        self.depth = 0

    @property
    def next(self) -> _Token:
        return self.tokens[self.index]

    def whole(self) -> Condition:
        found = self.either()
        if self.next.kind != "end":
            self.refuse_rest()
        _must(found, "truth", "a condition holds or does not", "compare it, for example with `<` or `==`")
        return Condition(found.op, found.parts, found.value, found.at, found.length, found.kind, self.text.strip())

    def refuse_rest(self) -> None:
        token = self.next
        if token.text in COMPARISONS:
            raise _Wrong(token.at, len(token.text), "comparisons do not follow each other", "write `a < b and b < c`")
        raise _Wrong(
            token.at,
            len(token.text),
            f"`{token.text}` does not fit what stands before it",
            "join conditions by `and` or `or`",
        )

    def take(self, *texts: str) -> _Token | None:
        """The next token, if it is one of these words or signs."""
        token = self.next
        if token.kind not in ("name", "sign") or token.text not in texts:
            return None
        self.index += 1
        return token

    def either(self) -> Condition:
        return self.joined("or", self.both)

    def both(self) -> Condition:
        return self.joined("and", self.negated)

    def joined(self, word: str, inner: Callable[[], Condition]) -> Condition:
        parts = [inner()]
        while self.take(word):
            parts.append(inner())
        if len(parts) == 1:
            return parts[0]
        for part in parts:
            _must(part, "truth", f"`{word}` joins conditions", "compare it, for example with `<` or `==`")
        return self.made(word, parts, "truth")

    def negated(self) -> Condition:
        word = self.take("not")
        if word is None:
            return self.comparison()
        with self.deeper(word):
            part = self.negated()
        _must(part, "truth", "`not` stands before a condition", "put brackets around it: `not (a == b)`")
        return Condition("not", (part,), None, word.at, part.at + part.length - word.at, "truth")

    def deeper(self, token: _Token) -> _Deeper:
        if self.depth == MAX_DEPTH:
            raise _Wrong(token.at, 1, f"more than {MAX_DEPTH} brackets lie inside each other", "write it shorter")
        return _Deeper(self)

    def comparison(self) -> Condition:
        left = self.sum()
        sign = self.take(*COMPARISONS)
        if sign is not None:
            right = self.sum()
            self.check_comparison(sign, left, right)
            return self.made(sign.text, [left, right], "truth")
        negative = self.next.text == "not" and self.tokens[self.index + 1].text == "in"
        if negative:
            self.index += 1
        if not self.take("in"):
            return left
        found = self.made("in", [left, *self.members(left)], "truth")
        return Condition("not", (found,), None, found.at, found.length, "truth") if negative else found

    def members(self, left: Condition) -> list[Condition]:
        opened = self.next
        if not self.take("["):
            raise _Wrong(opened.at, len(opened.text) or 1, "after `in` stands a list", 'write `in ["a", "b"]`')
        parts: list[Condition] = []
        while not self.take("]"):
            if parts and not self.take(","):
                raise _Wrong(opened.at, 1, "this `[` is never closed", "part the values by commas, and close it")
            parts.append(self.sum())
            self.check_comparison(opened._replace(text="=="), left, parts[-1])
        return parts

    def sum(self) -> Condition:
        return self.chain(("+", "-"), self.product)

    def product(self) -> Condition:
        return self.chain(("*", "/"), self.signed)

    def chain(self, signs: Sequence[str], inner: Callable[[], Condition]) -> Condition:
        first = inner()
        parts, ops = [first], []
        while sign := self.take(*signs):
            ops.append(sign.text)
            parts.append(inner())
        for part in parts if ops else ():
            _must(part, "number", f"`{ops[0]}` computes with numbers", "use numbers alone")
        return self.made("".join(ops), parts, "number") if ops else first

    def signed(self) -> Condition:
        minus = self.take("-")
        if minus is None:
            return self.single()
        with self.deeper(minus):
            part = self.signed()
        _must(part, "number", "`-` stands before a number", "use numbers alone")
        return Condition("negative", (part,), None, minus.at, part.at + part.length - minus.at, "number")

    def single(self) -> Condition:
        token = self.next
        if self.take("("):
            with self.deeper(token):
                inner = self.either()
            if not self.take(")"):
                raise _Wrong(token.at, 1, "this `(` is never closed", "close it")
            return inner
        if token.kind == "end" or token.kind == "sign" or token.text in ("and", "or", "in", "not"):
            what = (
                "a value is missing at the end" if token.kind == "end" else f"a value is missing before `{token.text}`"
            )
            raise _Wrong(token.at, len(token.text) or 1, what, "write a number, a text in quotes or a name")
        self.index += 1
        return self.leaf(token)

    def leaf(self, token: _Token) -> Condition:
        length = len(token.text)
        if token.kind == "number":
            return Condition("value", (), _number(token.text), token.at, length, "number")
        if token.kind == "text":
            return Condition("value", (), token.text[1:-1], token.at, length, "text")
        if token.text in CONSTANTS:
            kind: Kind = "none" if token.text == "none" else "truth"
            return Condition("value", (), CONSTANTS[token.text], token.at, length, kind)
        if token.text not in self.names:
            texts = [name for name, each in self.names.items() if token.text in (each.values or ())]
            hint = f'write "{token.text}", in quotes' if texts else f"the names are {', '.join(self.names)}"
            message = f"there is no axis or cost `{token.text}`{'' if texts else did_you_mean(token.text, self.names)}"
            raise _Wrong(token.at, length, message, hint)
        return Condition("name", (), token.text, token.at, length, self.names[token.text].kind)

    def made(self, op: str, parts: Sequence[Condition], kind: Kind) -> Condition:
        at, end = parts[0].at, parts[-1].at + parts[-1].length
        return Condition(op, tuple(parts), None, at, end - at, kind)

    def check_comparison(self, sign: _Token, left: Condition, right: Condition) -> None:
        if "none" in (left.kind, right.kind):
            self.check_none(sign, left, right)
            return
        if left.kind != right.kind and "mixed" not in (left.kind, right.kind):
            message = f"a {left.kind} is never {sign.text} a {right.kind}"
            raise _Wrong(right.at, right.length, message, _requoted(left, right))
        if sign.text in ORDERS and {left.kind, right.kind} != {"number"}:
            raise _Wrong(sign.at, len(sign.text), f"`{sign.text}` compares numbers", "write `==`, `!=` or `in [...]`")
        self.check_label(left, right)
        self.check_label(right, left)

    def check_none(self, sign: _Token, left: Condition, right: Condition) -> None:
        if sign.text not in ("==", "!="):
            raise _Wrong(sign.at, len(sign.text), "`none` is no number", "write `== none` or `!= none`")
        for each in (left, right):
            known = self.names.get(str(each.value)) if each.op == "name" else None
            if known is not None and not known.may_be_inactive:
                quoted = 'write "none", in quotes' if "none" in (known.values or ()) else "remove it"
                raise _Wrong(each.at, each.length, f"`{each.value}` always has a value", quoted)

    def check_label(self, name: Condition, other: Condition) -> None:
        """Refuses a comparison with what an axis never is; a number may well be compared with one that it never is."""
        values = self.names[str(name.value)].values if name.op == "name" else None
        if values is None or other.op != "value" or other.kind != "text" or other.value in values:
            return
        labels = [str(value) for value in values]
        message = f"`{name.value}` is never `{other.value}`{did_you_mean(str(other.value), labels)}"
        raise _Wrong(other.at, other.length, message, f"it is one of {', '.join(labels)}")


class _Deeper:
    """Counts the brackets around what is read while it is entered."""

    def __init__(self, parser: _Parser) -> None:
        self.parser = parser

    def __enter__(self) -> None:
        self.parser.depth += 1

    def __exit__(self, *_: object) -> None:
        self.parser.depth -= 1


def _must(part: Condition, kind: Kind, why: str, hint: str) -> None:
    if part.kind != kind:
        raise _Wrong(part.at, part.length, f"{why}, and this is a {part.kind}", hint)


def _requoted(left: Condition, right: Condition) -> str:
    if {left.kind, right.kind} == {"text", "number"}:
        return "write numbers without quotes, and texts in quotes"
    return "compare what is of one kind"


Value = str | int | float | bool | None
Kind = Literal["number", "text", "truth", "none", "mixed"]
"""`mixed` is an axis whose values are of several kinds."""

COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")


class Operand(NamedTuple):
    """What can be named: its kind, and where they are few its values."""

    kind: Kind
    values: tuple[Value, ...] | None = None
    may_be_inactive: bool = False


@dataclass(frozen=True)
class Condition:
    """One part of a condition; `at` is its first character in the text, `kind` what it gives, `names` what it reads."""

    op: str
    parts: tuple[Condition, ...]
    value: Value
    at: int
    length: int
    kind: Kind
    text: str = ""

    @property
    def names(self) -> frozenset[str]:
        """The names that it reads."""
        own = frozenset([str(self.value)]) if self.op == "name" else frozenset()
        return own.union(*(part.names for part in self.parts))


def holds(expression: Condition, values: Mapping[str, Value]) -> bool:
    """Whether a condition holds where its names have these values; a name without one is `none`."""
    return value_of(expression, values) is True


def value_of(expression: Condition, values: Mapping[str, Value]) -> Value:
    """What an expression gives where its names have these values."""
    op, parts = expression.op, expression.parts
    if op == "value":
        return expression.value
    if op == "name":
        return values.get(str(expression.value))
    if op == "and":
        return all(value_of(part, values) is True for part in parts)
    if op == "or":
        return any(value_of(part, values) is True for part in parts)
    if op == "not":
        return value_of(parts[0], values) is not True
    given = [value_of(part, values) for part in parts]
    if op == "in":
        return any(_compared("==", given[0], each) for each in given[1:])
    if op in COMPARISONS:
        return _asks_none(op, parts, given) if "none" in (parts[0].kind, parts[1].kind) else _compared(op, *given)
    return _computed(op, given)


def _asks_none(op: str, parts: Sequence[Condition], given: Sequence[Value]) -> bool:
    """Whether an axis has no value here."""
    return (given[0] is None and given[1] is None) == (op == "==")


def _compared(op: str, left: Value, right: Value) -> bool:
    """No comparison holds with what has no value."""
    if left is None or right is None:
        return False
    if op in ("==", "!="):
        return (left == right) == (op == "==")
    if isinstance(left, str) or isinstance(right, str):
        return False
    return {"<": left < right, "<=": left <= right, ">": left > right, ">=": left >= right}[op]


def _computed(op: str, given: Sequence[Value]) -> float | None:
    numbers = [float(each) for each in given if isinstance(each, (int, float))]
    if len(numbers) < len(given):
        return None
    if op == "negative":
        return -numbers[0]
    total = numbers[0]
    for sign, number in zip(op, numbers[1:], strict=True):
        total = _step(sign, total, number)
    return total


def _step(sign: str, left: float, right: float) -> float:
    if sign == "/":
        return left / right if right else float("nan")
    return {"+": left + right, "-": left - right, "*": left * right}[sign]
