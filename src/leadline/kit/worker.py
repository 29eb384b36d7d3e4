"""The worker process that holds the device, and its client.

The process answers each line of its input with a line of JSON, and dies with its parent.
"""

import ctypes
import ctypes.util
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any, Dict, TextIO

from leadline.kit import KitError

PR_SET_PDEATHSIG = 1


def serve(parent: int) -> None:
    """Answer requests from stdin until it ends: the machine first, then a row for each point."""
    _die_with(parent)
    # Output of models and libraries goes to stderr, so that stdout holds only answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    request = json.loads(sys.stdin.readline())
    try:
        bench = _open(request, answers)
    except (KitError, ImportError) as error:
        no_torch = isinstance(error, ImportError) and getattr(error, "name", "") == "torch"
        reason = f"{sys.executable} has no torch: name the Python of an environment that has it"
        _reply(answers, {"failure": reason if no_torch else str(error)})
        return
    from leadline.kit.design import MeasurementPoint  # noqa: PLC0415 - after torch was found to be there

    for line in sys.stdin:
        _reply(answers, {"row": bench.measure(MeasurementPoint(**json.loads(line))), "spent": bench.spent})


def _open(request: Dict[str, Any], answers: TextIO) -> Any:
    """Import torch, report the machine, and return the measurer."""
    from leadline.kit.machine import machine_header, open_meters, require_device  # noqa: PLC0415 - torch loads here, not above
    from leadline.kit.measure import PointMeasurer  # noqa: PLC0415
    from leadline.kit.memory import limit_host_memory  # noqa: PLC0415
    from leadline.kit.timing import TimingLimits  # noqa: PLC0415

    device_type = require_device(request["device"])
    if device_type == "cpu":
        limit_host_memory()
    nvml, reason = open_meters(device_type)
    _reply(answers, {"header": machine_header(device_type, nvml, reason) if request["header"] else {}})
    return PointMeasurer(device_type, nvml, TimingLimits.preset(quick=request["quick"]), ops=request["ops"])


def _die_with(parent: int) -> None:
    """Make the kernel kill this process with its parent, so that a kill leaves no process on the device."""
    prctl = getattr(ctypes.CDLL(ctypes.util.find_library("c")), "prctl", None)
    if prctl is not None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _reply(answers: TextIO, answer: Dict[str, Any]) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


START_S = 240.0
"""Time limit of a start: importing torch from a cold parallel file system and creating a GPU context take minutes at
worst."""
ROOT = str(Path(__file__).parents[2])
"""The folder or zip that contains ``leadline.kit``."""
START = (
    "import sys; sys.path = [{root!r}] + [path for path in sys.path if path]; import leadline.kit; "
    "sys.path.remove({root!r}); from leadline.kit.worker import serve; serve({parent})"
)
"""The root leaves the path at once, so that packages beside Leadline never reach another Python."""


class WorkerCrashed(Exception):
    """The worker ended by itself; the message says how."""


class WorkerTimedOut(Exception):
    """The worker did not answer in time."""


class Worker:
    """A process of the interpreter ``python`` that measures points, replaced whenever it dies."""

    def __init__(self, python: str, request: Dict[str, Any]) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the process
        # An isolated parent may not import what the environment variables of another Python add.
        flags = ["-I"] if sys.flags.isolated else []
        start = START.format(root=ROOT, parent=os.getpid())
        try:
            self._process = subprocess.Popen(  # noqa: S603 - the interpreter is the user's own choice
                [python, *flags, "-c", start], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            self._errors.close()
            raise KitError(f"{python} cannot be started ({error.strerror}): name the Python that has torch") from error
        self._received = b""
        self._send(request)

    def hello(self) -> Dict[str, Any]:
        """Return the worker's description of the machine; ``KitError`` if it has no torch or no such device."""
        try:
            answer = self._answer(START_S)
        except WorkerTimedOut as error:
            message = f"torch did not start within {START_S:g} s: try again when the file system is less busy"
            raise KitError(message) from error
        if "failure" in answer:
            self.end()
            raise KitError(answer["failure"])
        return answer

    def measure(self, point: Dict[str, Any], limit_s: float) -> Dict[str, Any]:
        """Return the answer for a point. A worker that does not answer within its limit is killed."""
        self._send(point)
        return self._answer(limit_s)

    def end(self) -> None:
        """Kill the process and all its children."""
        with suppress(ProcessLookupError):  # it has ended
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            with suppress(BrokenPipeError):  # a request that was never read
                stream.close()  # type: ignore[union-attr] # both were asked for

    def _send(self, request: Dict[str, Any]) -> None:
        assert self._process.stdin is not None  # noqa: S101 - it was asked for
        with suppress(BrokenPipeError):  # its end is found when the answer is read
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()

    def _answer(self, limit_s: float) -> Dict[str, Any]:
        assert self._process.stdout is not None  # noqa: S101 - it was asked for
        file = self._process.stdout.fileno()
        until = time.monotonic() + limit_s
        while b"\n" not in self._received:
            remaining_s = until - time.monotonic()
            if remaining_s <= 0 or not select.select([file], [], [], remaining_s)[0]:
                self.end()
                raise WorkerTimedOut
            part = os.read(file, 1 << 16)
            if not part:
                raise WorkerCrashed(self._describe_end())
            self._received += part
        line, _, self._received = self._received.partition(b"\n")
        answer: Dict[str, Any] = json.loads(line)
        return answer

    def _describe_end(self) -> str:
        code = self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        self.end()
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        if code == -signal.SIGKILL:
            how += ", as the system does when memory runs out"
        return f"{how}: {lines[-1].strip()[:300]}" if lines else how
