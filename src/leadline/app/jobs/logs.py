"""The output of jobs: the file of an attempt, read from here or over SSH."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import PurePosixPath

from leadline.app.jobs.job_status import current_attempt
from leadline.app.jobs.output_paths import output_path
from leadline.core.errors import InvalidInput, LeadlineError
from leadline.core.plane import Attempt, Job
from leadline.execution.schedulers.attempt_files import OutputPart, read_output
from leadline.execution.transport.port import Transport

LOG_LINES = 20


@dataclass(frozen=True, slots=True)
class AttemptOutput:
    """The output file of one attempt, and the transport to it."""

    attempt: Attempt
    transport: Transport
    path: PurePosixPath

    def read(self, offset: int = 0, *, lines: int | None = None) -> OutputPart:
        """Return the next part from ``offset`` on, or the last ``lines``.

        Raises:
            SchedulerUnreachable: the system does not answer.
        """
        return read_output(self.transport, self.path, offset, lines=lines)


def open_output(attempt: Attempt) -> AttemptOutput:
    """Return the output of an attempt; nothing is read yet.

    Raises:
        InvalidInput: ``reach.toml`` lacks the folder of its system.
    """
    from leadline.app.jobs.schedulers import transport_to  # noqa: PLC0415 - all schedulers load with it

    remote, path = output_path(attempt)
    return AttemptOutput(attempt, transport_to(remote), path)


def select_attempt(job: Job, number: int | None = None) -> Attempt | None:
    """Return an attempt of a job, by default the one that runs, waits or ended last; ``None`` if there is none yet.

    Raises:
        InvalidInput: the job has no attempt of that number.
    """
    if number is None:
        return current_attempt(job)
    for attempt in job.attempts:
        if attempt.number == number:
            return attempt
    count = len(job.attempts)
    have = f"attempts 1 to {count}" if count > 1 else "one attempt" if count else "no attempt yet"
    raise InvalidInput(f"job {job.key} has no attempt {number}: it has {have}")


def last_lines(attempt: Attempt, limit: int = LOG_LINES) -> tuple[str, ...]:
    """Return the last lines of an attempt's output; empty if its system is unreachable."""
    with suppress(LeadlineError):
        part = open_output(attempt).read(lines=limit)
        return tuple(part.data.decode(errors="replace").splitlines())
    return ()
