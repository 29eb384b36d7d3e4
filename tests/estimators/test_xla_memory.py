"""Memory of programs that XLA runs: the compiler's plan, and what JAX leaves of a GPU."""

from dataclasses import replace

import pytest

from leadline.core.graph import OpGraph, StorageCategory, StorageEvent, TracedJob
from leadline.core.hardware import Device, DeviceKind
from leadline.core.units import GIB, MIB
from leadline.core.workload import ModelKind, ModelSource, Workload
from leadline.estimators.device_memory import peak_memory
from leadline.estimators.host_memory import host_memory
from leadline.estimators.whitebox import WhiteBox
from leadline.estimators.xla_memory import assigned, sentence, usable_bytes

A100 = Device("A100", "nvidia", DeviceKind.GPU, 80 * GIB)
TPU = Device("v5e", "google", DeviceKind.TPU, 16 * GIB)
STEP = Workload(ModelSource(ModelKind.JAX_FUNCTION, "step.py:build"))
SCRIPT = replace(STEP, model=ModelSource(ModelKind.COMMAND, "python train.py"))
EVENTS = (
    StorageEvent(0, 1, 10 * MIB, StorageCategory.PARAMETER), StorageEvent(0, 2, 30 * MIB, StorageCategory.ACTIVATION),
    StorageEvent(0, 3, 10 * MIB, StorageCategory.TEMPORARY),
)  # fmt: skip
LOWERED = OpGraph((), EVENTS, source="stablehlo")


def test_what_the_compiler_planned_is_the_peak_and_scales_what_passes():
    compiled = replace(LOWERED, source="hlo", planned_bytes=30 * MIB)
    peak = assigned(compiled, peak_memory(compiled))
    assert (peak.allocated_bytes, peak.reserved_bytes) == (30 * MIB, 30 * MIB)
    assert list(peak.by_category.values()) == [10 * MIB, 15 * MIB, 5 * MIB]


def test_without_a_plan_what_is_alive_is_all_there_is():
    odd = replace(LOWERED, events=(StorageEvent(0, 1, 11 * MIB + 5, StorageCategory.PARAMETER),))
    assert peak_memory(odd).reserved_bytes == 12 * MIB
    assert assigned(odd, peak_memory(odd)).reserved_bytes == 11 * MIB + 5


def test_other_programs_keep_what_their_allocator_reserves():
    traced = replace(LOWERED, source="torch")
    peak = peak_memory(traced)
    assert peak is assigned(traced, peak)


@pytest.mark.parametrize(("workload", "device", "there"), [(STEP, A100, 60 * GIB), (STEP, TPU, 16 * GIB),
                                                           (SCRIPT, A100, 80 * GIB)])  # fmt: skip
def test_jax_takes_three_quarters_of_a_gpu(workload, device, there):
    assert there == usable_bytes(workload, device)
    assert (there != device.memory_bytes) == ("60.0 GiB" in sentence(workload, device))


def test_an_estimate_holds_a_step_of_jax_against_what_it_may_use():
    large = OpGraph((), (StorageEvent(0, 1, 85 * GIB, StorageCategory.ACTIVATION),), source="stablehlo")
    box = WhiteBox(host_memory=host_memory)
    told = box.estimate(STEP, TracedJob(large), A100)
    assert told.device_memory_bytes == 60 * GIB
    assert any("does not fit in 60.0 GiB" in reason for reason in told.basis.reasons)
