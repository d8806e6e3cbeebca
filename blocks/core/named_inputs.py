"""Reading named outputs position by position, beside the stream."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from blocks.core.contract import BlockError, Context, Site, Stream


def names_in(of: str | Sequence[str]) -> tuple[str, ...]:
    """One name, or several."""
    return (of,) if isinstance(of, str) else tuple(of)


def read_beside(site: Site, names: Sequence[str], setting: str = "of") -> list[Stream]:
    """The streams called `names`. Raises BlockError where one is unknown or has other positions than the stream."""
    if not names:
        raise BlockError(setting, "no name is given", fix="name at least one earlier output")
    streams = [site.read(name, setting) for name in names]
    for name, stream in zip(names, streams, strict=True):
        _same_positions(site, name, stream, setting)
    return streams


def same_width(site: Site, names: Sequence[str], streams: Sequence[Stream], setting: str = "of") -> None:
    """Raises BlockError where one of `streams` is not as wide as `site`'s stream."""
    for name, stream in zip(names, streams, strict=True):
        if stream.width != site.stream.width:
            raise BlockError(
                setting,
                f"`{name}` is {stream.width} wide, and the stream here {site.stream.width}",
                code="width",
                fix=f"write `concat: {name}`, or make both equally wide",
            )


def beside(x: Tensor, names: Sequence[str], context: Context) -> list[Tensor]:
    """What `names` stand for at the positions of x (B, T, .): (B, T, .) each; one position for all is seen by all."""
    return [_at(x, context.read(name).states) for name in names]


def _at(x: Tensor, states: Tensor) -> Tensor:
    return states if states.shape[1] == x.shape[1] else states.expand(-1, x.shape[1], *states.shape[2:])


def _same_positions(site: Site, name: str, stream: Stream, setting: str) -> None:
    if (stream.grid, stream.columns) != (site.stream.grid, site.stream.columns):
        raise BlockError(
            setting,
            f"`{name}` is {stream.described}, and the stream here is {site.stream.described}",
            code="kind",
            fix=f"read it where {stream.described} arrives; `grid` makes a grid of a "
            "sequence, and `column`, `sum` and `flatten` a sequence of a grid",
        )
    if stream.pace == 0:
        return
    if name in site.memories:
        raise BlockError(
            setting,
            f"`{name}` has the positions of an encoder, and the stream here has others",
            code="pace",
            fix="read it with `cross_attention`, or name a `pool` there",
        )
    if stream.pace != site.stream.pace:
        here = site.stream.pace
        raise BlockError(
            setting,
            f"`{name}` has {stream.pace} positions per token, and the stream here {here}",
            code="pace",
            fix="read it where the stream has as many positions",
        )
