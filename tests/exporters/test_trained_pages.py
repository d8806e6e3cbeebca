"""Pages of twelve trained kinds of models answer as `translate` does."""

from __future__ import annotations

from pathlib import Path

import pytest

from composer.exporters.web_export import export_web
from composer.inference.run import translate_lines
from tests.exporters.test_web_export import (  # noqa: F401, fixtures
    address,
    chromium,
    drive,
    root,
    runtime,
)
from verify import exported_runner as kinds

LINES = 12
CLOSE = 0.01
"""Scores have two decimals on a page; two answers that are as close may change places."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("kinds")
    kinds.make_data(made)
    return made


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", kinds.KINDS)
def test_a_page_of_a_trained_kind_answers_as_the_model_does(
    kind: str,
    folder: Path,
    root: Path,  # noqa: F811
    runtime: Path,  # noqa: F811
    address: str,  # noqa: F811
) -> None:
    run = kinds.trained(kind, folder)
    export_web(run, root / kind, runtime)
    lines = kinds.test_lines(run, folder)[:LINES]
    field = "source-source" if run.recipe.sources else "source-prompt"
    seen = drive(url=f"{address}/{kind}/", questions=[{field: line} for line in lines])
    assert seen["complaints"] == []
    ranked = translate_lines([run], lines, run.recipe.decoding, n_best=4)
    for line, (expected, answers) in enumerate(zip(ranked, seen["answers"], strict=True)):
        text, score = answers[0]
        close = [answer.text for answer in expected if abs(answer.score - score) <= CLOSE]
        assert text.replace("(empty)", "") in close, (line, answers, expected)
        assert score == pytest.approx(expected[0].score, abs=CLOSE)
