"""Decoding speed: the same Transformer with the same weights by several engines, every answer
equally long.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from benchmarks.bare_searches import beam, greedy
from benchmarks.bare_weights import copy_to_bare
from benchmarks.gpu import FAILED, MISSING, Outcome, Row, Settings
from benchmarks.gpu.graphs import now
from benchmarks.gpu.loops import outcome_of
from benchmarks.gpu.models import FULL, SMALL, Size, recipe_of, write_texts
from composer.data.encoding import load_data
from composer.inference.decode import decode_all, make_rows
from composer.inference.methods import Beam, Greedy
from composer.inference.run import Run
from composer.model.builder import build
from composer.model.encoder_decoder import NEVER
from composer.model.special_tokens import EOS, NUM_SPECIAL
from composer.recipe.recipe import load

BEAM = 5
Decode = Callable[[list[list[int]]], object]
"""Decodes a batch of ids without eos."""


class Task(NamedTuple):
    """What is decoded: so many sentences at once, by greedy search or a beam, in so many rounds."""

    search: str
    batch: int
    dtype: torch.dtype
    settings: Settings

    @property
    def size(self) -> Size:
        return SMALL if self.settings.small else FULL

    @property
    def length(self) -> int:
        """Tokens of each answer, eos counted."""
        return 4 if self.settings.small else 32

    @property
    def lines(self) -> list[list[int]]:
        numbers = torch.Generator().manual_seed(3)
        rows = min(self.batch, 4) if self.settings.small else self.batch
        words = self.size.words[1]
        return torch.randint(
            NUM_SPECIAL, self.size.vocabulary, (rows, words), generator=numbers
        ).tolist()

    @property
    def rounds(self) -> int:
        return 2 if self.settings.small else 5

    def __str__(self) -> str:
        return f"{self.search}, batch {self.batch}, {str(self.dtype).removeprefix('torch.')}"


def task_of(case: str, settings: Settings) -> Task:
    """Return the task of a case's name, which `str` of a task is."""
    search, batch, dtype = case.split(", ")
    return Task(search, int(batch.removeprefix("batch ")), getattr(torch, dtype), settings)


def task_names(settings: Settings) -> list[str]:
    batches, types = (
        ((64,), (torch.float32,)) if settings.small else ((64, 1), (torch.bfloat16, torch.float32))
    )
    searches = ("greedy", f"beam {BEAM}")
    return [
        str(Task(search, batch, dtype, settings))
        for batch in batches
        for search in searches
        for dtype in types
    ]


def random_run(task: Task) -> Run:
    """Return a run with random weights that never ends an answer by itself."""
    recipe = recipe_of("transformer", task.size)
    with tempfile.TemporaryDirectory() as folder:
        write_texts(Path(folder), task.size)
        (Path(folder) / "recipe.yaml").write_text(recipe.dump(), encoding="utf-8")
        tokenizers = load_data(load(Path(folder) / "recipe.yaml"), [Path(folder)]).tokenizers
    torch.manual_seed(1)
    model = build(recipe, tokenizers.sizes).eval()
    # else ours, which never writes them, answers otherwise
    model.output.bias.data[:NUM_SPECIAL] = NEVER
    return Run.from_model(recipe, tokenizers, model)


def ours(task: Task, run: Run) -> Decode:
    """Return our decoding, from ids to hypotheses."""
    model = run.model.to(task.settings.device)
    settings = {"max_length": task.length, "precision": str(task.dtype).removeprefix("torch.")}
    decoding = Greedy(**settings) if task.search == "greedy" else Beam(size=BEAM, **settings)
    return lambda lines: decode_all([model], make_rows({"source": lines}), decoding)


def by_hand(task: Task, run: Run) -> Decode:
    """Return the plain loops of benchmarks/bare_searches.py, with the run's weights."""
    model = copy_to_bare(run).to(task.settings.device, task.dtype)

    def decode(lines: list[list[int]]) -> object:
        source = torch.tensor([[*line, EOS] for line in lines], device=task.settings.device)
        if task.search == "greedy":
            return greedy(model, source, task.length)
        return beam(model, source, task.length, BEAM, 1.0)

    return decode


def seconds(task: Task, decode: Decode) -> float:
    """Return the median time of a batch, after one that is not counted."""
    times, lines = [], task.lines
    with torch.inference_mode():
        decode(lines)
        for _ in range(task.rounds):
            start = now(task.settings.device)
            decode(lines)
            times.append(now(task.settings.device) - start)
    return statistics.median(times)


def compare(
    task: Task, sides: dict[str, Callable[[Task, Run], Decode]], targets: dict[str, float]
) -> Outcome:
    """Measure every side on one run; return the speeds and the ratios of ours to each, with what
    they should be.
    """
    run, speeds, trouble = random_run(task), dict[str, float](), dict[str, str]()
    for name, side in sides.items():
        try:
            speeds[name] = len(task.lines) / seconds(task, side(task, run))
        except ModuleNotFoundError as error:
            trouble[name] = f"{MISSING}: {error.name} is not installed"
        except Exception as error:  # one side's fault is a line, and the others go on
            trouble[name] = (
                f"{FAILED}: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
            )
    rows = [Row(f"{task}: {name}", f"{speed:.1f} sentences/s") for name, speed in speeds.items()]
    rows += [Row(f"{task}: {name}", reason) for name, reason in trouble.items()]
    rows += [
        Row(f"{task}: ours to {name}", f"{speeds['ours'] / speeds[name]:.2f}", f"{target:g}")
        for name, target in targets.items()
        if {"ours", name} <= speeds.keys()
    ]
    return outcome_of(trouble, rows)


def same_answers(task: Task, run: Run) -> float:
    """Return the share of lines that we and the loop by hand answer alike, in float32."""
    lines = task.lines
    with torch.inference_mode():
        mine = [[*hypotheses[0].ids] for hypotheses in ours(task, run)(lines)]
        theirs: Sequence[list[int]] = by_hand(task, run)(lines)
    return sum(one == other for one, other in zip(mine, theirs, strict=True)) / len(lines)
