"""One device: what its maker says of it, and what a micro-benchmark sweep measured on it."""

from dataclasses import dataclass, field
from enum import StrEnum


class DeviceKind(StrEnum):
    """What sort of processor a device is."""

    GPU = "gpu"
    CPU = "cpu"
    TPU = "tpu"
    ACCELERATOR = "accelerator"


class Confidence(StrEnum):
    """How far a catalog row can be trusted: found in a source, partly recalled, or recalled only."""

    FOUND = "found"
    MIXED = "mixed"
    KNOWN = "known"
    MEASURED = "measured"


@dataclass(frozen=True, slots=True)
class KernelTiming:
    """One measured kernel: the median of several timed calls, in seconds, with the sizes it ran at."""

    kind: str
    dtype: str
    dims: dict[str, int]
    elapsed_s: float
    flops: float = 0.0
    bytes_moved: float = 0.0


MAX_BUSY_SHARE = 0.1
"""Share of the processors that others may use during a sweep without a doubt on it. With more of them at work, kernels
of several threads wait for one another: at 100 % those of a two-core CPU took 3 to 500 times as long."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """What ``leadline calibrate`` measured on a device at hand.

    ``figures`` are scalars by name, with their unit in the name: ``launch_s``, ``copy_bytes_per_s``,
    ``interpreter_bytes``, ``framework_import_s`` and so on.
    """

    measured_at: str
    software: str
    threads: int
    timings: tuple[KernelTiming, ...] = ()
    figures: dict[str, float] = field(default_factory=dict)

    @property
    def busy_share(self) -> float:
        """Return the share of the processors that others used when the sweep began, or 0 where it was not told."""
        return self.figures.get("busy_share", 0.0)

    @property
    def is_doubtful(self) -> bool:
        """Tell whether others used so much of the machine that the times are worth little."""
        return self.busy_share > MAX_BUSY_SHARE

    def best_flops_per_s(self) -> dict[str, float]:
        """Return the best rate that any matrix product or convolution reached, by dtype."""
        best: dict[str, float] = {}
        for timing in self.timings:
            if timing.flops and timing.dims.get("k"):
                best[timing.dtype] = max(best.get(timing.dtype, 0.0), timing.flops / timing.elapsed_s)
        return best


RESIDENT_THREADS = {
    "6.0": 2048, "6.1": 2048, "7.0": 2048, "7.5": 1024, "8.0": 2048, "8.6": 1536, "8.7": 1536, "8.9": 1536, "9.0": 2048,
    "10.0": 2048, "10.3": 2048, "12.0": 1536,
}  # fmt: skip
"""Threads that a multiprocessor holds at once, by compute capability (CUDA C++ Programming Guide, technical
specifications)."""


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU, CPU or other accelerator.

    ``peak_flops_per_s`` maps a dtype (``float64``, ``float32``, ``tf32``, ``float16``, ``bfloat16``, ``float8``,
    ``int8``) to its dense peak; a dtype that is absent is not known, never zero. ``link_bytes_per_s`` is the
    bidirectional bandwidth of the device's own interconnect (NVLink, Infinity Fabric). ``compute_units`` are SMs, CUs
    or CPU cores, and ``lanes_per_unit`` the float32 multiply-adds each of them starts in one cycle.
    """

    name: str
    vendor: str
    kind: DeviceKind
    memory_bytes: int | None = None
    memory_bytes_per_s: float | None = None
    peak_flops_per_s: dict[str, float] = field(default_factory=dict)
    architecture: str | None = None
    compute_capability: str | None = None
    form_factor: str | None = None
    memory_type: str | None = None
    compute_units: int | None = None
    lanes_per_unit: int | None = None
    boost_hz: float | None = None
    l2_bytes: int | None = None
    tdp_w: float | None = None
    link_bytes_per_s: float | None = None
    pcie_generation: int | None = None
    aliases: tuple[str, ...] = ()
    confidence: Confidence = Confidence.KNOWN
    source: str = ""
    as_of: str = ""
    note: str = ""
    calibration: Calibration | None = None

    @property
    def is_calibrated(self) -> bool:
        """Tell whether kernels were timed on the device."""
        return self.calibration is not None and bool(self.calibration.timings)

    @property
    def threads_per_unit(self) -> int | None:
        """Return how many threads a compute unit holds at once, where that is known."""
        return RESIDENT_THREADS.get(self.compute_capability or "")

    @property
    def file_stem(self) -> str:
        """Return the name of a file about the device, without its ending."""
        return "".join(c if c.isalnum() else "-" for c in self.name.lower()).strip("-")


@dataclass(frozen=True, slots=True)
class Machine:
    """One machine that Leadline runs on: host name, processor, logical CPUs, memory, and GPUs by their driver's names.

    ``processor`` is the name of its calibrated record in the catalog, empty where it was not calibrated.
    """

    host: str
    cpu_model: str
    cpus: int
    memory_bytes: int
    gpus: tuple[str, ...] = ()
    processor: str = ""
