"""Time a step: warmed up until it is steady, then the median of many, without waiting for the device in between."""

import gc
import time
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Optional

import torch

from leadline.kit.machine import synchronize

SHORTEST_SAMPLE_S = 1e-3
"""Steps shorter than this are timed several at once, so that the clock's own cost vanishes."""
LONG_S, FEWEST = 4.0, 3
"""Where the usual least number of samples would take longer than this, so few are taken."""
QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)


@dataclass(frozen=True)
class TimingLimits:
    """How long a step is warmed up and timed; ``min_samples`` are at least so many, and at most ``max_samples`` of them."""

    warm_up_s: float
    timed_s: float
    min_samples: int
    max_samples: int = 200

    @classmethod
    def preset(cls, *, quick: bool) -> "TimingLimits":
        """Return the usual patience, or little."""
        return cls(0.1, 0.1, 3) if quick else cls(1.0, 0.5, 5)


class Timer:
    """Times one step on a device; a GPU's by its own events.

    ``event`` makes an event of the device with the contract of ``torch.cuda.Event``, ``wait`` waits for the device, and
    ``clock`` is the host's. ``stepping_s`` adds up what was spent on warming up and timing.
    """

    def __init__(
        self, device_type: str, patience: TimingLimits, *, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.patience, self.clock = patience, clock
        self.event: Optional[Callable[[], Any]] = None
        if device_type == "cuda":
            self.event = lambda: torch.cuda.Event(enable_timing=True)
        self.wait: Callable[[], None] = lambda: synchronize(device_type)
        self.stepping_s = 0.0

    def time(self, step: Callable[[], object], between: Callable[[], None] = lambda: None) -> Dict[str, Any]:
        """Warm ``step`` up, time it, and return its figures.

        ``between`` is called before the samples and after each block of them.

        Figures: the first step's seconds, how many it took until two in a row differed by less than 5 %, the median
        and the quantiles of a step's seconds, and what the host took to start one without waiting.
        """
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
                if steady or self.clock() - begun > self.patience.warm_up_s:
                    break
        self.stepping_s += self.clock() - begun
        return {"first_step_s": took[0], "warm_up_steps": len(took), "steady": steady, "last_s": min(took[-2:])}

    def _samples(self, step: Callable[[], object], once_s: float, between: Callable[[], None]) -> Dict[str, Any]:
        """Take samples in a few blocks; a GPU is waited for only at the end of a block."""
        begun = self.clock()
        patience = self.patience
        inner = max(1, round(SHORTEST_SAMPLE_S / max(once_s, 1e-7)))
        wanted = round(patience.timed_s / max(once_s * inner, 1e-7))
        samples: List[float] = []
        host_s = 0.0
        least = patience.min_samples if patience.min_samples * once_s <= LONG_S else min(FEWEST, patience.min_samples)
        total = min(max(wanted, least), patience.max_samples)
        between()
        for block in _blocks(total):
            taken, launched_s = self._block(step, inner, block)
            samples += taken
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
        """Return the seconds of a step in each of ``count`` samples, and what the host took to start them all."""
        stamp = self.event or (lambda: _Stamp(self.clock))
        marks = [stamp() for _ in range(count + 1)]
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


class _Stamp:
    """What an event is on a CPU: the host's clock."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock, self.at_s = clock, 0.0

    def record(self) -> None:
        self.at_s = self.clock()

    def elapsed_time(self, later: "_Stamp") -> float:
        """Return the milliseconds until ``later``."""
        return (later.at_s - self.at_s) * 1e3


def quantile(ordered: List[float], share: float) -> float:
    """Return a quantile of sorted values, between the two nearest."""
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def _blocks(total: int) -> List[int]:
    """Cut samples into up to five blocks."""
    count = min(5, total)
    return [total // count + (number < total % count) for number in range(count)]
