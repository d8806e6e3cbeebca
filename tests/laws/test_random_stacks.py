"""Random stacks: what `plan` refuses, it refuses with a RecipeError; what it accepts trains and
keeps the laws.

15 of them here (65 others among the slow tests), and some that are all about memories, always the
same, each drawn independently; 10,000 others, with a journal and to their end, with `python -m
verify.random_stacks --folder DIR`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis.strategies import SearchStrategy

from composer.errors import RecipeError
from composer.recipe.recipe import load
from verify.random_models import recipes
from verify.random_stories import continued, stories
from verify.scene import draw_case
from verify.stack_laws import outcome

SHARE_ACCEPTED = 0.4
MEMORIES = 10
"""Random recipes of each kind about memories, every day."""
EVERY_DAY = range(15, 30)
OTHERS = (*range(15), *range(30, 80))
"""Numbers of the random recipes that are drawn by the tests, and by the slow ones."""


@pytest.mark.parametrize(
    "numbers", [EVERY_DAY, pytest.param(OTHERS, marks=pytest.mark.slow)], ids=len
)
def test_random_stacks_satisfy_the_laws(numbers: Sequence[int], tmp_path: Path) -> None:
    tally = tally_outcomes(recipes(), numbers, tmp_path / "random.yaml")
    assert tally["accepted"] > SHARE_ACCEPTED * tally.total(), tally


@pytest.mark.slow
@pytest.mark.parametrize("strategy", [continued(), stories()], ids=["continued", "stories"])
def test_random_memories_satisfy_the_laws(
    strategy: SearchStrategy[dict[str, Any]], tmp_path: Path
) -> None:
    tally = tally_outcomes(strategy, range(MEMORIES), tmp_path / "random.yaml")
    assert tally["accepted"] > SHARE_ACCEPTED * tally.total(), tally


def tally_outcomes(
    strategy: SearchStrategy[dict[str, Any]], numbers: Sequence[int], file: Path
) -> Counter[str]:
    """Count what comes of the examples of these numbers; the recipe of one that fails is left in
    the file.
    """
    return Counter(outcome(draw_case(strategy, str(number)), file) for number in numbers)


# ------------------------------------------------------------------------------------------- met on
# the way

ATTENDS = [{"cross_attention": {"from": "encoder"}}]
MET: dict[str, tuple[dict[str, Any], str]] = {
    "a stack inside itself": (
        {
            "stacks": {"shelf": ["norm", {"use": "shelf"}]},
            "encoder": [{"use": "shelf"}],
            "decoder": ATTENDS,
        },
        "cycle",
    ),
    "a shared stack that reads a name of its first place": (
        {
            "stacks": {"shelf": [{"add": "first"}]},
            "encoder": [{"linear": {"as": "first"}}, {"use": "shelf"}],
            "decoder": [{"use": "shelf"}, *ATTENDS],
        },
        "name",
    ),
    "a shared stack where another stream arrives": (
        {
            "stacks": {"shelf": ["linear"]},
            "encoder": [{"use": "shelf"}, {"linear": 4}, {"use": "shelf"}],
            "decoder": ATTENDS,
        },
        "width",
    ),
    "a state that is a view of a parameter": (
        {"encoder": [{"rnn": {"initial_state": "learned"}}], "decoder": ATTENDS},
        "",
    ),
    "one stack for encoder and decoder": (
        {
            "stacks": {"shelf": [{"residual": [{"self_attention": 2}]}]},
            "encoder": [{"use": "shelf"}],
            "decoder": [{"use": "shelf"}, *ATTENDS],
        },
        "",
    ),
    "a norm before what reads another stream": (
        {
            "encoder": ["linear"],
            "decoder": [{"residual": {"norm": "pre", "stack": ["source_state", "linear"]}}],
        },
        "unused",
    ),
    "sets of parameters that are none": (
        {
            "encoder": [
                {"repeat": {"times": 2, "relaxation": {"sets": 2}, "stack": ["dropout"]}},
                "linear",
            ],
            "decoder": ATTENDS,
        },
        "",
    ),
    "a decoder that reads no target": ({"encoder": ["linear"], "decoder": ["source_state"]}, ""),
}
"""Stacks that once broke something, with the code of the fault where they are refused."""


@pytest.mark.parametrize("name", MET)
def test_earlier_failures_stay_fixed(name: str, tmp_path: Path) -> None:
    model, code = MET[name]
    texts = {"source": "source.txt", "target": "target.txt"}
    recipe = {"recipe": 1, "data": {"parallel": {"train": texts}}, "model": {"width": 6, **model}}
    file = tmp_path / "met.yaml"
    assert outcome(recipe, file) == ("refused" if code else "accepted")
    if code:
        with pytest.raises(RecipeError) as refusal:
            load(file).plan()
        assert [fault.code for fault in refusal.value.faults] == [code]
