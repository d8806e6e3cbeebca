"""A training of a few steps in memory, before the real one: speed and memory on this machine."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, cycle, islice
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from composer.data.collate import BatchLoader
from composer.data.largest_batch import BatchSize, largest_batch, relative_size, side_positions
from composer.data.sampler import BatchSlice, EpochSampler
from composer.data.sources import DataSource
from composer.data.teacher import find_teacher
from composer.data.tokenizer import Tokenizers
from composer.data.tokenizer_cache import cached_tokenizers
from composer.inference.freed_memory import keep_freed_memory
from composer.model.characters import Spelled
from composer.model.footprint import training_device
from composer.recipe.choices import Progress
from composer.recipe.recipe import Recipe, load_text
from composer.run_dir import RunDir
from composer.training.datamodule import RecipeDataModule
from composer.training.devices import resolve_devices
from composer.training.distillation import open_frozen
from composer.training.lightning import Callback, LightningModule, Trainer, seed_everything
from composer.training.module import Seq2SeqModule
from composer.training.process_state import restored_process
from composer.training.trainer import build_trainer, silence_lightning
from composer.training.weight_average import weight_averages

STEPS, LARGEST_STEPS = 10, 2
"""Steps that are timed, and those before them, on the largest batch, of which the memory is
measured.
"""
ONE_DEVICE = ("trainer.devices=1", "trainer.num_nodes=1", "trainer.strategy=auto")


class TrialRun(NamedTuple):
    """Measurements of a few steps: `seconds` of `steps` with so many target `tokens`, `peak_bytes`.

    `devices`: among how many the batches are split; the steps are those of one of them, which waits
    for no other.
    """

    steps: int
    seconds: float
    tokens: int
    steps_per_epoch: int
    peak_bytes: int
    device: str
    devices: int
    vocabularies: Mapping[str, int]
    batch: BatchSize
    spelled: Spelled
    max_steps: float | None
    max_epochs: float | None
    max_minutes: float | None

    @property
    def steps_per_second(self) -> float:
        """Steps of a second."""
        return self.steps / self.seconds

    @property
    def tokens_per_second(self) -> float:
        """Target tokens of a second, eos counted, without padding."""
        return self.tokens / self.seconds

    @property
    def minutes_per_epoch(self) -> float:
        """Minutes of an epoch, without its validation."""
        return self.steps_per_epoch / self.steps_per_second / 60

    @property
    def budget_minutes(self) -> float:
        """Minutes of the whole budget, of which the first limit ends the training."""
        limits = (
            [self.minutes_per_epoch / self.steps_per_epoch * self.max_steps]
            if self.max_steps
            else []
        )
        limits += [self.minutes_per_epoch * self.max_epochs] if self.max_epochs else []
        return min([*limits, *([self.max_minutes] if self.max_minutes else [])])

    def as_json(self) -> dict[str, object]:
        """Return the numbers of a trial as plain data."""
        rates = ("steps_per_second", "tokens_per_second", "minutes_per_epoch", "budget_minutes")
        numbers = {**self._asdict(), **{key: getattr(self, key) for key in rates}}
        del numbers["batch"], numbers["spelled"]
        return numbers


class TrialMeter(Callback):
    """Callback that measures memory of the first steps and time of `steps` more, then stops."""

    def __init__(self, device: str, steps: int = STEPS) -> None:
        self.device, self.steps, self.peak_bytes, self.seconds = device, steps, 0, 0.0
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or PyTorch's profiler writes to stderr
        self.profiler = (
            profile(activities=[ProfilerActivity.CPU], profile_memory=True)
            if device == "cpu"
            else None
        )
        if self.profiler:
            self.profiler.start()
        else:
            torch.cuda.reset_peak_memory_stats()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep freed memory, as a training does."""
        keep_freed_memory()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: object, outputs: object, batch: object, batch_idx: int
    ) -> None:
        """Begin to time after the first steps, and end after the others."""
        step = trainer.global_step
        if (batch_idx + 1) % trainer.accumulate_grad_batches:
            return
        if step == LARGEST_STEPS:
            self.peak_bytes = self.finish_memory()
            self.seconds = -self.now()
        if step == LARGEST_STEPS + self.steps:
            self.seconds += self.now()
            trainer.should_stop = True

    def finish_memory(self) -> int:
        """Return the bytes of tensors at the peak so far, and measure it no longer."""
        if self.profiler is None:
            return torch.cuda.max_memory_allocated()
        self.profiler.stop()
        return peak_of_profile(self.profiler)

    def now(self) -> float:
        """Return the time at which the device has done all that it was told."""
        if self.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()


def peak_of_profile(profiler: profile) -> int:
    """Return the most bytes that PyTorch's allocator had handed out at once since a profile began.

    They are those of all tensors and of what its operations put aside, as
    `torch.cuda.max_memory_allocated` has it.
    """
    results: Any = profiler.profiler and profiler.profiler.kineto_results
    events = [event for event in results.events() if event.name() == "[memory]"]
    now = peak = 0
    for event in sorted(events, key=lambda event: int(event.start_ns())):
        now += event.nbytes()
        peak = max(peak, now)
    return peak


@restored_process()
def time_training(recipe: Recipe) -> TrialRun:
    """Train some steps on the first batches of the data, in memory, on one device; write no run.

    Raises DataError and RecipeError.
    """
    silence_lightning()
    source = DataSource(recipe, recipe.folders())
    teacher = find_teacher(recipe, source.folders)
    tokenizers = (
        Tokenizers.load(RunDir(teacher).tokenizer) if teacher else cached_tokenizers(source)
    )
    module_data = RecipeDataModule(recipe, source, tokenizers)
    device, devices = training_device(recipe), resolve_devices(recipe).processes
    seed_everything(recipe.training.seed, verbose=False)
    meter = TrialMeter(device)
    module = Seq2SeqModule.from_recipe(recipe, module_data.tokenizers)
    if teacher is not None:
        module.learn_from(open_frozen(teacher))
    if recipe.training.compile:
        module.compile_model(lambda _: None)
    accumulate = recipe.training.accumulate
    module_data.plan_batches(module.model, accumulate)
    assert module_data.batches is not None
    module_data.batches.world = devices
    slices = trial_slices(module_data.batches)
    loader = BatchLoader(
        module_data.batches.corpus, slices, 0, module_data.tokenizers, recipe.data.packing
    )
    run_trial(module, loader, meter)
    limits = [*recipe.training.limits.values()]
    return TrialRun(
        STEPS,
        meter.seconds,
        round(
            sum(
                slices[at].tokens
                for at in range(LARGEST_STEPS * accumulate, len(slices), accumulate)
            )
        ),
        module_data.batches.slices_in(0) // accumulate,
        meter.peak_bytes,
        device,
        devices,
        module_data.tokenizers.sizes,
        size_of(recipe, module_data.batches, slices[:accumulate]),
        spelled_tokens(module_data, slices[0]),
        *limits,
    )


def size_of(recipe: Recipe, batches: EpochSampler, update: Sequence[BatchSlice]) -> BatchSize:
    """Return the size of the largest slice of an update."""
    if recipe.window:
        return largest_batch(recipe)
    encoded = batches.corpus.of_epoch(update[0].epoch)
    positions = side_positions(encoded)  # (pairs, sides)
    sizes = [(len(one.rows), *positions[one.rows].max(0).tolist()) for one in update]
    rows, target, *sources = max(sizes, key=lambda size: relative_size(size[0], sum(size[1:])))
    return BatchSize(rows, target, dict(zip(encoded.sources, sources, strict=True)))


def spelled_tokens(data: RecipeDataModule, one: BatchSlice) -> Spelled:
    """Return the tokens of a slice, on every side, and the texts of all."""
    assert data.batches is not None  # planned
    sides = data.batches.corpus.of_epoch(one.epoch).texts
    ids = {side: np.unique(ids.outputs(one.rows)).tolist() for side, ids in sides.items()}
    return Spelled(ids, {side: data.tokenizers.vocabulary(side) for side in sides})


def run_trial(module: Seq2SeqModule, batches: Iterable[object], meter: TrialMeter) -> None:
    """Train a module on batches, in memory, until the meter ends it."""
    recipe = module.recipe
    trainer = build_trainer(
        load_text(recipe.dump(), recipe.file, ONE_DEVICE), [*weight_averages(recipe), meter]
    )
    trainer.limit_val_batches = 0
    module.loop_progress = Progress(0, 0.0)
    trainer.fit(module, train_dataloaders=batches)


def trial_slices(batches: EpochSampler) -> list[BatchSlice]:
    """Return the slices of a trial: those of the largest batch, then the first ones of an epoch.

    Where a state is carried all are as large, and they stay in their order.
    """
    slices, accumulate = [*batches], batches.accumulate
    updates = [slices[at : at + accumulate] for at in range(0, len(slices), accumulate)]
    steps = [*islice(cycle(updates), LARGEST_STEPS + STEPS)]
    if slices[0].window < 0:
        positions = side_positions(batches.corpus.of_epoch(slices[0].epoch))  # (pairs, sides)

        def size(update: Sequence[BatchSlice]) -> float:
            return max(
                float(relative_size(len(one.rows), positions[one.rows].max(0).sum()))
                for one in update
            )

        largest = max(updates, key=size)
        steps = [largest] * LARGEST_STEPS + steps[:STEPS]
    return [*chain.from_iterable(steps)]
