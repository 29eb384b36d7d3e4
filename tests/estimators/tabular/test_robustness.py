import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from leadline.core.runs import Sample, Scale
from leadline.estimators.tabular.registry import ESTIMATORS, load_estimator

QUICK = ("linear", "tree", "gaussian_process", "scaling_law", "additive_law")
UNSHRUNK = (Phase.explicit, Phase.reuse, Phase.generate)
"""A fit takes a second, so that looking for the simplest failure would take minutes."""
numbers = st.one_of(
    st.integers(-(10**9), 10**9),
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from([0, 1, 10**400, -(10**400)]),
)
values = st.one_of(numbers, st.text(max_size=5))
decades = st.floats(-4, 5).map(lambda power: 10.0**power)
rows = st.fixed_dictionaries(
    {"size": decades, "kind": st.sampled_from("abc"), "constant": st.just(7)},
    optional={"cores": st.integers(0, 64), "mixed": values, "level": st.integers(-3, 3)},
)
samples = st.builds(
    lambda features, value, scale, censored: Sample(
        {**features, "copy": features["size"] * 3},
        value,
        scale,
        censored,
        value / 3,
        units=features["size"],
        unit_s=1.0,
    ),
    rows,
    decades,
    st.sampled_from(Scale),
    st.sampled_from([False, False, False, False, True]),
)
histories = st.lists(samples, min_size=6, max_size=16).map(
    lambda runs: [*runs, *(replace(one, censored=False) for one in runs[:6])]
)
QUESTIONS = [
    {},
    {"size": 1e30, "kind": "never seen", "cores": 10**400, "copy": math.nan},
    {"size": "large", "kind": 3, "constant": -1, "unknown": 5, "level": 1e9},
    {"size": -1.0, "kind": "a", "cores": math.inf, "copy": 0},
]


def sound(predicted, count):
    assert (count,) == predicted.point.shape == predicted.spread.shape == predicted.extrapolation.shape
    assert np.all(np.isfinite(predicted.point))
    assert np.all(predicted.point > 0)
    assert np.all(np.isfinite(predicted.spread))
    assert np.all(predicted.spread >= 0)
    assert np.all(predicted.extrapolation >= 0)


@pytest.mark.parametrize("name", QUICK)
@settings(max_examples=5, phases=UNSHRUNK)
@given(history=histories)
def test_every_prediction_is_positive_for_any_history(name, history):
    asked = [*(sample.features for sample in history), *QUESTIONS]
    fitted = ESTIMATORS[name].fit(history, scale_features=["size"])
    sound(fitted.predict(asked), len(asked))
    again = load_estimator(fitted.dump())
    np.testing.assert_allclose(fitted.predict(asked).point, again.predict(asked).point, rtol=1e-9)


@pytest.mark.parametrize("name", sorted(set(ESTIMATORS) - set(QUICK)))
@settings(max_examples=2, phases=UNSHRUNK)
@given(history=histories)
def test_the_slower_ones_answer_likewise(name, history):
    asked = [*(sample.features for sample in history), *QUESTIONS]
    sound(ESTIMATORS[name].fit(history, scale_features=["size"]).predict(asked), len(asked))


@pytest.mark.parametrize("name", ESTIMATORS)
def test_runs_that_are_all_the_same_are_predicted_as_they_were(name):
    features = {"size": 5, "kind": "a"}
    runs = [Sample(features, 12.0, Scale.SCALED_DOWN, startup_s=4.0, units=4, unit_s=1.5) for _ in range(8)]
    fitted = ESTIMATORS[name].fit(runs, scale_features=["size"])
    assert pytest.approx(fitted.predict([{"size": 5, "kind": "a"}]).point[0], rel=0.05) == 12.0


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_category_never_seen_has_the_widest_spread(name, dnn):
    fitted = ESTIMATORS[name].fit(dnn.history(5, 40, reports=True), scale_features=dnn.scale_features)
    row = dnn.history(6, 1)[0].features
    known, strange = fitted.predict([row, {**row, "device": "abacus"}]).spread
    assert strange > 3 * known
