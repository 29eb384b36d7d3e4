from dataclasses import replace
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leadline.core.jobs import JobState
from leadline.core.queues import AccountedJob
from leadline.estimators.queue_wait import QUEUE_FEATURES, accounting_at, current_queue_rows, queue_rows

HOUR = 3600.0


def job(submitted, started=None, ended=None, *, cores=4, walltime_s=HOUR, user="ada", partition="p", **more):
    return AccountedJob(str(submitted), submitted, started, ended, user=user, partition=partition, cores=cores,
                        walltime_s=walltime_s, **more)  # fmt: skip


def told(jobs, place=-1):
    return dict(zip(QUEUE_FEATURES, queue_rows(jobs)[place], strict=True))


@st.composite
def accountings(draw):
    """Accountings of any kind: short waits and long ones, jobs that never start, end, or become eligible."""
    moments = st.integers(0, 40)
    jobs = []
    for number in range(draw(st.integers(1, 12))):
        submitted = float(draw(moments))
        eligible = draw(st.sampled_from([None, submitted, submitted + 5, inf]))
        ready = submitted if eligible is None else eligible
        starts = ready < inf and draw(st.booleans())
        started = ready + draw(moments) if starts else None
        ends = draw(st.booleans())
        ended = ((started if starts else submitted) + draw(moments)) if ends else None
        jobs.append(
            AccountedJob(
                str(number), submitted, started, ended, eligible, JobState.UNKNOWN, draw(st.sampled_from("abc")),
                partition=draw(st.sampled_from("pq")), cores=draw(st.integers(1, 8)), gpus=draw(st.integers(0, 2)),
                walltime_s=draw(st.sampled_from([None, 5.0, 20.0, 100.0])),
            )
        )  # fmt: skip
    return sorted(jobs, key=lambda one: one.submitted_s)


@settings(max_examples=300)
@given(accountings())
def test_later_events_do_not_change_a_row(jobs):
    whole = queue_rows(jobs)
    for place, case in enumerate(jobs):
        ready = case.submitted_s if case.eligible_s is None else case.eligible_s
        if ready == inf:
            continue
        before = [other for other in jobs[:place] if other.submitted_s <= ready]
        later = [other for other in jobs[place + 1 :] if other.submitted_s < ready]
        then = [
            *accounting_at(before, ready),
            replace(case, started_s=None, ended_s=None),
            *accounting_at(later, ready),
        ]
        np.testing.assert_array_equal(whole[place], queue_rows(then, [len(before)])[0])


@settings(max_examples=100)
@given(accountings())
def test_a_hypothetical_job_gets_the_row_of_a_submitted_one(jobs):
    asked = AccountedJob("asked", 50.0, user="a", partition="p", cores=3, walltime_s=20.0)
    known = accounting_at(jobs, 50.0)
    np.testing.assert_array_equal(queue_rows([*known, asked], [len(known)]), current_queue_rows(known, [asked]))


def test_a_job_that_has_not_ended_shows_its_requested_end_and_not_its_real_one():
    runs = job(0.0, 0.0, 600.0, cores=8)
    row = told([runs, job(300.0, cores=8)])
    assert row["site_planned_s"] == HOUR - 300.0


def test_a_queue_is_planned_in_turn_on_the_cores_that_were_ever_seen_used():
    jobs = [
        job(0.0, 0.0, 7200.0, cores=8, walltime_s=7200.0),
        job(10.0, cores=8, walltime_s=HOUR),
        job(20.0, cores=4, walltime_s=HOUR),
        job(30.0, cores=4, walltime_s=HOUR),
        job(40.0, cores=4, walltime_s=HOUR),
    ]
    row = told(jobs)
    assert (row["site_pending_jobs"], row["site_free_cores"]) == (3, 0.0)
    # the first job has 7160 s left, then one of an hour on all cores, then two side by side for an hour
    assert row["site_planned_s"] == 7160.0 + HOUR + HOUR
    assert (row["hole_s"], row["hole_to_spare_s"]) == (7160.0, 7160.0 - HOUR)


def test_jobs_are_expected_to_use_as_much_of_their_walltimes_as_their_users_did():
    past = [job(100.0 * i, 100.0 * i, 100.0 * i + 60.0, cores=8, walltime_s=600.0) for i in range(40)]
    runs = job(5000.0, 5000.0, None, cores=8, walltime_s=600.0)
    row = told([*past, runs, job(5001.0, cores=8, walltime_s=600.0)])
    assert row["site_planned_s"] == 599.0
    assert row["site_expected_s"] == pytest.approx(0.1 * 599.0, rel=0.5)


def test_a_job_that_was_cancelled_while_it_waited_is_gone_from_the_queue():
    jobs = [job(0.0, 0.0, None, cores=8), job(1.0, None, 100.0, cores=8), job(50.0), job(200.0)]
    assert told(jobs, 2)["site_pending_jobs"] == 1
    assert told(jobs, 3)["site_pending_jobs"] == 1


def test_a_job_that_is_not_eligible_yet_blocks_no_other():
    jobs = [job(0.0, 0.0, None, cores=8), job(1.0, cores=8, eligible_s=inf), job(2.0, eligible_s=60.0), job(5.0)]
    assert told(jobs)["site_pending_jobs"] == 0


def test_waits_that_jobs_of_the_same_shape_and_partition_had_are_remembered():
    jobs = [job(0.0, 30.0, 40.0), job(10.0, 15.0, 20.0, cores=64), job(20.0, 90.0, 95.0, partition="q"), job(100.0)]
    row = told(jobs)
    assert (row["same_shape_wait_s"], row["since_same_shape_s"], row["partition_recent_wait_s"]) == (30.0, 70.0, 17.5)


def test_the_schedulers_forecast_is_a_feature_where_available():
    jobs = [job(0.0, 1.0, 2.0), job(5.0)]
    rows = queue_rows(jobs, forecasts={"5.0": 120.0})[:, QUEUE_FEATURES.index("forecast_s")]
    assert rows.tolist() == [-1.0, 120.0]


def test_work_of_unplanned_jobs_is_spread_over_all_cores(monkeypatch):
    monkeypatch.setattr("leadline.estimators.queue_wait.MOST_PLANNED", 2)
    jobs = [job(0.0, 0.0, None, cores=4), *(job(1.0 + i, cores=4) for i in range(6)), job(10.0, cores=4)]
    # the running one and two in turn, then four hours of four cores on four cores
    assert told(jobs)["site_planned_s"] == pytest.approx((HOUR - 10.0) + 2 * HOUR + 4 * HOUR)
