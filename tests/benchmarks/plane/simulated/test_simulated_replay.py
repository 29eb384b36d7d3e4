"""What whoever asks is told, and what a replay is worth."""

from dataclasses import dataclass, field

import pytest
from drawn_jobs import CORES, Given, job, workloads
from hypothesis import given

from benchmarks.plane.simulated.cluster import SimulatedCluster, SimulatedNode
from benchmarks.plane.simulated.replay import LimitRequest, replay, score_replay
from leadline.core.errors import InvalidInput
from leadline.core.jobs import JobState


def pool():
    return SimulatedCluster((SimulatedNode("pool", CORES),))


@dataclass
class Watching(Given):
    """Writes down all that it is told."""

    told: list = field(default_factory=list)

    def ask(self, job, killed_at_s):
        self.told.append(("ask", job.submitted_s, job))
        return super().ask(job, killed_at_s)

    def ended(self, job):
        self.told.append(("ended", job.ended_s, job))


@given(workloads(kills=True))
def test_no_policy_sees_a_run_before_its_end(jobs):
    watching = Watching()
    replay(jobs, pool(), watching)

    assert sorted(time_s for _, time_s, _ in watching.told) == [time_s for _, time_s, _ in watching.told]
    asked = [job for what, _, job in watching.told if what == "ask"]
    assert all(one.started_s is None and one.ended_s is None and one.state is JobState.PENDING for one in asked)


def test_a_killed_job_is_reported_as_killed_and_resubmitted_at_once():
    watching = Watching()
    attempts = replay([job(0, 5, 2, 30, 20)], pool(), watching)

    assert [(one.started_s, one.ended_s, one.limit_s, one.killed) for one in attempts] == [
        (5, 25, 20, True),
        (25, 55, 40, False),
    ]
    assert [one.state for what, _, one in watching.told if what == "ended"] == [JobState.TIMEOUT, JobState.COMPLETED]


def test_the_scores_of_two_jobs_are_those_worked_out_by_hand():
    jobs = [job(0, 0, 8, 100, 150), job(1, 10, 4, 30, 20)]
    scores = score_replay(jobs, replay(jobs, pool(), Given()), CORES)

    assert scores.jobs == 2
    assert scores.wait_s == (0 + 90) / 2
    assert pytest.approx(scores.slowdown) == (1 + 140 / 30) / 2
    assert scores.killed == 0.5
    assert pytest.approx(scores.unused) == (8 * 50 + 4 * 10) / (800 + 120)
    assert pytest.approx(scores.lost) == 4 * 20 / (800 + 120)
    assert scores.utilisation == 1.0
    assert scores.makespan_s == 150


def test_scores_of_some_jobs_leave_the_others_out():
    jobs = [job(0, 0, 8, 100, 100), job(1, 0, 8, 100, 100)]
    attempts = replay(jobs, pool(), Given())

    assert score_replay(jobs, attempts, CORES, scored=[0]).wait_s == 0
    assert score_replay(jobs, attempts, CORES, scored=[1]).wait_s == 100
    with pytest.raises(InvalidInput, match="no job to score"):
        score_replay(jobs, attempts, CORES, scored=[])


class Hinting(Given):
    """Tells the scheduler of half the request, and of ten seconds more each time that is outrun."""

    def ask(self, job, killed_at_s):
        return LimitRequest(job.walltime_s, job.walltime_s / 2)

    def expect_anew(self, job, ran_s, limit_s):
        return min(ran_s + 10, limit_s)


def test_expected_times_allow_backfill_without_killing_longer_jobs():
    jobs = [job(0, 0, 6, 90, 100), job(1, 1, 8, 10, 10), job(2, 2, 2, 30, 60)]
    started = {one.job: (one.started_s, one.killed) for one in replay(jobs, pool(), Hinting())}

    assert started == {0: (0, False), 2: (2, False), 1: (90, False)}


@given(workloads())
def test_hints_alone_kill_nobody(jobs):
    assert not any(one.killed for one in replay(jobs, pool(), Hinting()))


class Stubborn(Given):
    """Never asks for more."""

    def ask(self, job, killed_at_s):
        return LimitRequest(1.0, 1.0)


def test_a_policy_that_never_requests_enough_is_an_error():
    with pytest.raises(InvalidInput, match="request more after a kill"):
        replay([job(0, 0, 1, 10, 10)], pool(), Stubborn())


def test_a_job_without_a_measured_time_cannot_be_replayed():
    with pytest.raises(InvalidInput, match="no measured time"):
        replay([job(0, 0, 1, 0, 10)], pool(), Given())
