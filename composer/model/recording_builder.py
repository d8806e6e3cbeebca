"""A builder that records what each block reads, for the plan and for idle settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from blocks.core.contract import Block, Named, Path, Site
from blocks.core.stack import Stack
from composer.model.builder import Builder


@dataclass(frozen=True)
class RecordingSite(Site):
    """Site that records in `lookups` every name and memory that the block built there looks up."""

    lookups: dict[str, None] = field(default_factory=dict)

    def named(self, name: str, setting: str) -> Named:
        self.lookups[name] = None
        return super().named(name, setting)

    def memory(self, name: str | None, setting: str = "from") -> str:
        memory = super().memory(name, setting)
        self.lookups[memory] = None
        return memory

    def dry_build(self, setting: Path, blocks: Sequence[object], **changes: Any) -> Stack:
        # a dry build is thrown away
        return super().dry_build(setting, blocks, lookups={}, **changes)


@dataclass
class RecordingBuilder(Builder):
    """Builder that records each block's name and what it reads, by its path: `prev.x`, `input`."""

    reads: dict[Path, dict[str, None]] = field(default_factory=dict)
    names: dict[Path, str] = field(default_factory=dict)

    def block(self, site: Site, word: str, settings: Mapping[str, Any]) -> Block:
        self.names[site.path] = settings.get("as") or ""
        lookups = self.reads.setdefault(site.path, {})
        return super().block(RecordingSite(**{**vars(site), "lookups": lookups}), word, settings)
