"""The output of jobs: the file of an attempt, found without a scheduler, and read from here or over SSH."""

from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from leadline.app.jobs.journal import plane_dir
from leadline.app.machines.remotes import Remote, find_remote, job_folder
from leadline.app.machines.targets import LOCAL
from leadline.core.errors import InvalidInput, LeadlineError
from leadline.core.frozen import Frozen
from leadline.core.jobs import JobState
from leadline.core.plane import Attempt, Job
from leadline.execution.schedulers.attempt_files import RUNS_FOLDER, OutputPart, log_name, read_output
from leadline.execution.transport.port import Transport

LOG_LINES = 20


def output_path(attempt: Attempt) -> tuple[Remote, PurePosixPath]:
    """Return the output file of an attempt, and the way to it.

    Raises:
        InvalidInput: ``reach.toml`` cannot be read, or lacks the system's folder.
    """
    system = attempt.place.system
    if system.casefold() == LOCAL:
        return Remote(), PurePosixPath((plane_dir() / LOCAL / RUNS_FOLDER / log_name(attempt.key)).absolute())
    remote = find_remote(system)
    return remote, job_folder(system, remote, plane_dir()) / RUNS_FOLDER / log_name(attempt.key)


@dataclass(slots=True)
class OutputPaths:
    """Finds the output files of attempts; each system is looked up once."""

    _folders: dict[str, PurePosixPath | None] = field(default_factory=dict)

    def of(self, attempt: Attempt) -> str | None:
        """Return the output file of an attempt; ``None`` if the folder of its system is unknown."""
        system = attempt.place.system
        if system not in self._folders:
            try:
                self._folders[system] = output_path(attempt)[1].parent
            except LeadlineError:
                self._folders[system] = None
        folder = self._folders[system]
        return None if folder is None else str(folder / log_name(attempt.key))


class AttemptOutput(Frozen):
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


def current_attempt(job: Job) -> Attempt | None:
    """Return the attempt that determines a job's status: a running one, else a waiting one, else the last."""
    running = [attempt for attempt in job.live_attempts if attempt.state is JobState.RUNNING]
    done = [attempt for attempt in job.attempts if job.closed and attempt.state is job.state]
    return next(iter(running or job.live_attempts or reversed(done)), job.attempts[-1] if job.attempts else None)


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
