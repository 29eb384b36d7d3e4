"""The plane over this machine's own scheduler: real jobs, and a plane that is killed."""

import os
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from leadline.core.jobs import JobSpec, JobState, ResourceSpec
from leadline.core.plane import Job, Place, Policy
from leadline.execution.clock import Clock
from leadline.execution.plane.engine import Plane
from leadline.execution.plane.journal import PlaneJournal
from leadline.execution.plane.poll_interval import PollIntervals
from leadline.execution.schedulers.local.capacity import Slots
from leadline.execution.schedulers.local.scheduler import LocalScheduler
from tests.support.kills import kill_at_random
from tests.support.plane_parts import FakeAdvisor, diagnose_by_state, retry_node_failures

COUNT = 12
QUICK = PollIntervals(first=0.1, last=0.2, reports=0.3, grace=0.5)
DRIVER = "import sys; sys.path.insert(0, sys.argv[1]); import test_plane_here as t; t.drive(t.Path(sys.argv[2]))"


def jobs(folder):
    for at in range(COUNT):
        spec = JobSpec(
            "x", ("sh", "-c", f"echo {at} >> made; sleep 0.1"), ResourceSpec(walltime_s=60), workdir=str(folder)
        )
        yield Job(f"job{at}", spec, Policy((Place("local"),)))


def drive(folder):
    """Run a plane until every job of the journal is settled."""
    with (
        PlaneJournal(folder / "plane.sqlite", Clock()) as journal,
        closing(LocalScheduler(folder / "queue", Slots((0, 1)))) as local,
    ):
        plane = Plane(
            journal,
            {"local": local}.__getitem__,
            FakeAdvisor(),
            diagnose=diagnose_by_state,
            decide=retry_node_failures,
            intervals=QUICK,
        )
        deadline = time.monotonic() + 240
        plane.run(lambda: plane.idle or time.monotonic() > deadline)


def settled(folder):
    with PlaneJournal(folder / "plane.sqlite", Clock()) as journal:
        return [journal.get(job.key) for job in jobs(folder)]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    with PlaneJournal(tmp_path / "plane.sqlite", Clock()) as journal:
        journal.add(jobs(tmp_path))
    return tmp_path


def test_jobs_that_a_plane_takes_in_run_here_and_are_settled(folder):
    drive(folder)
    assert [job.state for job in settled(folder)] == [JobState.COMPLETED] * COUNT
    assert sorted((folder / "made").read_text().split(), key=int) == [str(at) for at in range(COUNT)]


def test_a_plane_that_is_killed_at_random_moments_loses_and_repeats_nothing(folder):
    words = [sys.executable, "-c", DRIVER, str(Path(__file__).parent), str(folder)]
    kill_at_random(words, seed=5, within_s=(0.4, 1.0))
    ended = settled(folder)
    assert [(job.state, len(job.attempts)) for job in ended] == [(JobState.COMPLETED, 1)] * COUNT
    assert sorted((folder / "made").read_text().split(), key=int) == [str(at) for at in range(COUNT)]


def test_the_cpu_time_of_a_job_that_ended_does_not_delay_the_next_poll(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    busy = "import time\nwhile time.process_time() < 2: pass"
    commands = {"busy": (sys.executable, "-c", busy), "later": ("sleep", "4")}
    with PlaneJournal(tmp_path / "plane.sqlite", Clock()) as journal:
        journal.add(
            Job(
                name,
                JobSpec(name, words, ResourceSpec(walltime_s=60), workdir=str(tmp_path)),
                Policy((Place("local"),)),
            )
            for name, words in commands.items()
        )
    began = time.monotonic()
    drive(tmp_path)
    # 25 times the CPU time of the first job would be 50 s.
    assert time.monotonic() - began < 30
