"""Fuzzing the recipe reader for a few seconds, past findings, and that the fuzzer finds planted
failures.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from composer.errors import Fault, RecipeError
from composer.recipe import schema_generator
from tests.small_recipes import SMALL, places, refused
from verify import fuzz
from verify.fuzz import NAME, Case, Worker, copy_recipes, minimise, mutate_case, run_case
from verify.worker import WorkerDied

REGRESSIONS = [
    # recipes that once ended in a traceback, and the location of the fault now
    (f"{SMALL}training: {{initialization: {{}}}}\n", ["6:12:empty"]),
    (f'{SMALL}extends: "a\\0b"\n', ["6:10:encoding"]),
]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


@pytest.fixture(scope="module")
def recipes(root: Path) -> list[Case]:
    return copy_recipes(root)


@pytest.mark.parametrize(("text", "expected"), REGRESSIONS)
def test_regressions_found_by_fuzzing_stay_fixed(
    tmp_path: Path, text: str, expected: list[str]
) -> None:
    assert places(refused(tmp_path, text)) == expected


def numbers(schema: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Yield every integer of the schema, by its setting."""
    for key, inner in schema.items() if isinstance(schema, dict) else enumerate(schema):
        if isinstance(inner, dict) and inner.get("type") == "integer":
            yield (
                next(
                    step
                    for step in (str(key), *reversed(path))
                    if step not in ("anyOf", "items", "0", "1")
                ),
                inner,
            )
        if isinstance(inner, (dict, list)):
            yield from numbers(inner, (*path, str(key)))


def test_every_integer_has_bounds() -> None:
    # 10**12 is refused before anything is allocated; so many steps of warming up take no room
    endless = {
        name
        for name, rule in numbers(schema_generator.load())
        if not ("minimum" in rule and "maximum" in rule)
    }
    assert {name.partition(".")[0] for name in endless} <= {"warmup_steps", "schedules"}
    largest = {
        name for name, rule in numbers(schema_generator.load()) if rule.get("maximum", 0) >= 10**9
    }
    assert largest <= {"seed", "max_steps", "tokens_per_batch", "validate_every", "original_length"}


@pytest.mark.parametrize("width", ["1000000000000", "0", "-1", "1e12", "true", "null", ".inf"])
def test_an_invalid_width_is_refused(tmp_path: Path, width: str) -> None:
    assert places(refused(tmp_path, SMALL.replace("64", width)))[0].startswith("4:10:")


def test_unchanged_recipes_have_no_failure(recipes: list[Case], root: Path) -> None:
    results = [run_case(case, root) for case in recipes[::12]]
    assert {result.failure for result in results} == {""}
    assert sum(result.outcomes == ("read",) for result in results) > len(results) / 2


def test_mutated_recipes_are_read_or_refused_with_a_location(
    recipes: list[Case], root: Path
) -> None:
    random = Random(1)
    results = [run_case(mutate_case(recipes, random, plans=0), root) for _ in range(200)]
    assert [result.details for result in results if result.failure] == []
    outcomes = {code for result in results for code in result.outcomes}
    assert outcomes >= {"read", "syntax", "type", "unknown", "missing", "encoding"}


def test_the_same_seed_gives_the_same_cases(recipes: list[Case]) -> None:
    first, again = (
        [mutate_case(recipes, random, 0.5) for _ in range(30)] for random in (Random(7), Random(7))
    )
    assert first == again


def failing_load(error: BaseException) -> object:
    """Return a `load` that fails on `[[`."""

    def load(file: Path) -> None:
        raise (
            error
            if b"[[" in file.read_bytes()
            else RecipeError([Fault(str(file), 1, 1, "a", "", "b", "")])
        )

    return load


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (RecursionError(), "RecursionError in test_fuzz.py, load"),
        (
            RecipeError([Fault("nowhere", 1, 1, "a", "", "b", "")]),
            "a fault [a] has a line outside of its file",
        ),
        (RecipeError([]), "rejected without a fault"),
        (SystemExit(1), "SystemExit in test_fuzz.py, load"),
    ],
)
def test_a_planted_failure_is_found_and_minimised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, failure: str
) -> None:
    monkeypatch.setattr(fuzz, "load", failing_load(error))
    case = Case(b"a: 1\nb: [[1, 2], 3]\nc: 4\n", ".")
    result = run_case(case, tmp_path)
    assert result.failure.startswith(failure)
    assert minimise(case, lambda shorter: run_case(shorter, tmp_path)).data == b"[["


@pytest.mark.parametrize(
    ("line", "column", "excerpt", "failure"),
    [
        (2, 3, "b: 2", ""),
        (3, 1, "", "a fault [a] has a line outside of its file"),
        (0, 0, "", "a fault [a] has a line outside of its file"),
        (2, 6, "b: 2", "a fault [a] has a column outside of its line"),
        (2, 3, "a: 1", "a fault [a] shows a different line"),
    ],
)
def test_a_fault_must_point_into_its_file(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    line: int,
    column: int,
    excerpt: str,
    failure: str,
) -> None:
    def load(file: Path) -> None:
        raise RecipeError([Fault(str(file), line, column, "a", "", "b", "", excerpt)])

    monkeypatch.setattr(fuzz, "load", load)
    assert run_case(Case(b"\xef\xbb\xbfa: 1\r\nb: 2", "."), tmp_path).failure == failure


def test_a_killed_worker_is_restarted(tmp_path: Path) -> None:
    worker, case = Worker(run_case, tmp_path), Case(SMALL.encode(), ".")
    try:
        worker.process.kill()
        worker.process.join()
        with pytest.raises(WorkerDied, match="the process ended with -9"):
            worker.run(case)
        assert worker.run(case).outcomes == ("read",)
        assert (tmp_path / NAME).read_bytes() == case.data
    finally:
        worker.end()
