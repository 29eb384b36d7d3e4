"""Contract of ``Scheduler`` as a test suite: subclass it and provide the fixture."""

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
    """Tests of every ``Scheduler``, on jobs of a second or two.

    A subclass provides the fixture ``scheduler``, which can run two jobs of one core at once and none of
    ``too_many_cores``. ``again`` returns another adapter to the same system, as a new process would have. ``command``
    sleeps and then ends with an exit code.
    """

    too_many_cores = 100_000
    patience_s = 60.0
    walltime_s = 120.0

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
        """Return a submission with a new key: a job, or an array of ``count`` elements."""
        key = uuid.uuid4().hex[:12]
        resources = ResourceSpec(cores_per_task=cores, walltime_s=self.walltime_s)
        spec = JobSpec(f"contract-{key}", self.command(seconds, exit_code), resources)
        return Submission(key, spec, indices=tuple(range(count)))

    def until(
        self, scheduler: Scheduler, ids: Collection[str], condition: Callable[[SchedulerStatus], bool]
    ) -> Mapping[str, SchedulerStatus]:
        """Return the statuses once each satisfies the condition, from the queue or the accounting."""
        waited_s = 0.0
        while True:
            statuses = dict(scheduler.query(ids))
            statuses = {**scheduler.account(set(ids) - set(statuses)), **statuses}
            if len(statuses) >= len(ids) and all(map(condition, statuses.values())):
                return statuses
            assert waited_s < self.patience_s, f"after {waited_s:g} s: {statuses}"
            self.pass_time(0.25)
            waited_s += 0.25

    def ended(self, scheduler: Scheduler, job_id: str) -> SchedulerStatus:
        """Return the final status of a job."""
        return self.until(scheduler, [job_id], _final)[job_id]

    def test_a_job_runs_to_its_end(self, scheduler: Scheduler) -> None:
        status = self.ended(scheduler, scheduler.submit(self.job(1)))

        assert status.state == JobState.COMPLETED
        assert status.exit_code == 0
        assert _seconds(status.submitted_s) <= _seconds(status.started_s) + 1.0
        assert _seconds(status.ended_s) >= _seconds(status.started_s)

    def test_a_failed_job_reports_its_exit_code(self, scheduler: Scheduler) -> None:
        status = self.ended(scheduler, scheduler.submit(self.job(0, 7)))

        assert (status.state, status.exit_code) == (JobState.FAILED, 7)

    def test_a_submission_is_found_by_its_key_while_running_and_after_its_end(self, scheduler: Scheduler) -> None:
        submission = self.job(1)
        job_id = scheduler.submit(submission)

        assert {submission.key: job_id} == dict(scheduler.find([submission.key, "never-submitted"]))
        self.ended(scheduler, job_id)
        assert {submission.key: job_id} == dict(self.again(scheduler).find([submission.key]))

    def test_an_unknown_job_is_absent_and_not_ended(self, scheduler: Scheduler) -> None:
        job_id = scheduler.submit(self.job(0))

        assert "99999999" not in scheduler.query([job_id, "99999999"])
        assert "99999999" not in scheduler.account([job_id, "99999999"])
        assert dict(scheduler.reports(["never-submitted"])) == {}

    def test_only_requested_jobs_are_reported(self, scheduler: Scheduler) -> None:
        ids = [scheduler.submit(self.job(1)) for _ in range(3)]

        assert set(scheduler.query(ids[:2])) <= set(ids[:2])
        self.until(scheduler, ids, _final)

    def test_a_final_state_stays(self, scheduler: Scheduler) -> None:
        job_id = scheduler.submit(self.job(0))
        first = self.ended(scheduler, job_id)
        self.pass_time(2)
        scheduler.cancel([job_id])

        assert first.state == self.ended(scheduler, job_id).state

    def test_running_and_waiting_jobs_can_be_cancelled(self, scheduler: Scheduler) -> None:
        running = scheduler.submit(self.job(100))
        waiting = scheduler.submit(replace(self.job(100), after=(running,)))
        self.until(scheduler, [running], lambda status: status.state is JobState.RUNNING)
        scheduler.cancel([running, waiting], waiting=True)
        self.until(scheduler, [waiting], _final)
        assert scheduler.query([running])[running].state is JobState.RUNNING
        scheduler.cancel([running, waiting])
        states = {status.state for status in self.until(scheduler, [running, waiting], _final).values()}
        assert {JobState.CANCELLED} == states

    def test_array_elements_are_separate_jobs(self, scheduler: Scheduler) -> None:
        submission = self.job(1, count=3)
        array = scheduler.submit(submission)
        ids = [f"{array}_{index}" for index in range(3)]

        assert {submission.key: array} == dict(scheduler.find([submission.key]))
        assert {JobState.COMPLETED} == {status.state for status in self.until(scheduler, ids, _final).values()}

    def test_one_element_can_be_cancelled_while_its_sibling_runs(self, scheduler: Scheduler) -> None:
        """Slurm 22.05 forgets an element that was cancelled before its array was considered."""
        submission = self.job(3, count=2)
        array = scheduler.submit(submission)
        scheduler.cancel([f"{array}_1"])

        assert self.ended(scheduler, f"{array}_0").state == JobState.COMPLETED
        self.pass_time(1)
        statuses = {**scheduler.query([f"{array}_1"]), **scheduler.account([f"{array}_1"])}
        assert {JobState.CANCELLED} >= {status.state for status in statuses.values()}
        reported = scheduler.reports(submission.keys).get(submission.keys[1])
        assert reported is None or reported.state is not JobState.COMPLETED

    def test_a_job_starts_after_its_dependency(self, scheduler: Scheduler) -> None:
        before = scheduler.submit(self.job(2))
        after = scheduler.submit(replace(self.job(0), after=(before,), after_kind=DependencyKind.OK))

        ended = self.until(scheduler, [before, after], _final)
        assert ended[after].state == JobState.COMPLETED
        assert _seconds(ended[after].started_s) >= _seconds(ended[before].ended_s)

    def test_a_failed_dependency_only_starts_jobs_that_wait_for_failure(self, scheduler: Scheduler) -> None:
        failing = scheduler.submit(self.job(1, 1))
        never = scheduler.submit(replace(self.job(0), after=(failing,), after_kind=DependencyKind.OK))
        follower = scheduler.submit(replace(self.job(0), after=(failing,), after_kind=DependencyKind.NOT_OK))

        ended = self.until(scheduler, [failing, follower], _final)
        assert (ended[failing].state, ended[follower].state) == (JobState.FAILED, JobState.COMPLETED)
        assert all(status.started_s is None for status in scheduler.query([never]).values())
        scheduler.cancel([never])

    def test_an_impossible_job_is_refused_and_not_stored(self, scheduler: Scheduler) -> None:
        submission = self.job(cores=self.too_many_cores)

        with pytest.raises((RequestRefused, InvalidInput)):
            scheduler.submit(submission)
        assert dict(scheduler.find([submission.key])) == {}

    def test_a_hostile_name_is_harmless(self, scheduler: Scheduler) -> None:
        plain = self.job(0)
        named = replace(plain, spec=replace(plain.spec, name=HOSTILE))
        job_id = scheduler.submit(named)

        assert self.ended(scheduler, job_id).state == JobState.COMPLETED
        assert {named.key: job_id} == dict(scheduler.find([named.key]))

    def test_the_wrapper_reports_how_a_measured_job_ended(self, scheduler: Scheduler) -> None:
        submission = self.job(1, 3)
        self.ended(scheduler, scheduler.submit(submission))

        (outcome,) = scheduler.reports(submission.keys).values()
        assert (outcome.state, outcome.exit_code) == (JobState.FAILED, 3)
        assert dict(scheduler.reports(submission.keys, since_s=4_000_000_000.0)) == {}

    def test_a_held_job_does_not_begin_until_it_is_released(self, scheduler: Scheduler) -> None:
        submission = replace(self.job(1, 3), held=True)
        job_id = scheduler.submit(submission)
        self.until(scheduler, [job_id], lambda status: status.state is JobState.RUNNING)
        self.pass_time(4)

        assert {JobState.RUNNING} == {status.state for status in scheduler.query([job_id]).values()}
        assert dict(scheduler.reports(submission.keys)) == {}
        for _ in range(2):
            self.again(scheduler).let_begin(submission.keys)
        assert (self.ended(scheduler, job_id).state, self.ended(scheduler, job_id).exit_code) == (JobState.FAILED, 3)

    def test_a_job_released_before_its_start_does_not_wait(self, scheduler: Scheduler) -> None:
        submission = replace(self.job(1), held=True)
        scheduler.let_begin(submission.keys)

        assert self.ended(scheduler, scheduler.submit(submission)).state == JobState.COMPLETED

    def test_a_cancelled_held_job_never_begins(self, scheduler: Scheduler) -> None:
        submission = replace(self.job(100), held=True)
        job_id = scheduler.submit(submission)
        self.until(scheduler, [job_id], lambda status: status.state is JobState.RUNNING)
        scheduler.cancel([job_id])

        assert self.ended(scheduler, job_id).state == JobState.CANCELLED
        scheduler.let_begin(submission.keys)
        self.pass_time(2)
        assert dict(scheduler.reports(submission.keys)) == {}

    def test_a_limit_may_be_lowered(self, scheduler: Scheduler) -> None:
        job_id = scheduler.submit(self.job(2))
        scheduler.change_walltime(job_id, self.walltime_s / 2)

        status = self.until(scheduler, [job_id], lambda status: status.walltime_s == self.walltime_s / 2)[job_id]
        assert self.walltime_s / 2 == status.walltime_s
        self.ended(scheduler, job_id)
        with pytest.raises(RequestRefused):
            scheduler.change_walltime(job_id, self.walltime_s / 4)

    def test_a_forecast_submits_nothing(self, scheduler: Scheduler) -> None:
        submission = self.job(1)
        forecast_s = scheduler.forecast_start_s(submission)

        assert forecast_s is None or forecast_s > 0
        assert dict(scheduler.find([submission.key])) == {}

    def test_another_adapter_continues_the_work(self, scheduler: Scheduler) -> None:
        job_id = scheduler.submit(self.job(2))
        new_adapter = self.again(scheduler)

        assert self.ended(new_adapter, job_id).state == JobState.COMPLETED


def _final(status: SchedulerStatus) -> bool:
    return status.state.final


def _seconds(moment_s: float | None) -> float:
    assert moment_s is not None, "the scheduler reports no time"
    return moment_s
