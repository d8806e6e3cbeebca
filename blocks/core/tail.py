"""The last real positions of each row, where padding stands on the right: what a window or a convolution keeps."""

from __future__ import annotations

import torch
from torch import Tensor


def tail(x: Tensor, count: Tensor, kept: int) -> Tensor:
    """Each row's last `kept` positions before its padding.

    x: (B, kept + T, ...), of which the first `kept` came before and `count` (B,) of the others are real.
    -> (B, kept, ...)
    """
    where = count[:, None] + torch.arange(kept, device=x.device)  # (B, kept)
    rows = torch.arange(x.shape[0], device=x.device)[:, None]
    return x[rows, where]
