import math

import numpy as np
import pytest

from leadline.estimators.tabular import encoding

ROWS = [
    {"epochs": e, "width": w, "device": d, "site": "here", "offset": o}
    for e, w, d, o in [(1, 64, "a", -1), (2, 64, "b", 0), (4, 128, "b", 2), (8, 256, "c", 5), (16, 64, "a", -3)]
]


def test_numbers_above_zero_become_logarithms_and_categories_a_column_each_by_name():
    known = encoding.learn_encoding(ROWS, ["epochs"])
    assert known.columns == ("epochs", "offset", "width", "device=a", "device=b", "device=c")
    x, beyond = known.encode(ROWS)
    assert known.scales.tolist() == [1, 0, 0, 0, 0, 0]
    assert x[:, 0] == pytest.approx((np.log2([1, 2, 4, 8, 16]) - 2) / math.sqrt(2))
    assert beyond.tolist() == [0.0] * 5


def test_a_constant_feature_has_no_column_but_another_value_extrapolates():
    known = encoding.learn_encoding(ROWS)
    assert not any("site" in column for column in known.columns)
    assert math.inf == known.encode([{**ROWS[0], "site": "there"}])[1][0]


def test_features_that_say_the_same_become_one():
    known = encoding.learn_encoding(
        [{**row, "steps": 50 * row["epochs"], "left": -row["offset"]} for row in ROWS], ["epochs"]
    )
    assert "epochs + steps" in known.columns
    assert known.scales[known.columns.index("epochs + steps")] == 1
    assert "left + offset" in known.columns


def test_a_missing_number_has_its_own_column_and_stands_at_the_mean():
    rows = [*ROWS, {key: value for key, value in ROWS[0].items() if key != "width"}]
    known = encoding.learn_encoding(rows)
    x, beyond = known.encode(rows)
    gap = x[:, known.columns.index("width?")]
    assert gap[5] > gap[0]
    assert pytest.approx(x[5, known.columns.index("width")], abs=1e-12) == 0.0
    assert beyond[5] == 0.0


def test_a_missing_number_extrapolates_if_it_was_never_missing():
    known = encoding.learn_encoding(ROWS)
    row = {key: value for key, value in ROWS[0].items() if key != "width"}
    assert math.inf == known.encode([row])[1][0]


def test_extrapolation_is_counted_in_fitted_ranges():
    known = encoding.learn_encoding(ROWS)
    assert pytest.approx(known.encode([{**ROWS[0], "epochs": 256}])[1][0]) == 1.0
    assert pytest.approx(known.encode([{**ROWS[0], "offset": 9}])[1][0]) == 0.5


def test_an_unknown_category_gets_mean_columns_and_infinite_extrapolation():
    known = encoding.learn_encoding(ROWS)
    x, beyond = known.encode([{**ROWS[0], "device": "z"}])
    assert pytest.approx(x[0, -3:].tolist(), abs=1e-12) == [0.0, 0.0, 0.0]
    assert math.inf == beyond[0]


@pytest.mark.parametrize(("value", "end"), [(0, 1), (-5, 1), (math.inf, 16), (10**400, 16), ("many", 4)])
def test_a_value_that_cannot_be_taken_stands_at_an_end_of_the_range(value, end):
    known = encoding.learn_encoding(ROWS)
    x, beyond = known.encode([{**ROWS[0], "epochs": value}])
    assert known.encode([{**ROWS[0], "epochs": end}])[0][0, 0] == pytest.approx(x[0, 0])
    assert math.inf == beyond[0]


def test_counts_with_zero_are_taken_by_their_logarithm_and_one():
    known = encoding.learn_encoding([{"gpus": gpus} for gpus in (0, 1, 3, 7)])
    assert known.numbers.kinds.tolist() == [encoding.COUNT]
    x, _ = known.encode([{"gpus": gpus} for gpus in (0, 1, 3, 7)])
    assert pytest.approx((np.diff(x[:, 0]) / np.diff(x[:2, 0])).tolist()) == [1.0, 1.0, 1.0]


def test_it_is_the_same_after_dump_and_load():
    known = encoding.learn_encoding(ROWS, ["epochs"])
    again = encoding.FeatureEncoding.load(known.dump())
    strange = [*ROWS, {"epochs": 999, "device": "z"}, {}]
    for case, other in zip(known.encode(strange), again.encode(strange), strict=True):
        assert case.tobytes() == other.tobytes()
    assert known.columns == again.columns
