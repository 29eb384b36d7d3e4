"""Collectives follow the ring's law, over the slowest link that the catalog knows of."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leadline.core.graph import Op, OpGraph, OpKind, Stage
from leadline.core.hardware import Device, DeviceKind
from leadline.estimators.parallelism.fabric import (
    Ring,
    all_reduce_curve,
    exchange_s,
    make_ring,
)

NVLINK = Device("A100", "nvidia", DeviceKind.GPU, link_bytes_per_s=600e9, pcie_generation=4)
PCIE = Device("T4", "nvidia", DeviceKind.GPU, pcie_generation=3)


def test_one_device_exchanges_nothing():
    assert make_ring(NVLINK, 1).all_reduce_s(1e9) == 0


def test_a_large_all_reduce_moves_nearly_twice_the_data():
    assert Ring(8, 1e9, 1e-6).all_reduce_s(1e10) == pytest.approx(2 * 7 / 8 * 1e10 / 1e9, rel=1e-3)


@given(st.integers(2, 512), st.floats(1, 1e11))
def test_a_gather_is_half_a_reduction(devices, size):
    ring = Ring(devices, 1e10, 1e-5)
    assert ring.all_reduce_s(size) == pytest.approx(2 * ring.all_gather_s(size))


def test_the_device_link_is_faster_than_its_slot():
    assert make_ring(NVLINK, 4).all_reduce_s(1e9) < make_ring(PCIE, 4).all_reduce_s(1e9)


def test_crossing_nodes_is_no_faster_than_staying():
    inside, across = make_ring(NVLINK, 8), make_ring(NVLINK, 8, nodes=2, node_bytes_per_s=12.5e9)
    assert inside.all_reduce_s(1e9) < across.all_reduce_s(1e9)


def collective(name, size, ranks):
    dims = {"bytes": int(size), "ranks": ranks}
    return Op(name, OpKind.COMMUNICATION, Stage.BACKWARD, "float32", 0.0, size, size, dims=dims)


def test_a_sharded_step_pays_for_its_gathers_and_not_for_its_shard_of_the_weights():
    ring = Ring(4, 1e9, 0.0)
    ops = (collective("c10d._allgather_base_", 4e9, 4), collective("c10d._reduce_scatter_base_", 4e9, 4))
    assert exchange_s(ring, OpGraph(ops, parameter_bytes=1_000_000_000)) == pytest.approx(2 * 3 / 4 * 4)


def test_a_step_of_one_process_reduces_its_gradients_once():
    ring = Ring(4, 1e9, 0.0)
    assert ring.all_reduce_s(4e9) == exchange_s(ring, OpGraph((), parameter_bytes=4_000_000_000))


def test_the_largest_group_is_the_whole_job_and_a_smaller_one_keeps_its_size():
    ring = Ring(16, 1e9, 0.0)
    ops = (collective("c10d.all_reduce", 1e9, 8), collective("c10d._allgather_base_", 1e9, 2))
    assert exchange_s(ring, OpGraph(ops)) == pytest.approx(2 * 15 / 16 + 1 / 2)


SXM = replace(NVLINK, architecture="Ampere", form_factor="SXM4")


def test_a_node_that_was_measured_answers_with_the_measured_time():
    """Vidur's profile of eight A100s: 16 MiB take 0.27 ms."""
    assert make_ring(SXM, 8).all_reduce_s(2**24) == pytest.approx(270e-6, rel=0.01)


@pytest.mark.parametrize("other", [replace(SXM, form_factor="PCIe"), replace(SXM, link_bytes_per_s=400e9), PCIE])
def test_another_link_is_not_taken_for_the_measured_one(other):
    assert all_reduce_curve(other, 8) == ()


def test_measured_times_belong_to_their_number_of_devices():
    assert all_reduce_curve(SXM, 8)
    assert all_reduce_curve(SXM, 6) == ()


@given(st.integers(2, 9), st.floats(1, 1e11), st.floats(1.01, 100))
def test_more_bytes_never_take_less(devices, size, times):
    ring = make_ring(SXM, devices)
    assert ring.all_reduce_s(size) <= ring.all_reduce_s(size * times)


def test_messages_larger_than_measured_continue_at_the_link_rate():
    ring = make_ring(SXM, 8)
    more_s = ring.all_reduce_s(4e9) - ring.all_reduce_s(2e9)
    assert more_s == pytest.approx(2 * 7 / 8 * 2e9 / (300e9 * 0.75))


def test_a_small_message_between_many_nodes_takes_a_tree_and_a_large_one_a_ring():
    ring = Ring(512, 100e9, 3e-6, nodes=64)
    assert ring.all_reduce_s(1e3) < 2 * ring.hops_s / 4
    assert ring.all_reduce_s(1e12) == pytest.approx(2 * (ring.hops_s + 511 / 512 * 1e12 / 100e9))


def test_rings_that_share_a_network_share_its_bandwidth():
    alone, shared = (make_ring(NVLINK, 4, nodes=4, node_bytes_per_s=25e9, sharing=n) for n in (1, 8))
    assert shared.bytes_per_s == pytest.approx(alone.bytes_per_s / 8)
