"""Checkpoints: atomic writes with a checksum, pruning, averages of weights, random generators."""

from __future__ import annotations

import hashlib
import io
import random
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

import numpy as np
import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from composer.atomic_io import atomic_open, atomic_write
from composer.errors import ComposerError, RunError, RunFailed
from composer.metrics.table import best_validation
from composer.recipe.recipe import Recipe
from composer.run_dir import (
    checkpoint_path,
    checkpoint_step,
    checkpoint_weights,
    checksum_path,
    invalid_checkpoint,
    list_checkpoints,
    read_checkpoint,
)
from composer.training.budget import has_stalled
from composer.training.lightning import Callback, CheckpointIO, Trainer, checkpoint_connector
from composer.training.sharding import full_state, local_part, own_part

History = Sequence[Mapping[str, float]]
"""The scores of every validation so far, each with its `step`."""


def average_weights(paths: Sequence[Path]) -> dict[str, Tensor]:
    """Return the mean of the weights of checkpoints, oldest first; integers are of the last one."""
    last = checkpoint_weights(paths[-1])
    floats = {name: value for name, value in last.items() if value.is_floating_point()}
    total = {name: value.double() for name, value in floats.items()}
    for path in paths[:-1]:
        weights = checkpoint_weights(path)
        # not in place: tied weights are one tensor under several names
        total = {name: value + weights[name] for name, value in total.items()}
    means = {name: (total[name] / len(paths)).to(value.dtype) for name, value in floats.items()}
    return last | means


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


def capture_rng_state() -> dict[str, object]:
    """Return the states of this process's generators as plain types and tensors.

    They are those of torch, its GPUs, Python and NumPy.

    No lists of numbers: a checkpoint of a small model would take longer for these than for its
    weights.
    """
    version, internal, gauss = random.getstate()
    kind, keys, *rest = np.random.get_state()
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "python": [version, torch.tensor(internal), gauss],
        "numpy": [str(kind), torch.tensor(np.asarray(keys, dtype=np.int64)), *rest],
    }


def restore_rng_state(states: dict[str, Any]) -> None:
    """Restore what `capture_rng_state` returned; GPU states only on a machine with as many GPUs."""
    torch.set_rng_state(states["torch"].cpu())
    if torch.cuda.is_available() and len(states["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all([state.cpu() for state in states["cuda"]])
    version, internal, gauss = states["python"]
    random.setstate((version, tuple(internal.tolist()), gauss))
    kind, keys, *rest = states["numpy"]
    np.random.set_state((kind, keys.cpu().numpy().astype(np.uint32), *rest))


def seed_all(*numbers: int) -> None:
    """Seed all generators from a hash of these numbers; neighbours give unrelated streams."""
    words = np.random.SeedSequence(numbers).generate_state(6)
    torch.manual_seed(int(words[0]) << 31 | int(words[1]))
    random.seed(int(words[2]) << 32 | int(words[3]))
    np.random.seed(words[4:])


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


def weight_averages(recipe: Recipe) -> list[WeightAverage]:
    """Return the callbacks of the averages that a recipe asks for."""
    ema, asgd = recipe.training.ema, recipe.training.asgd
    averages = [WeightAverage(decay=ema.decay)] if ema else []
    return [*averages, *([WeightAverage(patience=asgd.patience)] if asgd else [])]


class WeightAverage(Callback):
    """Callback that averages the weights of all steps, and validates with the average.

    With `decay` the average is exponential. With `patience` it is the weights themselves until the
    validation loss has stalled, and from then on the mean of those of all steps.

    It comes before `TrainingLoopCallback`, which saves a checkpoint at the end of a validation.
    That holds the weights of the training as its `state_dict`, so that a resumed one goes on with
    them, and the average as the state of this callback. Lightning's `WeightAveraging` does not work
    with sharded models.
    """

    def __init__(self, decay: float | None = None, patience: int = 0) -> None:
        self.decay, self.patience, self.step = decay, patience, 0
        self.stalled_at: int | None = None  # the step after which the mean begins
        # by the first name of each parameter, in 32 bits or more
        self.average: dict[str, Tensor] = {}
        # the first name of a parameter, by each of its names: weights can be tied
        self.names: dict[str, str] = {}
        self.backup: list[Tensor] = []
        self.loaded: Mapping[str, Tensor] = {}

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Begin with the initial weights, or with the average of the checkpoint."""
        self.step, self.parameters = trainer.global_step, dict(pl_module.model.named_parameters())
        first = {id(parameter): name for name, parameter in self.parameters.items()}
        every = pl_module.model.named_parameters(remove_duplicate=False)
        self.names = {name: first[id(parameter)] for name, parameter in every}
        for name, parameter in self.parameters.items():
            dtype = torch.promote_types(parameter.dtype, torch.float32)
            loaded = local_part(self.loaded[name], parameter) if self.loaded else parameter
            self.average[name] = loaded.detach().to(parameter.device, dtype, copy=True)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: object, outputs: object, batch: object, batch_idx: int
    ) -> None:
        """Move the average towards the weights after each step."""
        if trainer.global_step == self.step:
            return  # gradients accumulate
        self.step = trainer.global_step
        average = [own_part(value) for value in self.average.values()]
        weights = [
            own_part(value).to(old.dtype)
            for value, old in zip(self.parameters.values(), average, strict=True)
        ]
        torch._foreach_lerp_(average, weights, self.share(pl_module))

    def share(self, module: Any) -> float:
        """Return the share of the average that the weights of this step have."""
        if self.decay is not None:
            return 1 - min(self.decay, (1 + self.step) / (10 + self.step))
        if self.stalled_at is None and has_stalled(module.progress().losses, self.patience):
            self.stalled_at = self.step - 1
        return 1.0 if self.stalled_at is None else 1 / (self.step - self.stalled_at)

    def on_validation_start(self, trainer: Trainer, pl_module: object) -> None:
        """Put the average in the place of the weights."""
        self.backup = [own_part(parameter).clone() for parameter in self.parameters.values()]
        self._set_weights(pl_module, [own_part(value) for value in self.average.values()])

    def on_validation_end(self, trainer: Trainer, pl_module: object) -> None:
        """Put the weights back."""
        self._set_weights(pl_module, self.backup)
        self.backup = []

    def _set_weights(self, module: Any, values: list[Tensor]) -> None:
        for parameter, value in zip(self.parameters.values(), values, strict=True):
            own_part(parameter).copy_(value)
        for unit in module.modules():
            if isinstance(unit, FSDPModule):
                unit.reshard()  # what was gathered for the last forward pass is no longer true

    def state_dict(self) -> dict[str, Any]:
        """Return the average by every name of a parameter, whole; a collective call."""
        full = full_state(self.average)
        average = {name: full[first] for name, first in self.names.items()}
        return {"average": average, "stalled_at": self.stalled_at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loaded, self.stalled_at = state["average"], state["stalled_at"]
