"""From stacks as they are written here to a model.

This module is written out into scripts, so it is short, and knows neither recipes nor faults.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from blocks.core.contract import Block, Named, Path, Site, Stream
from blocks.core.scope import Scope
from blocks.core.stack import Stack
from composer.model.encoder_decoder import AnyEmbedding, Encoder
from composer.model.vocabulary import BOS, EOS, NUM_SPECIAL

Written = Sequence[tuple[type[Block], Mapping[str, Any]]]
"""A stack: its blocks, each with its settings; `as` is the name under which others read it."""


@dataclass
class Builder:
    """Builds encoders one after another, then the decoder. `stacks` can be used by their names."""

    width: int
    stacks: Mapping[str, Written] = field(default_factory=dict)
    encoders: dict[str, Encoder] = field(default_factory=dict)
    memories: dict[str, Named] = field(default_factory=dict)
    shelved: dict[str, Stack] = field(default_factory=dict)

    def encoder(self, key: str, memory: str, embedding: AnyEmbedding, written: Written, columns: int = 0) -> None:
        """An encoder that reads what the data call `key`, and leaves what others read as `memory`.

        columns: how many words a sentence of a story has room for; 0 where the source is no story.
        """
        site, stack = self._top(("encoder", key), embedding, written, columns, causal="")
        self.memories |= {memory: Named(stack.out)} | {f"{memory}.{n}": each for n, each in site.names.visible.items()}
        self.encoders[key] = Encoder(memory, embedding, stack, columns)

    def decoder(self, embedding: AnyEmbedding, written: Written) -> Stack:
        """The decoder, which may read all that the encoders leave."""
        return self._top(("decoder",), embedding, written, 0, causal="a decoder")[1]

    def _top(
        self, path: Path, embedding: AnyEmbedding, written: Written, columns: int, causal: str
    ) -> tuple[Site, Stack]:
        arriving = Stream(embedding.embedding_dim, grid=columns > 0, columns=columns)
        readable = [encoder.memory for encoder in self.encoders.values()]
        names = Scope.root(arriving)
        site = Site(arriving, self.width, names, dict(self.memories), readable, causal, path)
        return site, self.stack(site, written)

    def stack(self, site: Site, written: Written) -> Stack:
        """The blocks of one list in order, each told what arrives from the one before."""
        built: list[Block] = []
        reads: list[frozenset[str]] = []
        gives: list[frozenset[str]] = []
        site = replace(site, builder=self.stack, dry_builder=self.dry_build, shared_stacks=self.shared_stack)
        stream = site.stream
        for index, (kind, settings) in enumerate(written):
            here = replace(site, stream=stream, path=(*site.path, index, kind.__name__))
            read, taken = len(site.names.reads), frozenset(site.names.taken)
            block = kind(here, **{key: value for key, value in settings.items() if key != "as"})
            block.path, stream = here.path, block.out
            if "as" in settings:
                site.names.define(settings["as"], Named(block.out, block.state_kind))
            built.append(block)
            reads.append(frozenset(site.names.reads[read:]))
            gives.append(frozenset(site.names.taken - taken))
        return Stack(site.stream, built, [settings.get("as") for _, settings in written], reads, gives)

    def dry_build(self, site: Site, written: Written) -> Stack:
        """The same stack without memory, to learn widths from and to throw away."""
        with torch.device("meta"):
            return replace(self, shelved=dict(self.shelved)).stack(site, written)

    def shared_stack(self, site: Site, name: str, copy: bool) -> Stack:
        """The stack called `name`; all its uses but copies share their parameters."""
        stack = self.stack(replace(site, path=("stacks", name)), self.stacks[name])
        if not copy:
            share(stack, self.shelved.setdefault(name, stack))
        return stack


def share(stack: nn.Module, first: nn.Module) -> None:
    """Gives `stack` the parameters of `first`, which is built of the same blocks."""
    for key, parameter in list(first.named_parameters()):
        module, _, name = key.rpartition(".")
        setattr(stack.get_submodule(module), name, parameter)


def vectors(size: int, marks: int, levels: Sequence[float], numbers: bool) -> list[list[float]]:
    """What each id of vectors of binary digits is to a model: bos, eos, each mark, each digit, and the number. (V, F)

    The ids: the special ones, `marks` marks, then all vectors in numeric order, each with every one of `levels`.
    """
    begin = NUM_SPECIAL + marks
    found = torch.zeros(begin + 2**size * len(levels), 2 + marks + size + 1, dtype=torch.float32)
    found[BOS, 0] = found[EOS, 1] = 1
    for at in range(marks):
        found[NUM_SPECIAL + at, 2 + at] = 1
    digits = (torch.arange(2**size)[:, None] >> torch.arange(size - 1, -1, -1)) & 1
    found[begin:, 2 + marks : -1] = digits.repeat_interleave(len(levels), 0).float()
    found[begin:, -1] = torch.tensor(levels).repeat(2**size)
    return (found if numbers else found[:, :-1]).tolist()
