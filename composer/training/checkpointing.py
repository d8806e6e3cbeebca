"""Checkpoints that survive a crash: written beside, flushed, renamed; with a digest, so that a broken one is known.

Everything in them is a plain type or a tensor: they load with `weights_only`, so a checkpoint can run no code.
"""

from __future__ import annotations

import hashlib
import io
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

import numpy as np
import torch
from pytorch_lightning import Trainer
from pytorch_lightning.plugins import CheckpointIO
from torch import Tensor

from composer.atomic_io import atomic_open, atomic_write, sha256_of_file
from composer.errors import RunError, RunFailed
from composer.recipe.metrics import as_maximised

PREFIX = "model."
"""What the module's own name puts before each of the model's weights."""


def checkpoint_path(folder: Path, step: int) -> Path:
    """Where the checkpoint after `step` steps is kept."""
    return folder / f"step-{step:08d}.ckpt"


def list_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints in a folder, oldest first, whether or not they are whole."""
    return sorted(path for path in folder.glob("step-*.ckpt") if re.fullmatch(r"step-\d{8,}", path.stem))


def latest_checkpoint(folder: Path, say: Callable[[str], None]) -> Path | None:
    """The newest checkpoint that is whole; `say` is told of each newer one that is not."""
    for path in reversed(list_checkpoints(folder)):
        if is_intact(path):
            return path
        say(f"{path} is damaged and is passed over")
    if any(folder.glob("step-*.ckpt")):
        say("no checkpoint is whole: the training begins again from its first step")
    return None


def is_intact(path: Path) -> bool:
    """Whether a checkpoint is, to the last bit, what was written."""
    try:
        return checksum_path(path).read_text().split()[0] == sha256_of_file(path)
    except (OSError, IndexError, ValueError):
        return False


def checksum_path(path: Path) -> Path:
    """The file beside a checkpoint that holds its SHA-256, in the form of `sha256sum`."""
    return path.with_name(f"{path.name}.sha256")


def delete_checkpoint(path: Path) -> None:
    """Removes a checkpoint and its digest."""
    path.unlink(missing_ok=True)
    checksum_path(path).unlink(missing_ok=True)


def remove_orphaned_checksums(folder: Path) -> None:
    """Removes the digests whose checkpoint has not come to be, or is gone."""
    for path in folder.glob("step-*.ckpt.sha256"):
        if not path.with_suffix("").exists():
            path.unlink(missing_ok=True)


def read_checkpoint(path: Path, map_location: Any = "cpu", mapped: bool = False) -> dict[str, Any]:
    """The content of a checkpoint; `mapped`: its tensors stay on the disk until they are asked for.

    Raises RunError where it is damaged, or is no checkpoint. Whatever it holds, nothing of it is executed.
    """
    if not is_intact(path):
        raise RunError.of("this checkpoint is damaged", "remove it: the one before it is used then", str(path))
    try:
        content: dict[str, Any] = torch.load(path, map_location=map_location, weights_only=True, mmap=mapped)
    except (OSError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # a pickle that was made to do harm can fail in any way
        raise invalid_checkpoint(path, str(error)) from None
    if not isinstance(content, dict):
        raise invalid_checkpoint(path, f"it holds a {type(content).__name__}")
    return content


def invalid_checkpoint(path: Path, why: str) -> RunError:
    """A file that is what its digest says, and no checkpoint."""
    return RunError.of(
        f"this is no checkpoint of a training, and nothing of it was executed: {why.strip().partition(chr(10))[0]}",
        "remove it: the one before it is used then",
        str(path),
    )


def read_hyper_parameters(path: Path) -> tuple[str, str]:
    """The recipe and the tokenizer that a checkpoint was made with, each as the text of its file. Raises RunError."""
    content = read_checkpoint(path, mapped=True)
    told = content.get("hyper_parameters")
    needed = ("state_dict", "optimizer_states", "callbacks", "loops")
    if not isinstance(told, dict) or not {"recipe", "tokenizer"} <= told.keys() or not content.keys() >= {*needed}:
        raise invalid_checkpoint(path, "it is not what `seqcomposer train` writes")
    return str(told["recipe"]), str(told["tokenizer"])


def checkpoint_weights(path: Path) -> dict[str, Tensor]:
    """The model's weights in a checkpoint, by the names they have in the model."""
    return {
        name.removeprefix(PREFIX): value
        for name, value in read_checkpoint(path)["state_dict"].items()
        if name.startswith(PREFIX)
    }


def average_weights(paths: Sequence[Path]) -> dict[str, Tensor]:
    """The mean of the weights of several checkpoints, the oldest first; what is no fraction is the last one's."""
    last = checkpoint_weights(paths[-1])
    kept = {name: value.dtype for name, value in last.items()}
    total = {name: value.double() if value.is_floating_point() else value for name, value in last.items()}
    for path in paths[:-1]:
        for name, value in checkpoint_weights(path).items():
            if value.is_floating_point():
                total[name] += value
    return {
        name: (value / len(paths)).to(kept[name]) if value.is_floating_point() else value
        for name, value in total.items()
    }


class HashingWriter(io.RawIOBase):
    """A file for writing that knows the SHA-256 of what passed through it, and the `trouble` that writing met."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__()
        self.file, self.sha256 = file, hashlib.sha256()
        self.trouble: OSError | None = None

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.sha256.update(data)
        try:
            return self.file.write(data)
        except OSError as error:
            self.trouble = error
            raise

    def flush(self) -> None:
        self.file.flush()


def save_to(checkpoint: Mapping[str, Any], file: HashingWriter) -> None:
    """Writes a checkpoint. Raises OSError where the disk is full: torch itself would tell of a wrong position."""
    try:
        torch.save(dict(checkpoint), cast("IO[bytes]", file))
    except RuntimeError as error:
        raise file.trouble or error from None


class AtomicCheckpointIO(CheckpointIO):
    """Lightning's door to the disk, through the functions above."""

    def save_checkpoint(self, checkpoint: Mapping[str, Any], path: Any, storage_options: Any = None) -> None:
        """The digest first: a checkpoint without one counts as damaged, one whose digest waits for it does no harm."""
        path = Path(path)
        with atomic_open(path) as file:
            hashing = HashingWriter(file)
            save_to(checkpoint, hashing)
            atomic_write(checksum_path(path), f"{hashing.sha256.hexdigest()}  {path.name}\n".encode())

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        return read_checkpoint(Path(path), map_location or "cpu")

    def remove_checkpoint(self, path: Any) -> None:
        delete_checkpoint(Path(path))


History = Sequence[Mapping[str, float]]
"""The scores of every validation so far, each with its `step`."""


@dataclass(frozen=True)
class CheckpointManager:
    """Writes checkpoints into a folder and removes those that are no longer wanted.

    `metric` is what the best is judged by; `last` is how many are kept besides it.
    """

    folder: Path
    last: int = 2
    metric: str = "val/loss"

    def keep(self, trainer: Trainer, step: int, history: History) -> None:
        """Writes the checkpoint of `step` (on every device), then removes older ones (on one).

        Raises RunFailed, on every device, where there is nothing left that is worth keeping.
        """
        check_finite(trainer, step)
        trainer.save_checkpoint(checkpoint_path(self.folder, step))
        if trainer.is_global_zero:
            self.tidy(step, history)

    def tidy(self, step: int, history: History) -> None:
        """Removes the checkpoints that are no longer wanted after `step` steps."""
        wanted = {*self.recent(history), self.best(history), checkpoint_path(self.folder, step)}
        for path in list_checkpoints(self.folder):
            if path not in wanted:
                delete_checkpoint(path)
        remove_orphaned_checksums(self.folder)

    def recent(self, history: History) -> list[Path]:
        """The checkpoints of the last validations, oldest first."""
        return [checkpoint_path(self.folder, int(scores["step"])) for scores in history[-self.last :]]

    def best(self, history: History) -> Path | None:
        """The checkpoint of the best validation, of equal ones that of the lowest loss; None without any."""
        if not any(self.metric in scores for scores in history):
            return None
        best = max(history, key=lambda scores: (as_maximised(self.metric, scores), as_maximised("val/loss", scores)))
        return checkpoint_path(self.folder, int(best["step"]))


def check_finite(trainer: Trainer, step: int) -> None:
    """Raises RunFailed where a weight, or what the optimizer remembers, is no number: one bad gradient is enough.

    The loss need not tell: it may have been finite in the step whose gradient was not.
    """
    values = list(trained_tensors(trainer))
    bad = torch.stack([~value.isfinite().all() for value in values]).sum()
    if not trainer.strategy.reduce(bad, reduce_op="sum"):
        return
    raise RunFailed.of(
        f"after {step} steps a weight, or what the optimizer remembers of it, is no finite number any more: "
        "a gradient since the last checkpoint was none",
        "lower the learning rate, give the schedule more `warmup_steps`, or set `training.clip_norm: 1.0`",
    )


def trained_tensors(trainer: Trainer) -> Iterator[Tensor]:
    """What a checkpoint has of numbers that training changes; of a tensor that devices share, this device's part."""
    remembered = (state for optimizer in trainer.optimizers for state in optimizer.state.values())
    known = (value for state in remembered for value in state.values() if isinstance(value, Tensor))
    for value in chain(trainer.lightning_module.parameters(), known):
        here: Any = getattr(value, "to_local", None)
        yield (here() if here else value).detach()


def capture_rng_state() -> dict[str, Any]:
    """The states of this process: torch, its GPUs, python and numpy."""
    kind, keys, *rest = np.random.get_state()
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "python": list(random.getstate()),
        "numpy": [str(kind), [int(key) for key in keys], *rest],
    }


def restore_rng_state(states: dict[str, Any]) -> None:
    """Puts the states back that `capture` gave."""
    torch.set_rng_state(states["torch"].cpu())
    if torch.cuda.is_available() and len(states["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all([state.cpu() for state in states["cuda"]])
    version, internal, gauss = states["python"]
    random.setstate((version, tuple(internal), gauss))
    kind, keys, *rest = states["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), *rest))


def seed_all(*numbers: int) -> None:
    """A stream of its own for these numbers, from their hash: neighbours have nothing to do with each other."""
    words = np.random.SeedSequence(numbers).generate_state(6)
    torch.manual_seed(int(words[0]) << 31 | int(words[1]))
    random.seed(int(words[2]) << 32 | int(words[3]))
    np.random.seed(words[4:])
