"""Training: from a recipe to a run folder."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

EARLY_SIGNALS: list[int] = []
"""Signals received before a training handles them. Here, since the command line needs it before it imports torch."""


class SciPyOnDemand(ModuleType):
    """Stands for a module of SciPy until more is wanted of it than `hamming`.

    That is why torchmetrics, which Lightning imports, imports `scipy.signal`, and it takes a fifth of a training's
    start.
    """

    hamming = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__path__":  # as `inspect` asks every module
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


sys.modules.setdefault("scipy.signal", SciPyOnDemand("scipy.signal"))
