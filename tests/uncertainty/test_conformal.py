"""Conformal bounds have the coverage that theory promises."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, t

from leadline.uncertainty.conformal import EXTRAPOLATIONS, IntervalCalibration, Residuals, calibrate

SEEDS = 300


def normal(n, seed, sigma=0.1):
    return np.exp(np.random.default_rng(seed).normal(0, sigma, n))


def skewed(n, seed, sigma=0.1):
    return np.exp(np.random.default_rng(seed).exponential(sigma, n))


def share_within(draw, n_calibration, n_test, bound):
    """Return over many draws whether each test run kept its bound."""
    kept = []
    for seed in range(SEEDS):
        measured = draw(n_calibration + n_test, seed)
        calibration = calibrate(Residuals.of(measured[:n_calibration], np.ones(n_calibration)))
        kept.append(bound(calibration, measured[n_calibration:]))
    return np.concatenate(kept)


@pytest.mark.parametrize("draw", [normal, skewed])
@pytest.mark.parametrize("n", [19, 60])
def test_exchangeable_errors_have_the_nominal_coverage(draw, n):
    def within(calibration, measured):
        low, high = calibration.interval(np.ones(1), [np.nan], [0.0], "", 0.8)
        return (low <= measured) & (measured <= high)

    kept = share_within(draw, n, 1, within)
    assert binom.ppf(0.001, SEEDS, 0.8) <= kept.sum() <= binom.ppf(0.999, SEEDS, 0.8 + 2 / (n + 1))


@pytest.mark.parametrize("draw", [normal, skewed])
def test_a_request_is_exceeded_as_often_as_its_risk(draw):
    def within(calibration, measured):
        return measured <= calibration.upper(np.ones(1), [np.nan], [0.0], "", 0.05)

    kept = share_within(draw, 60, 1, within)
    assert binom.ppf(0.001, SEEDS, 0.95) <= kept.sum() <= binom.ppf(0.999, SEEDS, 0.95 + 1 / 61)


def test_a_model_that_is_wrong_everywhere_still_covers():
    rng, kept = np.random.default_rng(0), []
    for _ in range(SEEDS):
        x = rng.uniform(0, 3, 121)
        measured = np.exp(x**2 + rng.normal(0, 0.2, 121))
        line = np.polyfit(x[:60], np.log(measured[:60]), 1)  # a straight line through a parabola
        point = np.exp(np.polyval(line, x))
        calibration = calibrate(Residuals.of(measured[60:120], point[60:120]))
        low, high = calibration.interval(point[120:], [np.nan], [0.0], "", 0.9)
        kept.append(low[0] <= measured[120] <= high[0])
    assert binom.ppf(0.001, SEEDS, 0.9) <= sum(kept)


def test_few_normal_errors_are_covered_by_students_t():
    rng, kept = np.random.default_rng(1), []
    for _ in range(SEEDS):
        errors = rng.normal(0, 0.1, 6)
        calibration = calibrate(Residuals.of(np.exp(errors[:5]), np.ones(5)))
        kept.append(errors[5] <= np.log(calibration.upper(np.ones(1), [np.nan], [0.0], "", 0.05)[0]))
    assert binom.ppf(0.001, SEEDS, 0.95) <= sum(kept) <= binom.ppf(0.999, SEEDS, 0.95)


def test_the_rank_is_that_of_a_finite_sample():
    errors = np.arange(1, 20) / 100  # with 19 errors the largest is exceeded by the next with probability 1 in 20
    calibration = calibrate(Residuals.of(np.exp(errors), np.ones(19)))
    assert pytest.approx(np.log(calibration.upper(np.ones(1), [np.nan], [0.0], "", 0.05)[0])) == 0.19
    assert pytest.approx(np.log(calibration.upper(np.ones(1), [np.nan], [0.0], "", 0.10)[0])) == 0.18
    assert pytest.approx(np.log(calibration.interval(np.ones(1), [np.nan], [0.0], "", 0.9)[0][0])) == 0.01


def test_students_t_is_used_where_the_rank_exceeds_the_sample():
    errors = np.asarray([-0.1, 0.1, -0.1, 0.1])
    calibration = calibrate(Residuals.of(np.exp(errors), np.ones(4)))
    expected = 0.1 * t.ppf(0.95, 4)
    assert expected == pytest.approx(np.log(calibration.upper(np.ones(1), [np.nan], [0.0], "", 0.05)[0]), rel=1e-3)
    low, high = calibration.interval(np.ones(1), [np.nan], [0.0], "", 0.9)
    assert pytest.approx(low[0] * high[0]) == 1.0


def test_each_scale_has_its_own_errors():
    errors = np.concatenate([normal(100, 0, 0.5), normal(100, 1, 0.05)])
    calibration = calibrate(Residuals.of(errors, np.ones(200), scale=["SD"] * 100 + ["FS"] * 100))
    small, large = calibration.upper(np.ones(2), [np.nan] * 2, [0.0] * 2, ["SD", "FS"], 0.05)
    assert small > 1.6
    assert large < 1.15


def few_at_full_scale(errors, *, held_out=0.3):
    parts = [
        Residuals.of(normal(100, 0, 0.02), np.ones(100), scale="SD"),
        Residuals.of(np.exp([-held_out, held_out] * 10), np.ones(20), scale="SD", blocked=True),
    ]
    if len(errors):
        parts.append(Residuals.of(np.exp(errors), np.ones(len(errors)), scale="FS"))
    return calibrate(Residuals.joined(*parts)).upper(np.ones(1), [np.nan], [0.0], "FS", 0.05)[0]


def test_errors_of_small_runs_do_not_apply_to_large_ones():
    assert few_at_full_scale([]) > np.exp(0.3 * t.ppf(0.95, 4) * 0.99)
    assert few_at_full_scale([], held_out=0.05) < few_at_full_scale([], held_out=0.3)


def test_each_full_scale_run_outweighs_part_of_the_prior():
    widths = [few_at_full_scale(np.asarray([-0.03, 0.03, -0.03, 0.03, 0.03, -0.03][:n])) for n in (0, 2, 4, 6)]
    assert sorted(widths, reverse=True) == widths
    assert few_at_full_scale(np.asarray([0.6, 0.5])) > few_at_full_scale([])


def test_repeats_of_one_configuration_count_as_one():
    errors = np.exp(np.repeat([-0.1, 0.1, -0.1, 0.1], 10))
    one = calibrate(Residuals.of(errors, np.ones(40), configuration=[str(i // 10) for i in range(40)]))
    expected = 0.1 * t.ppf(0.95, 4)
    assert expected == pytest.approx(np.log(one.upper(np.ones(1), [np.nan], [0.0], "", 0.05)[0]), rel=1e-3)


def test_a_row_far_outside_what_was_fitted_has_a_wider_interval():
    calibration = calibrate(Residuals.of(normal(50, 0), np.ones(50)))
    bounds = calibration.upper(np.ones(4), [np.nan] * 4, [0.0, 0.5, 2.0, np.inf], "", 0.05)
    assert sorted(bounds) == list(bounds)
    assert bounds[0] < bounds[1]
    assert np.isfinite(bounds).all()


def test_errors_that_grow_outside_the_range_widen_extrapolations():
    def bound(sigma):
        near = Residuals.of(normal(60, 0, 0.05), np.ones(60))
        far = Residuals.of(normal(40, 1, sigma), np.ones(40), beyond=np.full(40, 0.5), blocked=True)
        return calibrate(Residuals.joined(near, far)).upper(np.ones(1), [np.nan], [1.0], "", 0.05)[0]

    assert bound(0.05) < bound(0.15) < bound(0.45)


def test_an_informative_spread_is_used_and_a_noisy_one_ignored():
    rng = np.random.default_rng(3)
    spread = np.where(np.arange(200) % 2, 0.02, 0.2)
    informed = calibrate(Residuals.of(np.exp(rng.normal(0, spread)), np.ones(200), spread=spread))
    sure, unsure = informed.upper(np.ones(2), [0.02, 0.2], [0.0, 0.0], "", 0.05)
    assert sure < 1.15
    assert unsure > 1.3
    noise = calibrate(Residuals.of(np.exp(rng.normal(0, 0.1, 200)), np.ones(200), spread=rng.permutation(spread)))
    sure, unsure = noise.upper(np.ones(2), [0.02, 0.2], [0.0, 0.0], "", 0.05)
    assert sure == pytest.approx(unsure)


def test_a_restored_calibration_is_the_same(tmp_path):
    rng = np.random.default_rng(4)
    parts = Residuals.of(
        np.exp(rng.normal(0, 0.1, 60)),
        np.ones(60),
        spread=rng.uniform(0.05, 0.2, 60),
        beyond=rng.uniform(0, 1, 60),
        scale=["SD"] * 50 + ["FS"] * 10,
        blocked=rng.random(60) < 0.2,
    )
    kept = calibrate(parts)
    np.savez(tmp_path / "kept.npz", **kept.dump())
    with np.load(tmp_path / "kept.npz", allow_pickle=False) as state:
        again = IntervalCalibration.load(dict(state))
    row = ([1.0, 2.0, 3.0], [0.1, np.nan, 0.2], [0.0, 0.3, np.inf], ["SD", "FS", "never seen"])
    for risk in (0.01, 0.05, 0.6):
        assert np.array_equal(kept.upper(*row, risk), again.upper(*row, risk))
    assert {"SD", "FS", EXTRAPOLATIONS} == set(again.groups)


@pytest.mark.parametrize("n", [5, 60])
def test_a_widened_calibration_has_wider_intervals_by_that_factor(n):
    narrow = calibrate(Residuals.of(np.exp(normal(n, 1)), np.ones(n)))
    wide = narrow.widened(2.0)
    for far in (0.0, 0.3):
        ends = np.log(np.ravel(narrow.interval([1.0], [np.nan], [far], "", 0.9)))
        assert 2 * ends == pytest.approx(np.log(np.ravel(wide.interval([1.0], [np.nan], [far], "", 0.9))))


def test_calibration_needs_errors():
    with pytest.raises(ValueError, match="at least one"):
        calibrate(Residuals.of([], []))
    with pytest.raises(ValueError, match="all finite"):
        calibrate(Residuals.of([1.0, np.nan], [1.0, 1.0]))


@pytest.mark.parametrize("risk", [0.0, 1.0, -0.1])
def test_a_risk_is_a_probability(risk):
    calibration = calibrate(Residuals.of(normal(50, 0), np.ones(50)))
    with pytest.raises(ValueError, match="between 0 and 1"):
        calibration.upper(np.ones(1), [np.nan], [0.0], "", risk)


@settings(max_examples=50)
@given(st.lists(st.floats(-1, 1), min_size=1, max_size=50), st.floats(0.01, 0.5), st.floats(0.01, 0.5))
def test_less_risk_never_lowers_the_bound(errors, one, other):
    calibration = calibrate(Residuals.of(np.exp(errors), np.ones(len(errors))))
    low, high = sorted((one, other))
    cautious, bold = (calibration.upper(np.ones(1), [np.nan], [0.0], "", risk)[0] for risk in (low, high))
    assert cautious >= bold * (1 - 1e-9)


def test_less_risk_never_lowers_the_bound_where_one_run_was_far_off():
    calibration = calibrate(Residuals.of(np.exp([0.0] * 19 + [1.0]), np.ones(20)))
    assert np.log(calibration.upper(np.ones(1), [np.nan], [0.0], "", 0.01)[0]) >= 1.0
