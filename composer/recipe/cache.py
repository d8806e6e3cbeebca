"""Cache of pulled recipes by the SHA-256 of their bytes, and pins: `{pull: REF, sha256: HEX}`.

A pin is read from the cache alone, so that `check` means the same everywhere and without a network;
a fault names the command that pulls what is missing. The cache is `$SEQCOMPOSER_STORE`, else
`$XDG_CACHE_HOME/seqcomposer/store`, else `~/.cache/seqcomposer/store`. It may be removed at any
time; what is read is checked against its hash.
"""

from __future__ import annotations

import errno
import hashlib
import shlex
from contextlib import suppress
from pathlib import Path
from typing import Any

from composer.atomic_io import atomic_write, cache_dir, is_hash, open_regular, read_at_most
from composer.errors import Fault, RecipeError, RunError, error_at, fault_at, os_error_reason
from composer.recipe.yaml_reader import MAX_BYTES, Node, read_bytes
from composer.suggest import did_you_mean

SHORT_HASH = 12
"""Digits of a hash that are shown to people."""


def require_hash(text: str) -> None:
    """Raise RunError if something that a user gave is no SHA-256."""
    if not is_hash(text):
        raise RunError.of(f"`{text}` is no SHA-256", "write its 64 digits, 0-9 and a-f")


def put(text: str) -> str:
    """Write a recipe's text to the cache, atomically, and return its SHA-256.

    A file that is there already is left alone, or repaired if it was changed. Several processes may
    write at once.

    Raises RunError if the text is larger than 1 MiB, or the cache cannot be written.
    """
    data = text.encode()
    if len(data) > MAX_BYTES:
        raise RunError.of("this recipe is larger than 1 MiB", "a recipe is a few kilobytes of text")
    sha256 = hashlib.sha256(data).hexdigest()
    path = _path_of(sha256)
    with suppress(OSError):
        if _read_regular(path) == data:
            return sha256
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, data)
        path.chmod(0o444)  # an editor then says that this is no file to change
    except OSError as error:
        message = f"the recipe cache cannot be written: {os_error_reason(error)}"
        fix = "set SEQCOMPOSER_STORE to a folder that you may write to"
        raise RunError.of(message, fix, str(path.parent)) from None
    return sha256


def get(sha256: str) -> Path | None:
    """Return the file of a cached recipe after verifying it; None if there is none.

    Raise RunError as `read`.
    """
    cached = read(sha256)
    return None if cached is None else cached[0]


def read(sha256: str) -> tuple[Path, bytes] | None:
    """Return the file of a cached recipe and the bytes that were verified; None if there is none.

    Raises RunError if it cannot be read, is no regular file, or does not have this hash.
    """
    require_hash(sha256)
    path = _path_of(sha256)
    try:
        data = _read_regular(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        reason = "it is a link" if error.errno == errno.ELOOP else os_error_reason(error)
        raise RunError.of(
            f"this file cannot be read: {reason}", "remove it, and pull it again", str(path)
        ) from None
    if hashlib.sha256(data).hexdigest() != sha256:
        raise RunError.of(
            "this file was changed: its SHA-256 is not its name", "pull it again", str(path)
        )
    return path, data


def _path_of(sha256: str) -> Path:
    return cache_dir() / "recipes" / f"{sha256}.yaml"


def _read_regular(path: Path) -> bytes:
    """Return the bytes of a regular file, at most one more than a recipe may have."""
    with open_regular(path, follow=False) as file:
        return read_at_most(file, MAX_BYTES + 1)


PIN_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "pull": {
            "description": (
                "Where `seqcomposer pull` brings it from: a path, `FOLDER/NAME[@ALIAS]`, "
                "`git+URL[@REV][#PATH]`, `wandb:[ENTITY/]PROJECT/NAME[:ALIAS]` or "
                "`hub:OWNER/NAME[@REV][#PATH]`."
            ),
            "type": "string",
            "minLength": 1,
        },
        "sha256": {
            "description": "The SHA-256 of its text, which `seqcomposer pull` prints.",
            "type": "string",
            "pattern": "^[0-9a-f]{64}$",
            "patternErrorMessage": "64 digits, 0-9 and a-f",
        },
    },
    "required": ["pull", "sha256"],
    "additionalProperties": False,
}
"""The JSON Schema of a pin. Pins are read before the schema of recipes is applied, so they are
checked here.
"""

PIN_KEYS = tuple(PIN_SCHEMA["properties"])
PIN_FORM = "{pull: REF, sha256: HEX}"


def check_pin(node: Node) -> None:
    """Raise RecipeError with everything that is wrong with a mapping that should be a pin."""
    faults, ref, sha256 = list[Fault](), node.value.get("pull"), node.value.get("sha256")
    if ref is None and sha256 is None:
        message = (
            f"a recipe is named by its path, or pinned by `{PIN_FORM}`, and this is another mapping"
        )
        hint = "write it into a file, and the path of that here"
        raise error_at(node.mark, "type", "extends", message, hint)
    form = f"write `{PIN_FORM}`"
    for key in [key for key in node.value if key not in PIN_KEYS]:
        message = f"a pinned recipe has no key `{key}`{did_you_mean(key, PIN_KEYS)}"
        mark = node.value[key].place
        faults.append(fault_at(mark, "unknown", f"extends.{key}", message, form))
    if ref is not None and not _is_reference(ref.value):
        message = (
            "`pull` takes what `seqcomposer pull` takes: a path, `git+URL`, `wandb:NAME` or"
            " `hub:NAME`"
        )
        faults.append(fault_at(ref.value_mark, "type", "extends.pull", message, form))
    if sha256 is not None and not is_hash(sha256.value):
        message = "a sha256 is a text of 64 digits, 0-9 and a-f"
        hint = "copy it from what `seqcomposer pull` printed"
        faults.append(fault_at(sha256.value_mark, "sha256", "extends.sha256", message, hint))
    missing = next((key for key in PIN_KEYS if key not in node.value), "")
    if missing and not faults:
        hint = form if ref is None else f"run `{_pull_command(ref.value)}`, which prints it"
        mark = node.place if node.key else node.mark._replace(length=1)
        message = f"a pinned recipe needs `{missing}`"
        faults.append(fault_at(mark, "missing", "extends", message, hint))
    if faults:
        raise RecipeError(faults)


def _pull_command(ref: str) -> str:
    return f"seqcomposer pull {shlex.quote(ref)}"


def read_pinned(pin: Node) -> Node:
    """Return a pinned recipe from the cache.

    Raise RecipeError if it is not there, was changed or extends another.
    """
    ref, sha256 = pin.value["pull"], pin.value["sha256"]
    command = _pull_command(ref.value)
    try:
        cached = read(sha256.value)
    except RunError as error:
        (fault,) = error.faults
        message = f"in the recipe cache, {fault.file}: {fault.message}"
        hint = f"remove that file, then run `{command}`"
        raise error_at(sha256.mark, "sha256", "extends", message, hint) from None
    if cached is None:
        message = (
            f"no recipe with this SHA-256 is in the cache; it comes from `{ref.value}`, unless that"
            " was changed"
        )
        raise error_at(ref.mark, "pull", "extends", message, f"run `{command}`")
    path, data = cached
    root = read_bytes(data, str(path))
    if "extends" in root.value:
        hint = f"run `{command}`, which merges a recipe with its bases"
        message = "a cached recipe cannot extend another"
        raise error_at(root.value["extends"].place, "pull", "extends", message, hint)
    return root


def _is_reference(value: object) -> bool:
    """Return True for what can be given to `pull`: on one line, visible, and no option."""
    return (
        isinstance(value, str)
        and bool(value.strip())
        and value.isprintable()
        and not value.startswith("-")
    )
