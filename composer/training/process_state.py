"""State of this process that a training changes and gives back: a notebook goes on undisturbed."""

from __future__ import annotations

import logging
import os
import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

LOGGERS = (
    "pytorch_lightning",
    "lightning_fabric",
    "lightning.pytorch",
    "pytorch_lightning.profilers",
)
"""Loggers whose levels a training sets."""


@contextmanager
def restored_process() -> Iterator[None]:
    """Restore, in the end, variables, loggers, warnings, PyTorch's switches and generators."""
    variables, levels = dict(os.environ), [logging.getLogger(name).level for name in LOGGERS]
    numbers = random.getstate(), np.random.get_state(), torch.get_rng_state()
    on_gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    is_deterministic = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    cudnn = torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark
    precision, threads = torch.get_float32_matmul_precision(), torch.get_num_threads()
    try:
        with warnings.catch_warnings():
            yield
    finally:
        for name in os.environ.keys() - variables.keys():
            del os.environ[name]
        os.environ.update(variables)
        for name, level in zip(LOGGERS, levels, strict=True):
            logging.getLogger(name).setLevel(level)
        random.setstate(numbers[0])
        np.random.set_state(numbers[1])
        torch.set_rng_state(numbers[2])
        if on_gpus:
            torch.cuda.set_rng_state_all(on_gpus)
        torch.use_deterministic_algorithms(is_deterministic, warn_only=warns)
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = cudnn
        torch.set_float32_matmul_precision(precision)
        torch.set_num_threads(threads)
