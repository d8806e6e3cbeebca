"""Rotary positions: queries and keys are turned by angles that grow with their positions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, cast

import torch
from torch import Tensor

from blocks.core.contract import (
    BlockError,
    Bounds,
    Fix,
    LargeCount,
    Positive,
    PositiveProportion,
    Set,
    remove,
    write,
)

ROTARY_BASE = 10_000.0
Base = Annotated[float, Bounds(above=1.0)]
"""A number above 1."""
Stretch = Annotated[float, Bounds(minimum=1.0)]
"""How many times longer texts may be, 1 or more."""


@dataclass(frozen=True, kw_only=True)
class LinearScaling:
    """All angles divided by one factor (position interpolation: Chen et al. 2023, arXiv
    2306.15595).

    Settings:
        factor: How many times longer texts may be than those of the first training, 1 or more.
    """

    factor: Stretch

    def stretched(self, rates: Tensor, base: float) -> Tensor:
        """Return the angles from one position to the next: (d/2,) -> (d/2,)"""
        return rates / self.factor

    def gain(self) -> float:
        """The factor of queries and keys."""
        return 1.0


@dataclass(frozen=True, kw_only=True)
class Llama3Scaling:
    """The slow angles divided by a factor, the fast ones as they are (Grattafiori et al. 2024,
    arXiv 2407.21783).

    With w full turns in `original_length` positions an angle is divided by the factor where w is
    below `low_factor`, is as it was where w is above `high_factor`, and goes evenly from one to the
    other between them.

    Settings:
        factor: How many times longer texts may be, 1 or more.
        original_length: How many positions the texts of the first training had.
        low_factor: The turns below which angles are divided.
        high_factor: The turns above which angles are as they were; above `low_factor`.
    """

    factor: Stretch
    original_length: LargeCount = 8192
    low_factor: Positive = 1.0
    high_factor: Positive = 4.0

    def __post_init__(self) -> None:
        if self.low_factor >= self.high_factor:
            message = f"`low_factor` is {self.low_factor:g}, and `high_factor` not above it"
            raise BlockError(
                "rotary", message, fix="write a larger `high_factor`", inside=("scaling", "llama3")
            )

    def stretched(self, rates: Tensor, base: float) -> Tensor:
        """Return the angles from one position to the next: (d/2,) -> (d/2,)"""
        turns = rates * (self.original_length / (2.0 * math.pi))  # (d/2,)
        share = ((turns - self.low_factor) / (self.high_factor - self.low_factor)).clamp(0.0, 1.0)
        return torch.lerp(rates / self.factor, rates, share)

    def gain(self) -> float:
        """The factor of queries and keys."""
        return 1.0


@dataclass(frozen=True, kw_only=True)
class YarnScaling:
    """YaRN (Peng et al. 2023, arXiv 2309.00071): as `llama3`, evenly from angle to angle, and
    sharper weights.

    The angles that make more than `fast` turns in `original_length` positions are as they were,
    those that make fewer than `slow` are divided by the factor. Queries and keys are multiplied by
    0.1 log(factor) + 1.

    Settings:
        factor: How many times longer texts may be, 1 or more.
        original_length: How many positions the texts of the first training had.
        fast: The turns above which angles are as they were.
        slow: The turns below which angles are divided; below `fast`.
        truncate: Whether the borders are rounded outwards to whole features.
        attention_factor: What queries and keys are multiplied by, in place of 0.1 log(factor) + 1.
    """

    factor: Stretch
    original_length: LargeCount
    fast: Positive = 32.0
    slow: Positive = 1.0
    truncate: bool = True
    attention_factor: Positive | None = None

    def __post_init__(self) -> None:
        if self.slow >= self.fast:
            message = f"`slow` is {self.slow:g}, and `fast` not above it"
            raise BlockError(
                "rotary", message, fix="write a larger `fast`", inside=("scaling", "yarn")
            )

    def stretched(self, rates: Tensor, base: float) -> Tensor:
        """Return the angles from one position to the next: (d/2,) -> (d/2,)"""
        first, last = (
            self._feature_of(turns, len(rates), base) for turns in (self.fast, self.slow)
        )
        if self.truncate:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0.0), min(last, 2.0 * len(rates) - 1.0)
        index = torch.arange(len(rates), dtype=rates.dtype, device=rates.device)
        divided = ((index - first) / max(last - first, 0.001)).clamp(0.0, 1.0)  # (d/2,)
        return torch.lerp(rates, rates / self.factor, divided)

    def _feature_of(self, turns: float, half: int, base: float) -> float:
        """Return the index, a fraction, of the angle with `turns` turns in `original_length`."""
        return half * math.log(self.original_length / (turns * 2.0 * math.pi)) / math.log(base)

    def gain(self) -> float:
        """The factor of queries and keys."""
        return self.attention_factor or 0.1 * math.log(self.factor) + 1.0


AnyScaling = LinearScaling | Llama3Scaling | YarnScaling
KINDS: Mapping[str, type[AnyScaling]] = {
    "linear": LinearScaling,
    "llama3": Llama3Scaling,
    "yarn": YarnScaling,
}


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """How angles are stretched for texts that are longer than those of the first training: one of
    these.

    What depends on the length of the text itself (`dynamic`) is not here: a position would change
    with those after it.

    Settings:
        linear: All angles divided by one factor: {factor}.
        llama3: The slow angles divided by a factor: {factor, original_length, low_factor,
            high_factor}.
        yarn: The slow angles divided by a factor, and sharper weights: {factor, original_length,
            fast, slow, truncate, attention_factor}.
    """

    linear: LinearScaling | None = None
    llama3: Llama3Scaling | None = None
    yarn: YarnScaling | None = None


@dataclass(frozen=True, kw_only=True)
class Rotary:
    """How rotary positions turn queries and keys.

    Settings:
        base: The feature pair i of n turns by base^(-i / n) from one position to the next.
        share: The share of a head's features that are turned, its first ones.
        scaling: How the angles are stretched for longer texts: linear | llama3 | yarn.
    """

    base: Base = ROTARY_BASE
    share: PositiveProportion = 1.0
    scaling: Scaling | None = None

    @classmethod
    def parse(cls, setting: Rotary | Mapping[str, Any] | None) -> Rotary:
        """Read the setting of a recipe, a mapping. Raises BlockError."""
        if not isinstance(setting, Mapping):
            return setting or cls()
        scaling = setting.get("scaling")
        return cls(
            **{
                **setting,
                "scaling": parse_scaling(scaling) if isinstance(scaling, Mapping) else scaling,
            }
        )

    def turned_width(self, head_width: int) -> int:
        """Return the number of turned features of a head. Raises BlockError if it is odd."""
        turned = round(self.share * head_width)
        if turned % 2 or turned == 0 or abs(self.share * head_width - turned) > 1e-6:
            message = (
                f"rotary positions turn pairs of features, and {self.share:g} of {head_width} are"
                " no pairs"
            )
            raise BlockError(
                "rotary", message, code="width", fix=self._fix(head_width), inside=("share",)
            )
        return turned

    def _fix(self, head_width: int) -> Fix:
        """Return the fix for a share that is no even number of features."""
        if head_width < 2:
            return Fix("write fewer `heads`")
        even = min(max(2 * round(self.share * head_width / 2), 2), head_width - head_width % 2)
        share = float(f"{even / head_width:.9g}")
        return Fix(f"write `share: {share:.9g}`", Set(("rotary", "share"), share))

    def angles(self, mask: Tensor, before: Tensor | None, width: int) -> tuple[Tensor, Tensor]:
        """Return cosine and sine of t base^(-2i/d), for the positions t of `mask` (B, T) after
        `before` (B,) others.

        With `scaling`, of its angles, times its gain.
        -> (B or 1, 1, T, width / 2) each, of float32
        """
        where = torch.arange(mask.shape[1], device=mask.device)[None]  # (1, T)
        if before is not None:
            where = before[:, None] + where  # (B, T)
        half = width // 2
        rates = torch.exp(
            torch.arange(half, device=mask.device) * (-math.log(self.base) / half)
        )  # (d/2,)
        scaling = None if self.scaling is None else chosen(self.scaling)
        if scaling is not None:
            rates = scaling.stretched(rates, self.base)
        angles = where[:, None, :, None] * rates  # (B or 1, 1, T, d/2)
        gain = 1.0 if scaling is None else scaling.gain()
        cos, sin = angles.cos(), angles.sin()
        return (cos, sin) if gain == 1.0 else (gain * cos, gain * sin)


def parse_scaling(setting: Mapping[str, Any]) -> Scaling:
    """Return the one way of stretching that a mapping names. Raises BlockError for none, and for
    several.
    """
    kinds = [kind for kind, settings in setting.items() if settings is not None]
    if len(kinds) != 1:
        listed = " and ".join(f"`{kind}`" for kind in kinds) or "none"
        message = f"`scaling` needs exactly one of `linear`, `llama3` and `yarn`, and has {listed}"
        fix = "write one of linear, llama3 and yarn: `scaling: {linear: {factor: 4}}`"
        raise BlockError("rotary", message, fix=fix, inside=("scaling",))
    parsed: Any = KINDS[kinds[0]](**setting[kinds[0]])
    return Scaling(**{kinds[0]: parsed})


def chosen(scaling: Scaling) -> AnyScaling:
    """Return the one that is not None."""
    return cast(AnyScaling, scaling.linear or scaling.llama3 or scaling.yarn)


DEFAULT = Rotary()


def rotary_angles(
    mask: Tensor, before: Tensor | None, width: int, rotary: Rotary = DEFAULT
) -> tuple[Tensor, Tensor]:
    """Return `rotary.angles`: a function, so that layers that turn alike compute it once."""
    return rotary.angles(mask, before, width)


def apply_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate features 2i and 2i + 1 by the angle t base^(-2i/n) (Su et al. 2021, equation 34).

    x: (B, H, T, d), `rotary_angles` of its positions (B or 1, 1, T, n) -> (B, H, T, d). Features
    from 2n on stay.
    """
    turned, rest = x[..., : 2 * cos.shape[-1]], x[..., 2 * cos.shape[-1] :]
    one, two = turned.unflatten(-1, (-1, 2)).unbind(-1)  # (B, H, T, n)
    turned = torch.stack((one * cos - two * sin, one * sin + two * cos), -1).flatten(-2).to(x.dtype)
    return torch.cat((turned, rest), -1) if rest.shape[-1] else turned


def check_rotary(head_width: int, heads: int, width: int, parts: int = 1) -> None:
    """Raise BlockError where a head, of several parts, has no pairs of features to turn."""
    if head_width % 2:
        fits = [n for n in range(1, width + 1) if width % (2 * parts * n) == 0]
        other = write("positions", "relative") if parts == 1 else remove("positions")
        fix = write("heads", min(fits, key=lambda n: abs(n - heads))) if fits else other
        message = f"rotary positions turn pairs of features, and a head is {head_width} wide"
        raise BlockError("positions", message, code="width", fix=fix)
