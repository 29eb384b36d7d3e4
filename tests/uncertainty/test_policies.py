import pytest

from leadline.core.errors import UnknownName
from leadline.uncertainty.policies import POLICIES, choose, expected_cost

MEASURED = [10.0, 10.0, 10.0, 10.0]
MODELS = {
    "close but short": [9.9, 9.9, 9.9, 9.9],
    "never short, far": [30.0, 30.0, 30.0, 30.0],
    "never short, near": [12.0, 12.0, 12.0, 12.0],
    "mixed": [9.0, 10.5, 10.5, 10.5],
}


@pytest.mark.parametrize(
    ("kept", "policy"),
    [
        ("close but short", "mae"),
        ("close but short", "mape"),
        ("never short, near", "wtm"),
        ("close but short", "wtm-published"),
        ("close but short", "pinball"),
        ("never short, near", "cost"),
    ],
)
def test_each_policy_keeps_what_it_says(kept, policy):
    assert kept == choose(policy, MEASURED, MODELS)


def test_the_published_walltime_metric_is_right_where_nothing_ties():
    models = {name: MODELS[name] for name in ("never short, far", "close but short", "mixed")}
    assert "never short, far" == choose("wtm-published", MEASURED, models) == choose("wtm", MEASURED, models)


def test_of_equals_the_first_is_kept():
    assert choose("mae", MEASURED, {"a": MEASURED, "b": MEASURED}) == "a"


def test_a_far_short_prediction_costs_more_than_one_as_far_too_long_by_pinball():
    models = {"short": [8.0] * 4, "long": [12.0] * 4}
    assert choose("pinball", MEASURED, models) == "long"


@pytest.mark.parametrize(
    ("cost", "requested"),
    [
        (0.0, 10.0),
        (0.2, 20.0),  # ten idle seconds at a fifth
        (0.8 + 0.2 * 0.2 + 0.25, 8.0),  # eight seconds lost, then twelve asked for, and one more place in the queue
        (0.5 + 0.75 + 0.2 * 0.125 + 2 * 0.25, 5.0),  # 5, then 7.5, then 11.25
    ],
)
def test_a_kill_costs_what_was_asked_for_and_waste_a_share_of_it(cost, requested):
    assert cost == pytest.approx(expected_cost([10.0], [requested]))


def test_a_request_for_nothing_is_very_dear_and_ends():
    assert 10 < expected_cost([10.0], [0.0]) == expected_cost([10.0], [-5.0])


def test_a_rerun_that_asks_for_no_more_would_never_end():
    with pytest.raises(ValueError, match="growth is 1"):
        expected_cost([1.0], [1.0], growth=1.0)


def test_an_unknown_policy_is_answered_with_what_was_meant():
    with pytest.raises(UnknownName, match="did you mean 'wtm'"):
        choose("wmt", MEASURED, MODELS)


@pytest.mark.parametrize("policy", POLICIES)
def test_no_policy_prefers_another_model_to_a_perfect_one(policy):
    assert choose(policy, MEASURED, {**MODELS, "perfect": MEASURED}) == "perfect"
