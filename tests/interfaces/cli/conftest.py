"""Every test of the command line has a data folder of its own; those of the plane's verbs a journal, too."""

import os
import sys
import time
from dataclasses import replace

import pytest

from leadline.app.composition import toolbox
from leadline.app.jobs.journal import plane_dir
from leadline.core.jobs import JobSpec, JobState, ResourceSpec
from leadline.core.plane import Attempt, EventKind, Job, Place, Policy
from leadline.core.units import GIB
from leadline.execution.clock import iso_utc
from leadline.execution.plane.journal import NewEvent, PlaneJournal
from tests.support.fake_scheduler import ManualClock

PITZER = Place("Pitzer", "gpu")
SPEC = JobSpec(
    "train", ("python", "train.py"), ResourceSpec(1, 1, 8, 1, 16 * GIB, 7200.0), system="Pitzer", partition="gpu"
)


class Written:
    """A journal as a plane would have written it; each call takes a minute of its clock, which ends an hour ago."""

    def __init__(self):
        self.clock = ManualClock(time.time() - 2 * 3600)
        plane_dir().mkdir(parents=True)
        self.journal = PlaneJournal(plane_dir() / "journal.sqlite", self.clock)

    def job(self, key, name="train", **more):
        policy = more.pop("policy", Policy((PITZER, Place("Owens", "serial"))))
        made = Job(key, replace(SPEC, name=name), policy, created_at=iso_utc(self.clock.now_s()), **more)
        self.journal.add([made])
        self.clock.sleep(60.0)
        return made

    def attempt(self, job, number=1, state=JobState.PENDING, **more):
        now = iso_utc(self.clock.now_s())
        resources = more.pop("resources", SPEC.resources)
        made = Attempt(
            f"{number:02}{job.key}", job.key, number, more.pop("place", PITZER), resources, state=state, noted_at=now,
            submitted_at=now, scheduler_id=more.pop("id", str(4000 + number)), walltime_s=resources.walltime_s, **more,
        )  # fmt: skip
        if state is not JobState.PENDING:
            made = replace(made, started_at=now, node="p0123")
        return self.wrote(made)

    def wrote(self, attempt, kind=None, said=None):
        notes = [NewEvent(kind, attempt.job, attempt.key, said)] if kind else []
        self.journal.write(attempts=[attempt], events=notes)
        self.clock.sleep(60.0)
        return attempt

    def ends(self, attempt, state, why=""):
        ended = replace(attempt, state=state, ended_at=iso_utc(self.clock.now_s()), reason=why)
        self.wrote(ended, EventKind.STATE, {"state": state.value, "reason": why})
        return ended

    def closes(self, job, state, why=""):
        note = NewEvent(EventKind.SETTLED, job.key, "", {"state": state.value, "why": why})
        self.journal.write(jobs=[replace(job, state=state, reason=why, recorded=True)], events=[note])

    def tells(self, kind, said, attempt=None):
        of = (attempt.job, attempt.key) if attempt else ("", "")
        self.journal.write(events=[NewEvent(kind, *of, said)])
        self.clock.sleep(60.0)


@pytest.fixture
def written(data_folder):
    made = Written()
    yield made
    made.journal.close()


@pytest.fixture
def measures(monkeypatch, tmp_path):
    """Jobs of this machine find Leadline under the same paths as the test, and leave their links in its folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))


@pytest.fixture(autouse=True)
def data_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("LEADLINE_DATA_DIR", str(tmp_path / "data"))
    toolbox.cache_clear()
    yield
    toolbox.cache_clear()
