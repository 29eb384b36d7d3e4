"""A factor on the predictions of one application, learned from its own runs."""

import math
import random

import pytest

from leadline.core.errors import InvalidInput
from leadline.core.estimate import Interval
from leadline.training.application_correction import FinishedRun, fit_correction, read_correction, save_correction
from leadline.uncertainty.drift import PredictionOutcome

ABOUT = ("net", "elapsed_s", "roofline")
AT = "2026-03-01T00:00:00+00:00"


def finished(count, factor, *, noise=0.1, seed=1, first=0, limit=math.inf):
    draw, found = random.Random(seed), []  # noqa: S311
    for number in range(count):
        told = math.exp(draw.uniform(0, 6))
        times = factor * math.exp(draw.gauss(0, noise))
        outcome = PredictionOutcome(Interval(told, told / 2, told * 2), told * min(times, limit), times > limit)
        found.append(FinishedRun(outcome, f"2026-02-01T{first + number:06d}"))
    return found


def test_an_estimate_low_by_half_is_doubled_with_a_calibrated_interval():
    found, decided = fit_correction(finished(40, 2.0), ABOUT, AT)
    assert decided.replaced
    assert pytest.approx(found.card.factor, rel=0.06) == 2.0
    told = found.apply(Interval(100.0, 50.0, 200.0))
    assert 100 * found.card.factor == told.point
    assert math.log(told.high / told.low) < math.log(4) / 2
    fresh = finished(200, 2.0, seed=2)
    within = [found.apply(run.outcome.predicted) for run in fresh]
    assert sum(a.low <= one.outcome.measured <= a.high for a, one in zip(within, fresh, strict=True)) / 200 >= 0.82


def test_an_accurate_estimator_gets_no_correction():
    replaced = [fit_correction(finished(30, 1.0, seed=seed), ABOUT, AT)[0] for seed in range(40)]
    assert sum(one is not None for one in replaced) <= 6  # of 40 at a risk of 5 %: seven or more once in 300


def test_a_correction_follows_a_drift_and_applies_to_the_uncorrected_estimate():
    first, _ = fit_correction(finished(40, 2.0), ABOUT, AT)
    later = [*finished(40, 2.0), *finished(40, 2.0, first=50, seed=7), *finished(40, 3.0, first=100, seed=8)]
    second, decided = fit_correction(later, ABOUT, AT, older=first)
    assert decided.drift.detected
    assert pytest.approx(second.card.factor, rel=0.08) == 3.0
    assert first.card.factor == second.card.factor_before
    assert decided.new_runs == 80


def test_censored_runs_alone_give_no_factor():
    found, decided = fit_correction(finished(30, 3.0, limit=1.5), ABOUT, AT)
    assert found is None
    assert "ended by themselves" in decided.reason


def test_a_saved_correction_gives_the_same_intervals(tmp_path):
    found, _ = fit_correction(finished(40, 2.0), ABOUT, AT)
    save_correction(found, tmp_path / "net.npz")
    again = read_correction(tmp_path / "net.npz")
    assert found.card == again.card
    assert found.apply(Interval(10.0, 5.0, 20.0)) == again.apply(Interval(10.0, 5.0, 20.0))
    (tmp_path / "net.npz").write_bytes((tmp_path / "net.npz").read_bytes()[:200])
    with pytest.raises(InvalidInput, match="delete it"):
        read_correction(tmp_path / "net.npz")


def test_a_damaged_correction_is_refused_with_the_fix(tmp_path):
    correction, _ = fit_correction(finished(40, 2.0), ABOUT, AT)
    save_correction(correction, tmp_path / "net.npz")
    content = (tmp_path / "net.npz").read_bytes()
    for at in range(40, len(content), 97):
        (tmp_path / "net.npz").write_bytes(content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1 :])
        try:
            card = read_correction(tmp_path / "net.npz").card
        except InvalidInput as error:
            assert "delete it, and it is learned again" in str(error)  # noqa: PT017 - not every byte matters
        else:
            assert card == correction.card
