"""What a plug-in can do wrong ends in one fault that names it, and a recipe cannot bring code of
its own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from composer.errors import RecipeError, RunError
from composer.recipe import registry, schema_generator
from tests.small_recipes import SMALL, loaded, places, refused

Install = Callable[..., None]

BLOCK = """
from typing import Any
import torch
from blocks.core.contract import Block
from blocks.linear import Linear

class Odd(Linear):
    '''Odd.'''
    calls = 0

    def __init__(self, site, *, times: int = 1) -> None:
        super().__init__(site)
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Installs a package of one module whose blocks, by their entry points, are `name=value`."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))

    def installing(text: str, *points: tuple[str, str]) -> None:
        (folder / "oddities.py").write_text(text, encoding="utf-8")
        points_of_group = [EntryPoint(name, value, registry.GROUP) for name, value in points]
        monkeypatch.setattr(registry, "entry_points", lambda group: points_of_group)
        forget()

    yield installing
    monkeypatch.undo()
    forget()


def forget() -> None:
    """What is known of plug-ins is read once in a process."""
    sys.modules.pop("oddities", None)
    registry.blocks.cache_clear()
    registry.block_class.cache_clear()
    schema_generator.load.cache_clear()


HERE = ("odd", "oddities:Odd")


@pytest.mark.parametrize(
    ("text", "points", "message"),
    [
        (
            "raise ValueError('no luck')",
            [HERE],
            "oddities:Odd cannot be imported: ValueError: no luck",
        ),
        ("import sys\nsys.exit(3)", [HERE], "oddities:Odd cannot be imported: SystemExit: 3"),
        (
            "import no_such_thing",
            [HERE],
            "oddities:Odd cannot be imported: ModuleNotFoundError: No module named",
        ),
        ("def (", [HERE], "oddities:Odd cannot be imported: SyntaxError"),
        ("", [HERE], "oddities:Odd cannot be imported: AttributeError"),
        ("Odd = 3", [HERE], "gives `odd`, which is not a Block"),
        (
            BLOCK,
            [("norm", "oddities:Odd")],
            "gives a block called `norm`, and there is one already",
        ),
        (BLOCK, [HERE, HERE], "gives a block called `odd`, and there is one already"),
        (
            BLOCK,
            [("encoder", "oddities:Odd")],
            "a block cannot be called 'encoder': it is a key of `model`",
        ),
        (
            BLOCK.replace("*, ", ""),
            [HERE],
            "`odd`, which is oddities.Odd: `times` is not keyword-only",
        ),
        (
            BLOCK.replace("times: int = 1", "times: complex = 1j"),
            [HERE],
            "`odd`, which is oddities.Odd: a setting",
        ),
    ],
)
def test_a_plug_in_that_cannot_be_used_is_named(
    text: str, points: list[tuple[str, str]], message: str, install: Install, tmp_path: Path
) -> None:
    install(text, *points)
    with pytest.raises(RunError) as raised:
        loaded(tmp_path, SMALL)
    (fault,) = raised.value.faults
    assert message in fault.message
    assert fault.hint == "fix or uninstall the plug-in"


FORWARD = "\n    def forward(self, x, state, context):\n        "
START = "\n    def start(self, x, context):\n        "
BROKEN = "\n    def __init__(self, site, *, times: int = 1) -> None:\n        "
ILL = {
    "a constructor that raises": (
        BROKEN + "raise KeyError('x')",
        "`odd` cannot be built: KeyError: 'x'",
    ),
    "a constructor that forgets its parent": (
        BROKEN + "self.out = site.stream",
        "its constructor does not call `super().__init__()`",
    ),
    "a constructor that says nothing": (
        BROKEN + "torch.nn.Module.__init__(self)",
        "it does not say in `self.out`",
    ),
    "a forward that raises": (
        FORWARD + "return 1 / 0",
        "`odd` fails where (1, 32, 64) arrives: ZeroDivisionError",
    ),
    "a forward without a state": (
        FORWARD + "return x",
        "`forward` of `odd` does not return its output and its state",
    ),
    "a state that is none": (
        START + "return None",
        "`start` of `odd` returns neither a tensor nor a tuple",
    ),
    "a state of dictionaries": (
        FORWARD + "return x, {}",
        "`forward` of `odd` does not return its output and its",
    ),
    "a mask that raises": (
        "\n    def mask(self, mask):\n        return 1 / 0",
        "`odd` fails where (1, 32) arrives",
    ),
    "a mask that is none": (
        "\n    def mask(self, mask):\n        pass",
        "`mask` of `odd` returns no tensor",
    ),
    "a forward that raises in training": (
        FORWARD + "return (1 / 0 if self.training else x), state",
        "`odd` fails where (1, 4, 64) arrives: ZeroDivision",
    ),
    "a forward that lies in training": (
        FORWARD + "return (x[..., 1:] if self.training else x), state",
        "`odd` says that it leaves a sequence, 64 wide",
    ),
    "a gradient that raises": (
        FORWARD + "return Bad.apply(x), state\n\nclass Bad(torch.autograd.Function):\n"
        "    @staticmethod\n    def forward(ctx, x):\n        return x.clone()\n\n"
        "    @staticmethod\n    def backward(ctx, x):\n        return 1 / 0\n",
        "no gradient can be computed: ZeroDivisionError",
    ),
    "a step that raises": (
        FORWARD + "return 1 / 0 if x.shape[1] == 1 else super().forward(x, state, context)",
        "`odd` fails where (1, 1, 64) arrives",
    ),
}


@pytest.mark.parametrize("case", ILL)
def test_a_plug_in_that_fails_is_reported_at_its_line(
    case: str, install: Install, tmp_path: Path
) -> None:
    text, message = ILL[case]
    install(BLOCK + text, HERE)
    recipe = loaded(tmp_path, SMALL.replace("norm", "linear, odd") + "decoding: viterbi\n")
    with pytest.raises(RecipeError) as raised:
        recipe.plan()
    (fault,) = raised.value.faults
    assert message in fault.message
    assert fault.hint.endswith("as in docs/extending.md") == (
        "its constructor" in message or "does not say" in message
    )
    assert places([fault]) == (["3:1:block"] if "gradient" in case else ["5:21:block"])


@pytest.mark.parametrize(
    "block", ["oddities", "oddities:Odd", "oddities.Odd", "{oddities: {times: 1}}"]
)
def test_a_recipe_brings_no_code(block: str, install: Install, tmp_path: Path) -> None:
    install(BLOCK)
    (fault,) = refused(
        tmp_path,
        SMALL.replace("norm", f"'{block}'" if ":" in block and "{" not in block else block),
    )
    assert fault.code == "unknown"
    assert "oddities" not in sys.modules
    install(BLOCK, HERE)
    assert loaded(tmp_path, SMALL.replace("norm", "odd")).plan().parameters
    assert "oddities" in sys.modules
