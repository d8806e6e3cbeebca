"""model.safetensors: a model's weights, shared ones once, written whole or not at all."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from composer.atomic_io import atomic_write
from composer.errors import RunError, first_few


def save_weights(model: nn.Module, path: Path) -> None:
    """Writes the weights of `model`, each tensor under the first of its names."""
    atomic_write(path, save({name: value.detach().cpu().contiguous() for name, value in distinct(model).items()}))


def load_weights(model: nn.Module, path: Path) -> None:
    """Puts the weights in a file into `model`. Raises RunError where a name or a shape differs."""
    if not path.exists():
        raise RunError.of("this run has no weights yet: it has not finished", "finish it with `--resume`", str(path))
    found = read(path)
    wanted = distinct(model)
    differing = [
        f"{name} is {shape(found.get(name))} there and {shape(wanted.get(name))} here"
        for name in sorted({*found, *wanted})
        if shape(found.get(name)) != shape(wanted.get(name))
    ]
    if differing:
        raise RunError.of(
            f"these weights do not fit the model: {first_few(differing)}",
            "use the same `model` and the same tokenizer",
            str(path),
        )
    model.load_state_dict(found, strict=False)


def told_difference(one: Path, other: Path) -> str:
    """How the weights in two files differ, in words; "" where they are the same to the last bit. Raises RunError."""
    first, second = read(one), read(other)
    if {name: shape(value) for name, value in first.items()} != {name: shape(value) for name, value in second.items()}:
        return "their names or shapes are others"
    pairs = {name: (value, second[name]) for name, value in first.items()}
    apart = {name: pair for name, pair in pairs.items() if not same_bits(*pair)}
    if not apart:
        return ""
    most = max(float((a.double() - b.double()).abs().max()) for a, b in apart.values())
    return f"{len(apart)} of {len(pairs)} tensors differ, by {most:.1e} at most"


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors of one shape hold the same bytes."""
    same: bool = one.dtype == other.dtype and torch.equal(raw(one), raw(other))
    return same


def raw(value: Tensor) -> Tensor:
    """The bytes of a tensor."""
    return value.flatten().view(torch.uint8)


def read(path: Path) -> dict[str, Tensor]:
    """The tensors in a file. Raises RunError."""
    try:
        found: dict[str, Tensor] = load_file(path)
    except (OSError, SafetensorError) as error:
        fix = "take the file from the run again"
        raise RunError.of(f"these weights cannot be read: {error}", fix, str(path)) from None
    return found


def distinct(model: nn.Module) -> dict[str, Tensor]:
    """The tensors of a model's state by name, shared ones under the first of their names only."""
    found: dict[str, Tensor] = {}
    seen: set[tuple[int, int]] = set()
    for name, value in model.state_dict().items():
        place = (value.untyped_storage().data_ptr(), value.storage_offset())
        if value.numel() == 0 or place not in seen:
            seen.add(place)
            found[name] = value
    return found


def shape(value: Tensor | None) -> str:
    """A shape in words."""
    return "absent" if value is None else " x ".join(map(str, value.shape)) or "a number"
