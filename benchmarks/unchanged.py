"""Compare what two checkouts of this project compute, bit for bit, after changes that must not affect any number.

    git worktree add ../before HEAD~1
    python -m benchmarks.unchanged ../before .

Compares the fingerprints and the initial weights of every recipe that both have, and the losses of the first 50 steps
of the quick start. Exit status 1 if anything differs.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

SEED = 7
STEPS = 50


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    before, after = (measure_in(Path(argument).resolve()) for argument in sys.argv[1:])
    all_equal = True
    for part in ("fingerprints", "weights"):
        common = sorted(before[part].keys() & after[part].keys())
        changed = [name for name in common if before[part][name] != after[part][name]]
        print(f"{part}: {len(common) - len(changed)} of {len(common)} recipes are identical")
        print(*(f"    changed: {name}\n" for name in changed), sep="", end="")
        all_equal &= not changed
    training_equal = before["training"] == after["training"]
    print(f"quick start, {STEPS} steps: {'identical' if training_equal else 'different'} losses and weights")
    sys.exit(0 if all_equal and training_equal else 1)


def measure_in(checkout: Path) -> dict[str, Any]:
    """Measure a checkout in a process of its own, which imports that checkout."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "result.json")
        command = [sys.executable, __file__, "--measure", str(checkout), str(result)]
        environment = os.environ | {"PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "2"}
        subprocess.run(command, env=environment, cwd=checkout, check=True, stdout=subprocess.DEVNULL)
        measured: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
        return measured


def measure(checkout: Path, result: Path) -> None:
    import torch

    import composer

    measured: dict[str, Any] = {"fingerprints": {}, "weights": {}}
    for path in sorted(checkout.glob("recipes/**/*.yaml")):
        name = str(path.relative_to(checkout / "recipes"))
        if {"fragments", "sweeps"} & set(path.parts):
            continue
        recipe = composer.load(path)
        measured["fingerprints"][name] = {key: recipe.fingerprints[key] for key in ("model", "data", "run")}
        torch.manual_seed(SEED)
        measured["weights"][name] = sha256(composer.build(recipe).state_dict())
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder, "run")
        overrides = [f"training.max_steps={STEPS}", "training.max_minutes=null", "logging.wandb=false"]
        composer.train(composer.load(checkout / "recipes/quickstart.yaml", overrides), run=run)
        rows = map(json.loads, (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
        losses = [[row.get("train/loss"), row.get("val/loss")] for row in rows]
        weights = hashlib.sha256((run / "model.safetensors").read_bytes()).hexdigest()
        measured["training"] = [losses, weights]
    result.write_text(json.dumps(measured), encoding="utf-8")


def sha256(weights: dict[str, Any]) -> str:
    """Hash shapes and bytes of weights, in the order of the model: names of modules may change."""
    digest = hashlib.sha256()
    for value in weights.values():
        digest.update(str(tuple(value.shape)).encode() + value.contiguous().cpu().numpy().tobytes())
    return digest.hexdigest()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        measure(Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        main()
