import numpy as np
import pytest

from leadline.uncertainty.recalibration import Recalibration


def test_levels_of_a_calibrated_model_hardly_change():
    right = Recalibration.of(np.linspace(0.0005, 0.9995, 1000))
    assert pytest.approx(right.upper(0.95), abs=0.002) == 0.95
    assert pytest.approx(right.lower(0.05), abs=0.002) == 0.05


def test_new_measurements_have_the_nominal_coverage_however_wrong_the_model():
    draw = np.random.default_rng(1)
    below, above = [], []
    for _ in range(2000):
        seen, new = draw.beta(0.3, 0.6, 40), draw.beta(0.3, 0.6)
        found = Recalibration.of(seen)
        below.append(new <= found.upper(0.9))
        above.append(new < found.lower(0.1))
    # rank 37 of 41, and of ranks 1 to 4 of 41
    assert 0.9 - 0.02 <= np.mean(below) <= 37 / 41 + 0.02
    assert np.mean(above) <= 0.1 + 0.02


def test_with_too_few_transforms_the_levels_are_zero_and_one():
    few = Recalibration.of([0.4, 0.6])
    assert (few.upper(0.95), few.lower(0.05)) == (1.0, 0.0)


def test_a_transform_that_weighs_more_counts_as_more():
    heavy = Recalibration.of([0.1, 0.9], [3.0, 1.0])
    assert heavy.upper(0.5) == 0.1
    assert Recalibration.of([0.1, 0.9], [1.0, 3.0]).upper(0.5) == 0.9


def test_a_restored_recalibration_is_the_same():
    one = Recalibration.of([0.3, 0.1, 0.7], [1.0, 2.0, 3.0])
    same = Recalibration.load(one.dump())
    assert [one.upper(p) for p in (0.2, 0.5, 0.7)] == [same.upper(p) for p in (0.2, 0.5, 0.7)]


@pytest.mark.parametrize("wrong", [[], [1.5], [float("nan")]])
def test_values_outside_zero_to_one_are_refused(wrong):
    with pytest.raises(ValueError, match="between 0 and 1"):
        Recalibration.of(wrong)
