from dataclasses import replace

import pytest

from leadline.core.graph import LoopFacts, OpGraph, StorageCategory, StorageEvent, TracedJob
from leadline.core.hardware import Device, DeviceKind
from leadline.core.workload import Dataset, ModelKind, ModelSource, Parallelism, Phase, Precision, Sharding, Workload
from leadline.estimators.memory.host import (
    CHECKPOINT_PART,
    CPU_HIGH_FACTOR,
    CPU_LOW_FACTOR,
    CUDA_HOST_BYTES,
    DEFAULT_HOST_BYTES,
    PINNED_PART,
    WORKER_BYTES,
    data_parts,
    describe_pinning_assumption,
    host_memory,
    host_parts,
    staging_bytes,
)

MODEL = ModelSource(ModelKind.FUNCTION, "model.py:build")
CPU = Device("cpu", "AMD", DeviceKind.CPU)
GPU = Device("gpu", "NVIDIA", DeviceKind.GPU)


def job(size):
    return TracedJob(OpGraph((), (StorageEvent(0, 1, size),), parameter_bytes=size))


def test_on_a_cpu_the_tensors_live_on_the_host():
    small, large = (host_memory(Workload(MODEL), job(size), CPU).point for size in (0, 10**9))
    assert pytest.approx(large - small, rel=1e-3) == 10**9
    assert (
        sum(DEFAULT_HOST_BYTES[part] for part in ("interpreter_bytes", "framework_bytes", "first_step_bytes")) == small
    )


def test_the_scripts_imports_and_data_are_added():
    traced = TracedJob(OpGraph(()), LoopFacts(script_bytes=7 * 10**7))
    bare = host_memory(Workload(MODEL), TracedJob(OpGraph(())), CPU).point
    assert host_memory(Workload(MODEL), traced, CPU).point - bare == 7 * 10**7


def test_the_peak_may_be_while_the_script_reads_its_data():
    read = TracedJob(OpGraph(()), LoopFacts(script_bytes=10**8, script_peak_bytes=10**9))
    point = host_memory(Workload(MODEL), read, CPU).point
    assert point == 10**9 + DEFAULT_HOST_BYTES["interpreter_bytes"] + DEFAULT_HOST_BYTES["framework_bytes"]
    trained = replace(read, step=job(3 * 10**9).step)
    assert host_memory(Workload(MODEL), trained, CPU).point > 3.1e9


def test_the_start_of_the_scripts_own_python_counts_on_a_cpu():
    traced = TracedJob(OpGraph(()), LoopFacts(start_up={"framework_bytes": 600e6}))
    more = 600e6 - DEFAULT_HOST_BYTES["framework_bytes"]
    for device, expected in ((CPU, more), (GPU, 0)):
        bare = host_memory(Workload(MODEL), TracedJob(OpGraph(())), device).point
        assert host_memory(Workload(MODEL), traced, device).point - bare == expected


def test_a_compiler_that_the_script_imports_counts_once():
    start_up = {"first_step_bytes": 180e6, "compiler_bytes": 160e6}
    imported, later = (
        host_memory(Workload(MODEL), TracedJob(OpGraph(()), LoopFacts(start_up=start_up, loads_compiler=loads)), CPU)
        for loads in (True, False)
    )
    assert later.point - imported.point == 160e6


def test_inference_loads_fewer_kernels_than_training():
    training, inference = (host_memory(Workload(MODEL, phase), job(0), CPU).point for phase in Phase)
    assert inference < training


def test_the_host_of_a_gpu_holds_its_context_and_the_weights():
    expected = DEFAULT_HOST_BYTES["interpreter_bytes"] + DEFAULT_HOST_BYTES["framework_bytes"] + CUDA_HOST_BYTES + 5e8
    assert expected == host_memory(Workload(MODEL), job(5 * 10**8), GPU).point


def test_workers_and_a_data_set_held_in_memory_are_counted():
    data = Dataset(samples=1000, bytes_per_sample=10**6, workers=2, held_in_memory=True)
    bare = host_memory(Workload(MODEL), job(0), CPU).point
    full = host_memory(Workload(MODEL, batch=8, dataset=data), job(0), CPU).point
    assert full - bare == 10**9 + 2 * (WORKER_BYTES + 2 * 8 * 10**6)


def test_a_larger_batch_of_evaluation_raises_the_peak():
    step = OpGraph((), (StorageEvent(0, 1, 10**8), StorageEvent(1, 2, 10**8), StorageEvent(2, 2, -(10**8))))
    passing = (StorageEvent(0, 1, 10**8), StorageEvent(1, 2, 4 * 10**8), StorageEvent(2, 2, -4 * 10**8))
    alone, both = TracedJob(step), TracedJob(step, evaluation=OpGraph((), passing))
    without, with_it = (host_memory(Workload(MODEL), case, CPU).point for case in (alone, both))
    assert pytest.approx(with_it - without, rel=0.1) == 3 * 10**8


def test_the_build_peak_counts_if_no_step_needs_more():
    traced = job(10**8)
    plain, built = (
        host_memory(Workload(MODEL), replace(traced, loop=LoopFacts(built_bytes=size)), CPU).point
        for size in (None, 3 * 10**8)
    )
    assert pytest.approx(built - plain, rel=0.01) == 2 * 10**8
    assert plain == host_memory(Workload(MODEL), replace(traced, loop=LoopFacts(built_bytes=5 * 10**7)), CPU).point


def test_weights_of_two_bytes_are_built_in_four_and_cast_one_after_another():
    sizes = (4 * 10**8, 10**8)
    events = tuple(StorageEvent(0, n, size, StorageCategory.PARAMETER) for n, size in enumerate(sizes))
    traced = TracedJob(OpGraph((), events, parameter_bytes=sum(sizes)))
    whole, cast = (
        host_memory(Workload(MODEL, Phase.INFERENCE, precision=case), traced, CPU).point
        for case in (Precision.FP32, Precision.BF16)
    )
    assert 2 * sum(sizes) + max(sizes) - sum(sizes) == pytest.approx(cast - whole, rel=0.01)
    on_gpu = [
        host_memory(Workload(MODEL, Phase.INFERENCE, precision=case), traced, GPU).point
        for case in (Precision.FP32, Precision.BF16)
    ]
    assert sum(sizes) == on_gpu[1] - on_gpu[0]


def test_the_interval_is_one_sided_as_the_measured_processes_ask():
    told = host_memory(Workload(MODEL), job(10**9), CPU)
    assert pytest.approx((told.low / told.point, told.high / told.point)) == (CPU_LOW_FACTOR, CPU_HIGH_FACTOR)
    assert CPU_HIGH_FACTOR - 1 > 1 - CPU_LOW_FACTOR


def fed(**facts):
    return TracedJob(OpGraph(()), LoopFacts(batch=10, bytes_per_sample=300, loader_workers=4, **facts))


def test_pinned_batches_are_rounded_to_powers_of_two_for_each_tensor():
    """Four workers with three batches ahead each, and the one in use; tensors of 2,000 and 1,000 bytes."""
    parts = data_parts(Workload(MODEL), fed(pinned=True, prefetch=3, batch_tensor_bytes=(2000, 1000)), on_gpu=True)
    assert parts[PINNED_PART] == (4 * 3 + 1) * (2048 + 1024)


def test_without_workers_the_batch_in_use_and_the_next_one_are_pinned():
    job = TracedJob(OpGraph(()), LoopFacts(batch=10, bytes_per_sample=300, batch_tensor_bytes=(3000,)))
    assert data_parts(Workload(MODEL), job, on_gpu=True)[PINNED_PART] == 2 * 4096


@pytest.mark.parametrize(("pinned", "on_gpu"), [(False, True), (True, False), (None, False)])
def test_nothing_is_pinned_without_a_gpu_or_where_the_script_does_not(pinned, on_gpu):
    parts = data_parts(Workload(MODEL), fed(pinned=pinned), on_gpu=on_gpu)
    assert PINNED_PART not in parts
    assert parts["batches ahead"] == 4 * 2 * 3000


def test_workers_copy_the_python_objects_of_a_data_set():
    parts = data_parts(Workload(MODEL), fed(object_bytes=10**6), on_gpu=True)
    assert parts["objects of the data set, copied by workers"] == 4 * 10**6


def test_pinned_batches_are_as_large_as_those_of_the_largest_step():
    graphs = [OpGraph((), (StorageEvent(0, 1, size, StorageCategory.INPUT),)) for size in (100, 5000)]
    job = TracedJob(graphs[0], longer=(graphs[1],))
    assert data_parts(Workload(MODEL), job, on_gpu=True)[PINNED_PART] == 2 * 8192


def saved(sharding=Sharding.NONE, phase=Phase.TRAINING):
    events = (
        StorageEvent(0, 1, 400, StorageCategory.PARAMETER),
        StorageEvent(0, 2, 800, StorageCategory.OPTIMIZER_STATE),
        StorageEvent(0, 3, 9000, StorageCategory.ACTIVATION),
    )
    workload = Workload(MODEL, phase, gpus=4, parallelism=Parallelism(sharding=sharding))
    return staging_bytes(workload, TracedJob(OpGraph((), events, parameter_bytes=4000)))


def test_a_checkpoint_is_copied_to_the_host_storage_by_storage():
    assert saved() == 800


def test_weights_in_shards_are_gathered_to_be_saved_and_inference_saves_nothing():
    assert (saved(Sharding.FULL), saved(phase=Phase.INFERENCE)) == (4000, 0)


def test_the_host_holds_the_weights_first_and_loader_batches_later():
    many = Dataset(samples=10, bytes_per_sample=10**6, workers=8)
    few = Dataset(samples=10, bytes_per_sample=1, workers=1)
    first, later = (host_parts(Workload(MODEL, batch=64, dataset=case), job(10**8), GPU) for case in (few, many))
    assert "weights while they are built" in first
    assert CHECKPOINT_PART not in first
    assert PINNED_PART in later
    assert "weights while they are built" not in later


def test_parts_add_up_to_the_point():
    for device in (CPU, GPU):
        parts = host_parts(Workload(MODEL), job(10**9), device)
        assert sum(parts.values()) == pytest.approx(host_memory(Workload(MODEL), job(10**9), device).point)


@pytest.mark.parametrize(("pinned", "size", "said"), [(None, 10**8, True), (True, 10**8, False), (None, 10, False)])
def test_assumed_pinning_is_reported_where_it_matters(pinned, size, said):
    asked = TracedJob(OpGraph(()), LoopFacts(batch=1, batch_tensor_bytes=(size,), pinned=pinned))
    assert said == bool(describe_pinning_assumption(asked, host_parts(Workload(MODEL), asked, GPU)))
