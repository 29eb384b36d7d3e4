"""The bench of queue waits, on a made-up load that a simulated queue works off."""

import random
from functools import lru_cache

import numpy as np
import pytest

from benchmarks.plane.job_trace import simulate_queue
from benchmarks.plane.waits import ONCE, WITH_FORECAST, WaitCase, case_rows, simple_answers, tenths_row
from leadline.core.queues import AccountedJob
from leadline.estimators.queue_wait import accounting_at, queue_rows


@lru_cache
def load(count=700, *, exact=False):
    draw, now_s, jobs = random.Random(1), 0.0, []  # noqa: S311 - a made-up load
    for number in range(count):
        now_s += draw.expovariate(1 / (120.0 if number // 40 % 2 else 500.0))
        run_s = min(draw.lognormvariate(7.3, 1.0), 20_000)
        limit_s = run_s if exact else run_s * draw.uniform(1.1, 4.0)
        jobs.append(AccountedJob(str(number), now_s, now_s, now_s + run_s, user=draw.choice("abc"), partition="p",
                                 cores=draw.choice([1, 4, 8, 16, 32]), walltime_s=limit_s))  # fmt: skip
    return tuple(jobs)


@lru_cache
def case():
    jobs, forecasts = simulate_queue(load(), 0.8)
    return WaitCase("made up", jobs, forecasts)


def test_every_job_runs_as_long_as_it_did_and_never_before_it_came():
    for before, after in zip(load(), case().jobs, strict=True):
        assert after.started_s >= before.submitted_s
        assert before.elapsed_s == pytest.approx(after.elapsed_s)


def test_a_forecast_is_right_where_limits_are_and_nobody_comes_later():
    jobs = load(exact=True)
    done, forecasts = simulate_queue(jobs, 0.8)
    assert done[-1].wait_s == pytest.approx(forecasts[done[-1].id], abs=1e-3)


def test_a_forecast_with_full_limits_is_mostly_too_long():
    over = [forecast >= one.wait_s - 1e-6 for one in case().jobs if (forecast := case().forecasts[one.id]) > 60]
    assert np.mean(over) > 0.8


def test_rows_set_what_was_learned_beside_simpler_answers():
    rows = {one.name: one for one in case_rows(case(), times=1)}
    ours = rows[f"made up: {ONCE}: mean error of the logarithm"]
    last = rows["made up: last wait of the partition: mean error of the logarithm"]
    assert ours.baseline <= last.value
    assert ours.value < last.value
    assert ours.n == 211
    held = rows[f"made up: {ONCE}: interval holds the wait"]
    assert (held.target, held.target_high) == (85.0, 95.0)
    assert 80.0 <= held.value <= 100.0
    assert f"made up: {ONCE}{WITH_FORECAST}: mean error of the logarithm" in rows


def test_simpler_answers_know_nothing_of_what_came_later():
    one = case()
    first = 489
    rows = queue_rows(one.jobs, range(first, len(one.jobs)), one.forecasts)
    known = accounting_at(one.jobs, one.jobs[first].submitted_s)
    told = simple_answers(one, first, rows)
    assert np.median([job.wait_s for job in known if job.wait_s is not None]) == told["median wait until the cut"][0]
    assert told["scheduler's forecast"].tolist() == [one.forecasts[job.id] for job in one.jobs[first:]]


def test_each_tenth_is_told_from_what_came_before_it():
    row = tenths_row(WaitCase("made up", simulate_queue(load(1000), 0.8)[0], {}))
    assert row.n == 700
    shares = [float(one) for one in row.how.removeprefix("90%; ").split(" %")[0].split(", ")]
    assert len(shares) == 7
    assert row.value == pytest.approx(np.mean(shares), abs=0.6)
    assert 75.0 <= row.value <= 100.0
