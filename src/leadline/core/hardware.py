"""Devices and machines: vendor specifications and measured calibration."""

from enum import StrEnum

from msgspec import field
from msgspec.structs import replace

from leadline.core.frozen import Frozen


class DeviceKind(StrEnum):
    """Kinds of processors."""

    GPU = "gpu"
    CPU = "cpu"
    TPU = "tpu"
    ACCELERATOR = "accelerator"


class Confidence(StrEnum):
    """Provenance of a catalog row: found in a source, partly recalled, recalled, or measured."""

    FOUND = "found"
    MIXED = "mixed"
    KNOWN = "known"
    MEASURED = "measured"


class KernelTiming(Frozen):
    """One measured kernel: the median seconds of several calls, and the sizes it ran at."""

    kind: str
    dtype: str
    dims: dict[str, int]
    elapsed_s: float
    flops: float = 0.0
    bytes_moved: float = 0.0


MAX_BUSY_SHARE = 0.1
"""Highest processor share used by other processes during a trusted sweep.

Above it, multi-threaded kernels wait for one another: at 100 %, those of a two-core CPU took 3 to 500 times as long."""


class Calibration(Frozen):
    """Measurements of a local device by ``leadline calibrate``.

    ``figures`` holds scalars by name, with the unit in the name: ``launch_s``, ``copy_bytes_per_s``,
    ``interpreter_bytes``, ``framework_import_s`` and so on.
    """

    measured_at: str
    software: str
    threads: int
    timings: tuple[KernelTiming, ...] = ()
    figures: dict[str, float] = field(default_factory=dict)
    collectives: tuple[KernelTiming, ...] = ()
    """Collectives among the GPUs of the machine; ``dims`` are ``devices`` and the ``bytes`` of the largest tensor."""

    @property
    def busy_share(self) -> float:
        """Share of the processors in use by others when the sweep began; 0 if not recorded."""
        return self.figures.get("busy_share", 0.0)

    @property
    def is_doubtful(self) -> bool:
        """True if other processes used too much of the machine to trust the times."""
        return self.busy_share > MAX_BUSY_SHARE

    @property
    def launch_s(self) -> float | None:
        """Host seconds of an op in training; ``None`` if not measured.

        A backward pass has about two ops for each one of the forward pass.
        """
        forward_s, backward_s = (self.figures.get(f"launch_{stage}_s") for stage in ("forward", "backward"))
        if forward_s and backward_s:
            return (forward_s + 2 * backward_s) / 3
        return self.figures.get("launch_s")

    def best_flops_per_s(self) -> dict[str, float]:
        """Return the highest rate of any matrix product or convolution, by dtype."""
        best: dict[str, float] = {}
        for timing in self.timings:
            if timing.flops and timing.dims.get("k"):
                best[timing.dtype] = max(best.get(timing.dtype, 0.0), timing.flops / timing.elapsed_s)
        return best


RESIDENT_THREADS = {
    "6.0": 2048, "6.1": 2048, "7.0": 2048, "7.5": 1024, "8.0": 2048, "8.6": 1536, "8.7": 1536, "8.9": 1536, "9.0": 2048,
    "10.0": 2048, "10.3": 2048, "12.0": 1536,
}  # fmt: skip
"""Resident threads per multiprocessor by compute capability (CUDA C++ Programming Guide, technical specifications)."""


COPY_EFFICIENCY = 0.75
PCIE_BYTES_PER_S = {3: 12e9, 4: 24e9, 5: 48e9, 6: 96e9}
"""Rate of pinned copies over 16 lanes in one direction by generation: three quarters of the lanes' rate."""


class Device(Frozen):
    """A GPU, CPU or other accelerator."""

    name: str
    vendor: str
    kind: DeviceKind
    memory_bytes: int | None = None
    memory_bytes_per_s: float | None = None
    peak_flops_per_s: dict[str, float] = field(default_factory=dict)
    """Dense peak by dtype (``float64``, ``float32``, ``tf32``, ``float16``, ``bfloat16``, ``float8``, ``float4``,
    ``int8``); an unknown peak is absent, never zero."""
    architecture: str | None = None
    compute_capability: str | None = None
    form_factor: str | None = None
    memory_type: str | None = None
    compute_units: int | None = None  # SMs, CUs or CPU cores
    lanes_per_unit: int | None = None  # Float32 multiply-adds that a compute unit starts in a cycle
    boost_hz: float | None = None
    l2_bytes: int | None = None
    tdp_w: float | None = None  # factory power limit
    power_limit_w: float | None = None  # a lower limit, which the other figures already include
    link_bytes_per_s: float | None = None
    """Bidirectional bandwidth of the device's own interconnect (NVLink, Infinity Fabric)."""
    scale_up_gpus: int | None = None
    """GPUs that the link joins in the usual server or rack of this device; a node type may state its own."""
    host_link_bytes_per_s: float | None = None
    """Peak to the host in one direction where the link is no PCIe slot (NVLink-C2C, Infinity Fabric)."""
    pcie_generation: int | None = None
    aliases: tuple[str, ...] = ()
    confidence: Confidence = Confidence.KNOWN
    source: str = ""
    as_of: str = ""
    note: str = ""
    calibration: Calibration | None = None

    @property
    def is_calibrated(self) -> bool:
        """True if kernels were timed on the device."""
        return self.calibration is not None and bool(self.calibration.timings)

    @property
    def launch_s(self) -> float | None:
        """Host seconds of an op in training, as measured; ``None`` if the device's host is unknown."""
        return self.calibration.launch_s if self.calibration else None

    def with_launch(self, launch_s: float) -> "Device":
        """Return the device in a host that takes ``launch_s`` seconds for an op."""
        calibration = self.calibration or Calibration("", "", 0)
        others = {name: figure for name, figure in calibration.figures.items() if not name.startswith("launch_")}
        return replace(self, calibration=replace(calibration, figures={**others, "launch_s": launch_s}))

    @property
    def shares_host_memory(self) -> bool:
        """True if the device and its host have one memory."""
        return self.form_factor in ("APU", "module")

    @property
    def host_bytes_per_s(self) -> float | None:
        """Rate of pinned copies to or from the host in one direction; ``None`` if the link is unknown."""
        if self.host_link_bytes_per_s:
            return COPY_EFFICIENCY * self.host_link_bytes_per_s
        return PCIE_BYTES_PER_S.get(self.pcie_generation or 0)

    @property
    def threads_per_unit(self) -> int | None:
        """Resident threads per compute unit; ``None`` if unknown."""
        return RESIDENT_THREADS.get(self.compute_capability or "")

    @property
    def file_stem(self) -> str:
        """Name of a file about the device, without its extension."""
        return "".join(c if c.isalnum() else "-" for c in self.name.lower()).strip("-")


class Machine(Frozen):
    """A machine that runs Leadline: host name, processor, logical CPUs, memory, and GPUs by driver name."""

    host: str
    cpu_model: str
    cpus: int
    memory_bytes: int
    gpus: tuple[str, ...] = ()
    processor: str = ""  # name of its calibrated record in the catalog; empty if there is none
