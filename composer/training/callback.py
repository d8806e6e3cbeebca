"""The course of a training: what happens between two steps, in one straight line.

Lightning runs the steps; this decides after each of them whether the budget is spent, whether to validate, to write a
row, to keep a checkpoint, to stop. All that it knows goes into the checkpoint, so that a resumed training is the same.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar

from pytorch_lightning import Callback, Trainer
from torch import Tensor

from composer.data.sampler import EvalBatchSampler, ResumableBatchSampler
from composer.errors import RunError, RunFailed
from composer.inference.run import Sample
from composer.recipe.metrics import as_maximised
from composer.training import checkpointing
from composer.training.checkpointing import CheckpointManager
from composer.training.datamodule import Curriculum
from composer.training.loggers import BUDGET_TRACE
from composer.training.module import Seq2SeqModule, validation_scores
from composer.training.optim import Budget, Clock, Progress
from composer.training.signals import SignalHandler, TrainingInterrupted
from composer.training.validation_decoding import RankInfo, ValidationDecoder

ROW_STEPS = 10
"""Steps between two rows of metrics; only then does anybody wait for the device."""
HEARD_WITHIN = 5.0
"""Seconds after which a signal to one of several processes is known to all, unless a single step takes longer."""
NEVER = 1 << 62
T = TypeVar("T")


class Journal(Protocol):
    """Who is told what a training has come to."""

    def begin(self, spent: float) -> None: ...
    def row(self, row: Mapping[str, float], spent: float) -> None: ...
    def validating(self, step: int, spent: float) -> None: ...
    def validated(self, row: Mapping[str, float], samples: Sequence[Sample]) -> None: ...
    def note(self, text: str) -> None: ...
    def close(self, status: int) -> None: ...


class TrainingLoopCallback(Callback):
    """Steers one training; only the first process has a journal."""

    def __init__(
        self,
        budget: Budget,
        order: ResumableBatchSampler,
        keeper: CheckpointManager,
        validate_every: int | None,
        early_stopping: Mapping[str, Any] | None,
        tokenizer: str,
        row_steps: int = ROW_STEPS,
        curriculum: Curriculum | None = None,
        judge: ValidationDecoder | None = None,
    ) -> None:
        self.budget, self.order, self.keeper = budget, order, keeper
        self.validate_every, self.early_stopping, self.tokenizer = validate_every, early_stopping, tokenizer
        self.row_steps = min(ROW_STEPS, row_steps)
        self.curriculum = curriculum
        self.judge = judge
        self.reading: EvalBatchSampler | None = None
        self.journal: Journal | None = None
        self.signals = SignalHandler()
        self.clock = Clock(on_cpu=True)
        self.before = 0.0
        self.now = Progress(0, 0.0)
        self.followed: Mapping[int, float] = {}
        self.pace: list[float] = []
        self.history: list[dict[str, float]] = []
        self.random: list[dict[str, Any]] = []
        self.sums: list[dict[str, Tensor]] = []
        self.tokens = 0.0
        self.ended_epoch = False
        self.since_row = (0, time.monotonic())
        self.asked, self.apart = (0, time.monotonic()), 1

    # ------------------------------------------------------------------------------------------- what is kept

    def state_dict(self) -> dict[str, Any]:
        return {
            "epoch": self.order.epoch,
            "batch": self.order.done,
            "minutes": self.clock.minutes(),
            "history": self.history,
            "random": self.gather(checkpointing.capture_rng_state()),
            "row": {
                "since": self.since_row[0],
                "sums": self.gather(self.module.train_sums.held()),
                "pace": list(self.pace),
            },
            "tokenizer": self.tokenizer,
            "curriculum": self.curriculum.state_dict() if self.curriculum else None,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.order.epoch, self.order.done = state["epoch"], state["batch"]
        self.before, self.history, self.random = state["minutes"], list(state["history"]), state["random"]
        row = state["row"]
        self.since_row, self.sums, self.pace = (row["since"], time.monotonic()), row["sums"], list(row["pace"])
        if state["tokenizer"] != self.tokenizer:
            raise RunError.of(
                "the checkpoint was made with another tokenizer than the run folder's tokenizer.json",
                "restore tokenizer.json as it was",
            )
        if self.curriculum:
            self.curriculum.load_state_dict(state["curriculum"])

    # ------------------------------------------------------------------------------------------- Lightning's hooks

    def setup(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        """Devices have met: each takes its own share of the data."""
        self.trainer, self.module = trainer, pl_module
        for order in (self.order.order, self.reading):
            if order is not None:
                order.rank, order.world = trainer.global_rank, trainer.world_size

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        pl_module.progress = lambda: self.now
        self.clock = Clock(trainer.strategy.root_device.type == "cpu", self.before)
        self.now = Progress(trainer.global_step, 0.0, losses_of(self.history))
        self.must_agree()
        self.measure()
        self.since_row = (self.since_row[0], time.monotonic())
        self.asked = (self.now.step, time.monotonic())
        self.go_on(pl_module)
        trainer.val_check_batch = NEVER
        trainer.should_stop = self.is_over()
        self.signals.listen()
        if self.journal:
            self.journal.begin(self.now.spent)

    def go_on(self, module: Seq2SeqModule) -> None:
        """Takes up the random streams and the sums of a row that was begun.

        A stream belongs to one process: where others were before, all of them begin anew.
        """
        rank, world = self.trainer.global_rank, self.trainer.world_size
        if len(self.random) == world:
            checkpointing.restore_rng_state(self.random[rank])
        elif self.random or rank:
            checkpointing.seed_all(self.order.order.seed, self.now.step, rank)
        if self.random and len(self.random) != world and self.journal:
            now, then = (f"{count} process{'es' * (count > 1)}" for count in (world, len(self.random)))
            self.journal.note(
                f"{now} in place of {then}: the batches are the same, dropout and the like are drawn anew"
            )
        mine = self.sums[rank::world] if rank < len(self.sums) else []
        module.train_sums.hold(mine, self.trainer.strategy.root_device)

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.ended_epoch |= self.order.advance()
        trainer.val_check_batch = NEVER
        if trainer.global_step == self.now.step:
            return  # the batch is not whole yet: there are more parts to accumulate
        self.tokens += batch["tokens"]
        self.measure()
        due, ended, self.ended_epoch = self.is_due(), self.ended_epoch and self.curriculum is not None, False
        stop = self.signal()
        if due or ended or self.now.step % self.row_steps == 0:
            self.write_row(pl_module, ended)
        trainer.should_stop = self.is_over()
        if due and trainer.enable_validation:
            trainer.val_check_batch = 1
            return  # the checkpoint is kept after the validation, so that it knows of it
        if due:
            self.history.append({"step": float(self.now.step)})
        if due or stop:
            self.keeper.save(trainer, self.now.step, self.history)
        if stop:
            raise TrainingInterrupted(stop)

    def on_validation_start(self, trainer: Trainer, pl_module: Any) -> None:
        if self.journal:
            self.journal.validating(self.now.step, self.now.spent)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Scores the validation, tells the journal, and keeps a checkpoint, which then knows of this validation."""
        scores = validation_scores(pl_module.val_sums.take(self.sum_over_devices))
        self.must_be_finite(scores["val/loss"], "the validation loss")
        more, samples = self.judged(pl_module)
        if self.journal:
            self.journal.validated({"step": self.now.step, **self.spending(), **scores, **more}, samples)
        self.history.append({"step": float(self.now.step), **scores, **more})
        self.now = self.now._replace(losses=losses_of(self.history))
        self.since_row = (self.now.step, time.monotonic())

    def judged(self, module: Seq2SeqModule) -> tuple[dict[str, float], list[Sample]]:
        """What decoding the first sentences comes to, each process its part of them; the same on all of them."""
        if self.judge is None:
            return {}, []
        return self.judge.judge(
            module.whole(), RankInfo(self.trainer.global_rank, self.trainer.world_size, self.gather)
        )

    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        self.keeper.save(trainer, self.now.step, self.history)
        trainer.should_stop = self.is_over()
        if stop := self.signal():
            raise TrainingInterrupted(stop)

    # ------------------------------------------------------------------------------------------- decisions

    def measure(self) -> None:
        """Where the training stands now, before its next step; the same on all devices.

        `followed` says how much of the budget was spent by then in a run that this one repeats. `pace` is that of the
        steps since the last row.
        """
        step = self.trainer.global_step
        known = self.followed.get(step)
        spent = self.spent(step) if known is None else known
        self.now = Progress(step, spent, self.now.losses)
        self.pace[max(0, step - self.since_row[0]) :] = [spent]

    def spent(self, step: int) -> float:
        """The share of the budget that is spent before a step.

        Several devices agree about the time at every row alone, since that makes each wait for the first.
        """
        asks = self.trainer.world_size == 1 or (self.budget.minutes is not None and step % ROW_STEPS == 0)
        minutes = self.common(self.clock.minutes()) if asks else None
        spent = self.budget.spent(step, self.order.epochs(), minutes)
        return spent if asks else max(spent, self.now.spent)

    def is_over(self) -> bool:
        """Whether the budget is spent, the goal reached, or nothing better has come for too long."""
        return self.now.spent >= 1.0 or (
            self.early_stopping is not None and is_settled(self.history, **self.early_stopping)
        )

    def is_due(self) -> bool:
        """Whether to validate now: at its time, and at the end."""
        if self.is_over():
            return True
        return self.now.step % self.validate_every == 0 if self.validate_every else self.ended_epoch

    def signal(self) -> int:
        """The signal that has come to any device; asked rarely where devices must agree."""
        if self.trainer.world_size == 1:
            return self.signals.received
        (last, then), step, now = self.asked, self.now.step, time.monotonic()
        if step < last + self.apart:
            return 0
        told = self.gather((self.signals.received, (now - then) / max(1, step - last)))
        self.asked = (step, now)
        self.apart = max(1, min(ROW_STEPS, int(HEARD_WITHIN / max(pace for _, pace in told))))
        return max(number for number, _ in told)

    # ------------------------------------------------------------------------------------------- rows

    def write_row(self, module: Seq2SeqModule, ended: bool) -> None:
        """One row of what the steps since the last row have come to; `ended`: an epoch of the curriculum did with them.

        Raises RunFailed where the loss is no number.
        """
        first, began = self.since_row
        steps = self.now.step - first
        if not steps:
            return
        sums = module.train_sums.take(self.sum_over_devices)
        loss = sums["loss"] / steps
        elapsed = max(time.monotonic() - began, 1e-9)
        self.must_be_finite(loss, "the training loss")
        row = {
            "step": self.now.step,
            **self.spending(),
            "train/loss": loss,
            "train/tokens_per_second": self.tokens / elapsed,
            "train/learning_rate": module.trainer.optimizers[0].param_groups[0]["lr"],
            **self.graded(sums, ended),
            **({BUDGET_TRACE: self.pace} if self.budget.minutes is not None else {}),
        }
        self.tokens, self.since_row, self.pace = 0.0, (self.now.step, time.monotonic()), [self.now.spent]
        if self.journal:
            self.journal.row(row, self.now.spent)

    def graded(self, sums: Mapping[str, float], ended: bool) -> dict[str, float]:
        """The curriculum's level in the steps of a row, and the sequence error of the epoch that ended with them."""
        if self.curriculum is None:
            return {}
        level = {"train/level": float(self.curriculum.level)}
        self.curriculum.count(sums)
        if not ended:
            return level
        return level | {"train/sequence_error": self.curriculum.finish(self.order.pairs_of(self.order.epoch - 1))}

    def spending(self) -> dict[str, float]:
        return {"epoch": round(self.order.epochs(), 4), "minutes": round(self.clock.minutes(), 4)}

    def must_be_finite(self, value: float, what: str) -> None:
        if not math.isfinite(value):
            raise RunFailed.of(
                f"{what} is {value} after {self.now.step} steps",
                "lower the learning rate, give the schedule more `warmup_steps`, or set `training.clip_norm: 1.0`",
            )

    # ------------------------------------------------------------------------------------------- devices

    def must_agree(self) -> None:
        """Raises RunFailed where the processes do not go on from the same place: they do not see the same folder."""
        places = self.gather((self.now.step, self.order.epoch, self.order.done))
        if len(set(places)) > 1:
            told = ", ".join(f"step {step} in process {rank}" for rank, (step, *_) in enumerate(places))
            raise RunFailed.of(
                f"the processes do not go on from the same checkpoint: {told}",
                "give all machines the same run folder, on a file system that they share",
            )

    def sum_over_devices(self, value: Tensor) -> Tensor:
        if self.trainer.world_size == 1:
            return value
        total: Tensor = self.trainer.strategy.reduce(value, reduce_op="sum")
        return total

    def common(self, value: T) -> T:
        """The first device's value, on all devices."""
        return value if self.trainer.world_size == 1 else self.trainer.strategy.broadcast(value)

    def gather(self, value: Any) -> list[Any]:
        """The values of all devices, in order."""
        if self.trainer.world_size == 1:
            return [value]
        import torch.distributed as distributed

        found: list[Any] = [None] * self.trainer.world_size
        distributed.all_gather_object(found, value)
        return found


def losses_of(history: Sequence[Mapping[str, float]]) -> tuple[float, ...]:
    """The validation losses, in order."""
    return tuple(scores["val/loss"] for scores in history if "val/loss" in scores)


def is_settled(
    history: Sequence[Mapping[str, float]], metric: str, patience: int | None, min_delta: float, goal: float | None
) -> bool:
    """Whether a validation was as good as the goal, or too many brought nothing better."""
    if goal is not None and any(
        as_maximised(metric, scores) >= as_maximised(metric, {metric: goal}) for scores in history
    ):
        return True
    return patience is not None and is_stale(history, metric, patience, min_delta)


def is_stale(history: Sequence[Mapping[str, float]], metric: str, patience: int, min_delta: float) -> bool:
    """Whether the last `patience` validations brought nothing better."""
    best, waited = -math.inf, 0
    for scores in (each for each in history if metric in each):
        value = as_maximised(metric, scores)
        best, waited = (value, 0) if value > best + min_delta else (best, waited + 1)
    return waited >= patience
