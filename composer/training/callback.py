"""Training loop as a Lightning callback: rows, validations, checkpoints, budget, signals."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from blocks.core.contract import State
from composer.data.sampler import ResumableBatchSampler
from composer.errors import RunFailed
from composer.inference.freed_memory import keep_freed_memory, trim_if_doubled
from composer.inference.run import Sample
from composer.model.encoder_decoder import map_leaves
from composer.recipe.choices import Progress
from composer.recipe.recipe import Recipe
from composer.runs.record import Budget
from composer.training.budget import Clock, budget_of
from composer.training.carried_state import has_shapes_of, join_streams, redistribute_state
from composer.training.checkpointing import (
    CheckpointManager,
    has_finite_state,
)
from composer.training.datamodule import Curriculum
from composer.training.distributed import (
    SHARE_FOLDER,
    Ranks,
    SignalHandler,
    SignalPoll,
    TrainingEnded,
    TrainingInterrupted,
)
from composer.training.divergence import DivergenceTrace
from composer.training.early_stopping import should_stop
from composer.training.lightning import Callback, Trainer
from composer.training.loggers import MetricsLogger
from composer.training.meter import ROW_STEPS, Meter
from composer.training.module import Seq2SeqModule
from composer.training.random_state import capture_rng_state, restore_rng_state, seed_all
from composer.training.sharding import is_sharded
from composer.training.validation_decoder import ValidationDecoder

OF_TEACHER = ("distillation", "hidden")
"""Sums of a distilled training, each logged as `train/NAME`."""


@dataclass(frozen=True)
class ResumedState:
    """State of a checkpoint to restore at the start; `random` has that of each process."""

    minutes: float
    random: Sequence[dict[str, Any]]
    sums: Sequence[Any]
    carried: State | None


class TrainingLoopCallback(Callback):
    """Callback that decides after each step what comes before the next; see `on_train_batch_end`.

    Lightning computes steps and validations. Everything this decides by is in the checkpoint, so
    that a resumed training is the same to the last bit. Only the main process has a `logger`.
    """

    def __init__(
        self,
        recipe: Recipe,
        sampler: ResumableBatchSampler,
        checkpoints: Path,
        curriculum: Curriculum | None = None,
        decoder: ValidationDecoder | None = None,
        budgets: Sequence[Budget] = (),
    ) -> None:
        training = recipe.training
        self.sampler, self.curriculum, self.decoder = sampler, curriculum, decoder
        # the one in force, and those that follow
        self.budgets = deque(budgets or [budget_of(training)])
        self.validate_every: int | None = training.validate_every
        self.early_stopping = training.early_stopping
        average, gib = training.average_checkpoints, training.checkpoints_gib
        self.checkpoints = CheckpointManager(checkpoints, average, training.selection_metric, gib)
        self.row_steps = min(ROW_STEPS, recipe.trainer.log_every_n_steps or ROW_STEPS)
        self.logger: MetricsLogger | None = None
        self.signals = SignalHandler()
        self.ranks = Ranks()
        self.poll = SignalPoll(self.ranks, 0, ROW_STEPS)
        self.clock = Clock(on_cpu=True)
        self.progress = Progress(0, 0.0)
        # by the step after which they were estimated; see `plan_steps`
        self.planned_steps: dict[int, int] = {}
        self.reproduced_steps: Mapping[int, int] = {}
        self.history: list[dict[str, float]] = []
        self.resumed: ResumedState | None = None
        self.ended_epoch = False
        self.trace, self.resident = DivergenceTrace(), 0
        self.meter = Meter()

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: Any, optimizer: Optimizer
    ) -> None:
        """Trace the gradients of a step, of which 16-mixed may skip one that is infinite."""
        if trainer.precision != "16-mixed" and not is_sharded(pl_module.model):
            self.trace.add_gradients(self.progress.step, pl_module.model)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count the batch; then, if due, write a row, validate, save a checkpoint, and stop."""
        self.trace.losses.append((self.progress.step, outputs["loss"]))
        self.ended_epoch |= self.sampler.advance()
        if trainer.global_step == self.progress.step:
            return  # gradients accumulate: there was no optimizer step
        self.meter.tokens += batch["tokens"]
        self.update_progress(trainer, pl_module)
        ended_epoch, self.ended_epoch = self.ended_epoch, False
        signal = self.received_signal()
        ends_budget = self.progress.step == self.budgets[0].until_step
        is_last = self.budgets[0].validated if ends_budget else self.is_over()
        trainer.should_stop |= is_last  # after a validation

        # the times of Lightning's own validations: every so many steps or every epoch, and at the
        # end
        every = self.validate_every
        should_validate = is_last or (self.progress.step % every == 0 if every else ended_epoch)
        ended_level = ended_epoch and self.curriculum is not None
        if should_validate or ended_level or self.progress.step % self.row_steps == 0:
            self.write_row(trainer, pl_module, ended_level)
        if should_validate and any(trainer.num_val_batches):
            # Lightning validates now; on_validation_end saves the checkpoint, which then knows the
            # scores
            return
        if should_validate:
            self.history.append({"step": float(self.progress.step)})
        if should_validate or signal or ends_budget:
            self.save_checkpoint(trainer)
        self.next_budget(trainer, pl_module)
        if signal:
            raise TrainingInterrupted(signal)
        if self.is_over() and not should_validate:
            raise TrainingEnded

    def next_budget(self, trainer: Trainer, module: Seq2SeqModule) -> None:
        """Stop if the budget is spent; a reproduction then goes on with its original's next one."""
        if len(self.budgets) > 1 and self.progress.step == self.budgets[0].until_step:
            self.budgets.popleft()
            self.progress = self.progress._replace(spent=0.0)
            self.update_progress(trainer, module, estimate=True)
            trainer.should_stop = False
        trainer.should_stop |= self.is_over()

    def save_checkpoint(self, trainer: Trainer) -> None:
        """Save a checkpoint. Raises RunFailed on every device if a weight is not finite."""
        if not has_finite_state(trainer):
            cause = "a gradient since the last checkpoint was not finite"
            step = self.progress.step
            raise self.trace.error(
                f"after {step} steps a weight or an optimizer state is NaN or infinite: {cause}",
                self.module,
            )
        self.checkpoints.save(trainer, self.progress.step, self.history)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Log the scores of a validation, and of the lines that are decoded."""
        scores = pl_module.take_validation_scores()
        self.check_finite(scores["val/loss"], "the validation loss")
        samples: list[Sample] = []
        if self.decoder:
            decoded, samples = self.decoder.evaluate(pl_module.full_model(), self.ranks)
            scores |= decoded
        # for other callbacks; loggers get the same row as metrics.jsonl
        pl_module.log_dict(scores, logger=False)
        self.update_progress(trainer, pl_module, estimate=True)  # a budget in minutes may end here
        row = self.new_row(trainer, scores)
        if self.logger:
            self.logger.validated(row, samples)
        self.history.append({"step": float(self.progress.step), **scores})
        losses = (*self.progress.losses, scores["val/loss"])
        self.progress = pl_module.loop_progress = self.progress._replace(losses=losses)
        self.meter = Meter(self.progress.step)

    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Save a checkpoint, and stop if the validation or a signal ends the training."""
        self.save_checkpoint(trainer)
        self.next_budget(trainer, pl_module)
        if signal := self.received_signal():
            raise TrainingInterrupted(signal)

    def on_validation_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Write the row of the steps so far, and show that a validation begins."""
        self.write_row(trainer, pl_module)
        if self.logger:
            self.logger.display.validating(self.progress.step, self.progress.spent)

    def update_progress(
        self, trainer: Trainer, module: Seq2SeqModule, estimate: bool = False
    ) -> None:
        """Measure how much of the budget is spent before the next step; the same on all devices."""
        step, epochs = trainer.global_step, self.sampler.epochs()
        spent = self.budgets[0].spent(step, epochs, None)
        if self.budgets[0].max_minutes is not None and (planned := self.plan_steps(step, estimate)):
            spent = max(spent, min(1.0, step / planned))
        self.progress = module.loop_progress = Progress(step, spent, self.progress.losses, epochs)

    def plan_steps(self, step: int, estimate: bool) -> int | None:
        """Return the number of steps in a budget in minutes; None before the first estimate.

        It is estimated again after every tenth more steps, and where `estimate` says so, until the
        budget is spent. A reproduction takes the estimates of its original, whose clock it cannot
        repeat.
        """
        budget = self.budgets[0]
        last = max(self.planned_steps, default=0)
        is_due = estimate or step >= last + max(1, last // 10)
        if is_due and step and self.progress.spent < 1.0 and not self.reproduced_steps:
            assert budget.max_minutes is not None
            if (minutes := self.ranks.gather(self.clock.minutes())[0]) > 0.0:
                self.planned_steps[step] = max(1, round(step * budget.max_minutes / minutes))
        planned = self.reproduced_steps or self.planned_steps
        # an estimate at the end of a budget was made for the next one
        end = budget.until_step if len(self.budgets) > 1 and budget.until_step else math.inf
        past = [estimated for estimated in planned if estimated <= step]
        known = [estimated for estimated in past if estimated < end]
        return planned[max(known)] if known else None

    def is_over(self) -> bool:
        """Return True if the budget is spent or early stopping ends the training."""
        stopped = self.early_stopping is not None and should_stop(self.early_stopping, self.history)
        until = self.budgets[0].until_step
        if until is None:
            return self.progress.spent >= 1.0 or stopped
        # a reproduction follows its original here, whatever the clock says
        return (len(self.budgets) == 1 and self.progress.step >= until) or stopped

    def received_signal(self) -> int:
        """Return the signal that any process has received, else 0."""
        if self.ranks.world == 1:
            return self.signals.received
        return self.poll.ask(self.signals.received, self.progress.step)

    def write_row(self, trainer: Trainer, module: Seq2SeqModule, ended_level: bool = False) -> None:
        """Write a row about the steps since the last one. Raises RunFailed on a loss of NaN."""
        steps = self.progress.step - self.meter.since
        if not steps:
            return
        sums = module.train_sums.take(trainer.strategy)
        loss = sums["loss"] / steps
        self.check_finite(loss, "the training loss")
        values = {
            "train/loss": loss,
            **{f"train/{name}": sums[name] / steps for name in OF_TEACHER if name in sums},
            "train/tokens_per_second": self.meter.tokens_per_second(),
            "train/learning_rate": trainer.optimizers[0].param_groups[0]["lr"],
        }
        if self.curriculum:
            values["train/level"] = float(self.curriculum.level)
            self.curriculum.count(sums)
            if ended_level:
                values["train/sequence_error"] = self.curriculum.finish(
                    self.sampler.pairs_of(self.sampler.epoch - 1)
                )
        row = self.new_row(trainer, values)
        if self.logger:
            self.logger.row(row, self.progress.spent)
        self.meter = Meter(self.progress.step)
        self.resident = trim_if_doubled(self.resident)

    def new_row(self, trainer: Trainer, values: Mapping[str, float]) -> dict[str, float]:
        """Return a row with step, epoch and minutes; log it with the caller's loggers."""
        position = {
            "epoch": round(self.sampler.epochs(), 4),
            "minutes": round(self.clock.minutes(), 4),
        }
        for logger in trainer.loggers:
            logger.log_metrics({**position, **values}, step=self.progress.step)
        return {"step": self.progress.step, **position, **values}

    def check_finite(self, value: float, name: str) -> None:
        """Raise RunFailed if a loss is NaN or infinite."""
        if not math.isfinite(value):
            raise self.trace.error(
                f"{name} is {value} after {self.progress.step} steps", self.module
            )

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Continue from the checkpoint that Lightning has loaded, if any.

        Raises RunFailed if the processes loaded different ones: they do not see the same folder.
        """
        # not before: reading and ordering the data need much that no step needs
        keep_freed_memory()
        self.module: Seq2SeqModule = pl_module
        self.ranks = Ranks(trainer.global_rank, trainer.world_size)
        on_cpu = trainer.strategy.root_device.type == "cpu"
        self.clock = Clock(on_cpu, self.resumed.minutes if self.resumed else 0.0)
        losses = [scores["val/loss"] for scores in self.history if "val/loss" in scores]
        self.progress = Progress(trainer.global_step, 0.0, tuple(losses))
        self.check_same_checkpoint()
        is_new_budget = False
        while len(self.budgets) > 1 and (self.budgets[0].until_step or 0) <= self.progress.step:
            is_new_budget = self.budgets.popleft().until_step == self.progress.step
        self.update_progress(trainer, pl_module, estimate=is_new_budget)
        if self.resumed:
            self.restore_streams(trainer, self.resumed)
            self.restore_carried(trainer, self.resumed.carried)
        elif self.ranks.rank:
            seed_all(self.sampler.order.seed, self.progress.step, self.ranks.rank)
        self.meter = Meter(self.meter.since)
        self.poll = SignalPoll(self.ranks, self.progress.step, ROW_STEPS)
        trainer.should_stop = self.is_over()
        if trainer.should_stop and self.logger:
            self.end_at_once(self.logger)
        # not before: Lightning has just installed a handler of its own for SIGTERM
        self.signals.listen()
        if self.logger:
            self.logger.display.begin(self.progress.spent)

    def check_same_checkpoint(self) -> None:
        """Raise RunFailed if the processes stand at different positions in the data."""
        positions = self.ranks.gather((self.progress.step, self.sampler.epoch, self.sampler.done))
        if len(set(positions)) > 1:
            steps = ", ".join(
                f"step {step} in process {rank}" for rank, (step, *_) in enumerate(positions)
            )
            raise RunFailed.of(
                f"the processes do not resume from the same checkpoint: {steps}", SHARE_FOLDER
            )

    def end_at_once(self, logger: MetricsLogger) -> None:
        """Say why a resumed training takes no further step."""
        step, budget = self.progress.step, self.budgets[0]
        cause = "early stopping has ended the training"
        if budget.until_step is not None:
            cause = "`--finish`"
        elif self.progress.spent >= 1.0:
            limits = ", ".join(f"{key} {limit:,.10g}" for key, limit in budget.as_dict().items())
            cause = f"the budget ({limits}) is spent"
        logger.display.say(
            f"no further step after step {step:,}: {cause}; it ends with the best weights so far"
        )

    def restore_streams(self, trainer: Trainer, state: ResumedState) -> None:
        """Restore the random streams and unfinished sums of the checkpoint's processes.

        A stream belongs to one process: with another number of processes, all begin new ones.
        """
        rank, world = self.ranks.rank, self.ranks.world
        if len(state.random) == world:
            restore_rng_state(state.random[rank])
        else:
            seed_all(self.sampler.order.seed, self.progress.step, rank)
            if self.logger:
                self.logger.display.say(
                    f"{_processes(world)} in place of {_processes(len(state.random))}: the batches"
                    " are the same, dropout and other random numbers differ"
                )
        device = trainer.strategy.root_device
        self.module.train_sums.load_state_dicts(state.sums[rank::world], device)

    def restore_carried(self, trainer: Trainer, carried: State | None) -> None:
        """Give this process its streams of a state that is carried from window to window."""
        if carried is None:
            return
        if not has_shapes_of(carried, self.module.model.start({}, 1)):
            message = "a block of this version carries another state than the checkpoint has"
            fix = "start a new training from its weights: `train RECIPE --run NEW --from RUN`"
            raise RunFailed.of(message, fix)
        rank, world, device = self.ranks.rank, self.ranks.world, trainer.strategy.root_device
        turns = trainer.accumulate_grad_batches
        self.module.carried = redistribute_state(carried, turns, rank, world, device)

    def state_dict(self) -> dict[str, Any]:
        """Return all state beside weights and optimizer; a collective call."""
        sums = self.ranks.gather(self.module.train_sums.state_dict())
        carried = {}
        for turn, state in self.module.carried.items():
            if turn >= 0:
                carried[turn] = map_leaves(state, Tensor.cpu)
        return {
            "epoch": self.sampler.epoch,
            "batch": self.sampler.done,
            "minutes": self.clock.minutes(),
            "history": self.history,
            "random": self.ranks.gather(capture_rng_state()),
            "row": {"since": self.meter.since, "sums": sums},
            "planned_steps": dict(self.planned_steps),
            "curriculum": self.curriculum.state_dict() if self.curriculum else None,
            "carried": join_streams(self.ranks.gather(carried)),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up the position in the data; `on_train_start` restores the rest."""
        self.resumed = ResumedState(
            state["minutes"], state["random"], state["row"]["sums"], state["carried"]
        )
        self.sampler.epoch, self.sampler.done = state["epoch"], state["batch"]
        self.history = list(state["history"])
        self.meter = Meter(state["row"]["since"])
        self.planned_steps = dict(state.get("planned_steps", {}))  # a checkpoint of 0.1.0 has none
        if self.curriculum:
            self.curriculum.load_state_dict(state["curriculum"])


def _processes(count: int) -> str:
    return f"{count} process{'es' if count > 1 else ''}"
