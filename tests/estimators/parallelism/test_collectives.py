"""Collectives follow the ring's law, over the slowest link that the catalog knows of."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leadline.catalog.read import TomlCatalog
from leadline.core.graph import Op, OpGraph, OpKind, Stage
from leadline.core.hardware import Device, DeviceKind
from leadline.estimators.parallelism.collectives import Collective
from leadline.estimators.parallelism.fabric import (
    Ring,
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


def test_groups_that_are_all_smaller_than_the_traced_job_keep_their_sizes():
    ring = Ring(16, 1e9, 0.0)
    ops = (collective("c10d._allgather_base_", 1e9, 4), collective("c10d.all_reduce", 1e9, 2))
    assert exchange_s(ring, OpGraph(ops), traced=8) == pytest.approx(3 / 4 + 2 / 2)


SXM = replace(NVLINK, architecture="Ampere", form_factor="SXM4", scale_up_gpus=8)
CATALOG = TomlCatalog()


@pytest.mark.parametrize(
    ("device", "devices", "collective", "size", "milliseconds"),
    [
        ("A100 SXM4 80GB", 8, Collective.ALL_REDUCE, 2**25, 0.367),
        ("H100 SXM5 80GB", 8, Collective.ALL_REDUCE, 2**25, 0.200),
        ("H200 SXM", 4, Collective.ALL_GATHER, 2**27, 0.345),
        ("B200 SXM", 8, Collective.ALL_TO_ALL, 2**29, 0.834),
        ("GB200 (per GPU)", 4, Collective.REDUCE_SCATTER, 2**27, 0.200),
        ("L40S", 2, Collective.ALL_REDUCE, 2**27, 6.72),
    ],
)
def test_a_measured_link_answers_near_its_measured_time(device, devices, collective, size, milliseconds):
    """The times are NCCL's in aiconfigurator's tables."""
    ring = make_ring(CATALOG.device(device), devices)
    assert 1e3 * ring.collective_s(collective, size) == pytest.approx(milliseconds, rel=0.3)


@pytest.mark.parametrize(
    ("device", "measured"),
    [
        ("H100 SXM5 80GB", True), ("GB200 (per GPU)", True), ("A100 PCIe 80GB", False), ("V100 SXM2 32GB", False),
        ("MI300X", False), ("GH200 96GB (Hopper die)", False), ("L40S", False),
    ],
)  # fmt: skip
def test_another_link_is_not_taken_for_a_measured_one(device, measured):
    ring = make_ring(CATALOG.device(device), 2)
    assert ring.measured == measured
    assert (ring.spread(large=True) > make_ring(SXM, 2).spread(large=True)) != measured


def test_cards_that_meet_at_slots_are_the_least_certain():
    assert make_ring(PCIE, 4).spread(large=True) > 3 * make_ring(CATALOG.device("MI300X"), 4).spread(large=True)


@given(
    st.integers(2, 72), st.sampled_from(list(Collective)), st.floats(1, 1e11), st.floats(1.01, 100),
    st.sampled_from([SXM, PCIE, CATALOG.device("GB200 (per GPU)"), CATALOG.device("MI300X")]),
)  # fmt: skip
def test_more_bytes_or_devices_never_take_less(devices, collective, size, times, device):
    seconds = make_ring(device, devices).collective_s(collective, size)
    assert seconds <= make_ring(device, devices).collective_s(collective, size * times)
    if devices < (device.scale_up_gpus or 72):
        assert seconds <= make_ring(device, devices + 1).collective_s(collective, size)


@given(st.integers(2, 72), st.sampled_from(list(Collective)), st.floats(1e6, 1e11))
def test_no_link_carries_more_than_its_rate(devices, collective, size):
    """In the fabric of switches that sum, an all-reduce sends each byte once."""
    ring = make_ring(CATALOG.device("GB200 (per GPU)"), devices)
    carried = size if collective in (Collective.ALL_REDUCE, Collective.SEND) else (devices - 1) / devices * size
    assert ring.collective_s(collective, size) > carried / 900e9


def test_traced_collectives_take_the_time_of_their_kind():
    ring = make_ring(SXM, 8)
    for name, kind in (
        ("c10d.allreduce_", Collective.ALL_REDUCE), ("c10d._reduce_scatter_base_", Collective.REDUCE_SCATTER),
        ("c10d.alltoall_base_", Collective.ALL_TO_ALL), ("c10d._allgather_base_", Collective.ALL_GATHER),
        ("_c10d_functional.all_to_all_single", Collective.ALL_TO_ALL),
    ):  # fmt: skip
        assert exchange_s(ring, OpGraph((collective(name, 1e8, 8),))) == ring.collective_s(kind, 1e8)


def test_a_small_message_between_many_nodes_takes_a_tree_and_a_large_one_a_ring():
    ring = Ring(512, 100e9, 3e-6, nodes=64)
    assert ring.all_reduce_s(1e3) < 2 * ring.hops_s / 4
    assert ring.all_reduce_s(1e12) == pytest.approx(2 * (ring.hops_s + 511 / 512 * 1e12 / 100e9))


def test_rings_that_share_a_network_share_its_bandwidth():
    alone, shared = (make_ring(NVLINK, 4, nodes=4, node_bytes_per_s=25e9, sharing=n) for n in (1, 8))
    assert shared.bytes_per_s == pytest.approx(alone.bytes_per_s / 8)
