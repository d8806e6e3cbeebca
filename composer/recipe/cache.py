"""The store: recipes of others that were pulled, each under the SHA-256 of its bytes. Nothing here uses a network.

It lies in `$SEQCOMPOSER_STORE`, else `$XDG_CACHE_HOME/seqcomposer/store`, else `~/.cache/seqcomposer/store`; where it
lies decides nothing, for what is read from it is what its hash says, or refused. It may be removed at any time: what a
recipe then misses is told with the command that pulls it again.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

from composer.atomic_io import atomic_write, open_regular
from composer.errors import Fault, RecipeError, RunError, did_you_mean, os_error_reason
from composer.recipe.node import Node, fault_at
from composer.recipe.yaml_reader import MAX_BYTES, read_bytes

READ_ONLY = 0o444
SHORT_HASH = 12
"""Digits of a hash that are told to people."""

_HASH = re.compile(r"[0-9a-f]{64}")


def cache_dir() -> Path:
    """The folder of the store, there or not. Raises RunError where this user has no home."""
    chosen = os.environ.get("SEQCOMPOSER_STORE")
    if chosen:
        return Path(os.path.abspath(chosen))
    cache = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(cache):  # as the standard has it, a relative one is none
        return Path(cache) / "seqcomposer" / "store"
    try:
        return Path.home() / ".cache" / "seqcomposer" / "store"
    except RuntimeError:
        raise RunError.of("there is no home folder, and so no store", "set SEQCOMPOSER_STORE to a folder") from None


def is_hash(text: object) -> TypeGuard[str]:
    """Whether something is a SHA-256 as the store writes it: 64 digits, 0-9 and a-f."""
    return isinstance(text, str) and _HASH.fullmatch(text) is not None


def require_hash(text: str) -> None:
    """Raises RunError where something that a user has given is no SHA-256."""
    if not is_hash(text):
        raise RunError.of(f"`{text}` is no SHA-256", "write its 64 digits, 0-9 and a-f")


def put(text: str) -> str:
    """Puts a recipe's text into the store, whole or not at all, and returns its SHA-256. Raises RunError.

    What is there already stays as it is; what was changed there is made good. Any number of processes may keep at once.
    """
    data = text.encode()
    if len(data) > MAX_BYTES:
        raise RunError.of("a recipe larger than 1 MiB is not kept", "a recipe is a few kilobytes of text")
    sha256 = hashlib.sha256(data).hexdigest()
    path = _path_of(sha256)
    if not _is_good(path, sha256):
        try:
            _write(path, data)
        except OSError as error:
            fix = "set SEQCOMPOSER_STORE to a folder that you may write to"
            raise RunError.of(f"the store cannot be written: {os_error_reason(error)}", fix, str(path.parent)) from None
    return sha256


def get(sha256: str) -> Path | None:
    """The file of a kept recipe, whose content was just verified; None where there is none. Raises RunError."""
    found = read(sha256)
    return None if found is None else found[0]


def read(sha256: str) -> tuple[Path, bytes] | None:
    """The file of a kept recipe and the very bytes that were verified; None where there is none.

    Raises RunError where it cannot be read, is no regular file, or is not what was kept.
    """
    require_hash(sha256)
    path = _path_of(sha256)
    try:
        data = _bytes(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        reason = "it is a link" if error.errno == errno.ELOOP else os_error_reason(error)
        raise RunError.of(f"this cannot be read: {reason}", "remove it, and pull it again", str(path)) from None
    if data is None or hashlib.sha256(data).hexdigest() != sha256:
        raise RunError.of("this is not what was kept: it was changed", "pull it again", str(path))
    return path, data


def _path_of(sha256: str) -> Path:
    return cache_dir() / "recipes" / f"{sha256}.yaml"


def _bytes(path: Path) -> bytes | None:
    """What a regular file holds, up to what a recipe may have; None of anything else."""
    file = open_regular(path)
    if file is None:
        return None
    with file:
        return file.read(MAX_BYTES + 1)


def _is_good(path: Path, sha256: str) -> bool:
    with suppress(OSError):
        data = _bytes(path)
        return data is not None and hashlib.sha256(data).hexdigest() == sha256
    return False


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, data)
    path.chmod(READ_ONLY)  # an editor then says that this is no file to change


PIN_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "pull": {
            "description": "Where `seqcomposer pull` brings it from: a path, `git+URL[@REVISION][#PATH]`, "
            "`wandb:PROJECT/NAME:VERSION` or `hub:OWNER/NAME[@REVISION][#PATH]`.",
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
"""What it looks like, as a JSON Schema."""

PIN_KEYS = tuple(PIN_SCHEMA["properties"])
PIN_FORM = "{pull: REF, sha256: HEX}"


class Pin(NamedTuple):
    """Where a recipe comes from, and the SHA-256 of its text. `node` is where this was written."""

    ref: str
    sha256: str
    node: Node

    @property
    def command(self) -> str:
        """What brings it into the store, for a shell."""
        escaped = self.ref.replace("'", "'\\''")
        return f"seqcomposer pull '{escaped}'"


def parse_pin(node: Node) -> Pin:
    """The pin that a mapping is. Raises RecipeError with everything that is wrong with it."""
    if not any(key in PIN_KEYS or did_you_mean(key, PIN_KEYS) for key in node.value):
        message = f"a pinned recipe is `{PIN_FORM}`, and this is another mapping"
        raise _pin_error(node, "type", message, f"write `{PIN_FORM}`, or a path")
    faults = [fault for key, each in node.value.items() if (fault := _key_fault(key, each)) is not None]
    faults.extend(_missing_key(node, key) for key in PIN_KEYS if key not in node.value and not _is_misspelt(node, key))
    if faults:
        raise RecipeError(faults)
    return Pin(node.value["pull"].value, node.value["sha256"].value, node)


def read_pinned(pin: Pin) -> Node:
    """The recipe that is pinned, from the store. Raises RecipeError."""
    sha256 = pin.node.value["sha256"]
    try:
        found = read(pin.sha256)
    except RunError as error:
        (told,) = error.faults
        message = f"in the store, {told.file}: {told.message}"
        raise _pin_error(sha256, "sha256", message, f"remove that file, then run `{pin.command}`") from None
    if found is None:
        message = f"no recipe with this hash is in the store; it comes from `{pin.ref}`, unless that was changed"
        raise _pin_error(pin.node.value["pull"], "pull", message, f"run `{pin.command}`")
    path, data = found
    root = read_bytes(data, str(path))
    if "extends" in root.value:
        place, hint = root.value["extends"].place, f"run `{pin.command}`, which makes it whole"
        message = "a recipe of the store stands alone, and this one extends another"
        raise RecipeError([fault_at(place, "pull", "extends", message, hint)])
    return root


def _pin_error(node: Node, code: str, message: str, hint: str) -> RecipeError:
    return RecipeError([fault_at(node.mark, code, "extends", message, hint)])


def _key_fault(key: str, node: Node) -> Fault | None:
    """What is wrong with a key and its value."""
    if key not in PIN_KEYS:
        message = f"a pinned recipe has no key `{key}`{did_you_mean(key, PIN_KEYS)}"
        return fault_at(node.place, "unknown", f"extends.{key}", message, f"write `{PIN_FORM}`")
    place = node.place if node.value is None and not node.text else node.mark
    if key == "sha256" and not is_hash(node.value):
        message = "a sha256 has 64 digits, 0-9 and a-f" + _length_of(node)
        return fault_at(place, "sha256", "extends.sha256", message, "copy it from what `seqcomposer pull` printed")
    if key == "pull" and not _is_reference(node.value):
        message = "`pull` takes what `seqcomposer pull` takes: a path, `git+URL`, `wandb:NAME` or `hub:NAME`"
        return fault_at(place, "type", "extends.pull", message, f"write `{PIN_FORM}`")
    return None


def _length_of(node: Node) -> str:
    if node.text and not node.quoted and not isinstance(node.value, str):
        return "; this is a number: put quotes around it"
    return f", and this has {len(node.text)} characters" if node.text and len(node.text) != 64 else ""


def _is_reference(value: object) -> bool:
    """Whether a value can be given to `pull`: on one line, visible, and no option."""
    return isinstance(value, str) and bool(value.strip()) and value.isprintable() and not value.startswith("-")


def _is_misspelt(node: Node, key: str) -> bool:
    return any(each not in PIN_KEYS and f"`{key}`" in did_you_mean(each, PIN_KEYS) for each in node.value)


def _missing_key(node: Node, key: str) -> Fault:
    ref = node.value.get("pull")
    message = f"a pinned recipe needs `{key}`"
    hint = f"write `{PIN_FORM}`"
    if key == "sha256" and ref is not None and _is_reference(ref.value):
        hint = f"run `{Pin(ref.value, '', node).command}`, which prints it"
    return fault_at(node.place if node.key else node.mark._replace(length=1), "missing", "extends", message, hint)
