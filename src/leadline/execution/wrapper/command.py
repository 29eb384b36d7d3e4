"""The wrapper's own command line; light, for it starts with every job."""

import argparse
import errno
import os
import signal
import socket
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from leadline import __version__
from leadline.core.errors import InvalidInput, LeadlineError
from leadline.core.jobs import JobState
from leadline.execution.wrapper.gate import RELEASE_TIMEOUT_S, record_never_released, wait_for_release
from leadline.execution.wrapper.instruments import Instruments, ProbeLimit, with_instruments
from leadline.execution.wrapper.outcome import (
    EXIT_NEVER_BEGAN,
    STARTED_BEFORE,
    JobOutcome,
    control_path,
    read_outcome,
    write_outcome,
)
from leadline.execution.wrapper.supervise import PROBE_DONE, WrapperLimits, supervise

GATE_OPEN = b"g"
"""What whoever starts the wrapper says at the gate once it has noted the wrapper's process."""
PATIENCE_S = 600.0
"""How long the last outcome waits for room on a full disk."""


def main(arguments: list[str]) -> int:
    """Run the command after ``--`` measured, and return its exit code (128 + the signal's number if one ended it)."""
    parser = argparse.ArgumentParser(prog="leadline.execution.wrapper", description=__doc__)
    parser.add_argument("--version", action="version", version=__version__)
    parser.add_argument("--result", required=True, help="file of the result; ${VARIABLES} are expanded")
    parser.add_argument("--workdir", type=Path, help="folder to run the command in")
    parser.add_argument("--walltime-s", type=float, help="end the command after so many seconds")
    parser.add_argument("--memory-bytes", type=int, help="end the command above so much memory")
    parser.add_argument("--cpus", type=_cpus, default=(), help="numbers of the cores it may use, such as 0,1")
    parser.add_argument("--site-walltime-s", type=float, help="after this long, a SIGTERM is the scheduler's limit")
    parser.add_argument("--probe-hook", action="store_true", help="watch the loops of Python scripts, unmodified")
    parser.add_argument("--stop-units", type=int, help="end the command when it has shown so many units of work")
    parser.add_argument("--stop-time-s", type=float, help="end the command after so many seconds of units of work")
    parser.add_argument("--warning", type=_signal, help="signal such as USR1, sent before the walltime to who listens")
    parser.add_argument("--warning-s", type=float, default=0.0, help="how many seconds before it")
    parser.add_argument("--controlled", action="store_true", help="look for another walltime beside the result")
    parser.add_argument("--kill-after-s", type=float, help="kill what still runs so long after a SIGTERM")
    parser.add_argument("--gate", type=int, help="descriptor that must say g before the command is started")
    parser.add_argument("--word", help="file that must be there before the command is started; ${VARIABLES} too")
    parser.add_argument("--word-within-s", type=float, default=RELEASE_TIMEOUT_S, help="how long it is waited for")
    parser.add_argument("--since-s", type=float, default=0.0, help="how much of all walltimes is over already")
    parser.add_argument("--once", action="store_true", help="start nothing if a wrapper with this result did before")
    parser.add_argument("command", nargs="+")
    given = parser.parse_args(arguments)
    path = _expanded(given.result)
    if given.gate is not None and not _opened(given.gate):
        return _never_begun(given.command, path)
    waited_s = 0.0 if given.word is None else wait_for_release(_expanded(given.word), given.word_within_s)
    if waited_s is None:
        return record_never_released(given.command, path)
    if given.once and not _first(path):
        return _as_before(path)

    def write(outcome: JobOutcome) -> None:
        try:
            _write(outcome, path)
        except OSError as error:  # the job matters more than its measurement
            sys.stderr.write(f"leadline: {path} cannot be written ({error.strerror}): the run is not recorded\n")

    limits = WrapperLimits(
        given.walltime_s, given.memory_bytes, given.site_walltime_s, given.cpus, given.warning, given.warning_s,
        control_path(path) if given.controlled else None, given.kill_after_s,
        given.since_s + waited_s,
    )  # fmt: skip

    def run(instruments: Instruments | None) -> int:
        try:
            ended = supervise(given.command, limits, write=write, workdir=given.workdir, instruments=instruments)
        except LeadlineError as error:
            sys.stderr.write(f"leadline: {error}\n")
            return 127
        if ended.state.censored and ended.reason not in ("", PROBE_DONE):
            sys.stderr.write(f"leadline: {ended.state.value}: {ended.reason}\n")
        return _exit_code(ended)

    return with_instruments(run, enough=ProbeLimit(given.stop_units, given.stop_time_s), hook=given.probe_hook)


def _write(outcome: JobOutcome, path: Path) -> None:
    """Write an outcome; of the last one, wait a while for a full disk to be cleared."""
    deadline_s = time.monotonic() + (PATIENCE_S if outcome.state.final else 0.0)
    while True:
        try:
            write_outcome(outcome, path)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT) or time.monotonic() >= deadline_s:
                raise
            time.sleep(1.0)
        else:
            return


def _first(path: Path) -> bool:
    """Whether this is the first wrapper with that result; a file system makes a file anew only once."""
    try:
        os.close(os.open(path.with_suffix(".started"), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        return False
    return True


def _as_before(path: Path) -> int:
    """Return the exit code of the wrapper that was first: a controller that forgot of it hears so how it ended."""
    try:
        before = read_outcome(path)
    except (OSError, InvalidInput):
        before = None
    if before is None or not before.state.final:
        sys.stderr.write(f"leadline: {path.stem} {STARTED_BEFORE}\n")
        return EXIT_NEVER_BEGAN
    sys.stderr.write(f"leadline: {path.stem} ran before and ended as {before.state.value}: it is not started again\n")
    return _exit_code(before)


def _exit_code(ended: JobOutcome) -> int:
    return 128 + ended.signal if ended.signal else ended.exit_code or 0


def _never_begun(command: list[str], path: Path) -> int:
    """Write down that the command was never started, so that whoever finds it may start it."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    reason = "whoever started it died before it was begun"
    try:
        write_outcome(JobOutcome(JobState.PENDING, now, socket.gethostname(), tuple(command), reason=reason), path)
    except OSError as error:
        sys.stderr.write(f"leadline: {path} cannot be written ({error.strerror})\n")
    return EXIT_NEVER_BEGAN


def _opened(gate: int) -> bool:
    """Wait for whoever started this to note it; ``False`` if it died before, and the command must not be started."""
    with os.fdopen(gate, "rb") as stream:
        return stream.read(1) == GATE_OPEN


def _expanded(name: str) -> Path:
    return Path(os.path.expandvars(name)).absolute()


def _signal(name: str) -> int:
    return signal.Signals[f"SIG{name.upper().removeprefix('SIG')}"].value


def _cpus(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(","))
