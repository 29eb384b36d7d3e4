"""This machine and a real Slurm: a job is offered to both at once, and one moves with its checkpoint."""

import os
import sys
import time
from contextlib import closing
from pathlib import Path, PurePosixPath

import pytest

from leadline.core.jobs import JobSpec, JobState, ResourceSpec
from leadline.core.plane import Action, Decision, EventKind, Job, Place, Policy
from leadline.core.units import MIB
from leadline.execution.clock import Clock
from leadline.execution.plane.diagnose import diagnose
from leadline.execution.plane.engine import Plane
from leadline.execution.plane.journal import PlaneJournal
from leadline.execution.plane.poll_interval import PollIntervals
from leadline.execution.schedulers.local.capacity import Slots
from leadline.execution.schedulers.local.scheduler import LocalScheduler
from leadline.execution.schedulers.slurm.scheduler import SlurmScheduler
from leadline.execution.transport.port import LocalTransport
from tests.support.plane_parts import FakeAdvisor, retry_node_failures

QUICK = PollIntervals(first=0.2, last=0.5, reports=0.5, decide=0.5, grace=2.0)
HERE, CLUSTER = Place("local"), Place("cluster", "short")
ASKED = ResourceSpec(cores_per_task=1, memory_bytes_per_node=300 * MIB, walltime_s=300.0)
COUNTS = (
    "import pathlib, time\n"
    "kept = pathlib.Path('kept'); kept.mkdir(exist_ok=True); file = kept / 'step'\n"
    "step = int(file.read_text()) if file.exists() else 0\n"
    "print('begins at', step, flush=True)\n"
    "while step < 40:\n"
    "    step += 1; time.sleep(0.25); new = kept / 'new'; new.write_text(str(step)); new.replace(file)\n"
)
"""Counts to 40 in ten seconds, and goes on from its own checkpoint."""


class Systems:
    """A plane over this machine and the cluster; ``again`` is another process that takes both over."""

    def __init__(self, folder, decide=retry_node_failures, copies=1):
        self.folder, self.decide, self.copies = folder, decide, copies
        self.local = LocalScheduler(folder / "queue", Slots((0, 1), (), 4096 * MIB))
        self.cluster = SlurmScheduler(
            "cluster", PurePosixPath(folder / "jobs"), LocalTransport(), python=sys.executable
        )
        self.journal = PlaneJournal(folder / "plane.sqlite", Clock())
        self.again()

    def again(self):
        self.plane = Plane(
            self.journal, {"local": self.local, "cluster": self.cluster}.__getitem__, FakeAdvisor(self.copies),
            diagnose=diagnose, decide=self.decide, intervals=QUICK,
        )  # fmt: skip

    def until(self, condition, most_s=120.0):
        deadline_s = time.monotonic() + most_s
        while not condition():
            assert time.monotonic() < deadline_s, [self.journal.events(job=one.key) for one in self.journal.open_jobs()]
            time.sleep(min(self.plane.step(), 0.2))

    def close(self):
        for job in self.journal.open_jobs():
            self.journal.cancel([job.key])
        self.until(lambda: self.plane.idle, 60.0)
        self.local.close()
        self.journal.close()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path


@pytest.mark.slow
@pytest.mark.usefixtures("slurm")
@pytest.mark.parametrize("dies", [False, True])
def test_a_job_that_could_start_at_two_systems_begins_at_one(folder, dies):
    with closing(Systems(folder, copies=2)) as both:
        began = folder / "began"
        # Keys follow from the jobs' keys, and the accounting of the cluster outlives a test.
        jobs = [f"{'killed' if dies else 'whole'}-{at}" for at in range(4)]
        for at, key in enumerate(jobs):
            spec = JobSpec(key, ("sh", "-c", f"echo {at} >> {began}; sleep 1"), ASKED)
            both.journal.add([Job(key, spec, Policy((HERE, CLUSTER), copies=2))])
        if dies:
            both.until(lambda: any(one.begins for key in jobs for one in both.journal.get(key).attempts))
            both.again()
        both.until(lambda: all(both.journal.get(key).closed for key in jobs))
        both.until(lambda: both.plane.idle)
        for key in jobs:
            ended = both.journal.get(key)
            assert ended.state is JobState.COMPLETED
            assert sorted(one.number for one in ended.attempts) == [1, 2]
            assert sum(one.begins for one in ended.attempts) == 1
        time.sleep(3)  # longer than a copy that was let begin would need
        assert sorted(began.read_text().split()) == ["0", "1", "2", "3"]


@pytest.mark.slow
@pytest.mark.usefixtures("slurm")
def test_two_copies_wait_and_one_release_starts_one(folder):
    with closing(Systems(folder, copies=2)) as both:
        began = folder / "began"
        spec = JobSpec("j", ("sh", "-c", f"echo $LEADLINE_KEY >> {began}; sleep 1"), ASKED)
        both.journal.add([Job("j", spec, Policy((HERE, CLUSTER), copies=2))])
        both.plane.book.load()
        assert both.plane.submitter.start() == 2
        for system in ("local", "cluster"):
            both.plane.submitter.send(system)
        attempts = both.journal.get("j").attempts
        deadline_s = time.monotonic() + 60
        while time.monotonic() < deadline_s:
            told = [
                *both.local.query([one.scheduler_id for one in attempts if one.place == HERE]).values(),
                *both.cluster.query([one.scheduler_id for one in attempts if one.place == CLUSTER]).values(),
            ]
            if [one.state for one in told] == [JobState.RUNNING] * 2:
                break
            time.sleep(0.2)
        else:
            pytest.fail(f"they do not both run: {told}")
        time.sleep(2)
        assert not began.exists()
        both.until(lambda: both.plane.idle)
        assert JobState.COMPLETED is both.journal.get("j").state
        assert len(began.read_text().splitlines()) == 1


@pytest.mark.slow
@pytest.mark.usefixtures("slurm")
def test_a_job_moves_from_here_to_a_cluster_with_its_checkpoint(folder):
    def move(situation):
        here = situation.attempt.place == HERE and situation.attempt.state is JobState.RUNNING
        step = folder / "here" / "kept" / "step"
        if here and step.exists() and int(step.read_text()) >= 4:
            return Decision(Action.MOVE, "it ends sooner there", place=CLUSTER)
        return retry_node_failures(situation)

    with closing(Systems(folder, move)) as both:
        spec = JobSpec("count", (sys.executable, "-c", COUNTS), ASKED)
        both.journal.add([Job("a", spec, Policy((HERE, CLUSTER), resumes=True, checkpoint_folder="kept"))])
        both.until(lambda: both.journal.get("a").closed)
        ended = both.journal.get("a")
        assert JobState.COMPLETED is ended.state
        assert [one.place for one in ended.attempts] == [HERE, CLUSTER]
        log = both.cluster.log_tails([ended.attempts[1].key])[ended.attempts[1].key]
        left_at = int((folder / "here" / "kept" / "step").read_text())
        assert f"begins at {left_at}" in log
        assert 4 <= left_at < 40
        assert (Path(both.cluster.folder) / "kept" / "step").read_text() == "40"
        (said,) = [event.details for event in both.journal.events(job="a", kinds=[EventKind.STAGED])]
        assert (said["from"], said["to"]) == ("local", "cluster")
        assert said["moved_bytes"] >= 1
