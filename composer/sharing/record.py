"""run.json as it is handed on: what decides a result, and nothing of the machine's folders and users."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PRIVATE = frozenset(("host", "hostname", "user", "username", "pid", "cwd"))
_PLACE = re.compile(r"(/|~|[A-Za-z]:[\\/]|\\\\|\.\.[\\/]).*", re.DOTALL)


def portable_record(record: Mapping[str, Any]) -> bytes:
    """The text of run.json for others; the same again of what it gives."""
    told = without_places(dict(record))
    if isinstance(told.get("data"), dict) and "folders" in told["data"]:
        told["data"]["folders"] = []  # a pull finds none of them
    return (json.dumps(told, indent=2, ensure_ascii=False) + "\n").encode()


def without_places(value: Any) -> Any:
    """Plain data in which a path of a machine is the last of its names."""
    if isinstance(value, dict):
        return {key: without_places(each) for key, each in value.items() if key not in PRIVATE}
    if isinstance(value, list):
        return [without_places(each) for each in value]
    return _last(value) if isinstance(value, str) else value


def _last(text: str) -> str:
    if _PLACE.fullmatch(text):
        return re.split(r"[\\/]", text.rstrip("\\/"))[-1].lstrip("~")
    home = str(Path.home())
    return text.replace(home, "~") if len(home) > 1 else text
