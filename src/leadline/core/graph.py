"""One optimizer step (or one forward pass) as a list of ops with their sizes, and the memory they hold."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

BYTES_PER_ELEMENT = {
    "complex128": 16, "float64": 8, "int64": 8, "complex64": 8, "float32": 4, "int32": 4, "tf32": 4,
    "float16": 2, "bfloat16": 2, "int16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1, "int8": 1, "uint8": 1, "bool": 1,
}  # fmt: skip
"""Bytes of one element, by dtype name as PyTorch writes it (``tf32`` is float32 in memory)."""


class OpKind(StrEnum):
    """Classes of kernels whose cost follows the same law."""

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
    """When in a step an op runs."""

    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    EVALUATION = "evaluation"


class StorageCategory(StrEnum):
    """What a piece of device memory holds."""

    PARAMETER = "parameter"
    GRADIENT = "gradient"
    OPTIMIZER_STATE = "optimizer-state"
    ACTIVATION = "activation"
    INPUT = "input"
    KV_CACHE = "kv-cache"
    TEMPORARY = "temporary"
    WORKSPACE = "workspace"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape and dtype (PyTorch's names) of one tensor."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class Op:
    """One kernel launch as the framework sees it.

    Attributes:
        name: the framework's own name, such as ``aten.convolution``.
        flops: floating-point operations, a multiply-add counted as two.
        bytes_read, bytes_written: traffic to device memory if nothing is cached; zero for a view.
        dtype: the dtype the arithmetic runs in.
        dims: sizes that decide the speed, by kind. GEMM: ``b, m, n, k``. CONV: ``n, c, k`` (channels in, out),
            ``h, w`` (output), ``r, s`` (filter), ``groups, stride, dilation``; ATTENTION: ``b, h, q, kv, d``.
            COMMUNICATION: ``bytes`` (the larger of what goes in and what comes out) and ``ranks`` of the group.
        sources: positions in the graph of the ops whose outputs this op reads.
        count: how often the op is repeated with the same sizes (identical layers of an expanded config).
        kernels: device kernels one call launches (a foreach optimizer launches several).
    """

    name: str
    kind: OpKind
    stage: Stage
    dtype: str
    flops: float
    bytes_read: float
    bytes_written: float
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    dims: dict[str, int] = field(default_factory=dict)
    sources: tuple[int, ...] = ()
    count: int = 1
    kernels: int = 1


@dataclass(frozen=True, slots=True)
class StorageEvent:
    """Device memory taken (``size_bytes > 0``) or given back (``< 0``) just before op number ``op`` runs.

    ``storage`` names the piece of memory; the same name is given back once.
    """

    op: int
    storage: int
    size_bytes: int
    category: StorageCategory = StorageCategory.OTHER


@dataclass(frozen=True, slots=True)
class OpGraph:
    """The ops of one step in execution order, and the memory timeline of the same step.

    ``events`` begins with what is already held when the step starts (parameters, optimizer state), all at op 0.
    One step is one optimizer step, accumulation micro-steps included; in inference one forward pass.
    ``parameters`` counts weights, ``device_type`` is the policy the ops were chosen by (``cuda`` or ``cpu``),
    ``source`` the front-end, and ``fallbacks`` counts data-dependent ops whose result had to be assumed.
    ``trained_bytes`` is how much of ``parameter_bytes`` has gradients (``None``: all of it).
    ``cache_heads`` is how many heads of keys and values the KV cache holds (the fewest of any layer; 0: no cache).
    ``planned_bytes`` is what a compiler that assigns all memory before the step planned for it (``None``: none did).
    """

    ops: tuple[Op, ...]
    events: tuple[StorageEvent, ...] = ()
    parameters: int = 0
    parameter_bytes: int = 0
    device_type: str = "cuda"
    source: str = ""
    fallbacks: dict[str, int] = field(default_factory=dict)
    cache_heads: int = 0
    trained_bytes: int | None = None
    planned_bytes: int | None = None

    @property
    def is_training(self) -> bool:
        """Tell whether the step has a backward pass."""
        return any(op.stage is Stage.BACKWARD for op in self.ops)

    @property
    def flops(self) -> float:
        """Return the floating-point operations of the whole step."""
        return float(sum(op.flops * op.count for op in self.ops))

    @property
    def bytes_moved(self) -> float:
        """Return the traffic of the whole step to and from device memory if nothing is cached."""
        return float(sum((op.bytes_read + op.bytes_written) * op.count for op in self.ops))


@dataclass(frozen=True, slots=True)
class LoopFacts:
    """What a traced script says about its own loop; ``None`` where it does not say.

    ``script_bytes`` is what its own imports and data held when its first step began, the framework's left out, and
    ``script_s`` the processor seconds they took where importing the framework took ``framework_s``. ``built_bytes`` is
    the most that tensors on a CPU held before: weights that are tied are first made apart. ``load_s`` is how long its
    loader was seen to take for one batch, in one process. The loader keeps ``prefetch`` batches ahead for each worker,
    ``pinned`` or not, of tensors of ``batch_tensor_bytes``; its data set is ``object_bytes`` of Python objects.
    """

    batch: int | None = None
    steps_per_epoch: int | None = None
    epochs: float | None = None
    samples: int | None = None
    bytes_per_sample: int | None = None
    accumulation: int = 1
    loader_workers: int = 0
    evaluation_batches_per_epoch: int | None = None
    world_size: int = 1
    precision: str | None = None
    optimizer: str | None = None
    script_bytes: int | None = None
    built_bytes: int | None = None
    script_s: float | None = None
    framework_s: float | None = None
    load_s: float | None = None
    pinned: bool | None = None
    prefetch: int | None = None
    batch_tensor_bytes: tuple[int, ...] = ()
    object_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class DecodeStep:
    """One decode step: the pass that adds one token to each sequence, when the last token is number ``length``."""

    length: int
    graph: OpGraph


@dataclass(frozen=True, slots=True)
class Generation:
    """The decode steps after a prompt was read, which made the first token: one for each further token.

    Each stretch is one to three steps in order of length: its first, its last, and one between. Within a stretch the
    work of a step is linear in its length; a new one begins where a sliding window is full. ``cache_bytes`` is what the
    keys and values take after the last step.
    """

    prompt: int
    generated: int
    stretches: tuple[tuple[DecodeStep, ...], ...]
    cache_bytes: int

    @property
    def last(self) -> OpGraph | None:
        """The longest step; ``None`` where the prompt's own pass makes the only token."""
        return self.stretches[-1][-1].graph if self.stretches else None

    def total(self, value: Callable[[OpGraph], float]) -> float:
        """Return the sum over all decode steps of a ``value`` of a step's graph, which is asked of few of them.

        Between the steps of a stretch the value is read off the polynomial through them (Newton's form) and summed in
        closed form: exact for what is linear or quadratic in the length.
        """
        return sum(_summed([(step.length, value(step.graph)) for step in steps]) for steps in self.stretches)


def _summed(points: list[tuple[int, float]]) -> float:
    """Return the sum over every length from the first point to the last of the polynomial through up to three."""
    (begin, first), *rest = points
    count = points[-1][0] - begin + 1
    total = count * first
    if not rest:
        return total
    inner = rest[0][0] - begin
    slope = (rest[0][1] - first) / inner
    ones = count * (count - 1) / 2
    total += slope * ones
    if len(rest) > 1:
        (middle, between), (end, last) = rest
        bend = ((last - between) / (end - middle) - slope) / (end - begin)
        total += bend * (ones * (2 * count - 1) / 3 - inner * ones)
    return total


@dataclass(frozen=True, slots=True)
class TracedJob:
    """A front-end's whole answer: the step, an evaluation pass if there is one, and the loop around them.

    ``notes`` are sentences for the user (what was assumed, what was left out); ``low_confidence`` is set when the
    route taken is known to differ from what the device would run. Where tokens are generated, ``step`` is the pass over
    the prompt alone, and ``generation`` what follows it. Where batches differ in size, ``step`` is that of a mean one,
    which decides the time, and ``longer`` are steps of larger ones up to the largest, which decides the memory.
    """

    step: OpGraph
    loop: LoopFacts = LoopFacts()
    evaluation: OpGraph | None = None
    notes: tuple[str, ...] = ()
    low_confidence: bool = False
    generation: Generation | None = None
    longer: tuple[OpGraph, ...] = ()

    @property
    def largest_step(self) -> OpGraph:
        """The step of the largest batch."""
        return self.longer[-1] if self.longer else self.step
