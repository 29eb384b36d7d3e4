"""Start the worker in a process of its own, ask it, and end it when it crashes or hangs."""

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Dict, List, Optional

from leadline.kit import KitError

START_S = 240.0
"""Importing torch from a cold parallel file system, and the first context on a GPU, take minutes at worst."""
ROOT = str(Path(__file__).parents[2])
"""The folder, or the zip, from which ``leadline.kit`` was imported."""
START = (
    "import sys; sys.path = [{root!r}] + [path for path in sys.path if path]; import leadline.kit; "
    "sys.path.remove({root!r}); from leadline.kit.worker import serve; serve({parent})"
)
"""The root leaves the path at once, so that what is installed beside Leadline never reaches another Python."""


class Crashed(Exception):
    """The worker ended by itself; says how."""


class TimedOut(Exception):
    """The worker did not answer in time."""


class Worker:
    """A process that measures points; made anew after each that it did not survive.

    Args:
        python: the interpreter, which must have torch.
        request: what the worker is told at its start.
    """

    def __init__(self, python: str, request: Dict[str, Any]) -> None:
        self.started_at = time.monotonic()
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the process
        flags = ["-I"] if sys.flags.isolated else []
        start = START.format(root=ROOT, parent=os.getpid())
        try:
            self._process = subprocess.Popen(  # noqa: S603 - the interpreter is the user's own choice
                [python, *flags, "-c", start], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said,
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            self._said.close()
            raise KitError(f"{python} cannot be started ({error.strerror}): name the Python that has torch") from error
        self._held = b""
        self._tell(request)

    def hello(self) -> Dict[str, Any]:
        """Return what the worker says of the machine.

        Raises:
            KitError: it has no torch, or no such device; in its own words.
            Crashed: it ended before it could say.
        """
        try:
            answer = self._answer(START_S)
        except TimedOut as error:
            self.end()
            raise KitError(
                f"torch did not start within {START_S:g} s: try again when the file system is less busy"
            ) from (error)
        if "failure" in answer:
            self.end()
            raise KitError(answer["failure"])
        return answer

    def measure(self, point: Dict[str, Any], limit_s: float) -> Dict[str, Any]:
        """Return the answer for a point; ``Crashed`` or ``TimedOut``, and the process is gone, if there is none."""
        self._tell(point)
        try:
            return self._answer(limit_s)
        except TimedOut:
            self.end()
            raise

    def end(self) -> None:
        """End the process and all it started, at once."""
        with suppress(ProcessLookupError):  # it has ended
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._said):
            _close(stream)

    def _tell(self, request: Dict[str, Any]) -> None:
        assert self._process.stdin is not None  # noqa: S101 - it was asked for
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return  # its end is found when the answer is read

    def _answer(self, limit_s: float) -> Dict[str, Any]:
        assert self._process.stdout is not None  # noqa: S101 - it was asked for
        file = self._process.stdout.fileno()
        until = time.monotonic() + limit_s
        while b"\n" not in self._held:
            left_s = until - time.monotonic()
            if left_s <= 0 or not select.select([file], [], [], left_s)[0]:
                raise TimedOut
            part = os.read(file, 1 << 16)
            if not part:
                raise Crashed(self._how_it_ended())
            self._held += part
        line, _, self._held = self._held.partition(b"\n")
        answer: Dict[str, Any] = json.loads(line)
        return answer

    def _how_it_ended(self) -> str:
        code = self._process.wait()
        self._said.seek(0)
        lines = self._said.read().decode(errors="replace").strip().splitlines()
        self.end()
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        if code == -signal.SIGKILL:
            how += ", as the system does when memory runs out"
        return f"{how}: {_last(lines)}" if lines else how


def _last(lines: List[str]) -> str:
    return lines[-1].strip()[:300]


def _close(stream: Optional[Any]) -> None:
    if stream is not None:
        with suppress(BrokenPipeError):  # what was left to be told has no reader
            stream.close()
