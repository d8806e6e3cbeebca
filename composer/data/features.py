"""Features in flat arrays, in memory or mapped: frames of sounds and vectors, rows of images."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

WHITE = 255
"""A byte of an image that is 1."""


class Reading(NamedTuple):
    """The features of a file, and notices for its user: kinds, each with a detail."""

    array: np.ndarray
    notices: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Remark:
    """A notice about `count` files of a column; the first is named in a line of `file`."""

    kind: str
    detail: str
    count: int
    file: str
    line: int


@dataclass(frozen=True)
class Ragged:
    """Rows of different lengths in one array: row r is values[starts[r] : ends[r]]."""

    values: np.ndarray
    starts: np.ndarray
    ends: np.ndarray

    def __len__(self) -> int:
        return len(self.starts)

    def lies_within(self, size: int) -> bool:
        """True if starts and ends can be those of rows of `size` values."""
        starts, ends = self.starts, self.ends
        alike = (
            starts.shape == ends.shape
            and starts.ndim == 1
            and {starts.dtype.kind, ends.dtype.kind} <= {"i", "u"}
        )
        return alike and bool(((starts >= 0) & (starts <= ends) & (ends <= size)).all())

    def lengths(self) -> np.ndarray:
        """Return the length of each row; of a story the number of its sentences."""
        return self.ends - self.starts

    def keep(self, rows: np.ndarray) -> Self:
        """Return only these rows, by a bool of each or by number; values stay in place."""
        return replace(self, starts=self.starts[rows], ends=self.ends[rows])


@dataclass(frozen=True)
class Features(Ragged):
    """Frames (frames, F), or the rows of images (rows, W, C), bytes from 0 to 1.

    Of the image r the first columns[r] columns are real. It has what `Ids` has, so that batches are
    made of both alike. `remarks` are of all files that were read, those of rows that are not kept
    among them.
    """

    columns: np.ndarray | None = None
    remarks: tuple[Remark, ...] = ()

    is_story = False

    def __getitem__(self, row: int) -> Tensor:
        """Return a row as a model reads it: (T, F), or (T, W, C), where what is no image is NaN."""
        return torch.from_numpy(self.outputs(np.array([range(len(self))[row]])))[0]

    def positions(self) -> np.ndarray:
        """Return the positions of each row without padding, as `lengths`: no end is counted."""
        return self.lengths()

    def keep(self, rows: np.ndarray) -> Self:
        columns = None if self.columns is None else self.columns[rows]
        return replace(super().keep(rows), columns=columns)

    def outputs(self, rows: np.ndarray) -> np.ndarray:
        """Return these rows padded with NaN. -> (B, T, F) or (B, T, W, C) float32"""
        longest = int((self.ends[rows] - self.starts[rows]).max(initial=0))
        out = np.full((len(rows), longest, *self.values.shape[1:]), np.nan, dtype=np.float32)
        for at, row in enumerate(rows.tolist()):
            own = self.values[self.starts[row] : self.ends[row]]  # (T, F) or (T, W, C)
            if self.columns is None:
                out[at, : len(own)] = own
            else:
                out[at, : len(own), : self.columns[row]] = own[:, : self.columns[row]] / np.float32(
                    WHITE
                )
        return out

    def update(self, digest: Any) -> None:
        """Add the lengths and the values of all rows to a hash."""
        digest.update(np.concatenate([[0], np.cumsum(self.lengths())]).tobytes())
        for start, end in zip(self.starts.tolist(), self.ends.tolist(), strict=True):
            digest.update(self.values[start:end].tobytes())
