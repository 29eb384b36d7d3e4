"""A submission that is in the queue twice, because its answer was lost: its command runs once, and is followed."""

import sys
import time
from dataclasses import replace
from pathlib import PurePosixPath

import pytest
from test_engine import HERE, THERE, World, job

from leadline.core.errors import SchedulerUnreachable
from leadline.core.jobs import JobSpec, JobState, ResourceSpec
from leadline.core.plane import Action, Decision, EventKind, Job, Place, Policy
from leadline.execution.clock import Clock, iso_utc
from leadline.execution.plane.decide import decide
from leadline.execution.plane.diagnose import diagnose
from leadline.execution.plane.engine import Plane
from leadline.execution.plane.journal import PlaneJournal
from leadline.execution.schedulers.port import SubmissionUncertain
from leadline.execution.schedulers.slurm.scheduler import SlurmScheduler
from leadline.execution.transport.port import LocalTransport
from leadline.execution.wrapper.outcome import EXIT_NEVER_BEGAN, STARTED_BEFORE, JobOutcome
from tests.support.plane_parts import FakeAdvisor


class RealDecisions(World):
    """A plane with Leadline's own diagnosis and decisions."""

    def restart(self):
        super().restart()
        self.plane.settler.diagnose = diagnose
        self.plane.actor.decide = decide

    def runs(self, number):
        """Let a job's command begin and its wrapper report."""
        self.here.run(number)
        key = self.here.jobs[number].key
        self.here.outcomes[key] = JobOutcome(JobState.RUNNING, iso_utc(self.clock.now_s()), "n1", ("true",))

    def refuses(self, number):
        """Let a job end as the wrapper ends the second start of a command that runs."""
        self.here.run(number)
        key = self.here.jobs[number].key
        self.here.logs[key] = f"leadline: {key} {STARTED_BEFORE}\n"
        self.here.end(number, JobState.FAILED)
        ended = self.here.ended_jobs[number]
        ended.status = replace(ended.status, exit_code=EXIT_NEVER_BEGAN, elapsed_s=1.0)

    def ends(self, number, code=0):
        """Let a command end by itself."""
        key = self.here.jobs[number].key
        state = JobState.FAILED if code else JobState.COMPLETED
        self.here.end(number, state)
        ended = self.here.ended_jobs[number]
        ended.status = replace(ended.status, exit_code=code, elapsed_s=100.0)
        now = iso_utc(self.clock.now_s())
        self.here.outcomes[key] = replace(self.here.outcomes[key], state=state, ended_at=now, exit_code=code)


@pytest.fixture(params=[1, 4])
def world(tmp_path, request):
    made = RealDecisions(tmp_path / "journal.sqlite", abreast=request.param)
    yield made
    made.journal.close()


def submitted_twice(world, *, late=False):
    """Return the ids of two submissions of one attempt, of which the plane knows the last.

    With ``late``, the first command over SSH was only slow, and its job comes after the other one.
    """
    world.journal.add([job("a", policy=Policy((HERE,), attempts=5))])
    world.here.lose_answers = "before" if late else "after"
    world.step(every_s=1.0)
    world.here.lose_answers = ""
    unseen = {} if late else dict(world.here.jobs)
    world.here.jobs.clear()
    world.step(8, every_s=20.0)
    known = world.job().attempts[0].scheduler_id
    if late:
        unseen = {"900": replace(world.here.jobs[known])}
    world.here.jobs.update(unseen)
    (other,) = unseen
    assert {known, other} == set(world.here.jobs)
    return other, known


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("code", [0, 3])
def test_a_command_that_runs_under_another_id_is_followed_there_and_not_submitted_again(world, late, code):
    other, known = submitted_twice(world, late=late)
    submitted = len(world.here.submitted)
    world.runs(other)
    world.step()
    world.refuses(known)
    world.step(5)
    (attempt,) = world.job().attempts
    assert (attempt.scheduler_id, attempt.state) == (other, JobState.RUNNING)
    world.restart()
    world.step(3)
    world.ends(other, code)
    world.step(3)
    assert world.job().state is (JobState.FAILED if code else JobState.COMPLETED)
    assert (len(world.job().attempts), len(world.here.submitted)) == (1, submitted)
    assert world.here.started_commands == [attempt.key] * 2, "one of the starts ended without effect"
    assert {"id": other, "found_again": True} in world.said(EventKind.SUBMITTED)


@pytest.mark.parametrize("code", [0, 3])
def test_a_command_whose_wrapper_reports_is_awaited_although_no_id_of_it_is_known(world, code):
    other, known = submitted_twice(world)
    world.runs(other)
    hidden = {other: world.here.jobs.pop(other)}
    world.refuses(known)
    submitted = len(world.here.submitted)
    world.step(100)
    assert world.job().attempts[0].live, "it is not given up after an hour"
    assert world.here.query_count < 115, "and is not polled every second meanwhile"
    world.here.jobs.update(hidden)
    world.ends(other, code)
    world.step(3)
    assert world.job().state is (JobState.FAILED if code else JobState.COMPLETED)
    assert (len(world.job().attempts), len(world.here.submitted)) == (1, submitted)


def test_a_second_start_leads_to_a_new_attempt_once_no_wrapper_reports(world):
    other, known = submitted_twice(world)
    world.runs(other)
    key = world.here.jobs.pop(other).key
    world.refuses(known)
    world.step(5)
    assert len(world.job().attempts) == 1
    del world.here.outcomes[key]
    world.step(5)
    assert [attempt.state for attempt in world.job().attempts] == [JobState.NODE_FAIL, JobState.PENDING]


def test_a_second_start_is_not_settled_while_the_scheduler_does_not_list_its_jobs(world, monkeypatch):
    other, known = submitted_twice(world)
    world.runs(other)
    world.here.outcomes.clear()
    world.refuses(known)

    def unreachable():
        raise SchedulerUnreachable("no answer")

    with monkeypatch.context() as context:
        context.setattr(world.here, "living", unreachable)
        world.restart()
        world.step(5)
        assert world.job().attempts[0].live
    world.step(3)
    assert world.job().attempts[0].scheduler_id == other


@pytest.mark.parametrize("runs", [False, True])
def test_both_submissions_of_a_cancelled_job_are_cancelled(world, runs):
    other, known = submitted_twice(world)
    if runs:
        world.runs(other)
        world.step()
    world.journal.cancel(["a"])
    world.step(6)
    assert world.here.jobs == {}
    assert {other, known} <= set(world.here.cancelled)
    world.here.outcomes.clear()  # the last report becomes old
    world.step(2)
    assert world.job().state is JobState.CANCELLED


def test_both_submissions_of_a_moved_job_are_cancelled_before_the_next_one_is_sent(tmp_path):
    def move(situation):
        if situation.attempt.place == HERE and situation.attempt.scheduler_id == "101":
            return Decision(Action.MOVE, "it ends sooner there", place=THERE)
        return Decision(Action.KEEP, "it is fine")

    world = World(tmp_path / "journal.sqlite", decide=move)
    submitted_twice(world)
    for _ in range(20):
        world.step()
        assert not (world.here.jobs and world.there.jobs)
    assert len(world.there.jobs) == 1
    world.journal.close()


@pytest.mark.slow
@pytest.mark.usefixtures("slurm")
def test_a_real_slurm_that_got_a_job_twice_runs_it_once_and_the_plane_follows_it(tmp_path):
    class LosesFirstAnswer(SlurmScheduler):
        lost = ""

        def submit(self, submission):
            number = super().submit(submission)
            if not self.lost:
                self.lost = number
                raise SubmissionUncertain("no answer in time")
            return number

        def find(self, _):
            return {}

    cluster = LosesFirstAnswer("slurm", PurePosixPath(tmp_path / "jobs"), LocalTransport(), python=sys.executable)
    began, clock = tmp_path / "began", Clock()
    spec = JobSpec("train", ("sh", "-c", f"echo x >> {began}; sleep 25"), ResourceSpec(walltime_s=600.0))
    with PlaneJournal(tmp_path / "journal.sqlite") as journal:
        plane = Plane(
            journal, {"slurm": cluster}.__getitem__, FakeAdvisor(), diagnose=diagnose, decide=decide, clock=clock,
        )  # fmt: skip
        plane.submitter.intervals = replace(plane.intervals, grace=0.0)
        journal.add([Job("j", spec, Policy((Place("slurm"),), attempts=3))])
        deadline_s, ids = time.monotonic() + 120.0, []
        while not journal.get("j").closed:
            assert time.monotonic() < deadline_s, journal.events()
            time.sleep(plane.step())
            ids += [attempt.scheduler_id for attempt in journal.get("j").attempts if attempt.scheduler_id not in ids]
        ended = journal.get("j")
    assert (ended.state, len(ended.attempts)) == (JobState.COMPLETED, 1)
    assert began.read_text() == "x\n"
    assert ids[-1] == cluster.lost
