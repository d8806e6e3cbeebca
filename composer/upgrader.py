"""Recipes of an older version of the language, rewritten in their files: all of those that are named, or none."""

from __future__ import annotations

import codecs
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from composer.atomic_io import atomic_write
from composer.errors import Fault, RecipeError, RunError, os_error_reason
from composer.recipe.versions import STEPS, Change, Step, upgraded
from composer.recipe.yaml_reader import decode_text


class Found(NamedTuple):
    """A recipe's file, what it holds in the newest version, and what is changed for it: nothing, where it is of it."""

    file: Path
    data: bytes
    changes: tuple[Change, ...]

    def told(self, written: bool) -> str:
        """What was changed (or would be), a line for each change, and a line for the whole."""
        if not self.changes:
            return f"{self.file}: nothing to change"
        done = "written in the newest version of the language" if written else "to be upgraded"
        return "\n".join([*map(str, self.changes), f"{self.file}: {done}"])

    def as_json(self) -> dict[str, Any]:
        """The same for programs."""
        changes = [
            {
                "line": each.mark.line,
                "column": each.mark.column,
                "before": each.before,
                "after": each.after,
                "why": each.why,
            }
            for each in self.changes
        ]
        return {"file": str(self.file), "changes": changes}


def upgrade_files(files: Sequence[Path], write: bool = True, steps: Mapping[int, Step] = STEPS) -> list[Found]:
    """Rewrites recipes in their files, and tells what is changed. Raises RecipeError before anything is written."""
    found: list[Found] = []
    faults: list[Fault] = []
    for file in dict.fromkeys(files):
        try:
            found.append(_looked_at(file, steps))
        except RecipeError as error:
            faults.extend(error.faults)
    if faults:
        raise RecipeError(faults)
    for each in found if write else ():
        if each.changes:
            _write(each)
    return found


def _looked_at(file: Path, steps: Mapping[int, Step]) -> Found:
    data, text = decode_text(file, str(file))
    after = upgraded(text, str(file), steps)
    mark = codecs.BOM_UTF8 if data.startswith(codecs.BOM_UTF8) else b""
    return Found(file, mark + after.text.encode(), after.changes)


def _write(found: Found) -> None:
    """In place: a link goes on pointing to the file, which keeps its permissions."""
    file = found.file.resolve()
    try:
        mode = file.stat().st_mode
        atomic_write(file, found.data)
        file.chmod(mode)
    except OSError as error:
        raise RunError.of(
            f"this cannot be written: {os_error_reason(error)}", "check its folder", str(found.file)
        ) from None
