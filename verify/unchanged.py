"""Compare what two checkouts of this project mean and compute, bit for bit, after changes that must
not affect it.

    git worktree add ../before HEAD~1
    python -m verify.unchanged ../before . [--quick] [--without training.curriculum rnn.zoneout]

Compares, of every recipe that both have, the canonical form, the fingerprints and the initial
weights; the losses of the first 50 steps of the quick start; and the runs of earlier versions that
the first checkout keeps: opened, translated or scored, evaluated and continued. Exit status 1 if
anything differs. Five minutes on two cores; `--quick` half a minute, for a sample of the weights
and no training.

`--without` names keys that were removed on purpose: the last steps of their paths, joined by dots,
without the indices of lists. They are left out of the canonical forms of both sides. The
fingerprints of a recipe that sets one are not compared, nor its weights where the key is in its
model.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

SEED = 7
STEPS = 50
LARGEST = 100_000_000
"""Weights of a model that are drawn; of a larger one, which takes minutes, the shapes alone are
compared.
"""
SAMPLED = 6_000_000
"""The same with `--quick`, in which one recipe of `EACH` has its weights drawn."""
EACH = 3
SHOWN = 3
"""Differences of one recipe or run that are printed."""
RUNS = Path("tests", "versions")
PARTS = {
    "canonical": "canonical forms of recipes",
    "fingerprints": "fingerprints of recipes",
    "weights": "initial weights of recipes",
    "runs": "runs of earlier versions",
    "training": f"quick start, {STEPS} steps: losses and weights",
}
Path_ = tuple[str, ...]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument(
        "--quick", action="store_true", help="a sample of the weights, and no training"
    )
    parser.add_argument(
        "--without", nargs="+", metavar="KEY", default=[], help="keys that were removed on purpose"
    )
    options = parser.parse_args()
    before, after = measure_both(options)
    print_alone("the first", before["canonical"], after["canonical"])
    print_alone("the second", after["canonical"], before["canonical"])
    equal = [compare(part, before, after) for part in PARTS if before[part] or after[part]]
    sys.exit(0 if all(equal) else 1)


def print_alone(which: str, these: Mapping[str, Any], those: Mapping[str, Any]) -> None:
    """Print the recipes that one checkout has, and the other has not."""
    if alone := sorted(these.keys() - those.keys()):
        print(f"{len(alone)} recipes are in {which} checkout alone: {', '.join(alone)}")


def compare(part: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Print how many of a part are identical, and what differs; return whether nothing does."""
    common = sorted(before[part].keys() & after[part].keys())
    skipped = [name for name in common if None in (before[part][name], after[part][name])]
    compared = [name for name in common if name not in skipped]
    changed = [name for name in compared if before[part][name] != after[part][name]]
    print(f"{PARTS[part]}: {len(compared) - len(changed)} of {len(compared)} are identical")
    for name in changed:
        differences = list(differing(before[part][name], after[part][name]))
        more = f"; and {len(differences) - SHOWN} more" if len(differences) > SHOWN else ""
        print(f"    changed: {name}: {'; '.join(differences[:SHOWN])}{more}")
    if skipped:
        print(f"    skipped, since they set what was removed: {', '.join(skipped)}")
    return bool(compared) and not changed


def differing(one: Any, other: Any, path: str = "") -> Iterator[str]:
    """Yield the places at which two values differ, with both."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in [*one, *(key for key in other if key not in one)]:
            yield from differing(
                one.get(key, "nothing"), other.get(key, "nothing"), f"{path}.{key}".lstrip(".")
            )
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for index, (mine, theirs) in enumerate(zip(one, other, strict=True)):
            yield from differing(mine, theirs, f"{path}[{index}]")
    elif json.dumps(one) != json.dumps(other):  # 1 is not 1.0
        yield f"{path} was {shown(one)} and is {shown(other)}".lstrip()


def shown(value: Any) -> str:
    """Return a value as one line, cut where it is long."""
    text = value if value == "nothing" else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 100 else f"{text[:100]}..."


# ------------------------------------------------------------------------------------------- one
# checkout


def measure_both(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure two checkouts at once, each in a process of its own, which imports that checkout."""
    runs = (options.before / RUNS).resolve()
    with tempfile.TemporaryDirectory() as folder:
        processes = []
        for checkout, name in ((options.before, "before"), (options.after, "after")):
            task = {"quick": options.quick, "without": options.without, "runs": str(runs)}
            task["result"] = str(Path(folder, name))
            command = [sys.executable, "-P", __file__, "--measure", json.dumps(task)]
            environment = {
                "PYTHONPATH": str(checkout.resolve()),
                "OMP_NUM_THREADS": "1",
                "WANDB_MODE": "disabled",
            }
            environment["SEQCOMPOSER_STORE"] = f"{folder}/store-{name}"
            process = subprocess.Popen(
                command,
                env=os.environ | environment,
                cwd=checkout,
                stdout=subprocess.DEVNULL,
                stdin=subprocess.DEVNULL,
            )
            processes.append(process)
        statuses = [process.wait() for process in processes]
        if any(statuses):
            sys.exit("a checkout could not be measured")
        return [
            json.loads(Path(folder, name).read_text(encoding="utf-8"))
            for name in ("before", "after")
        ]


def measure(task: Mapping[str, Any]) -> None:
    """Measure the checkout in the current folder, and write the result into a file."""
    import composer

    assert Path(composer.__file__).parent.parent == Path.cwd(), composer.__file__
    keys = [tuple(key.split(".")) for key in task["without"]]
    measured: dict[str, Any] = {part: {} for part in PARTS}
    files = [path for path in sorted(Path("recipes").glob("**/*.yaml")) if is_recipe(path)]
    for number, path in enumerate(files):
        values = attempt(
            lambda path=path, number=number: measure_recipe(
                path, keys, task["quick"], number % EACH == 0
            )
        )
        if isinstance(values, str):  # it is refused
            values = {"canonical": values, "fingerprints": values, "weights": values}
        for part, value in values.items():
            measured[part][path.relative_to("recipes").as_posix()] = value
    with tempfile.TemporaryDirectory() as folder:
        for run in sorted(Path(task["runs"]).glob("*/*/run")):
            name = f"{run.parent.parent.name}/{run.parent.name}"
            copy = Path(shutil.copytree(run.parent, Path(folder, name)))
            measured["runs"][name] = attempt(lambda copy=copy: measure_run(copy, task["quick"]))
        if not task["quick"]:
            measured["training"] = {
                "quickstart.yaml": attempt(lambda: measure_training(Path(folder, "run")))
            }
    Path(task["result"]).write_text(json.dumps(measured), encoding="utf-8")


def attempt(function: Callable[[], Any]) -> Any:
    """Return what a function returns, or the error that it ends with, which the other checkout
    should have too.
    """
    try:
        return function()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def is_recipe(path: Path) -> bool:
    """Return whether a file in `recipes` is a whole recipe, and no part of one and no sweep."""
    return not {"fragments", "sweeps"} & set(path.parts)


def measure_recipe(path: Path, keys: list[Path_], quick: bool, sampled: bool) -> dict[str, Any]:
    """Return what each part has of one recipe; None where it sets a key that was removed."""
    import yaml

    import composer

    recipe = composer.load(path)
    removed = [place for place in places(yaml.safe_load(recipe.dump())) if is_any_of(place, keys)]
    result: dict[str, Any] = {"canonical": without(recipe.canonical, keys), "fingerprints": None}
    if not removed:
        result["fingerprints"] = {key: recipe.fingerprints[key] for key in ("model", "data", "run")}
    if not quick or sampled:
        in_model = any(place[0] == "model" for place in removed)
        result["weights"] = None if in_model else sha256(recipe, SAMPLED if quick else LARGEST)
    return result


def is_any_of(place: Path_, keys: list[Path_]) -> bool:
    """Return whether a path ends with one of the keys."""
    return any(place[-len(key) :] == key for key in keys)


def places(value: Any, place: Path_ = ()) -> Iterator[Path_]:
    """Yield the paths of all keys, and of names that stand for a mapping, as that of a block
    without settings.
    """
    if isinstance(value, dict):
        for key, inner in value.items():
            yield (*place, key)
            yield from places(inner, (*place, key))
    elif isinstance(value, list):
        for item in value:
            yield from places(item, place)
    elif isinstance(value, str):
        yield (*place, value)


def without(value: Any, keys: list[Path_], place: Path_ = ()) -> Any:
    """Return a value without the keys that were removed."""
    if isinstance(value, list):
        return [without(item, keys, place) for item in value]
    if not isinstance(value, dict):
        return value
    inner = {key: (item, (*place, key)) for key, item in value.items()}
    return {
        key: without(item, keys, path)
        for key, (item, path) in inner.items()
        if not is_any_of(path, keys)
    }


def sha256(recipe: Any, largest: int) -> str:
    """Hash shapes and bytes of weights, in the order of the model: names of modules may change."""
    import torch

    import composer

    with torch.device("meta"):
        shapes = [tuple(value.shape) for value in composer.build(recipe).state_dict().values()]
    digest = hashlib.sha256(repr(shapes).encode())
    if sum(torch.Size(shape).numel() for shape in shapes) > largest:
        return f"shapes {digest.hexdigest()[:16]}"
    torch.manual_seed(SEED)
    for value in composer.build(recipe).state_dict().values():
        digest.update(value.contiguous().numpy())
    return digest.hexdigest()[:16]


def measure_run(folder: Path, quick: bool) -> dict[str, Any]:
    """Return what a run of an earlier version writes, its scores, and how it goes on when it is
    continued.
    """
    import composer

    expected = json.loads((folder / "expected.json").read_text(encoding="utf-8"))
    run = composer.open_run(folder / "run")
    result: dict[str, Any] = {"evaluated": composer.evaluate(folder / "run", data=folder)}
    if sources := [row["source"] for row in expected.get("translate", ())]:
        result["translated"] = [
            [line.text, line.score] for line in run.translate(sources, scores=True)
        ]
    else:
        lines = (folder / "lines.txt").read_text(encoding="utf-8").splitlines()
        result["scored"] = [line.total for line in run.score(lines)]
    if not quick:
        steps = f"training.max_steps={expected['continued']['max_steps']}"
        recipe = composer.load(folder / "run" / "recipe.yaml", [steps])
        composer.train(recipe, run=folder / "run", data=folder, resume=True)
        result["continued"] = losses_and_weights(folder / "run")
    return result


def measure_training(run: Path) -> dict[str, Any]:
    """Return what a short training of the quick start has learned."""
    import composer

    overrides = [f"training.max_steps={STEPS}", "training.max_minutes=null", "logging.wandb=false"]
    composer.train(composer.load("recipes/quickstart.yaml", overrides), run=run)
    return losses_and_weights(run)


def losses_and_weights(run: Path) -> dict[str, Any]:
    """Return the losses of all rows of a run's metrics, and the hash of its weights."""
    rows = map(json.loads, (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    losses = [[row.get("train/loss"), row.get("val/loss")] for row in rows]
    return {
        "losses": losses,
        "weights": hashlib.sha256((run / "model.safetensors").read_bytes()).hexdigest(),
    }


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        measure(json.loads(sys.argv[2]))
    else:
        main()
