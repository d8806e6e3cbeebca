"""Write the fingerprints of all recipes in two checkouts of this project as a table, for
CHANGELOG.md.

    git worktree add ../before 68445fb6
    python -m verify.fingerprints ../before . --output docs/versions/0.2.0-fingerprints.md

Of each recipe that both have there are `model`, `data` and `run`, of the recipe's text alone, in
sixteen digits. `--python` names the Python of the first checkout where it needs another.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

KEYS = ("model", "data", "run")
DIGITS = 16
Prints = Mapping[str, Mapping[str, str]]
READ = """
import json, pathlib, composer
from composer.recipe.yaml_reader import read
recipes = pathlib.Path("recipes")
assert pathlib.Path(composer.__file__).parent.parent == recipes.absolute().parent, composer.__file__
files = [path for path in sorted(recipes.glob("**/*.yaml")) if "fragments" not in path.parts]
single = [path for path in files if "sweep" not in read(path, path.name).value]
print(json.dumps({path.as_posix(): composer.load(path).fingerprints for path in single}))
"""
HEAD = """# Fingerprints of the recipes: old and new

The first {digits} digits of `composer.load(RECIPE).fingerprints` in the two versions. Written by
`python -m verify.fingerprints`; {common} recipes are in both, {old} in the old version alone, {new}
in the new one.

| recipe | fingerprint | old | new |
|---|---|---|---|
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    text = table(read(options.before, options.python), read(options.after, sys.executable))
    if options.output is None:
        print(text, end="")
        return
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(text, encoding="utf-8")


def read(checkout: Path, python: str) -> Prints:
    """Return the fingerprints of a checkout's recipes, by a process that imports that checkout."""
    environment = os.environ | {"PYTHONPATH": str(checkout.resolve())}
    command = [python, "-P", "-c", READ]
    done = subprocess.run(
        command, cwd=checkout, env=environment, check=True, stdout=subprocess.PIPE, text=True
    )
    prints: Prints = json.loads(done.stdout)
    return prints


def table(before: Prints, after: Prints) -> str:
    """Return the table in Markdown: a row for each fingerprint of each recipe that both have."""
    common = sorted(before.keys() & after.keys())
    counts = {
        "common": len(common),
        "old": len(before) - len(common),
        "new": len(after) - len(common),
    }
    lines = [HEAD.format(digits=DIGITS, **counts)]
    for name in common:
        for key in KEYS:
            old, new = (f"`{prints[name][key][:DIGITS]}`" for prints in (before, after))
            lines.append(f"| {name} | {key} | {old} | {'the same' if old == new else new} |\n")
    return "".join(lines)


if __name__ == "__main__":
    main()
