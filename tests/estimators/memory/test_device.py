"""The allocator model keeps the caching allocator's rules, and the peak is that of the events."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leadline.core.graph import OpGraph, StorageCategory, StorageEvent, TracedJob
from leadline.core.hardware import Device, DeviceKind
from leadline.core.units import GIB, MIB
from leadline.core.workload import ModelKind, ModelSource, Workload
from leadline.estimators.memory import device
from leadline.estimators.memory.allocator import CachingAllocator, OutOfMemory
from leadline.estimators.memory.device import (
    apply_xla_plan,
    concatenate_steps,
    describe_jax_memory,
    device_memory_graphs,
    find_least_memory,
    memory_timeline,
    peak_memory,
    usable_bytes,
)
from leadline.estimators.memory.host import host_memory
from leadline.estimators.white_box import WhiteBox

GPU = Device("A100", "nvidia", DeviceKind.GPU, architecture="Ampere")
SIZES = st.lists(st.tuples(st.integers(1, 64 * MIB), st.booleans()), max_size=60)


def graph(*sizes):
    """Make a graph of events: positive takes under the next name, negative gives that name back."""
    names, events = [], []
    for size in sizes:
        if size > 0:
            names.append(size)
            events.append(StorageEvent(0, len(names), size, StorageCategory.ACTIVATION))
        else:
            events.append(StorageEvent(0, -size, -names[-size - 1], StorageCategory.ACTIVATION))
    return OpGraph((), tuple(events))


def test_small_tensors_share_a_segment_of_two_mebibytes():
    assert peak_memory(graph(*[512] * 100)).reserved_bytes == 2 * MIB


def test_middle_tensors_come_from_segments_of_twenty_mebibytes():
    assert peak_memory(graph(3 * MIB, 3 * MIB)).reserved_bytes == 20 * MIB


def test_large_tensors_get_their_own_segment_rounded_to_two_mebibytes():
    assert peak_memory(graph(31 * MIB)).reserved_bytes == 32 * MIB


def test_freed_memory_is_taken_again():
    assert peak_memory(graph(32 * MIB, -1, 32 * MIB)).reserved_bytes == 32 * MIB


def test_a_small_tensor_in_a_freed_large_block_leaves_the_rest_free():
    assert peak_memory(graph(40 * MIB, -1, 12 * MIB, 28 * MIB)).reserved_bytes == 40 * MIB


def test_the_peak_is_split_by_category():
    events = (
        StorageEvent(0, 1, 10 * MIB, StorageCategory.PARAMETER),
        StorageEvent(0, 2, 30 * MIB, StorageCategory.ACTIVATION),
        StorageEvent(1, 2, -30 * MIB, StorageCategory.ACTIVATION),
        StorageEvent(1, 3, 5 * MIB, StorageCategory.GRADIENT),
    )
    held = {kind: size for kind, size in peak_memory(OpGraph((), events)).by_category.items() if size}
    assert held == {StorageCategory.PARAMETER: 10 * MIB, StorageCategory.ACTIVATION: 30 * MIB}


@given(SIZES)
def test_reserved_covers_allocated_and_everything_can_be_given_back(steps):
    allocator, held = CachingAllocator(), []
    for size, give in steps:
        if give and held:
            allocator.release(held.pop(size % len(held)))
        held.append(allocator.allocate(size))
        assert allocator.allocated_bytes <= allocator.reserved_bytes
    for block in held:
        allocator.release(block)
    assert allocator.allocated_bytes == 0


@given(SIZES)
def test_fully_freed_blocks_serve_the_same_requests_again(steps):
    allocator = CachingAllocator()
    for _ in range(2):
        blocks = [allocator.allocate(size) for size, _ in steps]
        reserved = allocator.reserved_bytes
        for block in blocks:
            allocator.release(block)
    assert reserved == allocator.peak_reserved_bytes


def test_growing_segments_take_no_gaps_between_tensors_of_many_sizes():
    sizes = [30 * MIB, 31 * MIB, 33 * MIB, 37 * MIB]
    steps = [*sizes, -1, -2, -3, -4, 65 * MIB, 64 * MIB]
    fixed, growing = (peak_memory(graph(*steps), expandable=case).reserved_bytes for case in (False, True))
    assert growing <= 140 * MIB < fixed


@given(SIZES)
def test_growing_segments_keep_the_books_too(steps):
    allocator, held = CachingAllocator(expandable=True), []
    for size, give in steps:
        if give and held:
            allocator.release(held.pop(size % len(held)))
        held.append(allocator.allocate(size))
        assert allocator.allocated_bytes <= allocator.reserved_bytes
    for block in held:
        allocator.release(block)
    assert allocator.allocated_bytes == 0
    allocator._flush()
    assert allocator.reserved_bytes < 22 * MIB  # less than a page of each pool


@given(SIZES, st.booleans())
def test_a_step_runs_in_its_least_memory_and_never_in_less_than_its_tensors(steps, expandable):
    sizes, held = [], []
    for number, (size, give) in enumerate(steps):
        sizes.append(size)
        held.append(len([case for case in sizes if case > 0]))
        if give and number % 3 == 2:
            sizes.append(-held.pop(size % len(held)))
    step = graph(*sizes)
    peak = peak_memory(step, expandable=expandable)
    least = find_least_memory(step, peak, expandable=expandable)
    assert peak.allocated_bytes <= least <= peak.reserved_bytes
    for _ in device._replay(device._allocation_moves(step), CachingAllocator(expandable=expandable, limit_bytes=least)):
        pass


def test_cached_segments_are_released_when_memory_is_short():
    step = graph(40 * MIB, -1, 60 * MIB)
    peak = peak_memory(step)
    assert peak.reserved_bytes == 100 * MIB
    assert find_least_memory(step, peak) < 61 * MIB
    allocator = CachingAllocator(limit_bytes=70 * MIB)
    allocator.release(allocator.allocate(40 * MIB))
    allocator.allocate(60 * MIB)
    assert allocator.flushes == 1
    with pytest.raises(OutOfMemory):
        allocator.allocate(20 * MIB)


def test_the_timeline_shows_the_fullest_moment_of_each_part():
    events = []
    for number in range(1000):
        events += [StorageEvent(number, number, (1 + number % 7) * MIB, StorageCategory.ACTIVATION)]
        events += [StorageEvent(number, number, -(1 + number % 7) * MIB, StorageCategory.ACTIVATION)]
    weights = StorageEvent(0, -1, 3 * MIB, StorageCategory.PARAMETER)
    moments = memory_timeline(OpGraph((), (weights, *events)), 50)
    assert len(moments) == 50
    assert all(moment.total_bytes == 10 * MIB for moment in moments)
    assert sorted(moment.share for moment in moments) == [moment.share for moment in moments]
    assert peak_memory(OpGraph((), (weights, *events))).allocated_bytes == max(moment.total_bytes for moment in moments)


def step(*sizes):
    """Make a step over a weight of 8 MiB that takes each size in turn and gives all back at its end."""
    weight = StorageEvent(0, 1, 8 * MIB, StorageCategory.PARAMETER)
    taken = [StorageEvent(0, n, size, StorageCategory.ACTIVATION) for n, size in enumerate(sizes, 2)]
    given = [StorageEvent(1, case.storage, -case.size_bytes, case.category) for case in taken]
    return OpGraph((), (weight, *taken, *given))


def test_steps_that_follow_one_another_share_the_weights():
    both = peak_memory(concatenate_steps((step(10 * MIB), step(30 * MIB))))
    assert both.allocated_bytes == 38 * MIB
    assert both.by_category[StorageCategory.PARAMETER] == 8 * MIB


def test_blocks_of_a_shorter_step_are_too_small_for_a_longer_one():
    """Two tensors of 20 MiB, then two of 30 MiB: nothing that was freed holds the latter, and all stays reserved."""
    short, long = step(20 * MIB, 20 * MIB), step(30 * MIB, 30 * MIB)
    alone, after = (peak_memory(concatenate_steps(case)) for case in ((long,), (short, long)))
    assert alone.allocated_bytes == after.allocated_bytes
    assert after.reserved_bytes - alone.reserved_bytes == 40 * MIB


def test_a_shorter_step_after_a_longer_one_takes_its_blocks():
    short, long = step(20 * MIB, 20 * MIB), step(30 * MIB, 30 * MIB)
    assert peak_memory(long).reserved_bytes == peak_memory(concatenate_steps((long, short))).reserved_bytes


def test_storages_that_the_next_step_lacks_are_freed():
    lost = OpGraph((), (*step(10 * MIB).events, StorageEvent(1, 9, 50 * MIB)))
    after = concatenate_steps((lost, step(10 * MIB)))
    assert peak_memory(lost).allocated_bytes + 10 * MIB == 68 * MIB
    assert peak_memory(after).allocated_bytes == 58 * MIB


def test_a_job_of_batches_of_different_sizes_needs_the_largest():
    job = TracedJob(step(10 * MIB), longer=(step(20 * MIB), step(30 * MIB)))
    assert [peak_memory(peak_graph).allocated_bytes for peak_graph in device_memory_graphs(job, GPU)] == [38 * MIB]


A100 = Device("A100", "nvidia", DeviceKind.GPU, 80 * GIB)
TPU = Device("v5e", "google", DeviceKind.TPU, 16 * GIB)
STEP = Workload(ModelSource(ModelKind.JAX_FUNCTION, "step.py:build"))
SCRIPT = replace(STEP, model=ModelSource(ModelKind.COMMAND, "python train.py"))
EVENTS = (
    StorageEvent(0, 1, 10 * MIB, StorageCategory.PARAMETER), StorageEvent(0, 2, 30 * MIB, StorageCategory.ACTIVATION),
    StorageEvent(0, 3, 10 * MIB, StorageCategory.TEMPORARY),
)  # fmt: skip
LOWERED = OpGraph((), EVENTS, source="stablehlo")


def test_the_compilers_plan_is_the_peak_and_scales_temporaries():
    compiled = replace(LOWERED, source="hlo", planned_bytes=30 * MIB)
    peak = apply_xla_plan(compiled, peak_memory(compiled))
    assert (peak.allocated_bytes, peak.reserved_bytes) == (30 * MIB, 30 * MIB)
    assert list(peak.by_category.values()) == [10 * MIB, 15 * MIB, 5 * MIB]


def test_without_a_plan_the_peak_is_the_live_bytes():
    odd = replace(LOWERED, events=(StorageEvent(0, 1, 11 * MIB + 5, StorageCategory.PARAMETER),))
    assert peak_memory(odd).reserved_bytes == 12 * MIB
    assert apply_xla_plan(odd, peak_memory(odd)).reserved_bytes == 11 * MIB + 5


def test_other_programs_keep_their_allocators_reserve():
    traced = replace(LOWERED, source="torch")
    peak = peak_memory(traced)
    assert peak is apply_xla_plan(traced, peak)


@pytest.mark.parametrize(("workload", "device", "there"), [(STEP, A100, 60 * GIB), (STEP, TPU, 16 * GIB),
                                                           (SCRIPT, A100, 80 * GIB)])  # fmt: skip
def test_jax_takes_three_quarters_of_a_gpu(workload, device, there):
    assert there == usable_bytes(workload, device)
    assert (there != device.memory_bytes) == ("60.0 GiB" in describe_jax_memory(workload, device))


def test_an_estimate_compares_a_jax_step_with_its_usable_memory():
    large = OpGraph((), (StorageEvent(0, 1, 85 * GIB, StorageCategory.ACTIVATION),), source="stablehlo")
    box = WhiteBox(host_memory=host_memory)
    told = box.estimate(STEP, TracedJob(large), A100)
    assert told.device_memory_bytes == 60 * GIB
    assert any("does not fit in 60.0 GiB" in reason for reason in told.basis.reasons)
