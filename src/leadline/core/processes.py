"""A process that ended, and the port of what runs one; apart from the other ports, for these start with every job."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class CompletedProcess:
    """A process that ended: its exit code (negative: the signal) and its captured output."""

    returncode: int
    stdout: str
    stderr: str
    timed_out: bool = False


class ProcessRunner(Protocol):
    """Runs a command to its end. One module implements it, so that one module starts processes."""

    def __call__(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        stdin: str | None = None,
        timeout_s: float | None = None,
    ) -> CompletedProcess:
        """Run ``argv`` without a shell and capture its output.

        ``env`` is added to the current environment, and ``stdin`` is what it reads. After ``timeout_s`` the whole
        process group is ended, and ``timed_out`` is set. Raises ``InvalidInput`` when the program does not exist.
        """
