"""CUDA graphs of a function of no arguments whose tensors stay where they are."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

WARM_UP = 3
Tensors = list[Tensor]


def capture(function: Callable[[], Tensors], device: str) -> Callable[[], Tensors]:
    """Return a function that replays a CUDA graph of this one; on a CPU the function itself."""
    if not device.startswith("cuda"):
        return function
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP):
            function()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = function()

    def replay() -> Tensors:
        graph.replay()
        return outputs

    return replay


def median_milliseconds(function: Callable[[], object], device: str, rounds: int) -> float:
    """Return the median time of a call, after a few that are not counted."""
    times = []
    for number in range(WARM_UP + rounds):
        start = now(device)
        function()
        if number >= WARM_UP:
            times.append(1000.0 * (now(device) - start))
        else:
            now(device)
    return statistics.median(times)


def now(device: str) -> float:
    """Return the time once the device has done all that it was given."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return time.perf_counter()
