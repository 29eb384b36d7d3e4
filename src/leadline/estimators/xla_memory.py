"""Device memory of a program that XLA runs: what its compiler plans, and how much JAX leaves to it.

XLA assigns all buffers of a program before it runs, temporary ones within one block; nothing of PyTorch's allocator is
at work. JAX takes three quarters of a GPU when it starts and no more later, whatever a program needs ("GPU memory
allocation" in its documentation); a TPU's memory is all its own.
"""

from leadline.core.graph import OpGraph, StorageCategory
from leadline.core.hardware import Device, DeviceKind
from leadline.core.units import format_bytes
from leadline.core.workload import ModelKind, Workload
from leadline.estimators.device_memory import PeakMemory

TAKEN = 0.75
"""Share of a GPU that JAX takes (``XLA_PYTHON_CLIENT_MEM_FRACTION``, ``XLA_CLIENT_MEM_FRACTION`` in newer releases)."""
DIALECTS = ("stablehlo", "hlo")
"""Sources of graphs that XLA runs."""
STANDING = (StorageCategory.PARAMETER, StorageCategory.OPTIMIZER_STATE, StorageCategory.INPUT)


def assigned(graph: OpGraph, peak: PeakMemory) -> PeakMemory:
    """Return the peak of a graph as XLA has it: what its compiler planned or what is alive, with nothing beside.

    The plan's temporary memory is told by category as what was alive of it was.
    """
    if graph.source not in DIALECTS:
        return peak
    if graph.planned_bytes is None:
        return PeakMemory(peak.allocated_bytes, peak.allocated_bytes, peak.by_category, peak.by_stage)
    standing = {kind: size for kind, size in peak.by_category.items() if kind in STANDING and size}
    passing = {kind: size for kind, size in peak.by_category.items() if kind not in STANDING and size}
    left = max(graph.planned_bytes - sum(standing.values()), 0)
    alive = sum(passing.values())
    told = {kind: int(size * left / alive) for kind, size in passing.items()} or {StorageCategory.TEMPORARY: left}
    return PeakMemory(graph.planned_bytes, graph.planned_bytes, {**standing, **told}, peak.by_stage)


def usable_bytes(workload: Workload, device: Device) -> int | None:
    """Return how much of a device's memory a job can use, where that is known."""
    if device.memory_bytes is None or not _is_taken(workload, device):
        return device.memory_bytes
    return int(TAKEN * device.memory_bytes)


def sentence(workload: Workload, device: Device) -> str:
    """Return what JAX does with a GPU's memory; nothing for other jobs and devices."""
    if device.memory_bytes is None or not _is_taken(workload, device):
        return ""
    return (
        f"JAX takes {format_bytes(TAKEN * device.memory_bytes)} of the device at its start, as nvidia-smi shows, and "
        "no more (XLA_PYTHON_CLIENT_MEM_FRACTION)"
    )


def _is_taken(workload: Workload, device: Device) -> bool:
    return workload.model.kind is ModelKind.JAX_FUNCTION and device.kind is DeviceKind.GPU
