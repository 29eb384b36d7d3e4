"""Charges are those that the sites' published formulas give."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leadline.catalog.billing import compute_charge
from leadline.core.errors import InvalidInput
from leadline.core.jobs import ResourceSpec
from leadline.core.systems import Billing, BillingRule, NodeType
from leadline.core.units import GIB

OSC = Billing(BillingRule.CORES_AND_GPUS, "USD", core_hour=0.003, gpu_hour=0.09, memory_bytes_per_core=4 * GIB)
NODE = NodeType("gpu", cores=48, memory_bytes=384 * GIB, gpus=2)


def ask(cores=None, gpus=0, nodes=1, memory=None):
    return ResourceSpec(nodes=nodes, cores_per_task=cores, gpus_per_node=gpus, memory_bytes_per_node=memory)


@pytest.mark.parametrize(("dollars", "seconds", "cores"), [(0.0445, 685, 48), (0.0249, 516, 28), (0.0172, 516, 10)])
def test_harps_cost_table_is_reproduced(dollars, seconds, cores):
    assert round(compute_charge(OSC, ask(cores, gpus=1), seconds / 3600, NODE), 4) == dollars


def test_memory_counts_as_cores():
    assert compute_charge(OSC, ask(2, memory=64 * GIB), 1.0, NODE) == pytest.approx(16 * 0.003)


def test_a_job_over_two_nodes_pays_for_whole_nodes():
    assert compute_charge(OSC, ask(4, gpus=1, nodes=2), 1.0, NODE) == pytest.approx(2 * (48 * 0.003 + 2 * 0.09))


def test_service_units_are_nodes_times_the_queue_factor():
    tacc = Billing(BillingRule.NODE_HOURS, "SU", node_hour=1.0, charge_factor=3.0)
    assert compute_charge(tacc, ask(nodes=2), 2.0, NODE) == pytest.approx(12.0)


def test_the_largest_share_decides_in_gpu_hours():
    lumi = Billing(
        BillingRule.GPU_HOURS, "SU", gpu_hour=0.5, cores_per_gpu=8, memory_bytes_per_gpu=64 * GIB, whole_units=True
    )
    assert compute_charge(lumi, ask(8, gpus=1, memory=60 * GIB), 1.0, NODE) == pytest.approx(0.5)
    assert compute_charge(lumi, ask(17, gpus=1), 1.0, NODE) == pytest.approx(1.5)
    assert compute_charge(lumi, ask(1, gpus=1, memory=200 * GIB), 1.0, NODE) == pytest.approx(2.0)


def test_a_minimum_charge_applies_once():
    expanse = Billing(BillingRule.CORE_HOURS, "SU", core_hour=1.0, minimum=1.0)
    assert compute_charge(expanse, ask(1), 0.01, NODE) == 1.0


def test_a_free_queue_costs_nothing_and_an_unknown_rate_is_not_zero():
    assert compute_charge(Billing(BillingRule.NODE_HOURS, "USD", free=True), ask(), 5.0, NODE) == 0.0
    assert compute_charge(Billing(BillingRule.NODE_HOURS, "USD"), ask(), 5.0, NODE) is None
    assert compute_charge(Billing(BillingRule.CORES_AND_GPUS, "USD", core_hour=1.0), ask(1, gpus=1), 1.0, NODE) is None


@pytest.mark.parametrize("hours", [-1.0, float("nan")])
def test_a_negative_time_is_refused(hours):
    with pytest.raises(InvalidInput, match="hours"):
        compute_charge(OSC, ask(1), hours, NODE)


@given(st.integers(1, 48), st.integers(0, 2), st.floats(0, 100), st.floats(0, 100))
def test_more_time_or_more_cores_never_cost_less(cores, gpus, hours, more):
    cost = compute_charge(OSC, ask(cores, gpus), hours, NODE)
    assert cost <= compute_charge(OSC, ask(cores, gpus), hours + more, NODE)
    assert cost <= compute_charge(OSC, ask(cores + 1, gpus), hours, NODE)


TRES = Billing(BillingRule.TRES_SUM, "units", core_hour=1.0, gib_hour=0.25, gpu_hour=15.0)
LARGEST = replace(TRES, rule=BillingRule.TRES_MAX)
BOTH = replace(TRES, rule=BillingRule.TRES_MAX_AND_GPUS)


@pytest.mark.parametrize(("billing", "units"), [(TRES, 4 + 16 + 30), (LARGEST, 30), (BOTH, 16 + 30)])
def test_slurm_weights_are_summed_or_maximized(billing, units):
    """TRESBillingWeights of slurm.conf, on two nodes of 2 cores, 32 GiB and a GPU each."""
    asked = ask(2, gpus=1, nodes=2, memory=32 * GIB)
    assert compute_charge(billing, asked, 1.0, NODE) == units
    assert compute_charge(replace(billing, charge_factor=1.5), asked, 2.0, NODE) == 3 * units


def test_a_job_without_a_memory_request_is_billed_the_default():
    assert compute_charge(replace(TRES, memory_bytes_per_core=4 * GIB), ask(2), 1.0, NODE) == 2 + 0.25 * 8
    assert compute_charge(TRES, ask(2), 1.0, NODE) == 2 + 0.25 * 384
    assert compute_charge(TRES, ask(), 1.0, NODE) == 48 + 0.25 * 384, "what is left open is the whole node"


def test_an_unknown_weighted_amount_leaves_the_price_unknown():
    unknown = NodeType("n")
    assert compute_charge(TRES, ask(2), 1.0, unknown) is None
    assert compute_charge(replace(TRES, gib_hour=None), ask(2), 1.0, unknown) == 2.0


def test_a_price_text_follows_its_rule():
    assert TRES.price_text() == "1 a core + 0.25 a GiB + 15 a GPU (units)"
    assert LARGEST.price_text() == "the most of 1 a core, 0.25 a GiB, 15 a GPU (units)"
    assert BOTH.price_text() == "the most of 1 a core, 0.25 a GiB + 15 a GPU (units)"
    assert (
        replace(TRES, free=True).price_text(),
        Billing(BillingRule.CORE_HOURS, "x").price_text(),
    ) == ("free", "not known")
