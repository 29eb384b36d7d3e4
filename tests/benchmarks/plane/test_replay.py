"""Ways of asking for time, on a made-up trace, and on the published one where it is."""

import os
import random
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("sklearn")

from benchmarks.plane import replay as bench
from benchmarks.plane.job_trace import loaded_cluster, metacentrum_jobs
from benchmarks.plane.request_rules import (
    ForecastUse,
    LastTwoRuns,
    LearnedRequests,
    OracleRequests,
    PartialRequests,
    UserRequests,
)
from benchmarks.plane.runtimes import FEWEST, RuntimeForest, RuntimeSample
from benchmarks.plane.simulated.replay import replay
from leadline.core.jobs import JobState
from leadline.core.queues import AccountedJob
from leadline.core.recommendation import RiskWeights
from leadline.recommendation.requests import KillLoss, expected_loss


def made_up(count, seed=0):
    """Return jobs of two users who ask for a day: one's run for minutes, the other's for hours."""
    rng, jobs, now_s = random.Random(seed), [], 0.0  # noqa: S311 - not secret
    for number in range(count):
        now_s += rng.expovariate(1 / 600)
        user, typical_s = rng.choice([("anne", 300.0), ("bert", 7200.0)])
        run_s = typical_s * rng.lognormvariate(0, 0.1)
        jobs.append(
            AccountedJob(str(number), now_s, now_s, now_s + run_s, state=JobState.COMPLETED, user=user,
                         cores=rng.choice([1, 4]), walltime_s=86_400.0)
        )  # fmt: skip
    return jobs


def asked_of(job):
    return replace(job, started_s=None, ended_s=None, state=JobState.PENDING)


def taught(way, jobs):
    for job in jobs:
        way.ask(asked_of(job), ())
        way.ended(job)
    return way


def test_users_ask_for_half_as_much_again_after_every_kill():
    (job,) = made_up(1)

    assert UserRequests().ask(job, ()).limit_s == 86_400
    assert UserRequests().ask(job, (60.0,)).limit_s == 86_400
    assert UserRequests().ask(job, (86_400.0,)).limit_s == 1.5 * 86_400


def test_the_last_two_runs_of_the_user_are_foretold_and_the_limit_stays_where_they_are_hints():
    jobs = [replace(job, user="anne") for job in made_up(4)]
    mean_s = (jobs[1].elapsed_s + jobs[2].elapsed_s) / 2
    hints, limits = (taught(LastTwoRuns(limits=limits), jobs[:3]) for limits in (False, True))

    assert (86_400, pytest.approx(mean_s)) == (hints.ask(jobs[3], ()).limit_s, hints.ask(jobs[3], ()).expected_s)
    assert 0 <= limits.ask(jobs[3], ()).limit_s - mean_s < 60
    assert [hints.expect_anew(jobs[3], ran_s, 86_400.0) - ran_s for ran_s in (100.0, 160.0, 460.0)] == [
        60.0,
        300.0,
        900.0,
    ]
    assert limits.ask(jobs[3], (60.0, 120.0)).limit_s == 240


def test_a_killed_run_teaches_nothing():
    jobs = made_up(3)
    for way in (LastTwoRuns(limits=True), LearnedRequests(ForecastUse.LIMIT)):
        way.ask(asked_of(jobs[0]), ())
        way.ended(replace(jobs[0], state=JobState.TIMEOUT))
        assert way.ask(asked_of(jobs[1]), ()).limit_s == 86_400


def test_run_times_are_learned_for_each_user():
    jobs = made_up(FEWEST + 100)
    runtimes = RuntimeForest()
    for job in jobs[:-20]:
        runtimes.came(asked_of(job))
        runtimes.ended(job)
    for job in jobs[-20:]:
        runtimes.came(asked_of(job))
        known = runtimes.of(job)
        typical_s = 300.0 if job.user == "anne" else 7200.0

        assert known.median == pytest.approx(typical_s, rel=0.15)
        assert known.quantile(0.95) < 1.5 * typical_s


def test_what_is_said_of_a_job_does_not_depend_on_how_long_it_will_run():
    jobs = made_up(FEWEST + 30)
    said = []
    for factor in (1, 50):
        runtimes, last = RuntimeForest(), jobs[-1]
        for job in jobs[:-1]:
            runtimes.came(asked_of(job))
            runtimes.ended(job)
        seen = replace(last, ended_s=last.started_s + factor * last.elapsed_s)
        runtimes.came(seen)
        said.append(runtimes.of(seen).values)

    assert said[0] == said[1]


def test_limits_that_are_learned_kill_about_as_many_as_is_accepted_and_ask_for_far_less():
    jobs = made_up(1500)
    attempts = replay(jobs, loaded_cluster(jobs, 0.8), LearnedRequests(ForecastUse.LIMIT))
    late = [one for one in attempts if one.job >= 500]

    assert 0.02 < sum(one.killed for one in late) / 1000 < 0.08
    assert sum(one.limit_s for one in late) < 0.2 * 86_400 * len(late)


def test_a_least_limit_leaves_the_request_and_hints_kill_nobody():
    jobs = made_up(400)
    least = taught(LearnedRequests(ForecastUse.LEAST), jobs[:-1]).ask(asked_of(jobs[-1]), ())

    assert least.limit_s == 86_400
    assert jobs[-1].elapsed_s < least.least_s < 20_000
    for way in (LearnedRequests(ForecastUse.HINT), LastTwoRuns(limits=False), OracleRequests(jobs)):
        assert not any(one.killed for one in replay(jobs, loaded_cluster(jobs, 0.9), way))


def test_some_users_ask_in_one_way_and_are_told_of_their_own_jobs_alone():
    jobs = made_up(300)
    some = PartialRequests(LearnedRequests(ForecastUse.LIMIT), {"anne"})
    taught(some, jobs)
    anne, bert = (replace(asked_of(made_up(301)[-1]), id=user, user=user) for user in ("anne", "bert"))

    assert some.ask(anne, ()).limit_s < 3600
    assert some.ask(bert, ()).limit_s == 86_400


def test_a_sample_is_a_distribution():
    known = RuntimeSample([1.0, 2.0, 3.0, 4.0])

    assert (known.median, known.quantile(0.99), known.above(2.5)) == (2.0, 4.0, 0.5)
    assert known.mean_below(2.5) == (1 + 2) / 4
    assert known.beyond(2.5).values == [3.0, 4.0]
    assert known.beyond(4.0) is None
    assert expected_loss(known, 4.0, RiskWeights(), KillLoss.LIMIT) == pytest.approx(4.0 - 2.5)


@pytest.mark.skipif("LEADLINE_DATA" not in os.environ, reason="LEADLINE_DATA names no folder of measured data")
def test_the_published_trace_is_read_and_replayed():
    jobs = metacentrum_jobs(Path(os.environ["LEADLINE_DATA"]))

    assert len(jobs) == 12_528
    assert all(0 < job.elapsed_s <= job.walltime_s for job in jobs)
    assert 0.04 < sum(job.state is JobState.TIMEOUT for job in jobs) / len(jobs) < 0.05
    recorded = metacentrum_jobs(Path(os.environ["LEADLINE_DATA"]), truncated=False)
    assert any(job.elapsed_s > job.walltime_s for job in recorded)
    scores = bench.replayed(jobs, UserRequests(), 0.9)
    assert len(scores) == 4
    assert all(0.5 < one.utilisation < 1 and one.killed == 0 for one in scores)
