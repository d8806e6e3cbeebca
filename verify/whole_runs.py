"""Whole runs of random recipes: what `check` accepts trains, resumes, translates, is evaluated,
reported and shared.

    python -m verify.whole_runs --count 300 --folder DIR [--seed 1] [--workers 2] [--only
    NUMBER]

A recipe that `check` refuses is repaired as its faults say, as far as a program can. One that it
accepts goes through `train` (3 steps), an interrupted training and its `--resume`, which must end
with the same weights, `translate`, `generate`, `score`, `evaluate`, `report` and `pack`, all in a
folder of its own; those are counted, and
refused ones besides. A run fails where a fix does not help, and at the first command that refuses,
ends with a traceback, or prints NaN; a training that says why a number is not finite has diverged.
The folder of a failure stays, and `--only` runs it again; the journal makes the benchmark
resumable. Exit status 1 if a run has failed.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import math
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from verify.random_cases import FAILED, Outcome, options, run_cases
from verify.random_recipes import Case, whole_recipes
from verify.repairs import FixFailed, repair
from verify.scene import draw_case

NAME = "random.yaml"
LINES = 3
"""Lines that are translated, besides a blank one."""
NOT_FINITE = re.compile(r"\b(nan|inf|infinite)\b", re.IGNORECASE)
REFUSED, WHOLE = "refused", "whole"


class StepFailed(Exception):
    """A command did what it must not."""


class Refused(Exception):
    """`check` refuses the recipe: the codes of its faults."""


class Diverged(Exception):
    """A training ended because a number was not finite, and said so."""


def write_recipe(number: str, folder: Path) -> Path:
    """Write the recipe of a number, and the files that it reads; return the recipe's file."""
    case: Case = draw_case(whole_recipes(), number)
    for name, text in case.files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        raw = text.encode()
        (folder / name).write_bytes(gzip.compress(raw, mtime=0) if name.endswith(".gz") else raw)
    (folder / NAME).write_text(
        json.dumps(case.recipe, indent=1, ensure_ascii=False), encoding="utf-8"
    )
    return folder / NAME


def run_commands(file: Path) -> Outcome:
    """Run every command on a recipe. Raise nothing."""
    for name, step in STEPS.items():
        word, subject, details = run_step(step, file)
        if word == REFUSED:
            return Outcome(word, subject)
        if word != WHOLE:
            return Outcome(
                word, f"{name}: {subject}", details, () if name == "check" else traits(file)
            )
    return Outcome(WHOLE, traits=traits(file))


def run_step(step: Callable[[Path], None], file: Path) -> tuple[str, str, str]:
    """Run a step; return what came of it, about what, and the details."""
    try:
        step(file)
    except Refused as refusal:
        return REFUSED, str(refusal), ""
    except Diverged as end:
        return "diverged", str(end), str(end)
    except StepFailed as failure:
        return FAILED, first_fault(str(failure)), str(failure)
    except BaseException as error:
        return FAILED, f"{type(error).__name__}: {error}", traceback.format_exc(limit=-20)
    return WHOLE, "", ""


def traits(file: Path) -> tuple[str, ...]:
    """Return what a recipe is made of."""
    from composer.recipe.recipe import load
    from composer.recipe.schema_reader import DATA_SOURCES

    recipe = load(file)
    data = recipe.data
    task = data.generate.word if data.generate else ""
    output, embedding = recipe.model.output.kind, recipe.model.embedding
    words = {
        "model": "with encoders" if recipe.sources else "without",
        "data": next(key for key in DATA_SOURCES if getattr(data, key)),
        "windows": "" if not recipe.window else "carried" if recipe.carries_state else "alone",
        "task": task,
        "tokenizer": data.tokenizer.word,
        "output": output.word,
        "embedding": embedding.word,
        "optimizer": recipe.training.optimizer.word,
        "schedule": recipe.training.schedule.word,
        "precision": str(recipe.training.precision),
        "decoding": recipe.decoding.word,
    }
    return tuple(f"{name} {word}" for name, word in words.items() if word)


# -------------------------------------------------------------------------------------------
# commands


def command(*words: str | Path) -> tuple[int, str]:
    """Run a command of the command line here; return its exit status, and all that it printed."""
    from composer.cli.main import main

    status = 0
    with captured() as printed:
        try:
            main([str(word) for word in words])
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 1
    return status, printed.getvalue()


@contextlib.contextmanager
def captured() -> Iterator[io.StringIO]:
    """Capture what is printed."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        yield printed


def done(*words: str | Path) -> str:
    """Run a command that must succeed; return what it printed."""
    status, text = command(*words)
    expect_done(str(words[0]), status, text)
    return text


def expect_done(name: str, status: int, text: str) -> None:
    if not status:
        return
    if name == "train" and NOT_FINITE.search(first_fault(text)):
        raise Diverged(first_fault(text))
    raise StepFailed(f"`{name}` ended with status {status}:\n{text}")


def first_fault(text: str) -> str:
    """Return the first line of a text that is an error, or its first line."""
    lines = text.splitlines() or [""]
    return next((line[line.index("error[") :] for line in lines if "error[" in line), lines[0])


def check(file: Path) -> None:
    """Check, repair what is refused as its faults say, and check again."""
    try:
        faults = repair(file)
    except FixFailed as failure:
        raise StepFailed(str(failure)) from failure
    if faults:
        raise Refused(", ".join(sorted({fault.code for fault in faults})))
    done("check", file)


def train(file: Path) -> None:
    """Train; every number of the metrics is finite."""
    done("train", file, "--run", file.parent / "run")
    for row in (file.parent / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        json.loads(row, parse_constant=refuse_constant)


def resume(file: Path) -> None:
    """Interrupt a training after its first step or its second, and resume it: the weights are the
    same.
    """
    from pytorch_lightning import Callback

    from composer.api import train as train_recipe
    from composer.recipe.recipe import load

    last = 1 + len(file.read_bytes()) % 2

    class Interrupt(Callback):
        sent = False

        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            if trainer.global_step == last and not self.sent:  # a second one would end it at once
                self.sent = True
                os.kill(os.getpid(), signal.SIGINT)

    run = file.parent / "resumed"
    printed = io.StringIO()
    with (
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(printed),
        contextlib.suppress(KeyboardInterrupt),
    ):
        train_recipe(load(file), run=run, callbacks=[Interrupt()])
    text = done("train", file, "--run", run, "--resume")
    names = ("model.safetensors", "tokenizer.json")
    weights, tokens = ((file.parent / "run" / name).read_bytes() for name in names)
    others, other_tokens = ((run / name).read_bytes() for name in names)
    # a tokenizer `unigram` may be trained differently, and then the data are others
    if weights != others and tokens == other_tokens:
        raise StepFailed(
            f"the weights of a resumed training differ from those of an uninterrupted one\n{text}"
        )


def translate(file: Path) -> None:
    """Translate lines of the data and a blank one: as many lines come out, the blank one blank."""
    lines = [*(line[:60] for line in source_lines(file)), ""]
    (file.parent / "lines").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    for arguments, count in (((), 1), (("--beam", "2", "--n-best", "2", "--scores"), 2)):
        output = file.parent / f"translated{count}"
        done(
            "translate",
            file.parent / "run",
            "--input",
            file.parent / "lines",
            "--output",
            output,
            *arguments,
        )
        answers = output.read_text(encoding="utf-8").split("\n")[:-1]
        if len(answers) != count * len(lines) or answers[-1].removeprefix("0.0000\t"):
            raise StepFailed(
                f"{len(lines)} lines, the last one blank, have the translations {answers}"
            )
        if count == 2 and any(answer.startswith("nan") for answer in answers):
            raise StepFailed(f"a score is NaN: {answers}")


def first_rows(file: Path) -> list[dict[str, str]]:
    """Return the first lines of the training data, by side."""
    from composer.data.sources import DataSource
    from composer.recipe.recipe import load

    recipe = load(file)
    pairs = DataSource(recipe, recipe.folders()).pairs("train")
    return [pairs[at] for at in range(min(LINES, len(pairs)))]


def has_encoder(file: Path) -> bool:
    from composer.recipe.recipe import load

    return bool(load(file).sources)


def json_lines(text: str) -> list[str]:
    """Return the lines of a text that are JSON objects; others are notes."""
    return [line for line in text.splitlines() if line.startswith("{")]


def source_lines(file: Path) -> list[str]:
    """Return the first lines of the data as `translate` reads them."""
    from composer.data.pairs import TARGET
    from composer.recipe.recipe import load

    names, rows = load(file).sources or [TARGET], first_rows(file)
    return ["\t".join(" ".join(row[name].splitlines()) for name in names) for row in rows]


def generate(file: Path) -> None:
    """Let a language model write: drawn texts of a prompt, alike twice; and the most probable one,
    which others end.
    """
    if has_encoder(file):
        return
    begun = next(filter(str.strip, source_lines(file)), "")[:2].strip()
    run, length, prompt = (
        file.parent / "run",
        ["--max-length", "6", "--json"],
        ["--prompt", begun] if begun else [],
    )
    sampling = ["--samples", "2", "--temperature", "0.8", "--top-k", "5", "--seed", "1"]
    for arguments, count in (([*prompt, *sampling], 2), (["decoding=greedy"], 1), ([], 1)):
        first, again = (json_lines(done("generate", run, *arguments, *length)) for _ in range(2))
        rows = [json.loads(row, parse_constant=refuse_constant) for row in first]
        if len(rows) != count or first != again:
            raise StepFailed(f"`generate {arguments}` has written\n{first}\nand then\n{again}")


def score(file: Path) -> None:
    """Score lines of the data and a blank one: a row for each, and their sum."""
    from composer.data.pairs import TARGET, side_names
    from composer.recipe.recipe import load

    if "story" in side_names(recipe := load(file)):
        return
    rows = first_rows(file)
    columns = {
        side: [" ".join(row[side].split("\n")) for row in rows] for side in side_names(recipe)
    }
    for side, lines in columns.items():
        (file.parent / f"scored.{side}").write_text(
            "".join(f"{line}\n" for line in lines), encoding="utf-8"
        )
    names = {side: file.parent / f"scored.{side}" for side in columns}
    sources = [word for side in columns if side != TARGET for word in ("--source", names[side])]
    text = done("score", file.parent / "run", *sources, "--target", names[TARGET], "--json")
    *scores, total = (json.loads(row, parse_constant=refuse_constant) for row in json_lines(text))
    log_probability = sum(row["log_probability"] for row in scores)
    if len(scores) != len(rows) or not math.isclose(log_probability, total["log_probability"]):
        raise StepFailed(f"{len(rows)} lines have the scores\n{text}")


def evaluate(file: Path) -> None:
    """Evaluate every split; the scores are JSON, and numbers, and the loss is that of batches of
    another size.
    """
    from composer.data import windows
    from composer.data.encoding import load_data
    from composer.data.pairs import available_splits
    from composer.inference import perplexity
    from composer.inference.run import open_run

    run = open_run(file.parent / "run")
    tolerance = 0.05 if "bf16" in str(run.recipe.training.precision) else 1e-3
    for split in available_splits(run.recipe):
        text = done("evaluate", file.parent / "run", "--split", split, "--json")
        scores = json.loads(text[text.index("{") :], parse_constant=refuse_constant)
        if f"{split}/loss" not in scores:
            raise StepFailed(f"no loss of {split}:\n{text}")
        encoded = load_data(run.recipe, run.folders(), run.tokenizers, [split]).splits[split]
        with (
            mock.patch.object(perplexity, "POSITIONS", 16),
            mock.patch.object(windows, "READ_TOKENS", 7),
        ):
            others, _ = perplexity.teacher_forced(run.recipe, [run.model], encoded)
        if not math.isclose(
            others["loss"], scores[f"{split}/loss"], rel_tol=tolerance, abs_tol=tolerance
        ):
            raise StepFailed(f"in other batches the loss of {split} is {others['loss']}:\n{text}")


def refuse_constant(name: str) -> None:
    raise StepFailed(f"a score is {name}")


def report(file: Path) -> None:
    done("report", file.parent / "run")


def pack(file: Path) -> None:
    done("pack", file.parent / "run", "--output", file.parent / "packed.tar")


STEPS: dict[str, Callable[[Path], None]] = {
    function.__name__: function
    for function in (check, train, resume, translate, generate, score, evaluate, report, pack)
}


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = options(str(__doc__), count=300).parse_args(arguments)
    return run_cases(chosen, write_recipe, run_commands, uncounted=REFUSED)


if __name__ == "__main__":
    sys.exit(main())
