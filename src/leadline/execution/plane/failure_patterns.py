"""Patterns of failure causes in the messages of schedulers, kernels, libraries and interpreters."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from leadline.core.plane import FailureCause
from leadline.execution.wrapper.outcome import STARTED_BEFORE

FINAL_LINES = 15
"""Lines at the end of a log that show how it ended. The program may have survived earlier errors."""
LINES = 400
WIDTH = 300

_SIGNS = {
    FailureCause.GPU_MEMORY: (
        r"(CUDA|HIP|XPU) out of memory", r"MPS backend out of memory", r"torch\.(cuda\.)?OutOfMemoryError",
        r"CUDA_ERROR_OUT_OF_MEMORY", r"cudaErrorMemoryAllocation", r"CUDA error: out of memory",
        r"cudaMalloc failed: out of memory", r"CU(BLAS|DNN|SOLVER|SPARSE|FFT)_STATUS_ALLOC_FAILED",
        r"Cuda failure \d* ?'out of memory'", r"RESOURCE_EXHAUSTED: .*(out of memory|allocat)",
        r"OOM when allocating tensor",
    ),
    FailureCause.HOST_MEMORY: (
        r"oom[-_ ]kill", r"out-of-memory handler", r"exceeded [\w ]*memory limit", r"Out of memory: Kill",
        r"std::bad_alloc", r"\bMemoryError\b", r"\b_ArrayMemoryError\b", r"DefaultCPUAllocator: (can't|not enough)",
        r"Cannot allocate memory", r"java\.lang\.OutOfMemoryError", r"killed by signal: Killed", r"\bOUT_OF_ME",
        r"\b0:125\b", r"job killed: p?v?mem \S+ exceeded limit",
    ),
    FailureCause.WALLTIME: (r"DUE TO TIME LIMIT", r"job killed: walltime \S+ exceeded limit"),
    FailureCause.PREEMPTION: (r"DUE TO PREEMPTION",),
    FailureCause.REQUEUE: (r"DUE TO JOB REQUEUE", r"\bREQUEUED$"),
    FailureCause.ADMINISTRATOR: (r"^the site removed partition \S+$",),
    FailureCause.NODE: (
        r"DUE TO NODE FAILURE", r"\bBOOT_FAIL", r"\bNODE_FAIL", r"\bNodeDown\b", r"\bJobLaunchFailure\b",
        r"\bProlog error", r"\bECC error", r"fallen off the bus", r"devices? (is|are) busy or unavailable",
        rf"^leadline: \S+ {STARTED_BEFORE}",
        r"no CUDA-capable device is detected", r"\bXid\b.*: (48|63|64|74|79|94|95),",
    ),
    FailureCause.STORAGE: (r"Disk quota exceeded", r"No space left on device", r"\bEDQUOT\b", r"\bENOSPC\b"),
    FailureCause.DEPENDENCY: (r"DependencyNeverSatisfied",),
    FailureCause.PROGRAM: (
        r"insufficient shared memory \(shm\)", r": command not found", r"\bModuleNotFoundError\b", r"\bImportError\b",
        r"\bSyntaxError\b", r"error while loading shared libraries", r"Exec format error", r"Segmentation fault",
        r"Illegal instruction", r"illegal memory access", r"device-side assert", r"cannot execute",
    ),
    FailureCause.TRANSIENT: (
        r"Stale (NFS )?file handle", r"\bESTALE\b", r"Input/output error", r"Transport endpoint is not connected",
        r"Connection (reset|refused|timed out|closed by|aborted)", r"ConnectionResetError", r"ConnectionRefusedError",
        r"Temporary failure in name resolution", r"Network is unreachable", r"No route to host", r"Socket timed out",
        r"Read timed out", r"Address already in use", r"\bEADDRINUSE\b", r"nccl(System|Remote|Internal)Error",
        r"^its scheduler forgot it",
        r"\bNCCL (communicator|error)", r"collective operation timeout", r"Bus error", r"Max retries exceeded",
    ),
}  # fmt: skip
_READ = tuple((cause, re.compile("|".join(patterns), re.IGNORECASE)) for cause, patterns in _SIGNS.items())
_ORDER = (
    (FailureCause.GPU_MEMORY, FailureCause.HOST_MEMORY),
    (FailureCause.WALLTIME,),
    (FailureCause.PREEMPTION,),
    (FailureCause.REQUEUE,),
    (FailureCause.ADMINISTRATOR,),
    (FailureCause.NODE,),
    (FailureCause.DEPENDENCY,),
    (FailureCause.STORAGE,),
    (FailureCause.PROGRAM,),
    (FailureCause.TRANSIENT,),
)
"""Priority of causes. The end of one process causes network errors in the others."""
_TRACEBACK = "Traceback (most recent call last)"
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
_EXCEPTION = re.compile(r"^(\[?\w*rank\s*\d+\]?:?\s*)?(\w+\.)*(?P<name>[A-Z]\w*(Error|Exception|Warning))\b\s*(:|$)")
_ECHOES = ("ChildFailedError", "CalledProcessError", "ProcessRaisedException", "ProcessExitedException")
"""Exceptions of launchers, which only report that another process failed."""
_GPU = re.compile(r"cuda|cud|cub|hip|gpu|xpu|mps|torch", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class FailureSign:
    """A line that shows a cause, and its distance from the end in lines."""

    cause: FailureCause
    line: str
    before_end: int = 0


def read_signs(text: str, *, gpus: bool = True) -> list[FailureSign]:
    """Return the failure signs in the last lines of a log, in their order.

    An uncaught Python exception counts as a fault of the program if its line shows no other cause. Without ``gpus``, an
    allocator that does not name its device means host memory.
    """
    lines = [line.strip()[:WIDTH] for line in text.splitlines()[-LINES:] if line.strip()]
    signs: list[FailureSign] = []
    traced = chained = False
    for at, line in enumerate(lines):
        traced = traced or _TRACEBACK in line
        chained = chained or line.startswith(_CHAINED)
        cause = _cause_of(line, gpus=gpus)
        exception = _EXCEPTION.match(line) if traced else None
        # A chained exception or a launcher's only repeats an earlier failure.
        if cause is None and exception and not (exception["name"] in _ECHOES or (chained and signs)):
            cause = FailureCause.PROGRAM
        if cause is not None:
            signs.append(FailureSign(cause, line, len(lines) - 1 - at))
        if exception:
            traced = chained = False
    return signs


def decisive_sign(signs: Iterable[FailureSign]) -> FailureSign | None:
    """Return the first sign of the cause with the highest priority."""
    listed = list(signs)
    return next((sign for causes in _ORDER for sign in listed if sign.cause in causes), None)


def final_signs(signs: Iterable[FailureSign]) -> list[FailureSign]:
    """Return the signs at the end of a log."""
    return [sign for sign in signs if sign.before_end < FINAL_LINES]


def _cause_of(line: str, *, gpus: bool) -> FailureCause | None:
    cause = next((cause for cause, pattern in _READ if pattern.search(line)), None)
    if gpus:
        return cause
    # JAX and others print the same text for host and device memory.
    if cause is FailureCause.GPU_MEMORY and not _GPU.search(line):
        return FailureCause.HOST_MEMORY
    return FailureCause.PROGRAM if cause is FailureCause.NODE and "no CUDA-capable device" in line else cause
