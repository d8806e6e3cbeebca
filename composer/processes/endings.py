"""The end of a process that has trained with others: at once, without ending their group.

torch may wait forever for the threads of a process group, in its destructor too.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from composer.formatting import UnfailingStream

FAILED = 1


def is_one_of_several() -> bool:
    """True in a process that has met others to train with; imports no torch."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return False
    return bool(distributed.get_world_size() > 1)


def end_process(status: object) -> NoReturn:
    """End this process at once, with its output written. A text as status goes to stderr."""
    if isinstance(status, str):
        UnfailingStream(sys.stderr).write(f"{status}\n")
        status = FAILED
    for stream in (sys.stdout, sys.stderr):
        UnfailingStream(stream).flush()
    os._exit(status if isinstance(status, int) else 0)
