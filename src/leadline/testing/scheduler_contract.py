"""The contract of a ``Scheduler``, as tests that every adapter runs: subclass, and say how to reach it."""

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

import pytest

from leadline.core.errors import InvalidInput
from leadline.core.jobs import JobSpec, JobState, ResourceSpec
from leadline.core.plane import DependencyKind
from leadline.execution.schedulers.port import RequestRefused, Scheduler, SchedulerStatus, Submission

HOSTILE = "a 'name' with \"quotes\", $(touch harm); `touch harm`\n#SBATCH --hold\n| and ends ü"


class SchedulerContract(ABC):
    """What every ``Scheduler`` does, tried on jobs of a second or two.

    A subclass gives the fixture ``scheduler``: one that can run two jobs of one core at once, and none of
    ``too_many_cores``. ``again`` makes another adapter to the same system, as a new process would. ``command`` is what
    sleeps and then ends with an exit code; ``pass_time`` lets time pass.
    """

    too_many_cores = 100_000
    patience_s = 60.0
    walltime_s = 120.0
    accounts_s = 10.0
    """How late the accounting may be."""

    @abstractmethod
    def again(self, scheduler: Scheduler) -> Scheduler:
        """Return another adapter to the same system."""

    def pass_time(self, seconds: float) -> None:
        """Let time pass."""
        time.sleep(seconds)

    def command(self, seconds: float, exit_code: int = 0) -> tuple[str, ...]:
        """Return a command that sleeps, then ends."""
        return ("sh", "-c", f"sleep {seconds}; exit {exit_code}")

    def job(self, seconds: float = 0.0, exit_code: int = 0, *, cores: int = 1, count: int = 0) -> Submission:
        """Return a submission under a new key: a job, or an array of ``count``."""
        key = uuid.uuid4().hex[:12]
        resources = ResourceSpec(cores_per_task=cores, walltime_s=self.walltime_s)
        spec = JobSpec(f"contract-{key}", self.command(seconds, exit_code), resources)
        return Submission(key, spec, indices=tuple(range(count)))

    def until(
        self, scheduler: Scheduler, ids: Collection[str], wanted: Callable[[SchedulerStatus], bool]
    ) -> Mapping[str, SchedulerStatus]:
        """Return what is said of jobs once it is as wanted of each: by the queue, or by the accounting if they left."""
        waited_s = 0.0
        while True:
            found = dict(scheduler.query(ids))
            found = {**scheduler.account(set(ids) - set(found)), **found}
            if len(found) >= len(ids) and all(map(wanted, found.values())):
                return found
            assert waited_s < self.patience_s, f"after {waited_s:g} s: {found}"
            self.pass_time(0.25)
            waited_s += 0.25

    def ended(self, scheduler: Scheduler, one: str) -> SchedulerStatus:
        """Return how a job ended."""
        return self.until(scheduler, [one], _final)[one]

    def test_a_job_runs_to_its_end(self, scheduler: Scheduler) -> None:
        status = self.ended(scheduler, scheduler.submit(self.job(1)))

        assert status.state == JobState.COMPLETED
        assert status.exit_code == 0
        assert _seconds(status.submitted_s) <= _seconds(status.started_s) + 1.0
        assert _seconds(status.ended_s) >= _seconds(status.started_s)

    def test_a_job_that_fails_tells_its_exit_code(self, scheduler: Scheduler) -> None:
        status = self.ended(scheduler, scheduler.submit(self.job(0, 7)))

        assert (status.state, status.exit_code) == (JobState.FAILED, 7)

    def test_a_submission_is_found_by_its_key_alive_and_ended_and_by_another_adapter(
        self, scheduler: Scheduler
    ) -> None:
        submission = self.job(1)
        found = scheduler.submit(submission)

        assert {submission.key: found} == dict(scheduler.find([submission.key, "never-submitted"]))
        self.ended(scheduler, found)
        assert {submission.key: found} == dict(self.again(scheduler).find([submission.key]))

    def test_what_nobody_knows_is_absent_and_not_ended(self, scheduler: Scheduler) -> None:
        one = scheduler.submit(self.job(0))

        assert "99999999" not in scheduler.query([one, "99999999"])
        assert "99999999" not in scheduler.account([one, "99999999"])
        assert dict(scheduler.reports(["never-submitted"])) == {}

    def test_only_those_who_were_asked_for_are_told_of(self, scheduler: Scheduler) -> None:
        ids = [scheduler.submit(self.job(1)) for _ in range(3)]

        assert set(scheduler.query(ids[:2])) <= set(ids[:2])
        self.until(scheduler, ids, _final)

    def test_a_final_state_stays(self, scheduler: Scheduler) -> None:
        one = scheduler.submit(self.job(0))
        first = self.ended(scheduler, one)
        self.pass_time(2)
        scheduler.cancel([one])

        assert first.state == self.ended(scheduler, one).state

    def test_jobs_are_cancelled_running_or_waiting(self, scheduler: Scheduler) -> None:
        running = scheduler.submit(self.job(100))
        waiting = scheduler.submit(replace(self.job(100), after=(running,)))
        self.until(scheduler, [running], lambda status: status.state is JobState.RUNNING)
        scheduler.cancel([running, waiting])

        states = {one.state for one in self.until(scheduler, [running, waiting], _final).values()}
        assert {JobState.CANCELLED} == states

    def test_the_elements_of_an_array_are_jobs_of_their_own(self, scheduler: Scheduler) -> None:
        submission = self.job(1, count=3)
        array = scheduler.submit(submission)
        ids = [f"{array}_{index}" for index in range(3)]

        assert {submission.key: array} == dict(scheduler.find([submission.key]))
        assert {JobState.COMPLETED} == {one.state for one in self.until(scheduler, ids, _final).values()}

    def test_one_element_can_be_cancelled_and_its_sibling_runs(self, scheduler: Scheduler) -> None:
        """Slurm 22.05 forgets an element cancelled before its array was looked at: nobody tells of it again."""
        submission = self.job(3, count=2)
        array = scheduler.submit(submission)
        scheduler.cancel([f"{array}_1"])

        assert self.ended(scheduler, f"{array}_0").state == JobState.COMPLETED
        self.pass_time(1)
        told = {**scheduler.query([f"{array}_1"]), **scheduler.account([f"{array}_1"])}
        assert {JobState.CANCELLED} >= {one.state for one in told.values()}
        reported = scheduler.reports(submission.keys).get(submission.keys[1])
        assert reported is None or reported.state is not JobState.COMPLETED

    def test_a_job_starts_after_the_one_that_it_waits_for(self, scheduler: Scheduler) -> None:
        before = scheduler.submit(self.job(2))
        after = scheduler.submit(replace(self.job(0), after=(before,), after_kind=DependencyKind.OK))

        ended = self.until(scheduler, [before, after], _final)
        assert ended[after].state == JobState.COMPLETED
        assert _seconds(ended[after].started_s) >= _seconds(ended[before].ended_s)

    def test_a_job_does_not_run_after_one_that_failed_unless_it_was_to(self, scheduler: Scheduler) -> None:
        failing = scheduler.submit(self.job(1, 1))
        never = scheduler.submit(replace(self.job(0), after=(failing,), after_kind=DependencyKind.OK))
        other = scheduler.submit(replace(self.job(0), after=(failing,), after_kind=DependencyKind.NOT_OK))

        ended = self.until(scheduler, [failing, other], _final)
        assert (ended[failing].state, ended[other].state) == (JobState.FAILED, JobState.COMPLETED)
        assert all(one.started_s is None for one in scheduler.query([never]).values())
        scheduler.cancel([never])

    def test_what_can_never_run_is_refused_and_not_there(self, scheduler: Scheduler) -> None:
        submission = self.job(cores=self.too_many_cores)

        with pytest.raises((RequestRefused, InvalidInput)):
            scheduler.submit(submission)
        assert dict(scheduler.find([submission.key])) == {}

    def test_a_name_is_only_a_name(self, scheduler: Scheduler) -> None:
        plain = self.job(0)
        named = replace(plain, spec=replace(plain.spec, name=HOSTILE))
        one = scheduler.submit(named)

        assert self.ended(scheduler, one).state == JobState.COMPLETED
        assert {named.key: one} == dict(scheduler.find([named.key]))

    def test_the_wrapper_reports_how_a_measured_job_ended(self, scheduler: Scheduler) -> None:
        submission = self.job(1, 3)
        self.ended(scheduler, scheduler.submit(submission))

        (outcome,) = scheduler.reports(submission.keys).values()
        assert (outcome.state, outcome.exit_code) == (JobState.FAILED, 3)
        assert dict(scheduler.reports(submission.keys, since_s=4_000_000_000.0)) == {}

    def test_a_held_job_runs_without_beginning_until_it_is_let(self, scheduler: Scheduler) -> None:
        submission = replace(self.job(1, 3), held=True)
        one = scheduler.submit(submission)
        self.until(scheduler, [one], lambda status: status.state is JobState.RUNNING)
        self.pass_time(4)

        assert {JobState.RUNNING} == {status.state for status in scheduler.query([one]).values()}
        assert dict(scheduler.reports(submission.keys)) == {}
        for _ in range(2):
            self.again(scheduler).let_begin(submission.keys)
        assert (self.ended(scheduler, one).state, self.ended(scheduler, one).exit_code) == (JobState.FAILED, 3)

    def test_a_held_job_that_is_let_before_it_starts_does_not_wait(self, scheduler: Scheduler) -> None:
        submission = replace(self.job(1), held=True)
        scheduler.let_begin(submission.keys)

        assert self.ended(scheduler, scheduler.submit(submission)).state == JobState.COMPLETED

    def test_a_held_job_that_is_taken_back_never_begins(self, scheduler: Scheduler) -> None:
        submission = replace(self.job(100), held=True)
        one = scheduler.submit(submission)
        self.until(scheduler, [one], lambda status: status.state is JobState.RUNNING)
        scheduler.cancel([one])

        assert self.ended(scheduler, one).state == JobState.CANCELLED
        scheduler.let_begin(submission.keys)
        self.pass_time(2)
        assert dict(scheduler.reports(submission.keys)) == {}

    def test_a_limit_may_be_lowered(self, scheduler: Scheduler) -> None:
        one = scheduler.submit(self.job(2))
        scheduler.change_walltime(one, self.walltime_s / 2)

        status = self.until(scheduler, [one], lambda status: status.walltime_s == self.walltime_s / 2)[one]
        assert self.walltime_s / 2 == status.walltime_s
        self.ended(scheduler, one)
        with pytest.raises(RequestRefused):
            scheduler.change_walltime(one, self.walltime_s / 4)

    def test_a_forecast_submits_nothing(self, scheduler: Scheduler) -> None:
        submission = self.job(1)
        forecast_s = scheduler.forecast_start_s(submission)

        assert forecast_s is None or forecast_s > 0
        assert dict(scheduler.find([submission.key])) == {}

    def test_another_adapter_takes_up_where_one_ended(self, scheduler: Scheduler) -> None:
        one = scheduler.submit(self.job(2))
        other = self.again(scheduler)

        assert self.ended(other, one).state == JobState.COMPLETED


def _final(status: SchedulerStatus) -> bool:
    return status.state.final


def _seconds(moment_s: float | None) -> float:
    assert moment_s is not None, "the scheduler does not tell when"
    return moment_s
