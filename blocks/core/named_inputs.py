"""Inputs beside the stream: named outputs position by position, and memories as keys and values of
attention.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from blocks.core.contract import BlockError, Context, Fix, Remove, Site, Stream, remove


def as_tuple(of: str | Sequence[str]) -> tuple[str, ...]:
    """Return one name, or several, as a tuple."""
    return (of,) if isinstance(of, str) else tuple(of)


def resolve_streams(site: Site, names: Sequence[str], setting: str = "of") -> list[Stream]:
    """Return the streams called `names`. Raises BlockError where one is unknown or has other
    positions.
    """
    if not names:
        raise BlockError(setting, "no name is given", fix="name at least one earlier output")
    streams = [site.read(name, setting) for name in names]
    for name, stream in zip(names, streams, strict=True):
        _check_same_positions(site, name, stream, setting)
    return streams


def check_same_width(
    site: Site, names: Sequence[str], streams: Sequence[Stream], setting: str = "of"
) -> None:
    """Raise BlockError where one of `streams` is not as wide as `site`'s stream."""
    for name, stream in zip(names, streams, strict=True):
        if stream.width != site.stream.width:
            message = f"`{name}` is {stream.width} wide, and the stream here {site.stream.width}"
            raise BlockError(
                setting,
                message,
                code="width",
                fix=f"write `concat: {name}`, or make both equally wide",
            )


def read_named(x: Tensor, names: Sequence[str], context: Context) -> list[Tensor]:
    """Return the named outputs at the positions of x (B, T, .): (B, T, .) each.

    An output with one position for all is repeated.
    """
    outputs = []
    for name in names:
        y = context.read(name).states
        if y.shape[1] != x.shape[1]:
            y = y.expand(-1, x.shape[1], *y.shape[2:])
        outputs.append(y)
    return outputs


def _check_same_positions(site: Site, name: str, stream: Stream, setting: str) -> None:
    if (stream.grid, stream.columns) != (site.stream.grid, site.stream.columns):
        raise BlockError(
            setting,
            f"`{name}` is {stream.described}, and the stream here is {site.stream.described}",
            code="kind",
            fix=f"read it where {stream.described} arrives; `grid` makes a grid of a "
            "sequence, and `select_column`, `sum_columns` and `flatten` a sequence of a grid",
        )
    if stream.length_ratio == 0:
        return
    if name in site.memories:
        message = f"`{name}` has the positions of an encoder, and the stream here has others"
        raise BlockError(
            setting,
            message,
            code="length",
            fix="read it with `cross_attention`, or name a `pool` there",
        )
    if not stream.same_length(site.stream):
        here, there = site.stream.described_length, stream.described_length
        message = f"`{name}` has {there} positions per token, and the stream here {here}"
        raise BlockError(
            setting, message, code="length", fix="read it where the stream has as many positions"
        )


class ProjectionWidths(NamedTuple):
    """How wide linear maps make a query, a memory as keys and a memory as values; 0: none, it is
    taken as it is.
    """

    query: int
    keys: int
    values: int


class MemorySource(NamedTuple):
    """A memory `width` wide, and whether it gives keys and values."""

    memory: str
    width: int
    keys: bool = True
    values: bool = True

    def wide(self, made: ProjectionWidths) -> int:
        """Return the width of the linear map that makes both, side by side."""
        return made.keys * self.keys + made.values * self.values


def project_memories(
    sources: Sequence[MemorySource],
    projects: Iterable[nn.Module],
    made: ProjectionWidths,
    context: Context,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return keys (B, S, .), values (B, S, .) and mask (B, S) of all memories, concatenated."""
    keys, values, masks = [], [], []
    for source, project in zip(sources, projects, strict=True):
        memory = context.memories[source.memory]
        mapped = project(memory.states)
        if source.keys:
            keys.append(mapped[..., : made.keys] if made.keys else memory.states)
        if source.values:
            values.append(mapped[..., -made.values :] if made.values else memory.states)
            masks.append(memory.mask)
    return _concat_memories(keys), _concat_memories(values), _concat_memories(masks)


def _concat_memories(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(tuple(parts), 1)


def optional_linear(arriving: int, leaving: int, *, bias: bool) -> nn.Module:
    """Build a linear map, or an identity for a width of 0."""
    if leaving == 0:
        return nn.Identity()
    made = nn.Linear(arriving, leaving, bias=bias)
    nn.init.xavier_uniform_(made.weight)
    if bias:
        nn.init.zeros_(made.bias)
    return made


def resolve_sources(
    site: Site, from_: str | Sequence[str] | None, keys: str | None, values: str | None
) -> list[MemorySource]:
    """Return the memories to read: those of `from`, or those that `keys` and `values` name.

    Raises BlockError where what is named does not fit together.
    """
    names = [from_] if isinstance(from_, str | None) else list(from_)
    if not names:
        raise BlockError(
            "from",
            "no memory is named",
            fix=Fix("name at least one, or remove `from`", Remove(("from",))),
        )
    if keys is None and values is None:
        return [_resolve_source(site, name, "from") for name in names]
    setting = "values" if keys is None else "keys"
    if len(names) > 1:
        message = "there are several memories, and each gives its own keys and values"
        raise BlockError(setting, message, fix=remove(setting, ", or name one memory in `from`"))
    if keys and values and from_:
        raise BlockError("from", "`keys` and `values` say all that is read", fix=remove("from"))
    return _resolve_pair(
        site,
        (keys, "keys") if keys else (names[0], "from"),
        (values, "values") if values else (names[0], "from"),
    )


def _resolve_source(site: Site, name: str | None, setting: str) -> MemorySource:
    memory = site.memory(name, setting)
    stream = site.memories[memory].stream
    if stream.grid:
        message = f"`{memory}` is a grid, and attention reads a sequence"
        fix = "end the encoder with `select_column`, `sum_columns` or `flatten`"
        raise BlockError(setting, message, code="kind", fix=fix)
    return MemorySource(memory, stream.width)


def _resolve_pair(
    site: Site, keys: tuple[str | None, str], values: tuple[str | None, str]
) -> list[MemorySource]:
    """Return the memory of the keys and that of the values, at the same positions; each given as
    name and setting.
    """
    one, two = _resolve_source(site, *keys), _resolve_source(site, *values)
    if one == two:
        return [one]
    setting = values[1] if values[1] != "from" else keys[1]
    if one.memory.split(".")[0] != two.memory.split(".")[0]:
        message = f"the keys are of `{one.memory}` and the values of `{two.memory}`: two encoders"
        raise BlockError(setting, message, code="memory", fix="name two outputs of one encoder")
    keyed, valued = (site.memories[source.memory].stream for source in (one, two))
    if not keyed.same_length(valued):
        here, there = keyed.described_length, valued.described_length
        message = f"`{one.memory}` has {here} positions per token, and `{two.memory}` {there}"
        raise BlockError(
            setting, message, code="length", fix="name two outputs that have the same positions"
        )
    return [one._replace(values=False), two._replace(keys=False)]
