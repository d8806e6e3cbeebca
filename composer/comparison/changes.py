"""What has changed: one thing that differs, its place, and how it is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from composer.comparison.tree import NAME, value_text

Kind = Literal["set", "replaced", "inserted", "removed", "moved", "wrapped", "unwrapped", "renamed"]


@dataclass(frozen=True)
class Change:
    """One thing that differs.

    `path` is where it stands in the first, `other_path` in the second; "" where it is not there. `word` is the block's,
    `setting` what of it or of the section, `before` and `after` its values; of blocks, how they are written in short.
    """

    kind: Kind
    section: str
    path: str
    other_path: str
    word: str
    setting: str
    before: Any
    after: Any

    @property
    def where(self) -> str:
        """The place that is told: the first's, where it has one."""
        return self.path or self.other_path

    @property
    def block(self) -> str:
        """The place of the block whose setting it is: `encoder[0].repeat`."""
        return ".".join(each for each in (self.where, self.word) if each)

    @property
    def what(self) -> str:
        """What happened there; the same for all places where the same happened."""
        if self.is_name:
            return self._naming()
        if self.kind in _TOLD:
            return _TOLD[self.kind].format(before=self.before, after=self.after, to=self.other_path)
        return f"{self.setting} {self.values}" if self.setting else self.values

    @property
    def is_name(self) -> bool:
        """Whether it is the name that others read a block by."""
        return self.kind == "set" and self.setting == NAME and bool(self.word)

    def _naming(self) -> str:
        if self.before is None:
            return f"now named {self.after}"
        return f"no longer named {self.before}" if self.after is None else f"named {self.after}, was {self.before}"

    @property
    def values(self) -> str:
        """`before -> after`."""
        if self.kind != "set":
            return " -> ".join(
                f"[{', '.join(x)}]" if isinstance(x, list) else str(x) for x in (self.before, self.after)
            )
        texts = [value_text(each) for each in (self.before, self.after)]
        return " -> ".join(texts if texts[0] != texts[1] else [repr(self.before), repr(self.after)])

    def text(self) -> str:
        """The change in one line."""
        if self.kind != "set":
            return f"{self.where}: {self.what}"
        if self.is_name:
            return f"{self.block}: {self.what}"
        return f"{self.block}.{self.setting}: {self.values}" if self.block else f"{self.setting}: {self.values}"

    def as_json(self) -> Mapping[str, Any]:
        """The change as plain data, with its text."""
        return {**asdict(self), "text": self.text()}


_TOLD: Mapping[str, str] = {
    "inserted": "inserted {after}",
    "removed": "removed {before}",
    "moved": "{before} moved to {to}",
    "wrapped": "{before} now inside {after}",
    "unwrapped": "{after} no longer inside {before}",
    "renamed": "now called {after}",
}
