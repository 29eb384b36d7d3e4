"""The drift test against theory: false alarms by Ville's bound, and the delay of detection."""

import math
import random
from statistics import NormalDist, median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leadline.core.estimate import Interval
from leadline.uncertainty.drift import DriftKind, PredictionOutcome, _payment, change_point, find_drift, median_ratio

TOLD = Interval(100.0, 100 / 1.18, 118.0)


def outcome(error, limit=math.inf):
    """Return a run that took exp(error) times what was predicted, cut off at exp(limit) times it."""
    return PredictionOutcome(TOLD, 100 * math.exp(min(error, limit)), error > limit)


ERRORS = {
    "normal": lambda source: source.gauss(0, 0.1),
    "skewed": lambda source: source.expovariate(5),
    "heavy tails": lambda source: 0.1 * source.gauss(0, 1) / math.sqrt(source.expovariate(1) + 1e-3),
    "few values": lambda source: source.choice((-0.1, 0.0, 0.1)),
}


@pytest.mark.parametrize("limit", [math.inf, 0.1], ids=["whole", "cut off"])
@pytest.mark.parametrize("kind", ERRORS)
def test_false_alarms_stay_below_alpha_whatever_the_errors_are(kind, limit):
    alpha, streams, source = 0.05, 100, random.Random(f"{kind} {limit}")  # noqa: S311
    alarms = sum(
        find_drift([outcome(ERRORS[kind](source), limit) for _ in range(200)], alpha=alpha, seed=stream).detected
        for stream in range(streams)
    )
    # what a true rate of alpha exceeds once in a thousand
    assert alarms <= alpha * streams + NormalDist().inv_cdf(0.999) * math.sqrt(streams * alpha * (1 - alpha))


@pytest.mark.parametrize(("spread", "soon"), [(0.05, 14), (0.1, 25)])
def test_a_shift_of_a_fifth_is_detected_within_some_runs(spread, soon):
    delays, ratios = [], []
    for seed in range(40):
        source = random.Random(seed)  # noqa: S311
        errors = [source.gauss(0, spread) for _ in range(50)]
        errors += [source.gauss(math.log(1.2), spread) for _ in range(100)]
        found = find_drift([outcome(error) for error in errors], seed=seed)
        assert (found.detected, found.change) == (True, DriftKind.MORE)
        delays.append(found.detected_at - 49)
        ratios.append(found.ratio)
    assert 0 < median(delays) <= soon
    assert pytest.approx(median(ratios), abs=0.03) == 1.2


def test_jobs_that_all_reach_their_limit_are_a_drift_and_their_ratio_a_lower_bound():
    source = random.Random(3)  # noqa: S311
    before = [outcome(source.gauss(0, 0.1), 0.5) for _ in range(60)]
    after = [outcome(1.0, 0.5) for _ in range(20)]
    found = find_drift([*before, *after])
    assert (found.change, found.at_least) == (DriftKind.MORE, True)
    assert math.exp(0.5) == pytest.approx(found.ratio)
    assert "at least 1.65 times" in found.sentence()


def test_errors_that_grow_both_ways_are_less_predictable():
    source = random.Random(8)  # noqa: S311
    errors = [source.gauss(0, 0.05) for _ in range(150)] + [source.gauss(0, 0.4) for _ in range(100)]
    assert find_drift([outcome(error) for error in errors]).change == DriftKind.WIDER


def test_without_drift_the_sentence_gives_the_number_of_runs():
    assert "no drift of elapsed_s over 3 runs" in find_drift([outcome(0.0)] * 3).sentence()


@given(st.floats(0.01, 0.99), st.floats(-3, 3))
def test_the_payment_has_mean_one_with_censored_runs_too(bound, shift):
    """Integrate the payment over uniform ranks, as normal quantiles, those above the bound as one censored outcome."""
    normal, step = NormalDist(), 0.01
    end = normal.inv_cdf(bound)
    places = [end - step * (place + 0.5) for place in range(int((end + 8) / step))]
    seen = sum(_payment(normal.cdf(place), shift, censored=False) * normal.pdf(place) for place in places) * step
    assert pytest.approx(seen + (1 - bound) * _payment(bound, shift, censored=True), rel=0.01) == 1.0


def test_the_median_counts_censored_runs_as_longer():
    assert (math.exp(0.1), False) == pytest.approx(median_ratio([outcome(e, 0.2) for e in (0.0, 0.1, 0.9)]))


def test_an_interval_without_width_has_a_finite_score():
    assert math.isfinite(PredictionOutcome(Interval(10.0, 10.0, 10.0), 11.0).score)


@pytest.mark.parametrize(("shift", "spread"), [(1.0, 0.2), (0.0, 1.5)])
def test_the_change_point_of_a_shift_or_spread_is_found(shift, spread):
    source = random.Random(4)  # noqa: S311
    scores = [source.gauss(0, 0.2) for _ in range(60)] + [source.gauss(shift, spread) for _ in range(20)]
    assert abs(change_point(scores) - 60) <= 3


def test_similar_scores_have_no_change_point():
    source = random.Random(4)  # noqa: S311
    found = [change_point([source.gauss(0, 1) for _ in range(60)]) for _ in range(20)]
    assert found.count(0) > 10  # it is asked only of streams in which a change was found


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_an_alpha_of_zero_or_one_is_refused(alpha):
    with pytest.raises(ValueError, match="between 0 and 1"):
        find_drift([], alpha=alpha)
