"""Standard streams of a process that was started without them."""

from __future__ import annotations

import os
import sys


def replace_closed_streams() -> None:
    """Open null devices for closed standard streams, whose numbers other files would get.

    Reading from such an stdin and writing to such an stdout fails, as from a closed stream.
    """
    for name, flags, mode in (
        ("stdin", os.O_WRONLY, "r"),
        ("stdout", os.O_RDONLY, "w"),
        ("stderr", os.O_WRONLY, "w"),
    ):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, flags), mode, closefd=False))
