"""Waits learned from the job accounting of a simulated queue with EASY backfilling."""

import heapq
import math
import random
from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest

from leadline.core.errors import InvalidInput
from leadline.core.queues import IMMEDIATE_START_S, AccountedJob
from leadline.estimators.queue_wait import accounting_at, queue_rows
from leadline.training.queue_wait import QueueWaitModel, fit_queue_wait_model

CORES = 64


def start(queue, running, free, now_s):
    """Start whom EASY backfilling starts: the first in turn, and others that do not delay the first that cannot."""
    started = []
    while queue and queue[0].cores <= free:
        free -= queue[0].cores
        started.append(queue.pop(0))
    if not queue:
        return started
    then, room = math.inf, free
    held = [(one.walltime_s + begun, one.cores) for one, begun in [*running, *((one, now_s) for one in started)]]
    for end_s, cores in sorted(held):
        then, room = end_s, room + cores
        if room >= queue[0].cores:
            break
    spare = room - queue[0].cores
    for one in queue[1:]:
        ends = now_s + one.walltime_s <= then
        if one.cores <= free and (ends or one.cores <= spare):
            free, spare = free - one.cores, spare if ends else spare - one.cores
            queue.remove(one)
            started.append(one)
    return started


@lru_cache
def accounting(count=900, seed=0):
    """Return jobs of a cluster of 64 cores that comes under load and out of it, by and by."""
    draw, now_s, asked = random.Random(seed), 0.0, []  # noqa: S311 - a made-up load
    for number in range(count):
        now_s += draw.expovariate(1 / (300.0 if number // 40 % 2 else 900.0))
        run_s = min(draw.lognormvariate(7.3, 1.0), 20_000)
        asked.append(
            AccountedJob(str(number), now_s, ended_s=run_s, user=draw.choice("abc"), partition="p",
                         cores=draw.choice([1, 4, 8, 16, 32]), walltime_s=run_s * draw.uniform(1.1, 4.0))
        )  # fmt: skip
    coming, queue, running, ends, done = list(asked), [], [], [], []
    while coming or queue or ends:
        now_s = min(coming[0].submitted_s if coming else math.inf, ends[0][0] if ends else math.inf)
        while ends and ends[0][0] <= now_s:
            gone = heapq.heappop(ends)[1]
            running = [one for one in running if one[0].id != gone]
        while coming and coming[0].submitted_s <= now_s:
            queue.append(coming.pop(0))
        for one in start(queue, running, CORES - sum(other.cores for other, _ in running), now_s):
            running.append((one, now_s))
            heapq.heappush(ends, (now_s + one.ended_s, one.id))
            done.append(replace(one, started_s=now_s, ended_s=now_s + one.ended_s))
    return tuple(sorted(done, key=lambda one: one.submitted_s))


@lru_cache
def learned(count=600):
    jobs = accounting()
    return fit_queue_wait_model(jobs, jobs[count].submitted_s)


def later(count=600):
    jobs = accounting()
    rows = queue_rows(jobs, range(count, len(jobs)))
    return learned(count).predict_rows(rows, 0.0), np.array([job.wait_s for job in jobs[count:]])


def test_waits_are_predicted_better_than_by_the_last_wait_or_the_median():
    told, true = later()
    jobs = accounting()
    point = np.array([sentence.wait_s.point for sentence in told])
    last = np.array([job.wait_s for job in jobs[599:-1]])
    median = np.median([job.wait_s for job in jobs[:600]])

    def off(guess):
        return np.mean(np.abs(np.log((guess + IMMEDIATE_START_S) / (true + IMMEDIATE_START_S))))

    assert 0.2 < np.mean(true <= IMMEDIATE_START_S) < 0.8
    assert off(point) < 0.9 * off(last)
    assert off(point) < 0.5 * off(median)


def test_intervals_have_about_their_nominal_coverage():
    told, true = later()
    held = np.mean([one.wait_s.low <= wait <= one.wait_s.high for one, wait in zip(told, true, strict=True)])
    assert 0.85 <= held <= 0.98


def test_an_interval_that_begins_at_zero_is_one_sided():
    told, _ = later()
    ends = {low: [sentence for sentence in told if (sentence.wait_s.low == 0.0) is low] for low in (True, False)}
    assert min(map(len, ends.values())) > 10
    for without, (before, after) in {True: (35, 36), False: (37, 38)}.items():  # quantiles at (i + ½) ÷ 40
        for one in ends[without]:
            least, most = one.quantiles_s[before], one.quantiles_s[after]
            assert least <= one.wait_s.high <= max(most, IMMEDIATE_START_S, one.wait_s.point)


def test_the_probability_of_an_immediate_start_is_calibrated():
    told, true = later()
    once = np.array([sentence.at_once for sentence in told])
    assert np.mean(true <= IMMEDIATE_START_S) == pytest.approx(np.mean(once), abs=0.1)
    assert np.mean(true[once > 0.8] <= IMMEDIATE_START_S) > 0.8
    assert np.mean(true[once < 0.2] <= IMMEDIATE_START_S) < 0.2


def test_quantiles_ascend_and_the_point_is_in_its_interval():
    told, _ = later()
    for sentence in told:
        assert list(sentence.quantiles_s) == sorted(sentence.quantiles_s)
        assert 0 <= sentence.wait_s.low <= sentence.wait_s.point <= sentence.wait_s.high


def test_later_events_do_not_change_the_model():
    jobs = accounting()
    now_s = jobs[300].submitted_s
    one, other = fit_queue_wait_model(jobs, now_s), fit_queue_wait_model(accounting_at(jobs, now_s), now_s)
    for name, array in one.dump().items():
        np.testing.assert_array_equal(array, other.dump()[name])


def test_a_job_submitted_now_is_predicted_like_one_that_arrived_now():
    jobs, model = accounting(), learned()
    asked = jobs[700]
    told = model.predict(jobs[:700], [asked, jobs[701]], asked.submitted_s)
    assert model.predict_rows(queue_rows(jobs, [700]), asked.submitted_s)[0] == told[0]


def test_a_restored_model_predicts_the_same_waits():
    model = learned()
    rows = queue_rows(accounting(), range(600, 620))
    same = QueueWaitModel.load(model.dump())
    assert [one.wait_s for one in model.predict_rows(rows, 0.0)] == pytest.approx(
        [one.wait_s for one in same.predict_rows(rows, 0.0)]
    )


def test_scheduler_forecasts_are_used_as_far_as_they_were_right():
    jobs = accounting()
    # it knows the wait, but tells three times as much
    forecasts = {job.id: 3.0 * job.wait_s for job in jobs}
    model = fit_queue_wait_model(jobs, jobs[600].submitted_s, forecasts=forecasts)
    true = np.array([job.wait_s for job in jobs[600:]])

    def off(rows):
        point = np.array([one.wait_s.point for one in model.predict_rows(rows, 0.0)])
        return np.mean(np.abs(np.log((point + IMMEDIATE_START_S) / (true + IMMEDIATE_START_S))))

    asked = off(queue_rows(jobs, range(600, len(jobs)), forecasts))
    unasked = off(queue_rows(jobs, range(600, len(jobs))))
    biased = np.mean(np.abs(np.log((3 * true + IMMEDIATE_START_S) / (true + IMMEDIATE_START_S))))
    assert asked < 0.8 * unasked
    assert asked < 0.7 * biased


def test_too_few_jobs_are_an_error():
    jobs = accounting()
    with pytest.raises(InvalidInput, match="200 jobs that started or more, and this accounting has"):
        fit_queue_wait_model(jobs, jobs[100].submitted_s)


def test_waits_of_another_version_are_refused():
    state = {**learned().dump(), "features": np.array(["walltime_s"])}
    with pytest.raises(InvalidInput, match="learn them again"):
        QueueWaitModel.load(state)


def test_intervals_hold_for_jobs_that_already_wait():
    told, true = later()
    held = []
    for one, wait_s in zip(told, true, strict=True):
        waited_s = 0.3 * one.wait_s.point
        rest = one.remaining_s(waited_s) if wait_s > waited_s > IMMEDIATE_START_S else None
        if rest is not None:
            held.append(rest.low <= wait_s - waited_s <= rest.high)
    assert len(held) > 50
    assert np.mean(held) > 0.8
