"""Checkpoints: atomic writes with a checksum, pruning, choosing the best."""

from __future__ import annotations

import hashlib
import io
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

import torch
from torch import Tensor

from composer.atomic_io import atomic_open, atomic_write
from composer.errors import ComposerError, RunError, RunFailed
from composer.metrics.table import best_validation
from composer.run_dir import (
    checkpoint_path,
    checkpoint_step,
    checksum_path,
    invalid_checkpoint,
    list_checkpoints,
    read_checkpoint,
)
from composer.training.lightning import CheckpointIO, Trainer, checkpoint_connector
from composer.training.sharding import own_part

History = Sequence[Mapping[str, float]]
"""The scores of every validation so far, each with its `step`."""


class HashingWriter(io.RawIOBase):
    """File object that hashes all that is written, and keeps the OSError of a write."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.sha256 = file, hashlib.sha256()
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        self.sha256.update(data)
        try:
            return self.file.write(data)
        except OSError as error:
            self.error = error
            raise


class AtomicCheckpointIO(CheckpointIO):
    """Lightning plugin that writes checkpoints atomically, with a SHA-256 beside each."""

    def save_checkpoint(
        self, checkpoint: Mapping[str, Any], path: Any, storage_options: Any = None
    ) -> None:
        """Write the checksum, then the checkpoint. Raises OSError if the disk is full."""
        path = Path(path)
        if checkpoint_step(path) is None:
            # of a user's ModelCheckpoint, which expects its folder to be made; a run's that is gone
            # is an error
            path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_open(path) as file:
            writer = HashingWriter(file)
            try:
                torch.save(dict(checkpoint), cast("IO[bytes]", writer))
            except (
                RuntimeError
            ) as error:  # torch reports a full disk as a wrong position in the file
                raise writer.error or error from None
            # A checkpoint without a checksum counts as damaged, a checksum without a checkpoint
            # does no harm. So the checksum is written first, before atomic_open renames the
            # checkpoint into place.
            atomic_write(
                checksum_path(path), f"{writer.sha256.hexdigest()}  {path.name}\n".encode()
            )

    def load_checkpoint(
        self, path: Any, map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, object]:
        return read_checkpoint(Path(path), map_location or "cpu")

    def remove_checkpoint(self, path: Any) -> None:
        Path(path).unlink(missing_ok=True)
        checksum_path(Path(path)).unlink(missing_ok=True)


@dataclass(frozen=True)
class CheckpointManager:
    """Saves checkpoints; keeps the best by `metric`, the last validations, the newest.

    At least two validations count as the last, and as many as are averaged at the end. With a quota
    of `gib` all checkpoints are kept that fit, the oldest deleted first.
    """

    folder: Path
    average: int = 1
    metric: str = "val/loss"
    gib: float | None = None

    def save(self, trainer: Trainer, step: int, history: History) -> None:
        """Save the checkpoint of `step`, on every device; the first one prunes others."""
        if trainer.is_global_zero and self.gib is not None:
            self.make_room(checkpoint_path(self.folder, step), history)
        trainer.save_checkpoint(checkpoint_path(self.folder, step))
        if trainer.is_global_zero:
            self.prune(step, history)

    def make_room(self, new: Path, history: History) -> None:
        """Delete the oldest checkpoints until one more fits the quota, but never a needed one.

        That is the last one, the best, and those that are averaged at the end. Raises RunFailed,
        with nothing deleted, if a new one does not fit beside them.
        """
        sizes = {path: path.stat().st_size for path in list_checkpoints(self.folder) if path != new}
        past = [
            scores for scores in history if checkpoint_path(self.folder, int(scores["step"])) != new
        ]
        averaged = self.recent(past)[-self.average :] if self.average > 1 else []
        needed = {self.best(past), *list(sizes)[-1:], *averaged}
        quota, total = (
            (self.gib or 0.0) * 2**30,
            sum(sizes.values()) + max(sizes.values(), default=0),
        )
        oldest: list[Path] = []
        for path in (path for path in sizes if path not in needed):
            if total > quota:
                oldest.append(path)
                total -= sizes[path]
        if total > quota:
            message = (
                f"{len(needed & {*sizes}) + 1} checkpoints, all of them needed, take"
                f" {total / 2**30:.3g} GiB"
            )
            fix = f"resume with `training.checkpoints_gib={1.1 * total / 2**30:.3g}`"
            raise RunFailed.of(
                f"{message}, more than `training.checkpoints_gib`", fix, str(self.folder)
            )
        for path in oldest:
            AtomicCheckpointIO().remove_checkpoint(path)

    def prune(self, step: int, history: History) -> None:
        """Delete checkpoints that are not kept, and checksums without a checkpoint."""
        keep = {*self.recent(history), self.best(history), checkpoint_path(self.folder, step)}
        for path in list_checkpoints(self.folder) if self.gib is None else ():
            if path not in keep:
                AtomicCheckpointIO().remove_checkpoint(path)
        for path in self.folder.glob("step-*.ckpt.sha256"):
            if not path.with_suffix("").exists():
                path.unlink(missing_ok=True)

    def recent(self, history: History) -> list[Path]:
        """Return the paths of the checkpoints of the last validations, oldest first."""
        return [
            checkpoint_path(self.folder, int(scores["step"]))
            for scores in history[-max(2, self.average) :]
        ]

    def best(self, history: History) -> Path | None:
        """Return the best checkpoint, ties broken by val/loss; None if it was not measured."""
        best = best_validation(self.metric, history)
        return checkpoint_path(self.folder, int(best["step"])) if best is not None else None

    def select(self, history: History) -> tuple[str, list[Path]]:
        """Return the final weights' checkpoints, and the choice: `average`, `best`, `last`."""
        existing = set(list_checkpoints(self.folder))
        recent = [path for path in self.recent(history)[-self.average :] if path in existing]
        if self.average > 1 and len(recent) > 1:
            return "average", recent
        best = self.best(history)
        return ("best", [best]) if best in existing else ("last", [max(existing)])


def has_finite_state(trainer: Trainer) -> bool:
    """True if weights and optimizer states are finite, on all devices; a collective call.

    The loss does not show it: it may have been finite in the step whose gradient was not.
    """
    values: list[object] = [*trainer.lightning_module.parameters()]
    for optimizer in trainer.optimizers:
        for state in optimizer.state.values():
            values += state.values()
    tensors = [own_part(value) for value in values if isinstance(value, Tensor)]
    device = trainer.strategy.root_device  # Adam counts its steps in main memory
    bad = torch.stack([(~tensor.isfinite().all()).to(device) for tensor in tensors]).sum()
    return not trainer.strategy.reduce(bad, reduce_op="sum")


def restore_error(error: BaseException, path: Path) -> RunError | None:
    """Return the error of a checkpoint that Lightning cannot restore; None for any other error.

    Our callbacks read their part in `load_state_dict`, which Lightning calls; what fails later is a
    bug.
    """
    frames = traceback.extract_tb(error.__traceback__)
    is_restoring = any(
        "restore" in frame.name and frame.filename == checkpoint_connector.__file__
        for frame in frames
    )
    if not is_restoring or isinstance(error, ComposerError):
        return None
    return invalid_checkpoint(path, f"{type(error).__name__}: {error}")
