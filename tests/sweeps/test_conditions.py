"""Conditions: what they come to, what they refuse and at which column; against an evaluator of
their own structure.
"""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from composer.errors import Mark, RecipeError
from composer.recipe.yaml_reader import Node
from composer.sweeps.conditions import MAX_LENGTH, Operand, holds, parse_condition

NAMES = {
    "parameters": Operand("number"),
    "encoder": Operand("text", ("attention", "recurrent", "none")),
    "decoder": Operand("text", ("attention", "recurrent"), may_be_inactive=True),
    "rate": Operand("number", None, may_be_inactive=True),
    "tied": Operand("truth", (True, False)),
    "heads": Operand("mixed", (1, "all")),
}
VALUES: dict[str, Any] = {
    "parameters": 20_000_000,
    "encoder": "recurrent",
    "tied": True,
    "heads": 1,
}


def node(text: str) -> Node:
    line = f"where: {text}"
    return Node(text, Mark("s.yaml", 3, 8, len(text), line), text=text)


def truth(text: str, **values: Any) -> bool:
    return holds(parse_condition(node(text), "where", NAMES), VALUES | values)


@pytest.mark.parametrize(
    "text",
    [
        "parameters <= 20M",
        "parameters > 400k and parameters < 1.5G",
        "parameters == 20000K and parameters < 0.021G",
        "parameters / 2 == 1e7",
        "parameters - 1M * 10 == 10M",
        "(parameters - 1M) * 2 == 38M",
        "-parameters < 0",
        "1 - 2 - 3 == -4",
        "8 / 2 / 2 == 2",
        'encoder == "recurrent"',
        "encoder != 'attention'",
        'encoder in ["attention", "recurrent"]',
        'encoder not in ["attention"]',
        'not encoder == "attention" and tied',
        'encoder == "attention" or tied and parameters > 1',
        "tied == true",
        'heads == 1 and heads != "all"',
    ],
)
def test_a_true_condition_holds(text: str) -> None:
    assert truth(text)


ZERO = "(parameters - 20M)"


@pytest.mark.parametrize(
    "text",
    [
        "parameters < 20M",
        f"parameters / {ZERO} > 1",
        f"parameters / {ZERO} < 1",
        "parameters / 0 < 1",
        "not tied",
        "0T > 0",
    ],
)
def test_a_false_condition_does_not_hold(text: str) -> None:
    assert not truth(text)


def test_no_comparison_holds_with_an_axis_that_is_not_active() -> None:
    for text in (
        "rate < 1",
        "rate > 1",
        "rate == 1",
        "rate != 1",
        "rate * 2 < 1",
        "rate in [1]",
        "rate not in [1]",
    ):
        assert not truth(text)
    assert truth("rate == none and decoder == none")
    assert truth("rate != none", rate=0.5)
    assert not truth("rate == none", rate=0.5)
    assert truth("rate == none or rate < 1", rate=0.5)
    assert truth("rate in [none, 0.5]")
    assert truth("rate in [none, 0.5]", rate=0.5)
    assert not truth("rate not in [none, 0.5]")


@pytest.mark.parametrize(
    ("text", "column", "message"),
    [
        ("parameters", 1, "a condition is true or false"),
        ("parameters <", 12, "a value is missing at the end"),
        ("< 3", 1, "`<` cannot stand here"),
        ("parameter < 3", 1, "did you mean `parameters`?"),
        ("parameters < 3X", 15, "`X` is not a unit"),
        ("parameters = 3", 12, "`=` is not allowed"),
        ("1 < parameters < 3", 16, "comparisons cannot be chained"),
        ("(parameters < 3", 1, "`(` cannot stand here"),
        ('encoder == "recurent"', 12, "did you mean `recurrent`?"),
        ("encoder == recurrent", 12, "there is no axis or cost `recurrent`"),
        ("encoder < 3", 11, "a text is never < a number"),
        ('encoder < "x"', 9, "`<` compares numbers"),
        ("encoder == none", 1, "`encoder` always has a value"),
        ("rate < none", 6, "`<` compares numbers"),
        ("tied and parameters", 10, "`and` joins conditions"),
        ("parameters + encoder > 1", 14, "`+` needs numbers"),
        ("encoder in 3", 12, "`in` needs a list after it"),
        ('encoder == ["rnn"]', 12, "this is not allowed"),
        ('encoder in ["attention" "x"]', 25, '`"x"` cannot stand here'),
        ('encoder in ["attention"', 12, "`[` cannot stand here"),
        ("tied)", 5, "`)` cannot stand here"),
        ("parameters + not tied", 14, "`not` cannot stand here"),
        ("tied tied", 6, "`tied` cannot stand here"),
        ("__import__('os')", 1, "there is no axis or cost `__import__`"),
        ('encoder == "a', 12, "is not allowed"),
        ("", 1, "a value is missing at the end"),
        ("heads < 2", 7, "`<` compares numbers"),
        ("parameters < 20.000.000", 20, "`.000` needs a space before it"),
        ('encoder == "rnn""x"', 17, '`"x"` needs a space'),
        ('parameters"a" < 5', 11, '`"a"` needs a space'),
        ('tied and not"a" == encoder', 13, '`"a"` needs a space'),
        ('encoder in"a"', 11, '`"a"` needs a space'),
    ],
)
def test_faults_are_reported_at_their_column(text: str, column: int, message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        parse_condition(node(text), "where", NAMES)
    (fault,) = caught.value.faults
    assert message in fault.message
    assert (fault.line, fault.column) == (3, column + 7)
    assert fault.hint


def test_a_text_in_quotes_begins_after_its_quote() -> None:
    written = Node("x < 1", Mark("s.yaml", 1, 8, 7, 'where: "x < 1"'), text="x < 1", quoted=True)
    with pytest.raises(RecipeError) as caught:
        parse_condition(written, "where", NAMES)
    assert caught.value.faults[0].column == 9


@pytest.mark.parametrize(
    "text", ["(" * 400 + "tied", "not " * 200 + "tied", "-" * 900 + "1 < 2", "tied or " * 200]
)
def test_long_conditions_are_refused(text: str) -> None:
    assert len(text) > MAX_LENGTH
    with pytest.raises(RecipeError, match=f"at most {MAX_LENGTH} characters"):
        parse_condition(node(text), "where", NAMES)


@pytest.mark.parametrize(
    "part", ["(", "[", "not ", "-", "1+", "1*", "tied or ", "not (", "-(", "(-(", "1 in [", "1<"]
)
def test_a_condition_of_any_depth_is_read_or_refused(part: str) -> None:
    for end in ("tied", "1 < 2"):
        text = part * ((MAX_LENGTH - len(end)) // len(part)) + end
        opened = text[: MAX_LENGTH // 3].count("(")
        for closed in (text, f"{part * (MAX_LENGTH // 3 // len(part))}{end}{')' * opened}"):
            with suppress(RecipeError):
                assert holds(parse_condition(node(closed), "where", NAMES), VALUES) in (True, False)


@pytest.mark.parametrize(
    "text",
    [
        "parameters.real < 1",
        "parameters.__class__ == 1",
        "print(parameters) < 1",
        "parameters[0] < 1",
        "9 ** 9 ** 9 > 1",
        "parameters // 2 > 1",
        "(tied := 1) == 1",
        "(lambda: 1) == 1",
        "[x for x in [1]] == 1",
        "{1: 2} == 1",
        'f"{parameters}" == "a"',
        "(1, 2) == 1",
        "tied if tied else tied",
        "await tied",
        "*tied",
        "~1 == 1",
        "tied is true",
        "True",
        "tied; tied",
        "tied # tied",
        "\u0661 == 1",
        "parameters in parameters",
        "[" * 300 + "1",
    ],
)
def test_other_python_expressions_are_refused(text: str) -> None:
    with pytest.raises(RecipeError) as caught:
        parse_condition(node(text), "where", NAMES)
    assert len(caught.value.faults) == 1


def test_texts_and_numbers_are_those_of_the_file() -> None:
    """Neither escapes nor digits are read as Python would read them; Python's own words may be
    names.
    """
    names = {"if": Operand("number"), "a": Operand("text", ("\\n", "b"))}
    assert parse_condition(node("if == 010"), "where", names).evaluate({"if": 10}) is True
    assert parse_condition(node(r'a == "\n"'), "where", names).evaluate({"a": "\\n"}) is True
    assert parse_condition(node("if < 1e999"), "where", names).names == {"if"}


# ------------------------------------------------------------------------------------------- random
# conditions

NUMBERS = st.integers(0, 50)


def texts() -> st.SearchStrategy[tuple[str, float]]:
    """A sum in brackets wherever it has parts, and its value."""

    def joined(inner: st.SearchStrategy[tuple[str, float]]) -> st.SearchStrategy[tuple[str, float]]:
        return st.tuples(inner, st.sampled_from("+-*"), inner).map(put)

    leaves = NUMBERS.map(lambda number: (str(number), float(number))) | st.just(("parameters", 7.0))
    return st.recursive(leaves, joined, max_leaves=6)


def put(parts: tuple[tuple[str, float], str, tuple[str, float]]) -> tuple[str, float]:
    (left, one), sign, (right, other) = parts
    return f"({left} {sign} {right})", {"+": one + other, "-": one - other, "*": one * other}[sign]


@settings(max_examples=100, deadline=None)
@given(texts(), st.sampled_from(["<", "<=", ">", ">=", "==", "!="]), texts())
def test_comparisons_agree_with_python(
    left: tuple[str, float], sign: str, right: tuple[str, float]
) -> None:
    less, same = left[1] < right[1], left[1] == right[1]
    expected = {
        "<": less,
        "<=": less or same,
        ">": not less and not same,
        ">=": not less,
        "==": same,
        "!=": not same,
    }
    assert truth(f"{left[0]} {sign} {right[0]}", parameters=7) is expected[sign]


@settings(max_examples=100, deadline=None)
@given(st.lists(NUMBERS, min_size=1, max_size=8), st.data())
def test_products_bind_before_sums_and_both_go_from_left_to_right(
    numbers: list[int], data: st.DataObject
) -> None:
    signs = [data.draw(st.sampled_from("+-*")) for _ in numbers[1:]]
    terms, negative = [float(numbers[0])], [False]
    for sign, number in zip(signs, numbers[1:], strict=True):
        if sign == "*":
            terms[-1] *= number
        else:
            terms.append(float(number))
            negative.append(sign == "-")
    total = math.fsum(-term if minus else term for term, minus in zip(terms, negative, strict=True))
    text = str(numbers[0]) + "".join(
        f" {sign} {number}" for sign, number in zip(signs, numbers[1:], strict=True)
    )
    assert truth(f"{text} == {total}") or total < 0
    assert truth(f"{text} - {abs(total)} == 0") or total < 0
    assert truth(f"{text} + {abs(total)} == 0") or total > 0


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet=" ()[],<>=!+-*/.\"'019KMeandorti_xé\n\t", max_size=40))
def test_any_text_is_a_condition_or_a_fault_inside_it(text: str) -> None:
    try:
        result = parse_condition(node(text), "where", NAMES)
    except RecipeError as error:
        (fault,) = error.faults
        assert 8 <= fault.column <= 8 + max(0, len(text))
    else:
        assert holds(result, VALUES) in (True, False)
