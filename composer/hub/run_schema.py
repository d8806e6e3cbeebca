"""run.json of somebody else: in the form in which a training writes it, or refused.

Commands read it without a doubt, for a training has written it. So what comes from elsewhere is looked at once, where
it comes in: a hash is a hash, and a text that may be printed is one line that can be seen.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from composer.hub.pack_contents import refuse
from composer.hub.redact import is_place
from composer.recipe.cache import is_hash
from composer.recipe.node import strings_in

MOST_TEXT = 4000
"""Characters of a text in run.json."""
MOST_NUMBER = 1 << 63
MOST_DEPTH = 8

Form = Callable[[Any], bool]


def text(value: Any) -> bool:
    """Whether something is a text on one line without characters that cannot be seen."""
    return isinstance(value, str) and len(value) <= MOST_TEXT and value.isprintable()


def count(value: Any) -> bool:
    """Whether something is a whole number, 0 or more."""
    return whole(value) and value >= 0


def plain(value: Any) -> bool:
    """Whether something is one text, number or truth, or nothing."""
    return value is None or isinstance(value, bool | float) or text(value) or whole(value)


def whole(value: Any) -> bool:
    """Whether something is a whole number that is not without end."""
    return type(value) is int and abs(value) < MOST_NUMBER


def number(value: Any) -> bool:
    """Whether something is a number."""
    return isinstance(value, float) or count(value)


def truth(value: Any) -> bool:
    """Whether something is true or false."""
    return isinstance(value, bool)


def maybe(form: Form) -> Form:
    """A form, or nothing."""
    return lambda value: value is None or form(value)


def several(form: Form) -> Form:
    """A list of things of a form."""
    return lambda value: isinstance(value, list) and all(map(form, value))


def each(form: Form) -> Form:
    """Things of a form under any names."""
    return lambda value: isinstance(value, dict) and all(text(key) and form(one) for key, one in value.items())


def with_keys(**forms: Form) -> Form:
    """Things under these names; what has another name is plain."""
    return lambda value: (
        isinstance(value, dict) and all(text(key) and forms.get(key, plain)(one) for key, one in value.items())
    )


def whole_of(form: Form, *names: str) -> Form:
    """A mapping of a form in which none of these names is missing."""
    return lambda value: form(value) and all(name in value for name in names)


RECORD: Mapping[str, Form] = {
    "name": text,
    "status": text,
    "fingerprints": whole_of(each(is_hash), "model", "data", "run"),
    "seed": count,
    "versions": each(text),
    "source": maybe(is_hash),
    "plug_ins": each(each(maybe(text))),
    "machine": with_keys(gpus=several(text)),
    "git": maybe(with_keys(commit=text, dirty=truth)),
    "began": text,
    "ended": text,
    "start_from": maybe(text),
    "began_from": maybe(whole_of(each(is_hash), "weights", "tokenizer")),
    "repeat_of": maybe(
        with_keys(
            run=text, fingerprint=is_hash, weights=maybe(is_hash), differs=several(text), same=maybe(truth), told=text
        )
    ),
    "resumed_with": several(text),
    "data": with_keys(
        folders=several(text), pairs=each(count), trained_on=count, sha256=maybe(is_hash), val_sha256=maybe(is_hash)
    ),
    "tokenizer": is_hash,
    "vocabularies": each(count),
    "parameters": count,
    "wandb": text,
    "weights": maybe(is_hash),
    "minutes": number,
    "steps": count,
    "epochs": number,
    "kept": with_keys(how=text, checkpoints=several(text)),
    "scores": each(plain),
    "by_length": each(several(each(plain))),
}
"""What a training writes under each name; what is not there is not missed here, and other names hold any plain data."""


def check_record(record: Mapping[str, Any], origin: str | Path) -> None:
    """Raises RunError where a run.json says something in a form in which no training writes it."""
    for key, value in record.items():
        if not text(key) or not RECORD.get(key, anything)(value):
            refuse(
                origin,
                f"in run.json `{key[:100]}` is not what a training writes; nothing was taken",
                "ask for the run again, with run.json as the training has left it",
            )


def anything(value: Any, depth: int = MOST_DEPTH) -> bool:
    """Whether something is plain data, not nested without end, whose texts can be printed."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if inner is None:
        return plain(value)
    return depth > 0 and all((text(key) or count(key)) and anything(one, depth - 1) for key, one in inner)


def check_metrics(path: Path, origin: str) -> None:
    """Raises RunError where a line of metrics.jsonl holds what no training logs; a line that was cut off is none."""
    with path.open("rb") as file:
        for line in file:
            try:
                good = anything(json.loads(line), depth=2)
            except RecursionError:
                good = False
            except ValueError:
                continue
            if not good:
                refuse(origin, f"`{path.name}` is not what a training writes; nothing was taken")


def check_handed_on(record: Mapping[str, Any], origin: str) -> None:
    """Raises RunError where the run.json of a pack names a place of a machine: data would be looked for there."""
    folders = record.get("data", {}).get("folders")
    named = next(filter(is_place, strings_in(record)), None)
    if folders or named is not None:
        refuse(origin, f"run.json names a place of a machine, {named or folders[0]!a}; nothing was taken")
