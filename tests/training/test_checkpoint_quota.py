"""`training.checkpoints_gib`: disk space for checkpoints."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from composer.errors import ComposerError, RunFailed
from composer.run_dir import checkpoint_step, list_checkpoints
from composer.training.checkpointing import CheckpointManager
from composer.training.preflight import check_recipe
from composer.training.train import train
from tests.training.tiny_recipes import Tiny, same_weights


def test_a_quota_keeps_what_fits_and_all_that_is_needed(tmp_path: Path) -> None:
    size = 1 << 16

    class Writes:
        is_global_zero = True
        optimizers = ()
        lightning_module = torch.nn.Linear(1, 1)
        strategy = SimpleNamespace(reduce=lambda value, reduce_op: value)

        def save_checkpoint(self, path: Path) -> None:
            path.write_bytes(bytes(size))
            used.append(sum(each.stat().st_size for each in list_checkpoints(tmp_path)))

    def save(manager: CheckpointManager) -> list[int]:
        history.append(
            {"step": float(10 * len(history) + 10), "val/loss": 1.0 if len(history) == 1 else 2.0}
        )
        manager.save(Writes(), int(history[-1]["step"]), history)  # type: ignore[arg-type]
        return [checkpoint_step(path) or 0 for path in list_checkpoints(tmp_path)]

    used: list[int] = []
    history: list[dict[str, float]] = []
    roomy, tight = (CheckpointManager(tmp_path, gib=count * size / 2**30) for count in (5, 3))
    assert [save(roomy) for _ in range(7)][3:] == [
        [10, 20, 30, 40],
        [10, 20, 30, 40, 50],
        [20, 30, 40, 50, 60],
        [20, 40, 50, 60, 70],  # 20 is the best
    ]
    assert max(used) == 5 * size
    used.clear()
    assert [save(tight), save(tight)] == [[20, 70, 80], [20, 80, 90]]
    assert max(used) == 3 * size
    averaging = CheckpointManager(tmp_path, average=3, gib=3 * size / 2**30)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(
        RunFailed,
        match=r"4 checkpoints, all of them needed.*\n *fix: resume with .*checkpoints_gib=",
    ):
        save(averaging)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_quota_changes_no_result(tiny: Tiny, tmp_path: Path) -> None:
    often, roomy = (
        ("training.validate_every=1", "training.max_steps=6"),
        "training.checkpoints_gib=1",
    )
    train(tiny(*often), tmp_path / "plain")
    train(tiny(*often, roomy), tmp_path / "roomy")
    assert same_weights(tmp_path / "plain", tmp_path / "roomy")
    assert tiny(roomy).fingerprints == tiny().fingerprints
    plain, all_of_them = (
        len(list_checkpoints(tmp_path / name / "checkpoints")) for name in ("plain", "roomy")
    )
    assert (plain <= 3, all_of_them) == (True, 6)
    size = list_checkpoints(tmp_path / "roomy" / "checkpoints")[0].stat().st_size
    train(tiny(*often, f"training.checkpoints_gib={3.1 * size / 2**30}"), tmp_path / "tight")
    assert same_weights(tmp_path / "plain", tmp_path / "tight")
    assert len(list_checkpoints(tmp_path / "tight" / "checkpoints")) == 3


@pytest.mark.parametrize(
    "overrides", [(), ("training.average_checkpoints=4",), ("training.ema={}",)]
)
def test_check_and_train_refuse_a_quota_that_is_too_small(
    tiny: Tiny, tmp_path: Path, overrides: tuple[str, ...]
) -> None:
    parameters = 1219
    copies, count = 4 if "ema" in str(overrides) else 3, 6 if "average" in str(overrides) else 3
    needed = parameters * 4 * copies * count / 2**30
    check_recipe(tiny(*overrides, f"training.checkpoints_gib={1.01 * needed}"))
    recipe = tiny(*overrides, f"training.checkpoints_gib={0.99 * needed}")
    for refuse in (check_recipe, lambda recipe: train(recipe, tmp_path / "run")):
        with pytest.raises(
            ComposerError, match=f"needs room for {count} checkpoints, and each takes"
        ) as raised:
            refuse(recipe)
        assert raised.value.faults[0].path == "training.checkpoints_gib"
    assert not (tmp_path / "run").exists()
