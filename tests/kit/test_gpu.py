"""What is done with a GPU alone, on a stand-in for ``torch.cuda`` that keeps its contract, where there is no GPU."""

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from leadline.kit import KitError, machine
from leadline.kit.design import MeasurementPoint
from leadline.kit.measure import PointMeasurer
from leadline.kit.memory import DeviceMemory
from leadline.kit.timing import TimingLimits

MIB = 2**20


class Cuda:
    """An allocator that keeps what it was given until it is emptied, and peaks until they are reset."""

    OutOfMemoryError = torch.OutOfMemoryError

    def __init__(self, *, name="NVIDIA A100-SXM4-40GB", capability=(8, 0)):
        self.name, self.capability = name, capability
        self.allocated = self.reserved = self.peak = self.peak_reserved = 0
        self.others = 500 * MIB  # the context, and other processes
        self.broken = False

    def take(self, size):
        self.allocated += size
        self.reserved = max(self.reserved, self.allocated)
        self.peak, self.peak_reserved = max(self.peak, self.allocated), max(self.peak_reserved, self.reserved)

    def give(self, size):
        self.allocated -= size

    def is_available(self):
        return True

    def current_device(self):
        return 0

    def device_count(self):
        return 4

    def synchronize(self):
        if self.broken:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    def empty_cache(self):
        self.synchronize()
        self.reserved = self.allocated

    def reset_peak_memory_stats(self):
        self.peak, self.peak_reserved = self.allocated, self.reserved

    def memory_allocated(self):
        return self.allocated

    def memory_reserved(self):
        return self.reserved

    def max_memory_allocated(self):
        return self.peak

    def max_memory_reserved(self):
        return self.peak_reserved

    def mem_get_info(self):
        self.synchronize()
        return 40960 * MIB - self.reserved - self.others, 40960 * MIB

    def get_device_capability(self):
        return self.capability

    def get_device_properties(self, _):
        return SimpleNamespace(name=self.name, total_memory=40960 * MIB, multi_processor_count=108,
                               major=self.capability[0], minor=self.capability[1])  # fmt: skip


@pytest.fixture
def cuda(monkeypatch):
    made = Cuda()
    monkeypatch.setattr(torch, "cuda", made)
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    return made


def test_peaks_are_those_of_one_point(cuda):
    cuda.take(1000 * MIB)
    cuda.give(990 * MIB)  # the point before, which left 10 MiB
    memory = DeviceMemory()
    memory.begin()
    cuda.take(100 * MIB)
    memory.record_model()
    cuda.take(300 * MIB)
    cuda.give(300 * MIB)
    assert memory.figures() == {
        "before_bytes": 10 * MIB, "model_bytes": 100 * MIB, "peak_allocated_bytes": 410 * MIB,
        "peak_reserved_bytes": 410 * MIB, "outside_allocator_bytes": 500 * MIB, "peak_host_bytes": None,
    }  # fmt: skip


def fail_with(bench, monkeypatch, error, before=lambda: None):
    def figures(point, timer):
        before()
        raise error

    monkeypatch.setattr(bench, "_figures", figures)
    return bench.measure(MeasurementPoint("mlp-mini", 64, "inference", "fp32", 1))


def test_out_of_memory_leaves_lower_bounds_and_a_usable_process(cuda, monkeypatch):
    bench = PointMeasurer("cuda", None, TimingLimits.preset(quick=True), ops=False)

    def fill():
        cuda.take(39000 * MIB)
        cuda.give(39000 * MIB)

    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
    row = fail_with(bench, monkeypatch, error, fill)
    assert (
        row["outcome"],
        row["memory"]["censored"],
        row["memory"]["peak_allocated_bytes"],
    ) == ("oom", True, 39000 * MIB)
    assert not bench.spent
    assert cuda.reserved == 0


def test_leaked_memory_ends_the_process(cuda, monkeypatch):
    bench = PointMeasurer("cuda", None, TimingLimits.preset(quick=True), ops=False)
    fail_with(bench, monkeypatch, RuntimeError("some failure"), lambda: cuda.take(100 * MIB))
    assert bench.spent


def test_a_failed_device_ends_the_process_after_its_row(cuda, monkeypatch):
    bench = PointMeasurer("cuda", None, TimingLimits.preset(quick=True), ops=False)
    error = RuntimeError("CUDA error: an illegal memory access was encountered")
    row = fail_with(bench, monkeypatch, error, lambda: setattr(cuda, "broken", True))
    assert (row["outcome"], row["memory"]) == ("error", None)
    assert "illegal memory access" in row["reason"]
    assert bench.spent


@pytest.mark.parametrize(
    ("capability", "dtypes"),
    [((9, 0), ("float32", "tf32", "float16", "bfloat16")), ((8, 0), ("float32", "tf32", "float16", "bfloat16")),
     ((7, 5), ("float32", "float16"))],
)  # fmt: skip
def test_dtypes_without_hardware_units_are_not_measured(cuda, capability, dtypes):
    cuda.capability = capability
    assert machine._native("cuda") == dtypes


def test_the_header_describes_the_gpu(cuda):
    found = machine._gpu()
    assert tuple(
        found[name] for name in ("type", "name", "memory_bytes", "compute_units", "count", "capability", "threads")
    ) == ("cuda", "NVIDIA A100-SXM4-40GB", 40960 * MIB, 108, 4, "8.0", None)


def test_a_mig_slice_has_no_meter(cuda):
    cuda.name = "NVIDIA A100-SXM4-40GB MIG 1g.5gb"
    assert machine.open_meters("cuda") == (None, "a MIG slice has no meter of its own")


def test_auto_selects_the_gpu_if_there_is_one(cuda):
    assert "cuda" == machine.require_device("auto") == machine.require_device("cuda")
    cuda.is_available = lambda: False
    assert machine.require_device("auto") == "cpu"
    with pytest.raises(KitError, match="sees no GPU here; give cpu"):
        machine.require_device("cuda")
