"""What each block of a recipe reads beside the stream, found out while the model is built."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from blocks.core.contract import Block, Named, Path, Site
from blocks.core.stack import Stack
from composer.model.builder import Builder


@dataclass(frozen=True)
class RecordingSite(Site):
    """A site that notes in `asked` every name and memory that the block standing on it looks up."""

    asked: dict[str, None] = field(default_factory=dict)

    def named(self, name: str, setting: str) -> Named:
        """As Site says."""
        self.asked[name] = None
        return super().named(name, setting)

    def memory(self, name: str | None, setting: str = "from") -> str:
        """As Site says."""
        found = super().memory(name, setting)
        self.asked[found] = None
        return found

    def rehearse(self, setting: Path, blocks: Sequence[Any], **changes: Any) -> Stack:
        """As Site says; what is thrown away has asked for nothing."""
        return super().rehearse(setting, blocks, asked={}, **changes)


@dataclass
class RecordingBuilder(Builder):
    """A builder that keeps, by the path of each block, its name and what it reads: `prev.x`, `encoder.x`, `input`."""

    reads: dict[Path, dict[str, None]] = field(default_factory=dict)
    names: dict[Path, str] = field(default_factory=dict)

    def block(self, site: Site, word: str, settings: Mapping[str, Any]) -> Block:
        """As Builder says."""
        self.names[site.path] = settings.get("as") or ""
        asked = self.reads.setdefault(site.path, {})
        if isinstance(site, RecordingSite):
            return super().block(replace(site, asked=asked), word, settings)
        known = {each.name: getattr(site, each.name) for each in fields(site)}
        return super().block(RecordingSite(**known, asked=asked), word, settings)
