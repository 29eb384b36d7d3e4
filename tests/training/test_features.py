"""What was seen of a feature, and how far a question lies beyond it."""

import math

from hypothesis import given
from hypothesis import strategies as st
from made_runs import campaign

from leadline.core.models import Feature, Role
from leadline.estimators.tabular.encoding import learn
from leadline.training.dataset import make_dataset
from leadline.training.features import _outside, beyond, complete
from leadline.training.records import records_of

EPOCHS = Feature("epochs", Role.PARAMETER, 1, 10, whole=True)
SHIFT = Feature("shift", Role.PARAMETER, -1, 1)
KIND = Feature("kind", Role.PARAMETER, choices=("a", "b"))
NODES = Feature("nodes", Role.RESOURCE, 2, 2, whole=True, values=(2.0,), used=False)
ALL = (EPOCHS, SHIFT, KIND, NODES)


def test_within_what_was_run_nothing_is_said():
    assert beyond({"epochs": 10, "shift": -1, "kind": "a", "nodes": 2}, ALL) == ()


def test_what_lies_beyond_names_the_feature_its_value_and_what_was_run_the_farthest_first():
    assert beyond({"epochs": 40, "shift": 4, "kind": "c", "nodes": 4}, ALL) == (
        "kind = c was never run; runs had a, b",
        "shift = 4 lies 1.5 ranges above what was run (-1 to 1)",
        "nodes = 4 is 2 times the largest that was run (2 alone)",
        "epochs = 40 is 4 times the largest that was run (1 to 10)",
    )
    assert beyond({"epochs": 0.5}, [EPOCHS]) == ("epochs = 0.5 is 2 times below the least that was run (1 to 10)",)
    assert beyond({}, [EPOCHS]) == ("epochs is not given",)
    assert beyond({"epochs": "many"}, [EPOCHS]) == ("epochs = many is no number, as it was in the runs",)


def test_a_row_is_completed_with_what_never_varied_and_cells_with_units_count_in_the_columns_unit():
    assert complete([{"epochs": "3 min"}], ALL) == [{"nodes": 2, "epochs": 180.0}]
    assert complete([{"epochs": "3", "kind": "3", "nodes": 4}], ALL) == [{"nodes": 4, "epochs": 3.0, "kind": "3"}]
    assert complete([{"kind": 3}], ALL) == [{"nodes": 2, "kind": "3"}]


def test_a_number_of_few_values_lists_them():
    features = {one.name: one for one in make_dataset(records_of(campaign())).features}
    assert features["cores"].values == (1.0, 2.0, 4.0)
    assert features["samples"].values == ()
    assert (features["epochs"].low, features["epochs"].high, features["epochs"].whole) == (1, 60, True)


@given(st.floats(1e-3, 1e6), st.floats(1.5, 1e3), st.floats(1e-3, 1e6))
def test_the_distance_is_the_one_that_the_estimators_encoding_finds(low, factor, value):
    high = low * factor
    expected = learn([{"x": low}, {"x": high}]).encode([{"x": value}])[1][0]
    said = _outside(Feature("x", Role.PARAMETER, low, high), value)
    assert math.isclose(expected, said[0] if said else 0.0, rel_tol=1e-6, abs_tol=1e-6)
