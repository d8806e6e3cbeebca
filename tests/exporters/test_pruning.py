"""What is taken out of code are its checks, and nothing that does anything else."""

from __future__ import annotations

import ast

import pytest

from composer.exporters.name_resolution import used
from composer.exporters.pruning import IsIdle, pruned
from composer.exporters.script_modules import plain_annotated
from composer.exporters.text_edits import without_raises

ERROR = 'raise BlockError("", "no")'


def after(body: str, idle: tuple[str, ...] = ()) -> str:
    """A function's body without checks. idle: the functions that do nothing."""

    def of(tree: ast.Module) -> IsIdle:
        return lambda call: isinstance(call.func, ast.Name) and call.func.id in idle

    head = "def f(site, a):\n"
    inner = "".join(f"    {line}\n" for line in body.splitlines())
    found = pruned(head + inner, of)
    return "\n".join(line[4:] for line in found.removeprefix(head).splitlines())


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        (f"if a:\n    {ERROR}\nreturn a", "return a"),
        (f"if a:\n    told = a + 1\n    {ERROR}\nreturn a", "return a"),
        (f"if a:\n    {ERROR}\nelif a > 1:\n    a = 2\nreturn a", "if a > 1:\n    a = 2\nreturn a"),
        (f"if a:\n    {ERROR}\nelse:\n    a = 2  # (B,)\nreturn a", "a = 2  # (B,)\nreturn a"),
        (
            f"if a:\n    a = 1\nelif a > 1:\n    {ERROR}\nelse:\n    a = 2\nreturn a",
            "if a:\n    a = 1\nelse:\n    a = 2\nreturn a",
        ),
        (
            f"if a:\n    a = 1\nelif a > 1:\n    {ERROR}\nelif a > 2:\n    a = 2\nreturn a",
            "if a:\n    a = 1\nelif a > 2:\n    a = 2\nreturn a",
        ),
        (f"if a:\n    a = 1\nelif a > 1:\n    {ERROR}\nreturn a", "if a:\n    a = 1\nreturn a"),
        (f"for each in a:\n    if each:\n        {ERROR}\nreturn a", "return a"),
        (f"wide = [each for each in a]\nif wide:\n    {ERROR}\nreturn a", "return a"),
        (f"try:\n    a = 1\nexcept BlockError:\n    {ERROR}\nreturn a", "a = 1\nreturn a"),
        ("# why\ncheck(a)\nreturn a", "return a"),
    ],
)
def test_a_check_goes(before: str, expected: str) -> None:
    assert after(before, ("check",)) == expected


@pytest.mark.parametrize(
    "body",
    [
        "if a:\n    raise ValueError\nreturn a",
        "if a:\n    raise NotImplementedError(a)\nreturn a",
        "if a:\n    return 1\nreturn a",
        "checked(a)\nreturn a",
        "site.read(a)\nreturn a",
        "for each in a:\n    site.read(each)\nreturn a",
    ],
)
def test_what_does_something_stays(body: str) -> None:
    assert after(body, ("check",)) == body


def test_what_a_check_asks_is_asked_still() -> None:
    assert after("check(site, [site.read(a)])\nreturn a", ("check",)) == "[site.read(a)]\nreturn a"
    assert after(f"if site.read(a):\n    {ERROR}\nreturn a") == "site.read(a)\nreturn a"


def test_texts_say_nothing_of_errors_that_cannot_come() -> None:
    assert without_raises('"""Reads. Raises BlockError where there is none, or a choice."""') == '"""Reads."""'
    assert without_raises('"""Reads; raises BlockError where it is a grid."""') == '"""Reads."""'
    assert without_raises('"""A.\n\n    Raises RunError where not.\n    """') == '"""A."""'
    assert without_raises('"""A.\n\n    Raises RunError so. More.\n    """') == '"""A.\n\n    More.\n    """'


def test_a_type_loses_its_bounds() -> None:
    assert plain_annotated("Rate = Annotated[float, Bounds(minimum=0.0)]\n") == "Rate = float\n"


def test_only_the_names_of_the_module_count() -> None:
    text = """
def f(a: A, b=B) -> C:
    d: D = a
    def g(h): return h + d + E
    return [F(i) for i in b if i] + cast("list[G]", g) + (lambda j: j + K)(a)
"""
    use = used(ast.parse(text).body[0])
    assert sorted(each.id for each in use.found if each.id.isupper()) == ["A", "B", "C", "D", "E", "F", "G", "K"]
    assert {each.id for each in use.annotations if isinstance(each, ast.Name)} == {"A", "C", "D"}
