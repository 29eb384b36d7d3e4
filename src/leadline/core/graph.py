"""The op graph: one optimizer step or forward pass as a list of ops, with its memory timeline."""

import math
from collections.abc import Callable
from enum import StrEnum

from msgspec import field

from leadline.core.frozen import Frozen

BYTES_PER_ELEMENT = {
    "complex128": 16, "float64": 8, "int64": 8, "complex64": 8, "float32": 4, "int32": 4, "tf32": 4,
    "float16": 2, "bfloat16": 2, "int16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1, "int8": 1, "uint8": 1, "bool": 1,
}  # fmt: skip
"""Bytes per element by PyTorch dtype name (``tf32`` is float32 in memory)."""


class OpKind(StrEnum):
    """Classes of kernels that share a cost model."""

    GEMM = "gemm"
    CONV = "conv"
    ATTENTION = "attention"
    RNN = "rnn"
    NORM = "norm"
    SOFTMAX = "softmax"
    POOL = "pool"
    ELEMENTWISE = "elementwise"
    REDUCTION = "reduction"
    EMBEDDING = "embedding"
    INDEX = "index"
    COPY = "copy"
    OPTIMIZER = "optimizer"
    COMMUNICATION = "communication"
    OTHER = "other"


class Stage(StrEnum):
    """Part of a step in which an op runs."""

    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    EVALUATION = "evaluation"


class StorageCategory(StrEnum):
    """Contents of a piece of device memory."""

    PARAMETER = "parameter"
    GRADIENT = "gradient"
    OPTIMIZER_STATE = "optimizer-state"
    ACTIVATION = "activation"
    INPUT = "input"
    KV_CACHE = "kv-cache"
    TEMPORARY = "temporary"
    WORKSPACE = "workspace"
    OTHER = "other"


class TensorSpec(Frozen):
    """Shape and dtype (PyTorch's names) of one tensor."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """Bytes of the elements. A token of HLO has none."""
        return math.prod(self.shape) * BYTES_PER_ELEMENT.get(self.dtype, 0)


class Op(Frozen):
    """One kernel launch as the framework sees it."""

    name: str  # the framework's own name, such as `aten.convolution`
    kind: OpKind
    stage: Stage
    dtype: str  # the dtype the arithmetic runs in
    flops: float  # Floating-point operations, a multiply-add counted as two
    bytes_read: float
    bytes_written: float  # traffic to device memory if nothing is cached; zero for a view
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    dims: dict[str, int] = field(default_factory=dict)
    """Sizes that decide the speed, by kind. GEMM: ``b, m, n, k``. CONV: ``n, c, k`` (channels in, out), ``h, w``
    (output), ``r, s`` (filter), ``groups, stride, dilation``; ATTENTION: ``b, h, q, kv, d``. COMMUNICATION:
    ``bytes`` (the larger of what goes in and what comes out) and ``ranks`` of the group."""
    sources: tuple[int, ...] = ()  # positions in the graph of the ops whose outputs this op reads
    count: int = 1  # how often the op is repeated with the same sizes (identical layers of an expanded config)
    kernels: int = 1  # device kernels one call launches (a foreach optimizer launches several)

    @property
    def scaled_dtype(self) -> str | None:
        """Number format of a scaled product, both of whose operands are quantized; ``None`` for other ops."""
        name = self.name.removesuffix("_scaled_mm")
        return None if name == self.name else name.removeprefix("aten.").removesuffix("-block")


class StorageEvent(Frozen):
    """Device memory allocated (``size_bytes > 0``) or freed (``< 0``) just before op number ``op`` runs.

    ``storage`` identifies the allocation, which is freed at most once.
    """

    op: int
    storage: int
    size_bytes: int
    category: StorageCategory = StorageCategory.OTHER


CALCULATED = "torch, calculated on the CPU"
"""Front-end of a graph whose ops ran on the CPU in place of a GPU."""


class OpGraph(Frozen):
    """The ops of one step in execution order, and the step's memory timeline.

    A training step is one optimizer step with all its accumulation micro-steps. An inference step is one forward pass.
    """

    ops: tuple[Op, ...]
    events: tuple[StorageEvent, ...] = ()
    """The timeline; allocations that exist before the step (parameters, optimizer state) come first, at op 0."""
    parameters: int = 0  # number of weights
    parameter_bytes: int = 0
    device_type: str = "cuda"  # kernel policy under which the ops were chosen, `cuda` or `cpu`
    source: str = ""  # the front-end
    fallbacks: dict[str, int] = field(default_factory=dict)
    """Count of data-dependent ops whose result was assumed, by op."""
    cache_heads: int = 0  # KV heads of the layer with the fewest; 0 without a cache
    trained_bytes: int | None = None  # the part of `parameter_bytes` that has gradients; `None` for all of it
    planned_bytes: int | None = None  # memory that a compiler planned ahead of the step; `None` if none did

    @property
    def is_training(self) -> bool:
        """True if the step has a backward pass."""
        return any(op.stage is Stage.BACKWARD for op in self.ops)

    @property
    def flops(self) -> float:
        """Floating-point operations of the whole step."""
        return float(sum(op.flops * op.count for op in self.ops))

    @property
    def bytes_moved(self) -> float:
        """Traffic of the whole step to and from device memory if nothing is cached."""
        return float(sum((op.bytes_read + op.bytes_written) * op.count for op in self.ops))


class LoadingTime(Frozen):
    """Time in which one process makes a batch, measured where the script was traced, and what it rests on.

    Waiting for a processor is not counted: it belongs to the machine of the trace.
    """

    batch_s: float  # median seconds of processor time and of waiting for files and network
    cpu_s: float  # the processor seconds of `batch_s`
    batches: int  # measured batches
    read_bytes: int = 0  # bytes that a batch read from files, from the page cache too
    queued_share: float | None = None  # share of the wall time spent waiting for a processor; `None` if unknown
    per_step: float | None = None  # batches of an optimizer step; `None` for those that are accumulated


class ScriptWork(Frozen):
    """Seconds of a step outside the framework, measured where the script was traced: environments, plots, files."""

    step_s: float  # the mean, where not every step does the work
    least_s: float
    most_s: float  # bounds of that mean


class LoopFacts(Frozen):
    """Facts about the training loop of a traced script; ``None`` if the script does not reveal them."""

    batch: int | None = None
    steps_per_epoch: int | None = None
    epochs: float | None = None
    samples: int | None = None
    bytes_per_sample: int | None = None
    accumulation: int = 1
    loader_workers: int = 0
    evaluation_batches_per_epoch: float | None = None  # the average, where the loop evaluates every so many steps
    world_size: int = 1
    model_parameters: int | None = None  # of the whole model, where a rank holds a part of it
    precision: str | None = None
    optimizer: str | None = None
    script_bytes: int | None = None
    """Memory of the script's imports and data before the first step, without the framework."""
    script_peak_bytes: int | None = None  # the most of it, while data are read
    built_bytes: int | None = None  # peak CPU tensor memory before the first step; tied weights exist twice for a while
    mapped_block_bytes: int | None = None  # smallest block that the C library maps by itself when training begins
    script_s: float | None = None  # processor seconds of the script's own imports and data
    framework_s: float | None = None  # processor seconds of the framework import, measured in the same process
    loading: LoadingTime | None = None  # of a training batch; `None` without a loader
    evaluation_loading: LoadingTime | None = None
    script_work: ScriptWork | None = None  # `None` if it is too short to measure
    epoch_work_s: float = 0.0  # the script's own seconds between two epochs: plots, files, metrics
    pinned: bool | None = None  # True if the loader pins its batches
    prefetch: int | None = None  # batches that each loader worker keeps ready
    batch_tensor_bytes: tuple[int, ...] = ()  # size of each tensor of a batch
    object_bytes: int | None = None  # size of the data set as Python objects
    loads_compiler: bool = False  # PyTorch's compiler is loaded by the script's imports or never: by no optimizer
    start_up: dict[str, float] = field(default_factory=dict)
    """Start of the script's own Python with torch on a CPU: bytes and seconds, by the names of a calibration."""


class DecodeStep(Frozen):
    """The pass that adds one token to each sequence when the last token is number ``length``."""

    length: int
    graph: OpGraph


class Generation(Frozen):
    """The decode steps after the prefill: one for each token but the first.

    A stretch holds one to three steps by increasing length: first, middle, last. Within a stretch, the work of a step
    is linear in its length. A new stretch begins where a sliding window is full. ``cache_bytes`` is the final size of
    the KV cache.
    """

    prompt: int
    generated: int
    stretches: tuple[tuple[DecodeStep, ...], ...]
    cache_bytes: int

    @property
    def last(self) -> OpGraph | None:
        """The longest step; ``None`` if the prefill makes the only token."""
        return self.stretches[-1][-1].graph if self.stretches else None

    def total(self, value: Callable[[OpGraph], float]) -> float:
        """Return the sum of ``value`` over all decode steps, evaluating few of them."""
        # The steps of a stretch define a polynomial (Newton's form), which is summed in closed form. The sum is exact
        # where the value is linear or quadratic in the length.
        return sum(_summed([(step.length, value(step.graph)) for step in steps]) for steps in self.stretches)


def _summed(points: list[tuple[int, float]]) -> float:
    """Sum the polynomial through up to three points over every length from the first point to the last."""
    (begin, first), *later = points
    count = points[-1][0] - begin + 1
    total = count * first
    if not later:
        return total
    inner = later[0][0] - begin
    slope = (later[0][1] - first) / inner
    index_sum = count * (count - 1) / 2
    total += slope * index_sum
    if len(later) > 1:
        (middle, between), (end, last) = later
        curvature = ((last - between) / (end - middle) - slope) / (end - begin)
        total += curvature * (index_sum * (2 * count - 1) / 3 - inner * index_sum)
    return total


class TracedJob(Frozen):
    """Output of a front-end: the step, an evaluation pass if there is one, and facts about the loop.

    In generation, ``step`` is the prefill and ``generation`` follows it. With batches of different sizes, ``step`` is a
    mean batch, which decides the time. ``longer`` holds larger batches up to the largest, which decides the memory.
    """

    step: OpGraph
    loop: LoopFacts = LoopFacts()
    evaluation: OpGraph | None = None
    notes: tuple[str, ...] = ()  # assumptions and omissions, in sentences for the user
    low_confidence: bool = False  # True if the traced route is known to differ from the device's
    generation: Generation | None = None
    longer: tuple[OpGraph, ...] = ()

    @property
    def largest_step(self) -> OpGraph:
        """The step of the largest batch."""
        return self.longer[-1] if self.longer else self.step
