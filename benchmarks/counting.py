"""How far models of the task `counting` count, by n: a Markdown table, one line for each run.

    python -m benchmarks.counting RUN [RUN ...] [--lengths 15 20 30 40 60] [--lines 50]

A run predicts the next token at each position of lines of strings, the last of which has the tested
n. As in Joulin & Mikolov 2015, section 5.1, a string is correct if every deterministic token is
predicted (the letters after the first of the second kind, and the end); in brackets is the accuracy
on these letters. A sweep (`sweep RECIPE --seeds`) gives a line for each run of a seed.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

LENGTHS = (15, 20, 30, 40, 60)


class CountingAccuracy(NamedTuple):
    """Accuracy on strings with one n: exact strings, and deterministic letters."""

    n: int
    strings: float
    letters: float


def find_runs(folders: Sequence[Path]) -> Iterator[Path]:
    """Yield the runs, and those of each seed of a sweep's trials."""
    for folder in folders:
        seeds = sorted((folder / "trials").glob("*/seed-*"))
        yield from [run for run in seeds if run.is_dir()] or [folder]


def certain_words(words: Sequence[str], pattern: str) -> list[bool]:
    """Return for each word of a line of counting whether those before it leave no other; never for
    the first.

    What comes after an `a` is free, after a `b` of `anbmcnm` too; all else is certain, the next
    string's `a` as well.
    """
    free = {"", "a", "b"} if pattern == "anbmcnm" else {"", "a"}
    return [before not in free for before in ["", *words][:-1]]


def measure_run(run: Path, lengths: Sequence[int], lines: int) -> list[CountingAccuracy]:
    """Measure how far a run counts."""
    from composer.data.encoding import load_data
    from composer.data.pairs import TARGET
    from composer.inference.run import open_run

    overrides = [
        f"data.generate.counting.test_lengths={list(lengths)}",
        f"data.generate.counting.test={lines}",
    ]
    opened = open_run(run, overrides)
    pattern = opened.recipe.data.generate.pattern
    pairs = load_data(opened.recipe, opened.folders(None), opened.tokenizers, ["test"]).pairs[
        "test"
    ]
    texts = [line.split() for line in pairs.sides[TARGET]]
    predictions = [predict_next(opened, line) for line in texts]
    rows = [
        check_letters(words, answers, pattern)
        for words, answers in zip(texts, predictions, strict=True)
    ]
    return [_accuracy(n, rows[lines * at : lines * (at + 1)]) for at, n in enumerate(lengths)]


def predict_next(opened, line: Sequence[str]) -> list[str]:
    """Return the run's prediction after each word of a line, "" for the end."""
    import torch

    from composer.data.pairs import TARGET
    from composer.model.special_tokens import BOS

    ids = [BOS, *opened.tokenizers.encode(TARGET, [" ".join(line)])[0]]
    with torch.inference_mode():
        logits, _ = opened.model.step(
            torch.tensor([ids], device=opened.model.device), opened.model.start({}, 1), {}
        )
    return opened.tokenizers.decode(
        TARGET, [[token] for token in logits[0, 1:].argmax(-1).tolist()]
    )


def check_letters(words: Sequence[str], predictions: Sequence[str], pattern: str) -> list[bool]:
    """Return which deterministic letters of a line's last string, and its end, are predicted.

    predictions: The prediction after each word.
    """

    begins = max(
        at for at, word in enumerate(words) if word == "a" and (at == 0 or words[at - 1] != "a")
    )
    deterministic = certain_words(words, pattern)
    letters = [
        predictions[at - 1] == words[at]
        for at in range(begins + 1, len(words))
        if deterministic[at]
    ]
    return [*letters, predictions[-1] in ("", "a")]


def _accuracy(n: int, rows: Sequence[Sequence[bool]]) -> CountingAccuracy:
    letters = [letter for row in rows for letter in row]
    return CountingAccuracy(n, sum(map(all, rows)) / len(rows), sum(letters) / len(letters))


def table(results: Sequence[tuple[str, Sequence[CountingAccuracy]]]) -> str:
    """Return a table with a line for each run."""
    first = results[0][1]
    lines = [
        "| exact strings (letter accuracy) at n | "
        + " | ".join(str(accuracy.n) for accuracy in first)
        + " |"
    ]
    lines.append("|---" * (len(first) + 1) + "|")
    for name, row in results:
        cells = [f"{accuracy.strings:.0%} ({accuracy.letters:.1%})" for accuracy in row]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--lines", type=int, default=50, help="lines per n")
    options = parser.parse_args()
    lengths = sorted(options.lengths)
    print(
        table(
            [
                (str(run), measure_run(run, lengths, options.lines))
                for run in find_runs(options.runs)
            ]
        )
    )


if __name__ == "__main__":
    main()
