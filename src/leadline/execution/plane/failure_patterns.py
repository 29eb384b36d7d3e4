"""Patterns of failure causes in the messages of schedulers, kernels, libraries and interpreters."""

import re
import tomllib
from collections.abc import Iterable
from functools import cache
from importlib.resources import files

from leadline.core.frozen import Frozen
from leadline.core.plane import FailureCause

FINAL_LINES = 15
"""Lines at the end of a log that show how it ended. The program may have survived earlier errors."""
LINES = 400
WIDTH = 300

_TRACEBACK = "Traceback (most recent call last)"
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
_EXCEPTION = re.compile(r"^(\[?\w*rank\s*\d+\]?:?\s*)?(\w+\.)*(?P<name>[A-Z]\w*(Error|Exception|Warning))\b\s*(:|$)")
_ECHOES = ("ChildFailedError", "CalledProcessError", "ProcessRaisedException", "ProcessExitedException")
"""Exceptions of launchers, which only report that another process failed."""
_GPU = re.compile(r"cuda|cud|cub|hip|gpu|xpu|mps|torch", re.IGNORECASE)


class FailureSign(Frozen):
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
    # The first two causes are GPU and host memory, which count alike.
    ranks = {cause: max(position, 1) for position, cause in enumerate(_patterns())}
    return min(signs, key=lambda sign: ranks[sign.cause], default=None)


def final_signs(signs: Iterable[FailureSign]) -> list[FailureSign]:
    """Return the signs at the end of a log."""
    return [sign for sign in signs if sign.before_end < FINAL_LINES]


@cache
def _patterns() -> dict[FailureCause, re.Pattern[str]]:
    """Return the pattern of each cause, in the order of priority."""
    text = files("leadline.execution.plane").joinpath("failure_patterns.toml").read_text(encoding="utf-8")
    table = tomllib.loads(text)
    return {FailureCause(cause): re.compile("|".join(parts), re.IGNORECASE) for cause, parts in table.items()}


def _cause_of(line: str, *, gpus: bool) -> FailureCause | None:
    cause = next((cause for cause, pattern in _patterns().items() if pattern.search(line)), None)
    if gpus:
        return cause
    # JAX and others print the same text for host and device memory.
    if cause is FailureCause.GPU_MEMORY and not _GPU.search(line):
        return FailureCause.HOST_MEMORY
    return FailureCause.PROGRAM if cause is FailureCause.NODE and "no CUDA-capable device" in line else cause
