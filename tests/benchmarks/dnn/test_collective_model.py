"""Curves of collectives: followed where measured, carried on by laws with known answers, refused elsewhere."""

import numpy as np
import pytest

from benchmarks.dnn.collective_model import ALL_REDUCE, SEND, Collective, fit_collective_times, load_collective_times
from leadline.core.errors import InvalidInput

SIZES = np.geomspace(2**12, 2**23, 120)


def ring_s(size, devices, start_s=20e-6, rate=100e9):
    return start_s + 2 * (devices - 1) / devices * size / rate


def reduce_of(size, devices=8, link="A", per_node=None, wire=None):
    return Collective(ALL_REDUCE, link, devices, per_node or devices, float(size), wire)


def measured(devices, link="A", sizes=SIZES, wire=None, **law):
    return [(reduce_of(size, devices, link, wire=wire), ring_s(size, devices, **law)) for size in sizes]


def learned(*parts):
    pairs = [pair for part in parts for pair in part]
    return fit_collective_times([case for case, _ in pairs], [seconds for _, seconds in pairs])


def test_a_size_between_measured_ones_lies_on_the_curve():
    times = learned(measured(8))
    assert times.predict([reduce_of(3e6)]).point[0] == pytest.approx(ring_s(3e6, 8), rel=0.01)


def test_times_that_are_proportional_to_size_go_on_so():
    times = learned(measured(8, start_s=1e-9))
    found = times.predict([reduce_of(8 * 2**23)])
    assert found.point[0] == pytest.approx(ring_s(8 * 2**23, 8, start_s=1e-9), rel=0.01)
    assert found.extrapolation[0] > 0


def test_a_bandwidth_that_still_rises_is_drawn_to_that_of_the_wire():
    """A quarter of the last time is start-up, so that the bandwidth at the largest size is not the last word."""
    law = {"start_s": 1e-4, "rate": 50e9}
    plain, wired = (
        learned(measured(8, wire=wire, **law)).predict([reduce_of(2**26, wire=wire)]).point[0] for wire in (None, 100e9)
    )
    assert wired < plain


def test_nothing_is_faster_than_the_wire():
    times = learned(measured(8, wire=100e9, rate=400e9, start_s=5e-4))
    more_s = np.diff(times.predict([reduce_of(2**29), reduce_of(2**30)]).point)[0]
    assert more_s >= 2 * 7 / 8 * 2**29 / 100e9


def test_a_larger_message_never_takes_less_past_the_curve():
    times = learned(measured(4, wire=300e9))
    point = times.predict([reduce_of(size, 4) for size in np.geomspace(2**23, 2**33, 40)]).point
    assert (np.diff(point) > 0).all()


def test_other_numbers_of_devices_in_a_node_follow_the_ring():
    times = learned(measured(2), measured(8))
    found = times.predict([reduce_of(2**22, 4)])
    assert found.point[0] == pytest.approx(ring_s(2**22, 4), rel=0.1)
    assert found.spread[0] > 0


def test_another_link_shows_how_times_change_with_the_number_of_devices():
    """Over B eight devices take three times as long as four; over A, where only 2 and 4 were run, they do too."""
    slower = [(reduce_of(size, 8, "B"), 3 * ring_s(size, 4)) for size in SIZES]
    alone = learned(measured(2), measured(4)).predict([reduce_of(2**22, 8)]).point[0]
    told = learned(measured(2), measured(4), measured(2, "B"), measured(4, "B"), slower)
    assert alone < told.predict([reduce_of(2**22, 8)]).point[0] < 3 * ring_s(2**22, 4)


@pytest.mark.parametrize(
    "asked", [reduce_of(1e6, 8, "C"), reduce_of(1e6, 16, "A", per_node=8), Collective(SEND, "A", 2, 1, 1e6)]
)
def test_a_link_or_layout_that_was_not_measured_is_refused_with_the_reason(asked):
    times = learned(measured(2), measured(8))
    with pytest.raises(InvalidInput, match=f"over {asked.link}, and other links and layouts cannot predict it"):
        times.predict([asked])


def test_one_number_of_devices_does_not_predict_another():
    with pytest.raises(InvalidInput, match="measure a few sizes there first"):
        learned(measured(2)).predict([reduce_of(1e6, 4)])


def test_a_time_of_nothing_is_refused():
    with pytest.raises(InvalidInput, match="took 0 s"):
        fit_collective_times([reduce_of(1e6)], [0.0])


def test_jumps_of_single_times_do_not_move_another_number_of_devices():
    """Times of one device count that jump to half and back say of another what a larger message must at least take."""
    jumpy = [(case, seconds * (0.5 if place % 5 == 0 else 1.0)) for place, (case, seconds) in enumerate(measured(2))]
    plain, jumped = (
        learned(part, measured(8)).predict([reduce_of(size, 4) for size in SIZES[20:100]]).point
        for part in (measured(2), jumpy)
    )
    assert np.ptp(np.diff(np.log(jumped / plain))) < 0.1


def noisy(devices, deviation, seed=0):
    rng = np.random.default_rng(seed)
    return [(case, seconds * float(np.exp(rng.normal(0, deviation)))) for case, seconds in measured(devices)]


@pytest.mark.parametrize("deviation", [0.02, 0.1])
def test_on_a_curve_the_spread_is_the_scatter_of_single_times(deviation):
    """A new time scatters by as much again as the two that the line runs through, in the middle half as much."""
    sizes = np.sqrt(SIZES[1:] * SIZES[:-1])
    found = learned(noisy(8, deviation)).predict([reduce_of(size) for size in sizes])
    assert np.median(found.spread) == pytest.approx(deviation * np.sqrt(1.5), rel=0.35)


def test_a_terabyte_message_has_a_far_wider_spread_than_one_just_past_the_curve():
    times = learned(measured(2), measured(4), measured(8))
    near, far = times.predict([reduce_of(1.1 * SIZES[-1]), reduce_of(1e12)]).spread
    assert 5 * near < far


def test_a_curve_of_start_up_alone_extrapolates_with_a_wider_spread():
    short, long = (
        learned(measured(8, start_s=start_s)).predict([reduce_of(2**27)]).spread[0] for start_s in (1e-7, 1e-3)
    )
    assert 2 * short < long


def test_curves_that_missed_their_own_larger_sizes_extrapolate_with_a_wider_spread():
    """The bandwidth of the second halves in the middle of the sweep, as where a library changes its algorithm."""
    steady = [measured(devices) for devices in (2, 4, 8)]
    changing = [[(case, seconds * (1 + (case.size_bytes > 2**21))) for case, seconds in part] for part in steady]
    doubts = [learned(*parts).predict([reduce_of(2**26)]).spread[0] for parts in (steady, changing)]
    assert 2 * doubts[0] < doubts[1]


def test_the_state_makes_the_same_times():
    times = learned(measured(2), measured(8, wire=300e9))
    asked = [reduce_of(2**22, 2), reduce_of(2**22, 4), reduce_of(2**30, 8)]
    for name in ("point", "spread", "extrapolation"):
        assert (
            getattr(times.predict(asked), name).tolist()
            == getattr(load_collective_times(times.dump()).predict(asked), name).tolist()
        )
