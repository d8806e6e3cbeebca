"""Count what guards this project: laws, oracles, planted faults and kills, as pytest collects them,
slow ones too.

    python -m verify.guards [CHECKOUT]

For a comparison before and after a change: a number that falls is a guard that is gone. A law of a
block is applied to each case of blocks, one of a model to each case of models. A case is counted in
every row that it fits.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

ORACLE = r"_equals?(_|$|\[)|_by_hand|_of_torch|_of_(a|the)_loop"
ROWS = {
    "cases of blocks": r"laws/test_blocks.py::test_a_block_keeps_every_law",
    "cases of models": (
        r"laws/test_recipes.py::test_a_recipe_keeps_every_law|laws/test_mixers_everywhere|_the_laws\b"
    ),
    "laws, everything in tests/laws": r"^tests/laws/",
    "oracles: equations, loops, torch": rf"test_oracles.py|test_authors_code.py|::\w*({ORACLE})",
    "planted faults of blocks": (
        r"laws/test_laws_catch|laws/test_mutants|laws/test_form.py::test_a_mistake"
    ),
    "planted faults of models": r"laws/test_model_laws_catch|::test_the_law_catches",
    "dead and live settings": r"laws/test_(dead|live)_",
    "kills and interruptions": r"test_kills.py|::\w*(kill|interrupt|signal|terminat)",
    "snapshots of errors": r"^tests/errors/",
    "all tests": r"",
}
"""The name of each row, and what the ids of its tests match."""
COLLECT = ["-m", "pytest", "--collect-only", "-q", "-o", "addopts=", "-m", "", "--color=no"]


def main() -> None:
    checkout = Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    for path in sorted((checkout / "composer/testing").glob("*_laws.py")):
        if laws := laws_in(path):
            print(f"{path.stem.replace('_', ' ') + ', functions':36}{len(laws):6}")
    tests = collected(checkout)
    for name, pattern in ROWS.items():
        print(f"{name:36}{sum(re.search(pattern, test) is not None for test in tests):6}")


def laws_in(path: Path) -> list[str]:
    """Return the laws of a module: functions of a case or a model that return None."""
    functions = [
        node
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef)
    ]
    takes = {
        node.name: [ast.unparse(arg.annotation) for arg in node.args.args if arg.annotation]
        for node in functions
    }
    return [
        node.name
        for node in functions
        if takes[node.name] in (["Case"], ["EncoderDecoder"])
        and ast.unparse(node.returns or node) == "None"
    ]


def collected(checkout: Path) -> list[str]:
    """Return the ids of all tests of a checkout."""
    done = subprocess.run([sys.executable, *COLLECT], cwd=checkout, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stdout)
    return [line for line in done.stdout.splitlines() if re.match(r"tests/\S+::", line)]


if __name__ == "__main__":
    main()
