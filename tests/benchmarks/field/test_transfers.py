"""Shared links: max-min rates against hand calculations, and real copies over a shaped link."""

import math
from dataclasses import replace

import pytest

from benchmarks.field.fluid_links import FluidPath, SharedPath, max_min_rates
from benchmarks.field.shaped_link import LINK, copies_over_link, why_no_link
from benchmarks.field.transfers import ADAPTIVE, evaluate, rows_of
from leadline.core.units import MIB


def test_max_min_rates_fill_the_links_progressively():
    # Bertsekas and Gallager's kind of example: one flow over both links, one on the first, two on the second.
    rates = max_min_rates([["a", "b"], ["a"], ["b"], ["b"]], {"a": 9.0, "b": 6.0})
    assert rates == pytest.approx([2.0, 7.0, 2.0, 2.0])


def test_a_limited_flow_leaves_its_share_to_the_others_and_weights_count():
    assert max_min_rates([["a"]] * 3, {"a": 9.0}, demands=[1.0, math.inf, math.inf]) == pytest.approx([1.0, 4.0, 4.0])
    assert max_min_rates([["a"]] * 2, {"a": 9.0}, weights=[1.0, 2.0]) == pytest.approx([3.0, 6.0])
    assert max_min_rates([["a"]], {"a": 9.0}, demands=[0.0]) == [0.0]


def test_simulated_copies_follow_their_seed_and_never_exceed_the_capacity():
    path = SharedPath(flows=4)
    first, again, other = (FluidPath(path, seed).run(40) for seed in (1, 1, 2))
    assert first == again != other
    ends = max(copy.ended_s for copy in first)
    assert sum(copy.copy.moved_bytes for copy in first) <= path.capacity_bytes_per_s * ends
    assert all(copy.copy.moved_bytes <= path.capacity_bytes_per_s * copy.copy.elapsed_s for copy in first)
    assert {len(copy.copy.competing_bytes) for copy in first} <= {0, 1, 2, 3}
    assert max(len(copy.copy.competing_bytes) for copy in first) >= 2


def test_a_prediction_uses_only_copies_that_had_ended():
    series = {2: [FluidPath(SharedPath(flows=2), 5).run(12)]}
    errors = evaluate(series)
    assert errors.count == 12 - sum(
        sum(other.ended_s <= copy.started_s for other in series[2][0]) < 2 for copy in series[2][0]
    )
    rows = rows_of("simulated links", series)
    assert {row.n for row in rows} == {errors.count}
    assert rows[0].value == errors.median(ADAPTIVE)


@pytest.fixture(scope="module")
def shaped():
    if why := why_no_link():
        pytest.skip(why)


@pytest.mark.usefixtures("shaped")
def test_real_copies_keep_to_the_rate_of_the_shaped_link():
    path = replace(LINK, flows=2, sizes=(4 * MIB, 8 * MIB), pause_s=0.2, most_cross=0.0)
    copies = [timed.copy for timed in copies_over_link(path, seed=7, copies=6)]
    assert len(copies) == 6
    # The burst of the token bucket may pass at once. Headers take 5 %.
    assert all(copy.moved_bytes / copy.elapsed_s < 1.02 * path.capacity_bytes_per_s for copy in copies)
    assert max(copy.moved_bytes / copy.elapsed_s for copy in copies) > 0.3 * path.capacity_bytes_per_s
    assert all(copy.probe.elapsed_s > 0 and copy.probe.round_trip_s > 0 for copy in copies)
