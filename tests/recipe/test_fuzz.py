"""The fuzzing of the reader, for a few seconds; what it has found; and that it finds what there is to find."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks import fuzz
from benchmarks.fuzz import NAME, Case, Lab, Verdict, changed, judge, laboratory, smaller
from composer.errors import Fault, RecipeError
from composer.recipe import schema
from tests.small_recipes import SMALL, places, refused

FOUND = [
    # what ended in a traceback once; where it is told now
    (f"{SMALL}training: {{initialization: {{}}}}\n", ["6:12:empty"]),
    (f'{SMALL}extends: "a\\0b"\n', ["6:10:encoding"]),
]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("laboratory")


@pytest.fixture(scope="module")
def recipes(root: Path) -> list[Case]:
    return laboratory(root)


@pytest.mark.parametrize(("text", "expected"), FOUND)
def test_regressions_found_by_fuzzing_stay_fixed(tmp_path: Path, text: str, expected: list[str]) -> None:
    assert places(refused(tmp_path, text)) == expected


def numbers(schema: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Every whole number of the language, by its setting."""
    for key, inner in schema.items() if isinstance(schema, dict) else enumerate(schema):
        if isinstance(inner, dict) and inner.get("type") == "integer":
            yield next(step for step in (str(key), *reversed(path)) if step not in ("anyOf", "items", "0", "1")), inner
        if isinstance(inner, (dict, list)):
            yield from numbers(inner, (*path, str(key)))


def test_every_size_has_an_end() -> None:
    # 10**12 is refused before anything is allocated; so many steps of warming up take no room
    endless = {name for name, rule in numbers(schema.load()) if not ("minimum" in rule and "maximum" in rule)}
    assert {each.partition(".")[0] for each in endless} <= {"warmup_steps", "schedules"}
    largest = {name for name, rule in numbers(schema.load()) if rule.get("maximum", 0) >= 10**9}
    assert largest <= {"seed", "max_steps", "tokens_per_batch", "validate_every"}


@pytest.mark.parametrize("width", ["1000000000000", "0", "-1", "1e12", "true", "null", ".inf"])
def test_a_width_that_cannot_be(tmp_path: Path, width: str) -> None:
    assert places(refused(tmp_path, SMALL.replace("64", width)))[0].startswith("4:10:")


def test_a_recipe_that_nobody_changed_is_read(recipes: list[Case], root: Path) -> None:
    verdicts = [judge(case, root) for case in recipes[::6]]
    assert {verdict.failure for verdict in verdicts} == {""}
    assert sum(verdict.outcomes == ("read",) for verdict in verdicts) > len(verdicts) / 2


def test_changed_recipes_are_read_or_refused_in_their_place(recipes: list[Case], root: Path) -> None:
    random = Random(1)
    verdicts = [judge(changed(recipes, random, plans=0), root) for _ in range(200)]
    assert [verdict.told for verdict in verdicts if verdict.failure] == []
    seen = {each for verdict in verdicts for each in verdict.outcomes}
    assert seen >= {"read", "syntax", "type", "unknown", "missing", "encoding"}


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.randoms(use_true_random=False))
def test_so_are_those_that_are_made_smaller(recipes: list[Case], root: Path, random: Random) -> None:
    assert judge(changed(recipes, random, plans=0), root).told == ""


def test_the_same_seed_makes_the_same_cases(recipes: list[Case]) -> None:
    first, again = ([changed(recipes, random, 0.5) for _ in range(30)] for random in (Random(7), Random(7)))
    assert first == again


def raising(error: BaseException) -> object:
    """A reader that stumbles over `[[`."""

    def load(file: Path) -> None:
        raise error if b"[[" in file.read_bytes() else RecipeError([Fault(str(file), 1, 1, "a", "", "b", "")])

    return load


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (RecursionError(), "RecursionError in test_fuzz.py, load"),
        (RecipeError([Fault("nowhere", 1, 1, "a", "", "b", "")]), "a fault [a] names no line of its file"),
        (RecipeError([]), "refused without a fault"),
        (SystemExit(1), "SystemExit in test_fuzz.py, load"),
    ],
)
def test_the_fuzzer_finds_and_shrinks_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, failure: str
) -> None:
    monkeypatch.setattr(fuzz, "load", raising(error))
    case = Case(b"a: 1\nb: [[1, 2], 3]\nc: 4\n", ".")
    verdict = judge(case, tmp_path)
    assert verdict.failure.startswith(failure)
    assert smaller(case, lambda each: judge(each, tmp_path)).data == b"[["


@pytest.mark.parametrize(
    ("line", "column", "excerpt", "failure"),
    [
        (2, 3, "b: 2", ""),
        (3, 1, "", "a fault [a] names no line of its file"),
        (0, 0, "", "a fault [a] names no line of its file"),
        (2, 6, "b: 2", "a fault [a] names no column of its line"),
        (2, 3, "a: 1", "a fault [a] shows another line than its own"),
    ],
)
def test_a_fault_must_have_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: int, column: int, excerpt: str, failure: str
) -> None:
    def load(file: Path) -> None:
        raise RecipeError([Fault(str(file), line, column, "a", "", "b", "", excerpt)])

    monkeypatch.setattr(fuzz, "load", load)
    assert judge(Case(b"\xef\xbb\xbfa: 1\r\nb: 2", "."), tmp_path).failure == failure


def test_a_process_that_a_case_has_killed_is_begun_anew(tmp_path: Path) -> None:
    lab, case = Lab(tmp_path), Case(SMALL.encode(), ".")
    try:
        lab.process.kill()
        lab.process.join()
        assert lab.judge(case) == Verdict((), told := "the process ended with -9", told)
        assert lab.judge(case).outcomes == ("read",)
        assert (tmp_path / NAME).read_bytes() == case.data
    finally:
        lab.end()
