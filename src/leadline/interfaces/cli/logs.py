"""``leadline logs``: print the output of a job, or follow it to the end."""

import sys
from dataclasses import dataclass
from threading import Event

import click

from leadline.app.jobs.inline_plane import InlinePlane, interrupts
from leadline.app.jobs.journal import find_job, keep_journal_open
from leadline.app.jobs.logs import AttemptOutput, open_output, select_attempt
from leadline.core.errors import SchedulerUnreachable
from leadline.core.plane import Attempt
from leadline.interfaces.cli.command import INTERRUPTED, argument, command, flag, option
from leadline.interfaces.cli.output import print_note

LOOK_S, LEAST_WAIT_S = 1.0, 0.2
"""Longest and shortest interval between looks at an output that is followed."""


@command("logs")
@argument("name", "JOB", "Job key or its prefix, job name, scheduler ID, or array element.")
@flag("-f --follow", "Print new output until the job ends.")
@option("number --attempt", "N", "Attempt whose output is printed.", "the current one", type=click.IntRange(1))
@option("-n --lines", "N", "Begin with the last N lines.", "all", type=click.IntRange(0))
@keep_journal_open()
def logs(name: str, *, follow: bool, number: int | None, lines: int | None) -> int:
    """Print the output of a job, also from a system that is reached over SSH.

    With --follow, this command runs the plane meanwhile if no other process does. Ctrl-C ends the view, not the job.
    """
    job = find_job(name)
    attempt = select_attempt(job, number)
    if follow:
        with InlinePlane(print_note) as inline_plane, interrupts() as interrupted:
            return _follow(job.key, number, lines, inline_plane, interrupted)
    if attempt is None:
        print_note(f"no output yet: {job.spec.name} has not been submitted to a scheduler")
        return 0
    _print_all(open_output(attempt), lines)
    return 0


def _print_all(output: AttemptOutput, lines: int | None) -> None:
    """Print an output as far as it goes now."""
    part = output.read(lines=lines)
    if part.next_offset is None:
        print_note(f"no output yet: {output.path} does not exist at {output.transport.where}")
    while part.data:
        _write(part.data)
        if lines is not None or part.next_offset is None:
            return
        part = output.read(part.next_offset)


def _follow(key: str, number: int | None, lines: int | None, inline_plane: InlinePlane, interrupted: Event) -> int:
    """Print what is new until the job, or the attempt of that number, has ended; return the exit code."""
    follower = _Follower(lines)
    while True:
        wait_s = inline_plane.step()
        job = find_job(key)
        # Looked at before the output is read, so that nothing is missed.
        attempt = select_attempt(job, number)
        ended = job.closed or (number is not None and attempt is not None and not attempt.live)
        has_more = attempt is not None and follower.print_new(attempt)
        if interrupted.is_set():
            return INTERRUPTED
        if ended and not has_more and not follower.problem:
            return 0
        if not has_more:
            interrupted.wait(min(max(wait_s, LEAST_WAIT_S), LOOK_S))


@dataclass(slots=True)
class _Follower:
    """Prints the outputs of a job's attempts, one after the other; ``problem`` is why the last look failed."""

    lines: int | None
    output: AttemptOutput | None = None
    offset: int = 0
    problem: str = ""

    def print_new(self, attempt: Attempt) -> bool:
        """Print what is new, before anything of a later attempt; True if there may be more at once."""
        self.output = self.output or open_output(attempt)
        try:
            part = self.output.read(self.offset, lines=self.lines)
        except SchedulerUnreachable as error:
            if str(error) != self.problem:
                print_note(f"note: {error}; retrying")
            self.problem = str(error)
            return False
        self.problem = ""
        _write(part.data)
        if part.next_offset is not None:
            self.offset, self.lines = part.next_offset, None
        if part.data or attempt.key == self.output.attempt.key:
            return bool(part.data)
        print_note(f"attempt {attempt.number} at {attempt.place}")
        self.output, self.offset, self.lines = open_output(attempt), 0, None
        return True


def _write(data: bytes) -> None:
    """Write output as it is, whatever its encoding."""
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
