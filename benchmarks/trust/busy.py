"""Rows about a busy machine: estimates made beside busy loops, against those made on the idle machine."""

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.corpus import CORPUS, Script
from benchmarks.results import BenchmarkRow, at_most
from leadline.app.composition import toolbox
from leadline.app.estimate.estimate import estimate
from leadline.app.workloads.read import read_workload
from leadline.core.estimate import Estimate

BUSY_LOOPS = 4
DEVICE = "A100 SXM4 80GB"
QUICK_SCRIPTS = ("digits_cnn", "vae", "siamese", "unet", "text_rnn", "triplet_embedding")
"""Scripts of a quick run. They load tables, text and pictures, with and without loader processes."""
QUANTITIES = ("elapsed_s", "step_s", "gpu_memory_bytes", "host_memory_bytes")
SETTLE_S = 2.0
"""Time for the scheduler to spread the busy loops."""


@dataclass(frozen=True, slots=True)
class BusyEstimate:
    """Two estimates of a script, without and with busy loops beside the trace."""

    name: str
    idle: Estimate
    busy: Estimate

    @property
    def moved(self) -> tuple[str, ...]:
        """Return the quantities whose busy point lies outside the idle 90 % interval, or is missing in one."""
        moved = []
        for quantity in QUANTITIES:
            interval, other = getattr(self.idle, quantity), getattr(self.busy, quantity)
            if interval is None and other is None:
                continue
            if interval is None or other is None or not interval.low <= other.point <= interval.high:
                moved.append(quantity)
        return tuple(moved)

    @property
    def ratio(self) -> float:
        """Return the larger of the two step times, loading included, over the smaller; 1 if neither is known."""
        points = sorted(each.step_s.point for each in (self.idle, self.busy) if each.step_s)
        return points[-1] / points[0] if points else 1.0


def rows(*, quick: bool = False, loops: int = BUSY_LOOPS) -> list[BenchmarkRow]:
    """Return the rows of the scripts of the corpus. The machine must be idle when this starts."""
    scripts = [script for script in CORPUS if (script.name in QUICK_SCRIPTS or not quick) and not script.missing()]
    idle = [_estimate(script) for script in scripts]
    with busy_loops(loops):
        busy = [_estimate(script) for script in scripts]
    pairs = [BusyEstimate(script.name, *both) for script, *both in zip(scripts, idle, busy, strict=True)]
    return busy_rows(pairs, loops)


def busy_rows(pairs: Sequence[BusyEstimate], loops: int) -> list[BenchmarkRow]:
    """Return the rows of estimates that were made without and with so many busy loops."""
    moved = {pair.name: pair.moved for pair in pairs if pair.moved}
    how = f"{loops} busy loops beside the trace, on the {DEVICE}: {', '.join(QUANTITIES)}"
    if moved:
        how += "; moved: " + ", ".join(f"{name} ({' and '.join(what)})" for name, what in moved.items())
    largest = max((pair.ratio for pair in pairs), default=1.0)
    return [
        at_most("scripts whose estimate a busy machine moves out of its interval", len(moved), 0, "scripts",
                n=len(pairs), how=how),
        BenchmarkRow("largest ratio between the steps with loading", largest, "×", n=len(pairs), how="idle and busy"),
    ]  # fmt: skip


@contextlib.contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """Keep so many processors busy, as far as the machine has them."""
    rivals = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        if rivals:
            time.sleep(SETTLE_S)
        yield
    finally:
        for rival in rivals:
            rival.kill()
        for rival in rivals:
            rival.wait()


def _estimate(script: Script) -> Estimate:
    return estimate(read_workload(script.command()), toolbox(), on=[DEVICE]).estimates[0]
