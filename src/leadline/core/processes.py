"""The process-runner port, separate from the other ports because it loads at the start of every job."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from leadline.core.frozen import Frozen


class CompletedProcess(Frozen):
    """An ended process: its exit code (negative: the signal) and its captured output."""

    returncode: int
    stdout: str
    stderr: str
    timed_out: bool = False


class ProcessRunner(Protocol):
    """Runs a command to its end; only its one implementation starts processes."""

    def __call__(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str | None] | None = None,
        cwd: Path | None = None,
        stdin: str | None = None,
        timeout_s: float | None = None,
    ) -> CompletedProcess:
        """Run ``argv`` without a shell and capture its output.

        ``env`` is added to the current environment, where None removes a variable. After ``timeout_s`` the whole
        process group is killed and ``timed_out`` is set.

        Raises:
            InvalidInput: the program does not exist.
        """
