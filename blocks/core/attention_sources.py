"""What an attention reads: the memories that give its keys and its values, each linear in its memory or as it is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from blocks.core.contract import BlockError, Context, Site


class Maps(NamedTuple):
    """How wide linear maps make a query, a memory as keys and a memory as values; 0: none, it is taken as it is."""

    query: int
    keys: int
    values: int


class Source(NamedTuple):
    """A memory `width` wide, and whether it gives keys and values."""

    memory: str
    width: int
    keys: bool = True
    values: bool = True

    def wide(self, made: Maps) -> int:
        """How wide the linear map is that makes both, side by side."""
        return made.keys * self.keys + made.values * self.values


def read(
    sources: Sequence[Source], projects: Iterable[nn.Module], made: Maps, context: Context
) -> tuple[Tensor, Tensor, Tensor]:
    """The keys (B, S, .), the values (B, S, .) and their mask (B, S), memory after memory."""
    keys, values, masks = [], [], []
    for source, project in zip(sources, projects, strict=True):
        memory = context.memories[source.memory]
        mapped = project(memory.states)
        if source.keys:
            keys.append(mapped[..., : made.keys] if made.keys else memory.states)
        if source.values:
            values.append(mapped[..., -made.values :] if made.values else memory.states)
            masks.append(memory.mask)
    return _together(keys), _together(values), _together(masks)


def _together(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(tuple(parts), 1)


def linear(arriving: int, leaving: int, *, bias: bool) -> nn.Module:
    """A linear map, or none where nothing is to leave it."""
    if leaving == 0:
        return nn.Identity()
    made = nn.Linear(arriving, leaving, bias=bias)
    nn.init.xavier_uniform_(made.weight)
    if bias:
        nn.init.zeros_(made.bias)
    return made


def sources_of(site: Site, from_: str | Sequence[str] | None, keys: str | None, values: str | None) -> list[Source]:
    """The memories to read: those of `from`, or, where `keys` or `values` is said, one that gives each.

    Raises BlockError where what is named does not fit together.
    """
    names = [from_] if isinstance(from_, str | None) else list(from_)
    if not names:
        raise BlockError("from", "no memory is named", fix="name at least one, or remove `from`")
    if keys is None and values is None:
        return [_source(site, name, "from") for name in names]
    said = "values" if keys is None else "keys"
    if len(names) > 1:
        raise BlockError(
            said,
            "there are several memories, and each gives its own keys and values",
            fix=f"remove `{said}`, or name one memory in `from`",
        )
    if keys and values and from_:
        raise BlockError("from", "`keys` and `values` say all that is read", fix="remove `from`")
    return _pair(
        site, (keys, "keys") if keys else (names[0], "from"), (values, "values") if values else (names[0], "from")
    )


def _source(site: Site, name: str | None, setting: str) -> Source:
    memory = site.memory(name, setting)
    stream = site.memories[memory].stream
    if stream.grid:
        raise BlockError(
            setting,
            f"`{memory}` is a grid, and attention reads a sequence",
            code="kind",
            fix="end the encoder with `column`, `sum` or `flatten`",
        )
    return Source(memory, stream.width)


def _pair(site: Site, keys: tuple[str | None, str], values: tuple[str | None, str]) -> list[Source]:
    """One memory for the keys and one for the values, at the same positions; each as a name and its setting."""
    one, two = _source(site, *keys), _source(site, *values)
    if one == two:
        return [one]
    said = values[1] if values[1] != "from" else keys[1]
    if one.memory.split(".")[0] != two.memory.split(".")[0]:
        raise BlockError(
            said,
            f"the keys are of `{one.memory}` and the values of `{two.memory}`: two encoders",
            code="memory",
            fix="name two outputs of one encoder",
        )
    paces = [site.memories[each.memory].stream.pace for each in (one, two)]
    if paces[0] != paces[1]:
        raise BlockError(
            said,
            f"`{one.memory}` has {paces[0]} positions per token, and `{two.memory}` {paces[1]}",
            code="pace",
            fix="name two outputs that have the same positions",
        )
    return [one._replace(values=False), two._replace(keys=False)]
