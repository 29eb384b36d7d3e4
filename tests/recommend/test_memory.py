"""The largest batch is the largest one, whatever memory does between two batches, and is found in few tries."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leadline.core.errors import InvalidInput
from leadline.core.estimate import Interval
from leadline.core.fit import percent
from leadline.recommend.memory import LARGEST, check, largest_batch

GIB = 2.0**30


@given(st.floats(0, 50), st.floats(0.001, 5), st.integers(1, 4096), st.floats(1, 100))
def test_it_is_the_largest_of_a_straight_line(base, slope, start, there):
    def needed(batch):
        return base + slope * batch

    found = largest_batch(needed, there, start)
    assert needed(found) <= there or found == 0
    assert needed(found + 1) > there


@given(st.integers(1, 400), st.integers(0, 2**32), st.floats(1, 300))
def test_it_is_the_largest_of_anything_that_grows(start, seed, there):
    steps = 3 * np.random.default_rng(seed).random(500) ** 4 + 0.01
    total = [0.0, *np.cumsum(steps).tolist()]

    def needed(batch):
        return total[batch] if batch < len(total) else total[-1] + batch

    found = largest_batch(needed, there, start)
    assert found == 0 or needed(found) <= there
    assert needed(found + 1) > there or found == LARGEST


def test_a_straight_line_takes_few_tries():
    asked = []

    def needed(batch):
        asked.append(batch)
        return 2 * GIB + batch * 0.037 * GIB

    assert largest_batch(needed, 16 * GIB, 16) == 378
    assert len(asked) <= 6


def test_what_needs_hardly_any_memory_ends_at_the_largest_that_is_asked():
    assert largest_batch(lambda _: 1.0, 2.0, 4) == LARGEST


def test_the_check_says_what_is_needed_at_the_risk_and_how_likely_it_is_not_enough():
    memory = Interval(10 * GIB, 9 * GIB, 12 * GIB)
    loose, strict = check("GPU", memory, 11 * GIB, 0.2), check("GPU", memory, 11 * GIB, 0.01)
    assert loose.needed_bytes < strict.needed_bytes
    assert loose.fits
    assert not strict.fits
    assert 0.01 < loose.risk == strict.risk < 0.2
    assert "to spare" in loose.sentence
    assert "too little" in strict.sentence
    assert pytest.approx(12 * GIB) == check("GPU", memory, None, 0.05).needed_bytes


def test_an_unknown_memory_fits_neither_well_nor_badly():
    told = check("GPU", Interval(10 * GIB, 9 * GIB, 12 * GIB), None, 0.05)
    assert told.fits is None
    assert told.risk is None
    assert "how much is there is not known" in told.sentence


@pytest.mark.parametrize("risk", [0.0, 1.0, -0.1])
def test_a_risk_that_is_none_is_refused(risk):
    with pytest.raises(InvalidInput, match="a risk of"):
        check("GPU", Interval(1.0, 1.0, 2.0), 3.0, risk)


@pytest.mark.parametrize(
    ("risk", "written"), [(0.0, "less than 0.1%"), (0.011, "1.1%"), (0.5, "50%"), (0.9999, "more than 99.9%")]
)
def test_no_risk_is_written_as_certain(risk, written):
    assert written == percent(risk)
