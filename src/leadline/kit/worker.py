"""The process that holds the device: it answers each line it is given by one of JSON, and dies with its parent."""

import ctypes
import ctypes.util
import json
import os
import signal
import sys
import warnings
from typing import Any, Dict, TextIO

from leadline.kit import KitError

PR_SET_PDEATHSIG = 1


def serve(parent: int) -> None:
    """Answer requests from stdin until it ends: first what the machine is, then a row for each point.

    What models and libraries print goes to stderr, so that stdout holds answers alone.
    """
    _die_with(parent)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    request = json.loads(sys.stdin.readline())
    try:
        bench = _open(request, answers)
    except (KitError, ImportError) as error:
        _say(answers, {"failure": _why(error)})
        return
    from leadline.kit.design import Point  # noqa: PLC0415 - after torch was found to be there

    for line in sys.stdin:
        row = bench.measure(Point(**json.loads(line)))
        _say(answers, {"row": row, "spent": bench.spent})


def _open(request: Dict[str, Any], answers: TextIO) -> Any:
    """Import torch, say what the machine is, and return the bench."""
    from leadline.kit.machine import header, meters, require_device  # noqa: PLC0415 - torch loads here, not above
    from leadline.kit.measure import Bench  # noqa: PLC0415
    from leadline.kit.memory import limit_host_memory  # noqa: PLC0415
    from leadline.kit.timing import Patience  # noqa: PLC0415

    device_type = require_device(request["device"])
    limit_bytes = limit_host_memory(request["memory_bytes"]) if device_type == "cpu" else None
    nvml, reason = meters(device_type)
    found = header(device_type, nvml, reason) if request["header"] else {}
    _say(answers, {"header": found, "memory_limit_bytes": limit_bytes})
    return Bench(device_type, nvml, Patience.of(quick=request["quick"]), ops=request["ops"])


def _die_with(parent: int) -> None:
    """Let the kernel end this process with its parent, so that none is left on the device after a kill."""
    prctl = getattr(ctypes.CDLL(ctypes.util.find_library("c")), "prctl", None)
    if prctl is not None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _say(answers: TextIO, answer: Dict[str, Any]) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


def _why(error: BaseException) -> str:
    if isinstance(error, ImportError) and getattr(error, "name", "") == "torch":
        return f"{sys.executable} has no torch: name the Python of an environment that has it"
    return str(error)
