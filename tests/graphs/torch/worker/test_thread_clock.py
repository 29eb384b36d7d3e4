"""The clock of a trace counts processor time and waiting for files, and not waiting for a processor."""

import os
import subprocess
import sys
import time

import pytest

from leadline.graphs.torch.worker import session
from leadline.graphs.torch.worker.session import ThreadTimes, read_times

SPIN = "import time\nend = time.monotonic() + {seconds}\nwhile time.monotonic() < end: pass"


def compute(cpu_s):
    end = time.thread_time() + cpu_s
    while time.thread_time() < end:
        pass


def test_sleeping_counts_and_so_does_computing():
    before = read_times()
    time.sleep(0.1)
    compute(0.05)
    times = read_times().since(before)
    assert 0.15 <= times.needed_s <= 0.2
    assert 0.05 <= times.cpu_s < 0.08


def test_waiting_for_a_processor_does_not_count():
    processors = os.sched_getaffinity(0)
    rival = subprocess.Popen([sys.executable, "-c", SPIN.format(seconds=1.2)])
    try:
        for process in (0, rival.pid):
            os.sched_setaffinity(process, {min(processors)})
        time.sleep(0.2)
        before = read_times()
        compute(0.3)
        times = read_times().since(before)
    finally:
        os.sched_setaffinity(0, processors)
        rival.kill()
        rival.wait()
    assert times.wall_s > 0.45
    assert times.queued_s > 0.15
    assert 0.3 <= times.needed_s <= 0.35


def test_clocks_between_which_the_processor_was_lost_are_read_again(monkeypatch):
    waited_s = iter([1.0, 1.3, 1.3, 1.3])
    monkeypatch.setattr(session, "thread_queued_s", lambda _: next(waited_s))
    monkeypatch.setattr(session, "TASKS", session.THIS_THREAD / "no_other_thread")
    monkeypatch.setattr(session, "THIS_THREAD", session.TASKS)
    assert read_times().queued_s == 1.3


def test_waiting_for_a_helper_that_waits_for_a_processor_does_not_count():
    times = ThreadTimes(wall_s=1.0, cpu_s=0.2, queued_s=0.1, others_queued_s={"12": 0.4, "13": 0.3}, read_bytes=0)
    assert times.needed_s == pytest.approx(0.5)
    mostly_computing = ThreadTimes(1.0, 0.9, 0.0, {"12": 5.0}, 0)
    assert mostly_computing.needed_s == pytest.approx(0.9)


def test_a_kernel_without_statistics_leaves_the_wall_clock():
    assert ThreadTimes(1.0, 0.2, None, {}, 0).needed_s == 1.0


def test_bytes_read_from_files_are_counted_whether_cached_or_not(tmp_path):
    file = tmp_path / "data"
    file.write_bytes(bytes(10**6))
    before = read_times()
    file.read_bytes()
    assert 10**6 <= read_times().since(before).read_bytes < 10**6 + 2000
