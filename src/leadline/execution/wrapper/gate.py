"""Hold a copy of a job back until the plane says that it is the one to begin: a file, beside its outcome, says so."""

import os
import signal
import socket
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from leadline.core.jobs import JobState
from leadline.execution.wrapper.outcome import EXIT_NEVER_BEGAN, JobOutcome, write_outcome

RELEASE_TIMEOUT_S = 600.0
"""How long a copy that runs waits for the plane's word; without it the command never begins."""
PAUSES_S = (0.1, 2.0)
"""Between two looks for the word: at first, and at most; shared file systems are slow to show a new file."""


def wait_for_release(word: Path, most_s: float) -> float | None:
    """Wait until the file is there and return for how many seconds; ``None`` if it was not within ``most_s``.

    A warning of the limit is not for a command that has not begun: it is passed over meanwhile.
    """
    began_s, pause_s = time.monotonic(), PAUSES_S[0]
    handlers = {sign: signal.signal(sign, signal.SIG_IGN) for sign in (signal.SIGUSR1, signal.SIGUSR2)}
    try:
        while not word.exists():
            if time.monotonic() - began_s >= most_s:
                return None
            time.sleep(min(pause_s, max(began_s + most_s - time.monotonic(), 0.0)))
            pause_s = min(1.2 * pause_s, PAUSES_S[1])
    finally:
        for sign, handler in handlers.items():
            signal.signal(sign, handler)
    return time.monotonic() - began_s


def record_never_released(command: list[str], path: Path) -> int:
    """Write down that the word never came: this copy of the job is over, and its command never began."""
    now, host = datetime.now(UTC).isoformat(timespec="milliseconds"), socket.gethostname()
    reason = "the plane's word did not come: its command never began"
    sys.stderr.write(f"leadline: {reason}\n")
    ended = JobOutcome(
        JobState.CANCELLED, now, host, tuple(command), ended_at=now, exit_code=EXIT_NEVER_BEGAN, reason=reason
    )
    try:
        write_outcome(ended, path)
    except OSError as error:
        sys.stderr.write(f"leadline: {path} cannot be written ({error.strerror})\n")
    return EXIT_NEVER_BEGAN


def main(arguments: list[str]) -> int:
    """Wait for the file of the first argument, before all else that a script does; the second is the outcome's."""
    word, result = (Path(os.path.expandvars(one)).absolute() for one in arguments)
    return record_never_released([], result) if wait_for_release(word, RELEASE_TIMEOUT_S) is None else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
