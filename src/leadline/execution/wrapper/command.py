"""Command line of the wrapper. It starts with every job, so its imports stay light."""

import argparse
import errno
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

from leadline import __version__
from leadline.core.errors import InvalidInput, LeadlineError
from leadline.core.jobs import JobState
from leadline.execution.wrapper.gate import (
    RELEASE_TIMEOUT_S,
    record_never_begun,
    record_never_released,
    wait_for_release,
)
from leadline.execution.wrapper.instruments import ProbeLimit, temporary_instruments
from leadline.execution.wrapper.outcome import (
    EXIT_NEVER_BEGAN,
    STARTED_BEFORE,
    JobOutcome,
    control_path,
    read_outcome,
    write_outcome,
)
from leadline.execution.wrapper.supervise import PROBE_DONE, WrapperLimits, supervise
from leadline.files.private import make_private_folder

GATE_OPEN = b"g"
"""Byte at the gate that says: the wrapper's process is in the journal."""
FULL_DISK_WAIT_S = 600.0
"""Time that the last outcome waits for space on a full disk."""


def main(arguments: list[str]) -> int:
    """Run the command after ``--`` measured; return its exit code, or 128 plus the number of its signal."""
    options = _parser().parse_args(arguments)
    path = _expanded(options.result)
    if options.gate is not None and not _wait_at_gate(options.gate):
        # Pending, so that the command may be started later.
        reason = "its starter died before the command began"
        return record_never_begun(JobState.PENDING, reason, options.command, path)
    waited_s = 0.0 if options.word is None else wait_for_release(_expanded(options.word), options.word_within_s)
    if waited_s is None:
        return record_never_released(options.command, path)
    # Schedulers may start a job again after a crash of their controller.
    if options.once and not _claim_result(path):
        return _exit_like_first(path)

    def write(outcome: JobOutcome) -> None:
        try:
            _write(outcome, path)
        # The job matters more than its measurement.
        except OSError as error:
            sys.stderr.write(f"leadline: {path} cannot be written ({error.strerror}): the run is not recorded\n")

    limits = WrapperLimits(
        options.walltime_s, options.memory_bytes, options.site_walltime_s, options.cpus, options.warning,
        options.warning_s, control_path(path) if options.controlled else None, options.kill_after_s,
        options.since_s + waited_s, path.with_suffix(".marker"),
    )  # fmt: skip

    probe_limit = ProbeLimit(options.stop_units, options.stop_time_s)
    with temporary_instruments(probe_limit, hook=options.probe_hook) as instruments:
        try:
            ended = supervise(options.command, limits, write=write, workdir=options.workdir, instruments=instruments)
        except LeadlineError as error:
            sys.stderr.write(f"leadline: {error}\n")
            return 127
    if ended.state.censored and ended.reason not in ("", PROBE_DONE):
        sys.stderr.write(f"leadline: {ended.state.value}: {ended.reason}\n")
    return _exit_code(ended)


def _parser() -> argparse.ArgumentParser:
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
    parser.add_argument(
        "--warning", type=_signal, help="signal such as USR1, sent before the walltime to processes that handle it"
    )
    parser.add_argument("--warning-s", type=float, default=0.0, help="seconds between the signal and the walltime")
    parser.add_argument(
        "--controlled", action="store_true", help="read changes of the walltime from a file next to the result"
    )
    parser.add_argument(
        "--kill-after-s", type=float, help="seconds from a SIGTERM until remaining processes are killed"
    )
    parser.add_argument("--gate", type=int, help="descriptor that must deliver g before the command is started")
    parser.add_argument("--word", help="file that must exist before the command is started; ${VARIABLES} are expanded")
    parser.add_argument("--word-within-s", type=float, default=RELEASE_TIMEOUT_S, help="seconds to wait for that file")
    parser.add_argument("--since-s", type=float, default=0.0, help="seconds of all walltimes that have already passed")
    parser.add_argument("--once", action="store_true", help="start nothing if a wrapper with this result ran before")
    parser.add_argument("command", nargs="+")
    return parser


def _write(outcome: JobOutcome, path: Path) -> None:
    """Write an outcome; the last one waits for space on a full disk."""
    deadline_s = time.monotonic() + (FULL_DISK_WAIT_S if outcome.state.final else 0.0)
    while True:
        try:
            write_outcome(outcome, path)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT) or time.monotonic() >= deadline_s:
                raise
            time.sleep(1.0)
        else:
            return


def _claim_result(path: Path) -> bool:
    """True if this is the first wrapper with that result; only one process can create the marker file."""
    # A script that is submitted by hand may come before the plane has made its folder.
    make_private_folder(path.parent)
    try:
        os.close(os.open(path.with_suffix(".started"), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        return False
    return True


def _exit_like_first(path: Path) -> int:
    """Return the exit code of the first wrapper, so that a restarted controller learns how it ended."""
    before = None
    with suppress(OSError, InvalidInput):
        before = read_outcome(path)
    if before is None or not before.state.final:
        sys.stderr.write(f"leadline: {path.stem} {STARTED_BEFORE}\n")
        return EXIT_NEVER_BEGAN
    sys.stderr.write(f"leadline: {path.stem} ran before and ended as {before.state.value}: it is not started again\n")
    return _exit_code(before)


def _exit_code(outcome: JobOutcome) -> int:
    return 128 + outcome.signal if outcome.signal else outcome.exit_code or 0


def _wait_at_gate(gate: int) -> bool:
    """Wait until the starter has stored this process; False if it died before."""
    with os.fdopen(gate, "rb") as stream:
        return stream.read(1) == GATE_OPEN


def _expanded(name: str) -> Path:
    return Path(os.path.expandvars(name)).absolute()


def _signal(name: str) -> int:
    return signal.Signals[f"SIG{name.upper().removeprefix('SIG')}"].value


def _cpus(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(","))
