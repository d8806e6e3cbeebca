"""`{pull: REF, sha256: HEX}`: a recipe of somebody else, pinned by its hash and read from the store alone.

So `check` means the same everywhere and without a network; what is not in the store is told with the command
that brings it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from composer.errors import Fault, RecipeError, RunError, did_you_mean
from composer.recipe import cache
from composer.recipe.node import Node, fault_at
from composer.recipe.yaml_reader import read_bytes

PIN: dict[str, Any] = {
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

KEYS = tuple(PIN["properties"])
FORM = "{pull: REF, sha256: HEX}"


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
    if not any(key in KEYS or did_you_mean(key, KEYS) for key in node.value):
        message = f"a pinned recipe is `{FORM}`, and this is another mapping"
        raise _refused(node, "type", message, f"write `{FORM}`, or a path")
    faults = [fault for key, each in node.value.items() if (fault := _wrong(key, each)) is not None]
    faults.extend(_missing(node, key) for key in KEYS if key not in node.value and not _misspelt(node, key))
    if faults:
        raise RecipeError(faults)
    return Pin(node.value["pull"].value, node.value["sha256"].value, node)


def read_pinned(pin: Pin) -> Node:
    """The recipe that is pinned, from the store. Raises RecipeError."""
    sha256 = pin.node.value["sha256"]
    try:
        found = cache.content(pin.sha256)
    except RunError as error:
        (told,) = error.faults
        message = f"in the store, {told.file}: {told.message}"
        raise _refused(sha256, "sha256", message, f"remove that file, then run `{pin.command}`") from None
    if found is None:
        message = f"no recipe with this hash is in the store; it comes from `{pin.ref}`, unless that was changed"
        raise _refused(pin.node.value["pull"], "pull", message, f"run `{pin.command}`")
    path, data = found
    root = read_bytes(data, str(path))
    if "extends" in root.value:
        place, hint = root.value["extends"].place, f"run `{pin.command}`, which makes it whole"
        message = "a recipe of the store stands alone, and this one extends another"
        raise RecipeError([fault_at(place, "pull", "extends", message, hint)])
    return root


def _refused(node: Node, code: str, message: str, hint: str) -> RecipeError:
    return RecipeError([fault_at(node.mark, code, "extends", message, hint)])


def _wrong(key: str, node: Node) -> Fault | None:
    """What is wrong with a key and its value."""
    if key not in KEYS:
        message = f"a pinned recipe has no key `{key}`{did_you_mean(key, KEYS)}"
        return fault_at(node.place, "unknown", f"extends.{key}", message, f"write `{FORM}`")
    place = node.place if node.value is None and not node.text else node.mark
    if key == "sha256" and not cache.is_hash(node.value):
        message = "a sha256 has 64 digits, 0-9 and a-f" + _length_of(node)
        return fault_at(place, "sha256", "extends.sha256", message, "copy it from what `seqcomposer pull` printed")
    if key == "pull" and not _is_reference(node.value):
        message = "`pull` takes what `seqcomposer pull` takes: a path, `git+URL`, `wandb:NAME` or `hub:NAME`"
        return fault_at(place, "type", "extends.pull", message, f"write `{FORM}`")
    return None


def _length_of(node: Node) -> str:
    if node.text and not node.quoted and not isinstance(node.value, str):
        return "; this is a number: put quotes around it"
    return f", and this has {len(node.text)} characters" if node.text and len(node.text) != 64 else ""


def _is_reference(value: object) -> bool:
    """Whether a value can be given to `pull`: on one line, visible, and no option."""
    return isinstance(value, str) and bool(value.strip()) and value.isprintable() and not value.startswith("-")


def _misspelt(node: Node, key: str) -> bool:
    return any(each not in KEYS and f"`{key}`" in did_you_mean(each, KEYS) for each in node.value)


def _missing(node: Node, key: str) -> Fault:
    ref = node.value.get("pull")
    message = f"a pinned recipe needs `{key}`"
    hint = f"write `{FORM}`"
    if key == "sha256" and ref is not None and _is_reference(ref.value):
        hint = f"run `{Pin(ref.value, '', node).command}`, which prints it"
    return fault_at(node.place if node.key else node.mark._replace(length=1), "missing", "extends", message, hint)
