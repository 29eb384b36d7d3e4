"""Timing of one call on any torch device: warm-up, synchronization, short blocks, lower quartile."""

import resource
import time
from collections.abc import Callable

import torch

MINIMUM_BLOCK_S = 1e-3
"""Shorter calls are timed several at once to amortize the cost of the clock."""


class Stopwatch:
    """Times calls on a ``cpu`` or ``cuda`` device.

    ``call_budget_s`` is the time for one kernel including warm-up; at least three blocks are timed regardless.
    ``interruptions``: How often other processes took a core away during the last timing; none is counted on a GPU.
    """

    def __init__(self, device_type: str, *, call_budget_s: float) -> None:
        self.device_type = device_type
        self.call_budget_s = call_budget_s
        self.interruptions = 0

    def call_s(self, call: Callable[[], object]) -> float:
        """Return the lower quartile of the seconds of one ``call``.

        Interference only slows a block. On a shared machine, the median would measure the neighbors.
        """
        call()
        self.synchronize()
        before = _preemptions()
        once_s = self._block_s(call, 1)
        repeats = max(1, int(MINIMUM_BLOCK_S / max(once_s, 1e-7)))
        if repeats > 1:
            self._block_s(call, repeats)
        blocks = [self._block_s(call, repeats)]
        until = time.perf_counter() + self.call_budget_s - 2 * repeats * once_s
        while len(blocks) < 3 or (time.perf_counter() < until and len(blocks) < 25):
            blocks.append(self._block_s(call, repeats))
        self.interruptions = _preemptions() - before if self.device_type == "cpu" else 0
        return sorted(blocks)[len(blocks) // 4]

    def synchronize(self) -> None:
        """Wait until the device is idle."""
        if self.device_type == "cuda":
            torch.cuda.synchronize()

    def _block_s(self, call: Callable[[], object], repeats: int) -> float:
        """Return the mean seconds of ``repeats`` consecutive calls, by device events on a GPU."""
        if self.device_type == "cuda":
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            for _ in range(repeats):
                call()
            end.record()
            torch.cuda.synchronize()
            return float(start.elapsed_time(end)) * 1e-3 / repeats
        begun = time.perf_counter()
        for _ in range(repeats):
            call()
        return (time.perf_counter() - begun) / repeats


def _preemptions() -> int:
    """Return how often the system has taken a core away from a thread of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
