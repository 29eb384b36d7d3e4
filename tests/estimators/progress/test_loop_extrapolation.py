"""Loops scaled to the whole job."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leadline.core.progress import LoopProgress, Progress
from leadline.estimators.progress.loop_extrapolation import extrapolate_loops, steady_time


def level(name, times, *, length=None, passes=0, inside_s=0.0):
    return LoopProgress(name, len(times), sum(times), length, passes, inside_s, tuple(times[:8]), tuple(times))


def test_the_total_is_startup_plus_units_plus_the_time_between_them():
    epochs = level("epoch", [12.0, 11.0], length=50, inside_s=21.0)
    steps = level("step", [2.0] + [1.0] * 21, length=10, passes=2)
    scaled = extrapolate_loops(Progress("test", (epochs, steps), startup_s=5.0))
    between = 23 / 2 - 10 * (23 / 22)
    assert scaled.units == 500
    assert scaled.passes == 50
    assert pytest.approx(scaled.unit_s.point) == 1.0
    assert pytest.approx(scaled.warmup_s) == 1.0
    assert between == pytest.approx(scaled.between_s)
    assert 5 + 1 + 500 + 50 * between == pytest.approx(scaled.elapsed_s.point)


def test_outer_iterations_stand_for_the_whole_once_enough_were_seen():
    epochs = level("epoch", [3.0] * 9, length=100)
    steps = level("step", [0.1] * 200, length=20, passes=9)
    scaled = extrapolate_loops(Progress("test", (epochs, steps), startup_s=1.0))
    assert scaled.unit == "epoch"
    assert pytest.approx(scaled.elapsed_s.point) == 301


def test_an_epoch_that_was_not_seen_whole_is_an_assumption():
    scaled = extrapolate_loops(
        Progress("test", (level("epoch", [], length=3), level("step", [1.0] * 6, length=9)), startup_s=0)
    )
    assert pytest.approx(scaled.elapsed_s.point) == 27
    assert any("`epoch` completed" in assumption for assumption in scaled.assumptions)


def test_a_loop_without_a_length_is_not_known_until_the_user_says_it():
    progress = Progress("test", (level("while True", [0.5] * 20),), startup_s=2.0)
    assert extrapolate_loops(progress).elapsed_s is None
    assert "--steps-total N" in extrapolate_loops(progress).unknown["elapsed_s"]
    assert pytest.approx(extrapolate_loops(progress).unit_s.point) == 0.5
    assert pytest.approx(extrapolate_loops(progress, units=1000).elapsed_s.point) == 502


def test_declared_units_count_the_innermost_loop():
    epochs, steps = level("epoch", [10.0] * 8), level("step", [1.0] * 80, length=10, passes=8)
    assert (
        pytest.approx(extrapolate_loops(Progress("test", (epochs, steps), startup_s=0.0), units=1000).elapsed_s.point)
        == 1000
    )


def test_an_inner_loop_of_unknown_length_leaves_the_outer_one_to_count():
    epochs, steps = level("epoch", [4.0, 4.0, 4.0], length=10), level("step", [1.0] * 12)
    assert pytest.approx(extrapolate_loops(Progress("test", (epochs, steps), startup_s=0.0)).elapsed_s.point) == 40


def test_without_progress_the_time_is_unknown_with_advice():
    assert "LEADLINE_PROGRESS" in extrapolate_loops(None).unknown["elapsed_s"]
    assert "LEADLINE_PROGRESS" in extrapolate_loops(Progress("test")).unknown["elapsed_s"]
    case = extrapolate_loops(Progress("test", (level("step", [], length=9),), startup_s=0.0))
    assert "--time" in case.unknown["elapsed_s"]


def test_few_units_have_a_wide_range_and_say_so():
    scaled = extrapolate_loops(Progress("test", (level("step", [1.0, 1.0, 1.0], length=100),), startup_s=0.0))
    assert scaled.elapsed_s.high >= 2 * scaled.elapsed_s.low
    assert any("only 3 units" in assumption for assumption in scaled.assumptions)


def test_slow_first_units_are_warm_up():
    steady = steady_time(level("step", [9.0, 5.0, *[1.0] * 30]))
    assert pytest.approx(steady.mean_s) == 1.0
    assert pytest.approx(steady.warmup_s) == 12.0


def test_the_range_holds_the_truth_as_often_as_it_says_for_steps_that_depend_on_their_neighbours():
    draw = random.Random(0)  # noqa: S311 - a simulation
    held = 0
    for _ in range(300):
        speed, noise, times = draw.gauss(1, 0.02), 0.0, []
        for _ in range(1000):
            noise = 0.7 * noise + draw.gauss(0, 0.1)
            times.append(max(speed + noise, 0.05))
        seen = extrapolate_loops(Progress("test", (level("step", times[:100], length=1000),), startup_s=10.0))
        true_s = 10.0 + sum(times) * draw.gauss(1, 0.02)
        held += seen.elapsed_s.low <= true_s <= seen.elapsed_s.high
    assert 0.85 <= held / 300 <= 0.99


@given(
    st.lists(st.floats(1e-6, 1e4), max_size=40),
    st.lists(st.floats(1e-6, 1e4), max_size=40),
    st.none() | st.integers(1, 10**6),
    st.none() | st.integers(1, 10**6),
    st.none() | st.integers(1, 10**9),
)
def test_every_forecast_is_in_order_or_says_why_there_is_none(outer, inner, length, inner_length, units):
    levels = (level("outer", outer, length=length), level("inner", inner, length=inner_length, passes=len(outer)))
    scaled = extrapolate_loops(Progress("test", levels, startup_s=1.0), units=units)
    if scaled.elapsed_s is None:
        assert scaled.unknown["elapsed_s"]
    else:
        assert 0 <= scaled.elapsed_s.low <= scaled.elapsed_s.point <= scaled.elapsed_s.high
