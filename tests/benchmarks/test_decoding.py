"""The searches by hand answer as ours do with the same weights, and so does CTranslate2."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks import decoding
from composer.data.encoding import load_data
from composer.inference.run import Run
from composer.model.builder import build
from composer.model.encoder_decoder import NEVER
from composer.model.special_tokens import BOS, EOS, PAD
from composer.recipe.recipe import load
from composer.run_dir import RunDir
from tests.inference.untrained import text

RECIPES = Path(__file__).parents[2] / "recipes" / "multi30k"
LIMIT = LINES = 30
ENDS = {"transformer": 3.0, "gru_attention": 2.0}
"""Of each recipe, how much more probable an end is than at random, for answers of several lengths.
"""


def untrained_run(recipe: str, folder: Path) -> Run:
    """Return a small run of a recipe with random weights."""
    files = text(folder, "train", 60, ["source"])
    overrides = [
        f"data.parallel={{train: {{{', '.join(files)}}}}}",
        "data.tokenizer={word: {joint: true}}",
    ]
    loaded = load(RECIPES / f"{recipe}.yaml", ["model.width=32", *overrides])
    tokenizers = load_data(loaded, [folder]).tokenizers
    tokenizers.save(folder / "tokenizer.json")
    torch.manual_seed(1)
    model = build(loaded, tokenizers.sizes).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
        # as a training makes them, of which ours takes note in its softmax
        model.output.bias[[PAD, BOS]] = NEVER
        model.output.bias[EOS] += ENDS[recipe]
    return Run(RunDir(folder), loaded, tokenizers, model)


def random_lines(run: Run) -> list[list[int]]:
    rows = torch.randint(EOS + 1, run.tokenizers.sizes["source"], (LINES, 14)).tolist()
    return [row[: 1 + at % 14] for at, row in enumerate(rows)]


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ENDS)
def test_the_searches_by_hand_answer_as_ours_do(recipe: str, tmp_path: Path) -> None:
    run = untrained_run(recipe, tmp_path)
    sides, lines = decoding.sides_of(run, ["float32"], LIMIT), random_lines(run)
    for search in decoding.SEARCHES:
        with torch.inference_mode():
            answers = decoding.compare(search, sides, lines, 0).answers
        assert all(answer == answers["float32"] for answer in answers.values()), search
        assert len({*map(len, answers["float32"])}) > 1


def test_ctranslate2_is_compared_in_its_precisions(tmp_path: Path) -> None:
    run = untrained_run("transformer", tmp_path)
    sides = decoding.sides_of(run, ["float32", "int8"], LIMIT) | decoding.ctranslate2_sides(
        run, LIMIT
    )
    with torch.inference_mode():
        compared = decoding.compare(decoding.GREEDY, sides, random_lines(run), 2)
    pairs = decoding.pair_sides(sides, ["float32", "int8"])
    assert {pair for pair in pairs if decoding.CTRANSLATE2 in pair[1]} == {
        ("float32", "CTranslate2 float32"),
        ("int8", "CTranslate2 int8"),
    }
    for other in (decoding.BY_HAND, "CTranslate2 float32"):
        line = compared.describe_pair("float32", other)
        assert f"greedy: float32 to {other}" in line
        assert line.endswith(f"{LINES} of {LINES} lines identical")


def test_a_model_that_ctranslate2_does_not_know_is_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not decoding.ctranslate2_sides(untrained_run("gru_attention", tmp_path), LIMIT)
    assert capsys.readouterr().out.startswith(
        "without CTranslate2: CTranslate2 does not support this model"
    )
