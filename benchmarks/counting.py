"""How far models of the task `counting` count, by n: a Markdown table, one line for each run.

    python benchmarks/counting.py RUN [RUN ...] [--lengths 15 20 30 40 60] [--lines 50]

A run reads lines of strings, the last of which has the asked n, and says at each position what comes next. A string is
right where all that is certain in it is said (the letters after the first of the next kind, and that it ends), as in
Joulin & Mikolov 2015, section 5.1; what stands behind it is the share of these letters that are right. A folder of runs
that differ by their seeds (`train --seeds`) is a line for each of them.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

LENGTHS = (15, 20, 30, 40, 60)


class Counted(NamedTuple):
    """Of strings with one n: the shares of strings that are right, and of letters that are certain."""

    n: int
    strings: float
    letters: float


def runs_in(folders: Sequence[Path]) -> Iterator[Path]:
    """The runs, and those of folders of seeds."""
    for folder in folders:
        seeds = [each for each in folder.glob("seed-*") if each.is_dir()]
        seeds.sort(key=lambda path: int(path.name.removeprefix("seed-")))
        yield from seeds or [folder]


def counted(run: Path, lengths: Sequence[int], lines: int) -> list[Counted]:
    """How far a run counts."""
    from composer.data.encoding import load_data
    from composer.data.sources import TARGET
    from composer.inference.run import open_run

    asked = [f"data.generate.counting.test_lengths={list(lengths)}", f"data.generate.counting.test={lines}"]
    opened = open_run(run, asked)
    pattern = opened.recipe.dataset["generate"]["counting"]["pattern"]
    pairs = load_data(opened.recipe, opened.folders(None), opened.tokenizers, ["test"]).pairs["test"]
    texts = [line.split() for line in pairs.sides[TARGET]]
    said = [next_words(opened, line) for line in texts]
    rows = [marked(words, answers, pattern) for words, answers in zip(texts, said, strict=True)]
    return [_shares(n, rows[lines * at : lines * (at + 1)]) for at, n in enumerate(lengths)]


def next_words(opened, line: Sequence[str]) -> list[str]:
    """What the run says comes after each word of a line, "" for its end."""
    import torch

    from composer.data.sources import TARGET
    from composer.model.encoder_decoder import BOS

    ids = [BOS, *opened.tokenizers.encode(TARGET, [" ".join(line)])[0]]
    with torch.inference_mode():
        logits, _ = opened.model.step(torch.tensor([ids], device=opened.model.device), opened.model.start({}, 1), {})
    return opened.tokenizers.decode(TARGET, [[each] for each in logits[0, 1:].argmax(-1).tolist()])


def marked(words: Sequence[str], said: Sequence[str], pattern: str) -> list[bool]:
    """Of what is certain in a line's last string, and of its end, whether it is said. `said` follows each word."""
    from composer.data.tasks.sequences import certain_words

    begins = max(at for at, word in enumerate(words) if word == "a" and (at == 0 or words[at - 1] != "a"))
    known = certain_words(words, pattern)
    letters = [said[at - 1] == words[at] for at in range(begins + 1, len(words)) if known[at]]
    return [*letters, said[-1] in ("", "a")]


def _shares(n: int, rows: Sequence[Sequence[bool]]) -> Counted:
    letters = [each for row in rows for each in row]
    return Counted(n, sum(map(all, rows)) / len(rows), sum(letters) / len(letters))


def table(found: Sequence[tuple[str, Sequence[Counted]]]) -> str:
    """One line for each run."""
    lines = ["| strings right (letters right) at n | " + " | ".join(str(each.n) for each in found[0][1]) + " |"]
    lines.append("|---" * (len(found[0][1]) + 1) + "|")
    for name, row in found:
        lines.append(f"| {name} | " + " | ".join(f"{each.strings:.0%} ({each.letters:.1%})" for each in row) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--lines", type=int, default=50, help="lines of each n")
    asked = parser.parse_args()
    lengths = sorted(asked.lengths)
    print(table([(str(run), counted(run, lengths, asked.lines)) for run in runs_in(asked.runs)]))


if __name__ == "__main__":
    main()
