"""Random stacks under the laws of whole models, to the end: no failure ends the benchmark.

    python -m verify.random_stacks --count 10000 --folder DIR [--seed 1] [--workers 2] [--only
    NUMBER]

What `plan` refuses, it refuses with a place; what it accepts keeps every law of
`composer.testing.check_model`. Half of the stacks are of all kinds, the others are all about
memories and stories. The folder of a failure stays, and `--only` runs it again. The journal makes
the benchmark resumable. Exit status 1 if a stack has failed.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from hypothesis import strategies as st

from verify.random_cases import FAILED, Outcome, options, run_cases
from verify.random_models import recipes
from verify.random_stories import continued, stories
from verify.scene import draw_case
from verify.stack_laws import outcome

STACKS = st.one_of(recipes(), recipes(), continued(), stories())


def write_recipe(number: str, folder: Path) -> Path:
    """Write the recipe of a number; return its file."""
    file = folder / "random.yaml"
    file.write_text(json.dumps(draw_case(STACKS, number), indent=1), encoding="utf-8")
    return file


def check_stack(file: Path) -> Outcome:
    """Check a recipe and the model that it builds. Raise nothing."""
    try:
        return Outcome(outcome(json.loads(file.read_text(encoding="utf-8")), file))
    except BaseException as error:
        message = (str(error).splitlines() or [""])[0]
        return Outcome(
            FAILED, f"{type(error).__name__}: {message}", traceback.format_exc(limit=-20)
        )


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = options(str(__doc__), count=10_000).parse_args(arguments)
    return run_cases(chosen, write_recipe, check_stack)


if __name__ == "__main__":
    sys.exit(main())
