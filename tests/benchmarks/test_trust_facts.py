"""The rows about facts and about a busy machine."""

import pytest

from benchmarks.corpus import CORPUS
from benchmarks.trust import facts
from benchmarks.trust.busy import QUICK_SCRIPTS, BusyEstimate, busy_rows
from leadline.core.estimate import Basis, Estimate, Interval, Target, Tier


def estimate(point, *, memory=8.0):
    elapsed = None if point is None else Interval(point, point / 2, point * 2)
    host = Interval(memory, memory, memory + 1)
    return Estimate(
        Target("A100"), "made", Basis(Tier.SPECS), elapsed_s=elapsed, step_s=elapsed, host_memory_bytes=host
    )


@pytest.mark.parametrize(
    ("busy", "moved"),
    [
        (estimate(19.0), ()),
        (estimate(21.0), ("elapsed_s", "step_s")),
        (estimate(4.0, memory=7.0), ("elapsed_s", "step_s", "host_memory_bytes")),
        (estimate(None), ("elapsed_s", "step_s")),
    ],
)
def test_a_busy_estimate_outside_the_idle_interval_is_counted_by_its_quantity(busy, moved):
    pair = BusyEstimate("unet", estimate(10.0), busy)
    assert pair.moved == moved
    count, _ = busy_rows([pair, BusyEstimate("vae", estimate(3.0), estimate(3.0))], 4)
    assert (count.value, count.met, count.n) == (bool(moved), not moved, 2)
    assert ("unet (" in count.how) == bool(moved)


def test_the_largest_ratio_counts_in_both_directions():
    pairs = [BusyEstimate("a", estimate(2.0), estimate(3.0)), BusyEstimate("b", estimate(4.0), estimate(2.0))]
    assert busy_rows(pairs, 4)[1].value == 2.0


def test_the_scripts_are_in_the_corpus():
    assert set(QUICK_SCRIPTS) <= {script.name for script in CORPUS}


def test_the_rows_without_a_trace_meet_their_targets():
    for row in (facts.bare_numbers(), facts.programs(), facts.probes(), facts.invented_loading()):
        assert row.met, row
