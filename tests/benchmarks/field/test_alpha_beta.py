"""The transfer model against copies that were drawn from a known latency and bandwidth."""

import math
import random

import pytest

from benchmarks.field.alpha_beta import fit_transfer
from leadline.core.units import GIB, MIB
from leadline.estimators.file_transfer import MeasuredCopy
from leadline.estimators.student_t import student_90


def drawn(sizes, latency_s, bandwidth, scatter, seed):
    chance = random.Random(seed)  # noqa: S311 - not secret
    return [MeasuredCopy(size, (latency_s + size / bandwidth) * math.exp(chance.gauss(0, scatter))) for size in sizes]


def test_latency_and_bandwidth_come_out_of_copies_without_scatter():
    model = fit_transfer(drawn([1 * MIB, 10 * MIB, 100 * MIB, GIB], 2.0, 50 * MIB, 0.0, 0))
    assert (pytest.approx(model.latency_s, rel=1e-6), pytest.approx(model.seconds_per_byte, rel=1e-6)) == (
        2.0,
        1 / (50 * MIB),
    )
    assert pytest.approx(model.expected_s(2 * GIB).point, rel=1e-3) == 42.96


def test_the_interval_has_its_nominal_coverage():
    sizes = [2 * MIB, 30 * MIB, 200 * MIB, 500 * MIB, GIB, 3 * GIB]
    held, count = 0, 400
    for seed in range(count):
        *known, asked = drawn([*sizes, 700 * MIB], 3.0, 40 * MIB, 0.3, seed)
        found = fit_transfer(known).expected_s(asked.moved_bytes)
        held += found.low <= asked.elapsed_s <= found.high
    assert 0.86 <= held / count <= 0.95


@pytest.mark.parametrize("copies", [[], [MeasuredCopy(GIB, 9.0)], [MeasuredCopy(0, 1.0), MeasuredCopy(GIB, 9.0)]])
def test_too_few_copies_give_no_model(copies):
    assert fit_transfer(copies) is None


def test_a_copy_far_larger_than_all_measured_ones_has_no_prediction():
    model = fit_transfer([MeasuredCopy(GIB, 9.0), MeasuredCopy(2 * GIB, 20.0)])
    assert model.expected_s(30 * GIB) is None
    assert model.expected_s(10 * GIB) is not None


def test_a_smaller_copy_takes_no_longer_than_the_smallest_may_and_that_is_all_that_is_known_of_it():
    model = fit_transfer([MeasuredCopy(GIB, 9.0), MeasuredCopy(GIB, 10.0), MeasuredCopy(2 * GIB, 20.0)])
    assert model.expected_s(MIB).high == model.expected_s(GIB).high


@pytest.mark.parametrize(("freedom", "expected"), [(1, 6.314), (4, 2.132), (5, 2.015), (10, 1.812), (100, 1.660)])
def test_students_t_is_that_of_the_tables(freedom, expected):
    assert expected == pytest.approx(student_90(freedom), abs=2e-3)
