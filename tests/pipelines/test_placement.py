"""The choice of a tier, and the time of a run from past ones."""

import math
import random
from statistics import median

import pytest

from leadline.core.estimate import Interval
from leadline.core.jobs import JobState
from leadline.core.pipelines import PipelineStage, PipelineTier
from leadline.pipelines.journal import Batch
from leadline.pipelines.placement import TierForecast, choose_tier, forecast_tier, predict_elapsed_s, recommended_memory

NOW_S = Interval(0.0, 0.0, 0.0)


def stage(**limits):
    return PipelineStage("train", ("true",), ("x",), ("edge", "cloud", "hpc"), **limits)


def forecast(tier, seconds, cost, *, transfer_s=NOW_S):
    elapsed = None if seconds is None else Interval(seconds, 0.8 * seconds, 1.25 * seconds)
    return TierForecast(tier, elapsed, "test", transfer_s, cost, None)


def run(work, seconds, memory=None):
    return Batch("train", 1, ("x",), 0, 1, 1, "", "edge", work, state=JobState.COMPLETED, elapsed_s=seconds,
                 memory_bytes=memory)  # fmt: skip


@pytest.mark.parametrize(
    ("limits", "forecasts", "chosen", "reason"),
    [
        ({}, [("edge", 900, None), ("cloud", 10, 0.1)], "edge", "first in order"),
        ({"deadline_s": 600}, [("edge", 900, None), ("cloud", 10, 0.1), ("hpc", 20, 0.05)], "hpc", "the cheapest that"),
        ({"deadline_s": 600}, [("edge", 500, None), ("cloud", 10, 0.1)], "cloud", "the cheapest that"),
        ({"budget_usd": 1.0}, [("cloud", 9, 2.0), ("hpc", 99, 0.9)], "hpc", "the budget of $1.00"),
        ({"deadline_s": 60}, [("edge", 900, 0.0), ("cloud", None, None)], "cloud", "whose time is unknown"),
        ({"deadline_s": 6}, [("edge", 900, 0.0), ("cloud", 10, 3.0)], "cloud", "none is predicted to meet"),
        ({"deadline_s": 6}, [("edge", 900, 0.0)], "edge", "but predicted to miss the deadline of 6.00 s"),
    ],
)
def test_the_cheapest_tier_that_meets_the_limits_is_chosen(limits, forecasts, chosen, reason):
    placement = choose_tier(stage(**limits), [forecast(*each) for each in forecasts])
    assert placement.tier == chosen
    assert reason in placement.reason


def test_copies_count_against_the_deadline_and_cost():
    slow = Interval(100.0, 90.0, 120.0)
    forecasts = [forecast("cloud", 10, 0.1, transfer_s=slow), forecast("edge", 60, 0.2)]
    assert choose_tier(stage(deadline_s=90), forecasts).tier == "edge"
    assert choose_tier(stage(deadline_s=900), forecasts).tier == "cloud"
    moved = forecast_tier(
        PipelineTier("cloud", usd_per_h=3.6),
        elapsed_s=Interval(10.0, 9.0, 11.0),
        basis="",
        transfer_s=slow,
        power_w=10.0,
    )
    assert moved.cost_usd == pytest.approx(0.11)
    assert moved.energy_j == pytest.approx(100.0)


def test_unknown_numbers_stay_unknown():
    unknown = forecast_tier(PipelineTier("edge"), elapsed_s=None, basis="", transfer_s=None, power_w=None)
    assert (unknown.total_s, unknown.cost_usd, unknown.energy_j) == (None, None, None)
    assert predict_elapsed_s([], 10.0) is None
    assert recommended_memory([run(1, 1.0)]) is None


def test_memory_is_requested_above_the_largest_peak():
    assert recommended_memory([run(1, 1.0, 1000), run(1, 1.0, 3000)]) == 3900


def test_growing_data_are_predicted_better_than_by_the_last_run():
    errors, last = [], []
    for seed in range(20):
        draw = random.Random(seed)  # noqa: S311 - noise, no secret
        runs = []
        for number in range(1, 8):
            work = 1000.0 * number
            actual = (4.0 + 2e-3 * work) * math.exp(draw.gauss(0, 0.05))
            if runs:
                expected = predict_elapsed_s(runs, work)
                errors.append(abs(expected.point / actual - 1))
                last.append(abs(runs[0].elapsed_s / actual - 1))
            runs.insert(0, run(work, actual))
    assert median(errors) < 0.08
    assert median(errors) < 0.6 * median(last)


def test_intervals_hold_nine_of_ten_runs():
    held = total = 0
    for seed in range(60):
        draw = random.Random(seed)  # noqa: S311 - noise, no secret
        share, runs = draw.uniform(0.2, 0.9), []
        for number in range(1, 8):
            work = 500.0 * number * draw.uniform(0.8, 1.2)
            actual = 10 * ((1 - share) + share * work / 1000) * math.exp(draw.gauss(0, 0.12))
            if runs:
                expected = predict_elapsed_s(runs, work)
                held += expected.low <= actual <= expected.high
                total += 1
            runs.insert(0, run(work, actual))
    assert 0.85 <= held / total <= 0.99


def test_the_latest_runs_count_most():
    slow, fast = [run(1.0, 20.0)] * 10, [run(1.0, 10.0)] * 40
    assert predict_elapsed_s([*slow, *fast], 1.0).point == pytest.approx(14.2, rel=0.1)
