"""Equations of docstrings in HTML: subscripts, superscripts, signs, and prose that is not an
equation.
"""

# ruff: noqa: RUF001
from __future__ import annotations

import re

import pytest

from composer.recipe.registry import blocks
from docs.hooks import equations
from docs.hooks.block_pages import parse_docstring

RUN_TOGETHER = re.compile(r"[a-z0-9] (?:(?:With|In|The|It|On|Where|Each) [a-z`]|y = )")
"""A sentence or an equation that begins where the one before has no end."""


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("y_t = x_(t-1)", "<i>y</i><sub><i>t</i></sub> = <i>x</i><sub><i>t</i>−1</sub>"),
        (
            "q_h k_h^T / sqrt(D/H)",
            (
                "<i>q</i><sub><i>h</i></sub> <i>k</i><sub><i>h</i></sub><sup><i>T</i></sup> /"
                " √(<i>D</i>/<i>H</i>)"
            ),
        ),
        ("sum_(j>i) s_j'", "∑<sub><i>j</i>&gt;<i>i</i></sub> <i>s</i><sub><i>j</i></sub>'"),
        ("a <= b -> c", "<i>a</i> ≤ <i>b</i> → <i>c</i>"),
        ("dt_t u'_t", "dt<sub><i>t</i></sub> <i>u</i>'<sub><i>t</i></sub>"),
        ("K^i_k", "<i>K</i><sup><i>i</i></sup><sub><i>k</i></sub>"),
        ("M~(i)", "<i>M\u0303</i>(<i>i</i>)"),
        ("beta of `max_distance` and <b>", "<i>β</i> of <code>max_distance</code> and &lt;b&gt;"),
        (
            "beta_t k_t + phi(x)",
            ("<i>β</i><sub><i>t</i></sub> <i>k</i><sub><i>t</i></sub> + <i>φ</i>(<i>x</i>)"),
        ),
        ("max_distance and slot_width", "max_distance and slot_width"),
    ],
)
def test_math_is_typeset(text: str, html: str) -> None:
    assert equations.typeset(text, equation=True) == html


def test_a_is_an_article_in_prose() -> None:
    assert (
        equations.typeset("a row of n, and a_t")
        == "a row of <i>n</i>, and <i>a</i><sub><i>t</i></sub>"
    )


def test_a_is_an_article_before_a_word_and_a_variable_before_a_function() -> None:
    assert (
        equations.typeset("over a grid: y = a tanh(b)", equation=True)
        == "over a grid: <i>y</i> = <i>a</i> tanh(<i>b</i>)"
    )


def test_a_line_that_ends_with_a_comma_continues() -> None:
    assert list(equations.join_wrapped_lines("g = sigmoid,\nb = 1 + softplus")) == [
        "g = sigmoid, b = 1 + softplus"
    ]


def test_a_wrapped_line_continues() -> None:
    full = "one " * 27 + "end"
    assert list(equations.join_wrapped_lines(f"{full}\ntwo\nlstm: three")) == [
        f"{full} two",
        "lstm: three",
    ]


def test_equations_are_distinguished_from_prose() -> None:
    assert equations.is_equation("y = g (x - mean) / sqrt(var + 1e-5) + b")
    assert not equations.is_equation(
        "In training the answer's size is known; a search tries each size up to `room` times"
    )
    assert equations.render_paragraph("y_t = x_t.").startswith('<p class="equation">')


def test_no_paragraph_of_a_block_runs_into_the_next() -> None:
    for name in blocks():
        for paragraph in parse_docstring(name).body:
            for line in equations.join_wrapped_lines(paragraph):
                assert RUN_TOGETHER.search(line) is None, f"{name}: {line}"


def test_every_equation_of_mamba_is_set_as_one() -> None:
    html = [equations.render_paragraph(paragraph) for paragraph in parse_docstring("mamba").body]
    equations_only = [line for part in html for line in part.splitlines() if "equation" in line]
    assert [line.count(" = ") for line in equations_only] == [3, 2, 3]
