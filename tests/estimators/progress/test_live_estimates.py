"""What a running job will take: before any progress, early, late, past its estimate, and against each other."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.plane.live_calibration import ProgressPoll, calibrate_live
from leadline.core.errors import InvalidInput
from leadline.core.estimate import Interval
from leadline.core.progress import LoopProgress, Progress
from leadline.estimators.progress.live_estimates import (
    LiveEstimate,
    combine_evidence,
    evidence_before,
    live_elapsed,
    live_memory,
    remaining_by_estimate,
)

STEPS, STARTUP_S = 400, 5.0


def progress(at_s, step_s, *, steps=STEPS, jitter=0.0, seed=0, last_s=None):
    """Return what a loop of even steps has shown after ``at_s`` seconds; ``None`` before its first step ended."""
    draw = random.Random(seed)  # noqa: S311
    count = min(int((at_s - STARTUP_S) / step_s), steps)
    if count < 1:
        return None
    took = tuple(step_s * (1 + jitter * draw.uniform(-1, 1)) for _ in range(count))
    level = LoopProgress("for step", count, count * step_s, steps, first_s=took[:8], sampled_s=took[:400])
    return Progress("loops", (level,), startup_s=STARTUP_S, last_s=last_s or at_s)


@pytest.fixture(scope="module")
def table():
    """Return a table of made runs whose later steps take up to a fifth more or less than their first ones."""
    draw = random.Random(1)  # noqa: S311
    polls = []
    for number in range(40):
        step_s, later = draw.uniform(0.05, 2), math.exp(draw.gauss(0, 0.1))
        total_s = STARTUP_S + STEPS * step_s * later
        told = total_s * math.exp(draw.gauss(0, 0.3))
        before = Interval(told, told * math.exp(-0.5), told * math.exp(0.5))
        for share in (0.02, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.97):
            at_s = share * total_s
            seen = progress(at_s, step_s * later**share, jitter=0.1, seed=number)
            memory = tuple((at_s * place / 20, 1e9 if place > 2 else 5e8) for place in range(21))
            polls.append(ProgressPoll(str(number), at_s, seen, total_s, before, memory, 1e9 * draw.uniform(1, 1.02)))
    return calibrate_live(polls)


BEFORE = Interval(100.0, 60.0, 170.0)


@given(st.floats(0, 1e6), st.floats(0.001, 0.999), st.floats(1.001, 30), st.floats(0.5, 0.99))
def test_remaining_time_is_positive_and_grows_with_the_share(at_s, share, factor, level):
    before = Interval(100.0, 100 / factor, 100 * factor, level)
    assert (
        0
        < remaining_by_estimate(before, at_s, share)
        <= remaining_by_estimate(before, at_s, min(share + 0.0005, 0.9999))
    )


def test_before_it_runs_the_estimate_is_as_it_was_made(table):
    told = live_elapsed(BEFORE, None, 0.0, table).total
    assert (pytest.approx(told.point), told.level / 0.9) == (100.0, 90.0 / 90)
    assert math.log(170 / 60) == pytest.approx(math.log(told.high / told.low), rel=1e-6)


def test_a_job_that_outlasts_its_estimate_is_expected_to_go_on_in_terms_of_its_age(table):
    left = [evidence_before(BEFORE, at_s).log for at_s in (200.0, 400.0, 4000.0, 40000.0)]
    assert left == sorted(left)
    told = live_elapsed(BEFORE, None, 40000.0, table).total
    assert 40000 < told.low < told.point < told.high


@given(st.floats(0.001, 3), st.floats(0, 1200), st.one_of(st.none(), st.floats(0.1, 1e5)))
def test_an_answer_never_lies_before_the_present(table, step_s, at_s, told):
    before = told and Interval(told, told / 2, told * 2)
    found = live_elapsed(before, progress(at_s, step_s), at_s, table)
    if found.total is None:
        assert found.unknown
    else:
        assert at_s < found.total.low <= found.total.point <= found.total.high
        assert 0 <= found.done <= 1


def test_the_interval_narrows_and_progress_gains_weight_as_the_job_runs(table):
    step_s, total_s = 0.5, STARTUP_S + STEPS * 0.5
    before = Interval(260.0, 130.0, 520.0)
    found = [
        live_elapsed(before, progress(share * total_s, step_s, jitter=0.1), share * total_s, table)
        for share in (0.0, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9)
    ]
    widths = [case.total.high - case.total.low for case in found]
    assert widths[1:] == sorted(widths[1:], reverse=True)
    assert widths[1] < 1.3 * widths[0]
    assert widths[-1] < widths[0] / 10
    assert 0 == found[0].seen_weight < 0.5 < found[3].seen_weight
    assert all(case.total.low <= total_s <= case.total.high for case in found)
    assert abs(found[-1].total.point / total_s - 1) < abs(found[0].total.point / total_s - 1) / 5


def test_progress_alone_suffices_and_without_either_source_there_is_a_reason(table):
    assert pytest.approx(live_elapsed(None, progress(100.0, 0.5), 100.0, table).total.point, rel=0.05) == 205
    assert "showed no steps" in live_elapsed(None, None, 3.0, table).unknown


def test_an_estimate_that_progress_contradicts_gives_way(table):
    seen = progress(100.0, 0.5)
    tenfold = live_elapsed(Interval(2000.0, 1800.0, 2200.0), seen, 100.0, table).total
    assert pytest.approx(tenfold.point, rel=0.3) == 205


def test_weights_follow_the_spreads():
    before, seen = evidence_before(BEFORE, 0.0), evidence_before(Interval(110.0, 105.0, 115.0), 0.0)
    both, weight = combine_evidence(before, seen)
    assert weight > 0.9
    assert before.log < both.log < seen.log
    assert both.spread < seen.spread


def test_units_that_the_script_does_not_show_are_taken_from_the_user(table):
    endless = progress(100.0, 0.5, steps=10**6)
    level = endless.levels[0]
    endless = Progress("loops", (LoopProgress(level.name, level.count, level.total_s, None, first_s=level.first_s,
                                       sampled_s=level.sampled_s),), startup_s=STARTUP_S, last_s=100.0)  # fmt: skip
    assert live_elapsed(None, endless, 100.0, table).total is None
    assert pytest.approx(live_elapsed(None, endless, 100.0, table, units=600).total.point, rel=0.05) == 305


def test_an_old_report_counts_with_the_work_done_since(table):
    told = live_elapsed(None, progress(100.0, 0.5, last_s=100.0), 110.0, table).total
    assert pytest.approx(told.point, rel=0.05) == 205


DONE = LiveEstimate(Interval(1000.0, 900.0, 1100.0), 0.4)


def test_memory_that_has_stopped_growing_is_the_peak(table):
    seen = [(float(at_s), min(1e9, 5e6 * at_s)) for at_s in range(0, 401, 10)]
    told = live_memory(None, seen, 50.0, DONE, table).total
    assert (told.point, told.low) == (1e9, 1e9)
    assert told.high < 1.2e9


def test_memory_that_grows_goes_on_growing(table):
    seen = [(float(at_s), 1e8 + 1e6 * at_s) for at_s in range(0, 401, 10)]
    told = live_memory(None, seen, 50.0, DONE, table).total
    assert pytest.approx(told.point, rel=0.05) == 1.1e9
    assert told.low >= 5e8


def test_growth_that_was_looked_at_twice_is_no_faster_than_it_was(table):
    half_done = LiveEstimate(Interval(200.0, 190.0, 210.0), done=0.5)
    told = live_memory(None, [(60.0, 6e8), (100.0, 1e9)], 50.0, half_done, table).total
    assert told.point == pytest.approx(2e9)


def test_before_a_step_was_seen_the_memory_is_that_of_the_estimate_or_unknown(table):
    before = Interval(2e9, 1e9, 3e9)
    told = live_memory(before, [(1.0, 5e8)], None, DONE, table).total
    assert pytest.approx(told.point) == 2e9
    assert live_memory(None, [(1.0, 5e8)], None, DONE, table).total is None


def test_a_few_runs_are_no_calibration():
    with pytest.raises(InvalidInput, match="only 1 runs"):
        calibrate_live([ProgressPoll("one", 50.0, progress(50.0, 0.5), 205.0)])


def test_a_job_cannot_have_run_for_less_than_nothing(table):
    with pytest.raises(ValueError, match="cannot have run"):
        live_elapsed(BEFORE, None, -1.0, table)


def test_a_silent_job_lost_the_time_but_an_unobserved_job_did_not(table):
    shown = progress(100.0, 0.5)
    stalled = live_elapsed(None, shown, 180.0, table).total
    unseen = live_elapsed(None, shown, 180.0, table, looked_s=100.0).total
    assert unseen.point < 220
    assert stalled.point > 250
