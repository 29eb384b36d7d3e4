"""Hold a copy of a job back until the plane releases it by a file next to its outcome."""

import os
import signal
import socket
import sys
import time
from dataclasses import replace
from pathlib import Path

from leadline.core.jobs import JobState
from leadline.execution.clock import now_utc
from leadline.execution.wrapper.outcome import EXIT_NEVER_BEGAN, JobOutcome, write_outcome

RELEASE_TIMEOUT_S = 600.0
"""Seconds that a running copy waits for its release; without it, the command never begins."""
PAUSES_S = (0.1, 2.0)
"""Pauses between checks, at first and at most. Shared file systems show new files late."""


def wait_for_release(release_file: Path, max_s: float) -> float | None:
    """Wait until the file exists and return the seconds waited; None after ``max_s``.

    A warning before the limit is ignored meanwhile, because the command has not begun.
    """
    began_s, pause_s = time.monotonic(), PAUSES_S[0]
    # The default action of these signals would end the wrapper.
    handlers = {sign: signal.signal(sign, signal.SIG_IGN) for sign in (signal.SIGUSR1, signal.SIGUSR2)}
    try:
        while not release_file.exists():
            if time.monotonic() - began_s >= max_s:
                return None
            time.sleep(min(pause_s, max(began_s + max_s - time.monotonic(), 0.0)))
            pause_s = min(1.2 * pause_s, PAUSES_S[1])
    finally:
        for sign, handler in handlers.items():
            signal.signal(sign, handler)
    return time.monotonic() - began_s


def record_never_released(command: list[str], path: Path) -> int:
    """Record that the release never came, so that this copy is over without a start."""
    reason = "the plane did not release it: its command never began"
    sys.stderr.write(f"leadline: {reason}\n")
    return record_never_begun(JobState.CANCELLED, reason, command, path)


def record_never_begun(state: JobState, reason: str, command: list[str], path: Path) -> int:
    """Record that a command was not started, for now or for ever; return the wrapper's exit code."""
    outcome = JobOutcome(state, now_utc(), socket.gethostname(), tuple(command), reason=reason)
    if state.final:
        outcome = replace(outcome, ended_at=outcome.started_at, exit_code=EXIT_NEVER_BEGAN)
    try:
        write_outcome(outcome, path)
    except OSError as error:
        sys.stderr.write(f"leadline: {path} cannot be written ({error.strerror})\n")
    return EXIT_NEVER_BEGAN


def main(arguments: list[str]) -> int:
    """Wait for the file of the first argument; the second is the outcome's file."""
    release_file, result = (Path(os.path.expandvars(argument)).absolute() for argument in arguments)
    return record_never_released([], result) if wait_for_release(release_file, RELEASE_TIMEOUT_S) is None else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
