import itertools
import os
import subprocess
import sys

import pytest

pytest.importorskip("torch")

from leadline.catalog.probes import sweep
from leadline.catalog.probes.cases import KernelCase
from leadline.catalog.probes.stopwatch import Stopwatch
from leadline.core.hardware import KernelTiming


class DisturbedStopwatch(Stopwatch):
    """Gives the times of a machine on which another process runs for a while."""

    def __init__(self, measured):
        super().__init__("cpu", call_budget_s=0.02)
        self.measured = iter(measured)

    def call_s(self, call):
        call()
        elapsed_s, self.interruptions = next(self.measured)
        return elapsed_s


def cases(count):
    return [KernelCase("mm", {"m": n}, lambda: lambda: None, flops=1e6) for n in range(count)]


@pytest.mark.parametrize("again_s", [2e-5, 9e-3])
def test_an_interrupted_kernel_is_timed_again_and_the_shorter_time_counts(again_s):
    watch = DisturbedStopwatch([(1e-5, 0), (3e-3, 4), (1e-5, 0), (again_s, 1)])
    timings = sweep.time_kernels(cases(3), watch, 60.0, lambda *_: None)
    assert [timing.elapsed_s for timing in timings] == [1e-5, min(again_s, 3e-3), 1e-5]


def test_the_repeats_end_with_the_budget(monkeypatch):
    clock = itertools.count(step=10.0)
    monkeypatch.setattr(sweep.time, "perf_counter", lambda: next(clock))
    watch = DisturbedStopwatch([(1e-3, 1)] * 20)
    timings = sweep.time_kernels(cases(20), watch, 100.0, lambda *_: None)
    assert 2 <= len(timings) <= 5
    assert len(list(watch.measured)) > 20 - 2 * len(timings)


def test_the_most_delayed_kernels_are_first():
    rows = ((1e-3, 1e8, 0), (2e-3, 1e6, 0), (4e-3, 0, 1e4), (1e-3, 0, 1e7))
    timings = [KernelTiming("mm", "float32", {}, *row) for row in rows]
    assert sweep.most_delayed(timings, [0, 1, 2]) == [2, 1, 0]


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system does not pin processes to cores")
def test_a_stopwatch_counts_how_often_another_process_takes_its_core():
    cores = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(cores)})
        with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other:
            try:
                watch = Stopwatch("cpu", call_budget_s=0.5)
                watch.call_s(lambda: sum(range(100_000)))
            finally:
                other.kill()
    finally:
        os.sched_setaffinity(0, cores)
    assert watch.interruptions > 0
