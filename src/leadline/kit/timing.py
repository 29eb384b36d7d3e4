"""Timing of a step: warm-up until steady, then the median of many samples without waiting for the device."""

import gc
import time
from dataclasses import dataclass
from typing import Any, Callable, Dict, List

import torch

from leadline.kit.machine import synchronize

SHORTEST_SAMPLE_S = 1e-3
"""Shorter steps are timed several at once to amortize the cost of the clock."""
LONG_S, FEWEST = 4.0, 3
"""Duration above which the usual minimum of samples is lowered, and the lowered minimum."""
QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)


@dataclass(frozen=True)
class TimingLimits:
    """Duration of warm-up and timing, and bounds on the number of samples."""

    warm_up_s: float
    timed_s: float
    min_samples: int
    max_samples: int = 200

    @classmethod
    def preset(cls, *, quick: bool) -> "TimingLimits":
        """Return the standard limits, or quick ones."""
        return cls(0.1, 0.1, 3) if quick else cls(1.0, 0.5, 5)


class Timer:
    """Times one step on a device, on a GPU by its own events.

    ``event`` creates an event with the contract of ``torch.cuda.Event``. ``stepping_s`` adds up warm-up and timing.
    """

    def __init__(self, device_type: str, limits: TimingLimits, clock: Callable[[], float] = time.perf_counter) -> None:
        self.limits, self.clock = limits, clock
        self.event: Callable[[], Any] = lambda: _HostEvent(clock)
        if device_type == "cuda":
            self.event = lambda: torch.cuda.Event(enable_timing=True)
        self.wait: Callable[[], None] = lambda: synchronize(device_type)
        self.stepping_s = 0.0

    def time(self, step: Callable[[], object], between: Callable[[], None] = lambda: None) -> Dict[str, Any]:
        """Warm ``step`` up, time it, and return its statistics.

        They are: seconds of the first step, steps until two in a row differed by less than 5 %, median and quantiles of
        a step, and host seconds to launch a step without waiting. ``between`` is called around each block of samples.
        """
        # A collection takes milliseconds, more than many steps.
        gc.collect()
        gc.disable()
        try:
            warm = self._warm_up(step)
            return {**warm, **self._samples(step, warm["last_s"], between)}
        finally:
            gc.enable()

    def _warm_up(self, step: Callable[[], object]) -> Dict[str, Any]:
        begun = self.clock()
        took: List[float] = []
        steady = False
        while True:
            started = self.clock()
            step()
            self.wait()
            took.append(self.clock() - started)
            if len(took) >= 3:
                steady = abs(took[-1] - took[-2]) <= 0.05 * took[-2]
                if steady or self.clock() - begun > self.limits.warm_up_s:
                    break
        self.stepping_s += self.clock() - begun
        return {"first_step_s": took[0], "warm_up_steps": len(took), "steady": steady, "last_s": min(took[-2:])}

    def _samples(self, step: Callable[[], object], once_s: float, between: Callable[[], None]) -> Dict[str, Any]:
        """Take samples in a few blocks, and wait for a GPU only at the end of each."""
        begun = self.clock()
        limits = self.limits
        inner = max(1, round(SHORTEST_SAMPLE_S / max(once_s, 1e-7)))
        requested = round(limits.timed_s / max(once_s * inner, 1e-7))
        samples: List[float] = []
        host_s = 0.0
        least = limits.min_samples if limits.min_samples * once_s <= LONG_S else min(FEWEST, limits.min_samples)
        total = min(max(requested, least), limits.max_samples)
        between()
        blocks = min(5, total)
        for block in range(blocks):
            block_samples, launched_s = self._block(step, inner, total // blocks + (block < total % blocks))
            samples += block_samples
            host_s += launched_s
            between()
        self.stepping_s += self.clock() - begun
        samples.sort()
        return {
            "step_s": quantile(samples, 0.5),
            "step_quantiles_s": [quantile(samples, share) for share in QUANTILES],
            "samples": len(samples),
            "steps_a_sample": inner,
            "host_step_s": host_s / (len(samples) * inner),
            "timed_s": sum(samples) * inner,
        }

    def _block(self, step: Callable[[], object], inner: int, count: int) -> "tuple[List[float], float]":
        """Return the seconds of a step in each of ``count`` samples, and the host seconds to launch them all."""
        marks = [self.event() for _ in range(count + 1)]
        started = self.clock()
        marks[0].record()
        for mark in marks[1:]:
            for _ in range(inner):
                step()
            mark.record()
        launched_s = self.clock() - started
        self.wait()
        pairs = zip(marks, marks[1:])
        return [float(before.elapsed_time(after)) * 1e-3 / inner for before, after in pairs], launched_s


class _HostEvent:
    """A CPU event: a reading of the host's clock."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock, self.at_s = clock, 0.0

    def record(self) -> None:
        self.at_s = self.clock()

    def elapsed_time(self, later: "_HostEvent") -> float:
        """Return the milliseconds until ``later``."""
        return (later.at_s - self.at_s) * 1e3


def quantile(ordered: List[float], share: float) -> float:
    """Return a quantile of sorted values by linear interpolation."""
    place = share * (len(ordered) - 1)
    low = int(place)
    return ordered[low] + (ordered[min(low + 1, len(ordered) - 1)] - ordered[low]) * (place - low)
