"""What two runs have different beside their recipes: what else run.json keeps, and whether chance explains scores."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from composer.atomic_io import sha256_of_file
from composer.comparison.changes import Change
from composer.comparison.sources import Side
from composer.errors import ComposerError, format_path
from composer.recipe.cache import SHORT_HASH
from composer.run_dir import RunDir
from composer.sweeps.significance import Comparison, compare_trials

TOLD_ELSEWHERE = ("name", "fingerprints", "scores", "by_length", "parameters", "vocabularies", "wandb", "seed")
"""What of run.json is told by the recipes, the scores and the costs."""
ITS_OWN = ("began", "ended", "folders", "checkpoints", "cwd", "weights", "run")
"""What no two runs have the same, and nobody asks for."""

CODE = "code of seqcomposer"

Say = Callable[[str], None]


def record_changes(one: Side, other: Side) -> list[Change]:
    """What differs in two run.json that may explain other scores: budget, versions, the content of the data."""
    if not (one.is_run and other.is_run):
        return []
    keys = [key for key in dict.fromkeys((*one.record, *other.record)) if key not in TOLD_ELSEWHERE]
    return [change for key in keys for change in _between(one.record.get(key), other.record.get(key), (key,))]


def _between(before: Any, after: Any, path: tuple[str, ...]) -> Iterator[Change]:
    if before == after or path[-1] in ITS_OWN:
        return
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in dict.fromkeys((*before, *after)):
            yield from _between(before.get(key), after.get(key), (*path, str(key)))
    elif not isinstance(before, Mapping) and not isinstance(after, Mapping):
        name = CODE if path == ("source",) else format_path(path)
        yield Change("set", "run", "", "", "", name, *map(short, (before, after)))


def short(value: Any) -> Any:
    """A value, of a hash its beginning."""
    is_hash = isinstance(value, str) and re.fullmatch(r"[0-9a-f]{40,}", value)
    return value[:SHORT_HASH] if is_hash else value


def compared(one: Side, other: Side, data: Path | None, say: Say) -> Comparison | str:
    """Both runs on the same test lines, by the paired tests; or in words why they are not compared."""
    if one.folder is None or other.folder is None:
        return ""
    unfinished = [each.name for each in (one, other) if each.record.get("status") != "finished"]
    if unfinished:
        return f"{' and '.join(unfinished)}: not finished"
    if (
        one.recipe.decoding == other.recipe.decoding
        and same_tokenizers(one, other)
        and same_weights(one.folder, other.folder)
    ):
        return "the weights of both are the same, to the last bit"
    say("translating the test part with both runs; `--quick` leaves it out")
    try:
        return compare_trials(one.folder, other.folder, data)
    except ComposerError as error:
        return error.faults[0].message


def same_tokenizers(one: Side, other: Side) -> bool:
    """Whether two runs read and write alike: `unigram` is another tokenizer whenever it is trained."""
    return one.record.get("tokenizer") == other.record.get("tokenizer")


def same_weights(one: Path, other: Path) -> bool:
    """Whether two runs have kept the very same weights."""
    files = [RunDir(each).weights for each in (one, other)]
    if not all(file.is_file() for file in files) or files[0].stat().st_size != files[1].stat().st_size:
        return False
    return len({sha256_of_file(file) for file in files}) == 1
