"""What a training came to: which weights are kept, how good they are, and where everything lies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import Tensor

from composer import checkpoint
from composer.checkpoint import write_whole
from composer.keeper import History, Keeper
from composer.module import Seq2Seq
from composer.run_folder import RunFolder
from composer.start import distinct


@dataclass(frozen=True)
class Outcome:
    """A finished run: its folder and its run.json."""

    folder: Path
    record: Mapping[str, Any]

    @property
    def scores(self) -> Mapping[str, float]:
        """The last scores, by the names under which they are logged."""
        return self.record.get("scores", {})


def chosen(keeper: Keeper, history: History, average: int) -> tuple[str, list[Path]]:
    """Which checkpoints the final weights are made of, and how that is called: average, best or last."""
    there = set(checkpoint.checkpoints(keeper.folder))
    recent = [path for path in keeper.recent(history)[-average:] if path in there]
    if average > 1 and len(recent) > 1:
        return "average", recent
    best = keeper.best(history)
    if best in there:
        return "best", [best]
    return "last", [max(there)]


def write_weights(module: Seq2Seq, folder: RunFolder, paths: list[Path]) -> None:
    """Puts the mean of these checkpoints into the module and into model.safetensors."""
    weights = checkpoint.average(paths) if len(paths) > 1 else checkpoint.weights(paths[0])
    module.model.load_state_dict(weights)
    write_whole(folder.weights, save(plain(distinct(module.model))))


def plain(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors that a file can hold: on the CPU, one after another."""
    return {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
