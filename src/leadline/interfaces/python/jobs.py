"""Submit jobs to the Intelligence Plane, and follow them by handles."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from os import PathLike, fspath
from typing import overload

from leadline.app.composition import toolbox
from leadline.app.jobs.event_log import EventLog, read_event_log
from leadline.app.jobs.inline_plane import step_until
from leadline.app.jobs.job_request import JobRequest, resolve_request
from leadline.app.jobs.job_status import JobStatus, job_statuses
from leadline.app.jobs.journal import cancel_jobs, find_job, open_journal, submit_jobs
from leadline.app.jobs.logs import last_lines, select_attempt
from leadline.app.jobs.plane_options import PlaneOptions
from leadline.core.errors import LeadlineError
from leadline.core.jobs import JobState
from leadline.core.units import duration_s, parse_bytes

FOREVER_S = float("inf")


@dataclass(frozen=True, slots=True)
class Job:
    """A job that was submitted; ``key`` names it in every command, such as ``leadline explain KEY``.

    A handle holds the key only, so it may be made anew from the key in another process.
    """

    key: str

    def status(self) -> JobStatus:
        """Return the state of the job, its progress, its expected end and its usage.

        Raises:
            UnknownName: There is no such job.
        """
        return job_statuses([self.key])[0]

    def logs(self, lines: int = 20, *, attempt: int | None = None) -> str:
        """Return the last lines of the output of an attempt, by default the current one; empty before it has started.

        The file is ``status().output``.

        Raises:
            UnknownName: There is no such job.
            InvalidInput: The job has no attempt of that number.
        """
        selected = select_attempt(find_job(self.key), attempt)
        return "\n".join(last_lines(selected, lines)) if selected else ""

    def wait(self, timeout_s: float = FOREVER_S) -> JobStatus:
        """Wait until the job has ended, and return its status; the plane runs in this process meanwhile if needed.

        Args:
            timeout_s: Seconds to wait at most.

        Raises:
            UnknownName: There is no such job.
            TimeoutError: The job has not ended within ``timeout_s``.
        """
        if not step_until(lambda: self.status().closed, timeout_s):
            raise TimeoutError(f"job {self.key} has not ended within {timeout_s:g} s: call wait() again")
        return self.status()

    def explain(self) -> EventLog:
        """Return the event log: the request, every decision with its evidence, and every attempt.

        Raises:
            UnknownName: There is no such job.
        """
        return read_event_log(self.key)

    def cancel(self) -> None:
        """Ask the plane to cancel the job; nothing happens if it has ended.

        Raises:
            UnknownName: There is no such job.
        """
        cancel_jobs([self.key])

    def _repr_html_(self) -> str:
        status = self.status()
        return f"<code>{self.key}</code> {status.state.value} at {status.place}"


def jobs(*, all_jobs: bool = False) -> tuple[Job, ...]:
    """Return the jobs at work, newest first; with ``all_jobs`` those that have ended too."""
    return tuple(Job(status.key) for status in job_statuses((), all_jobs=all_jobs))


@overload
def submit(
    subject: str | PathLike[str] | Sequence[str], *, on: str | Sequence[str] = ..., array: None = ...,
    options: PlaneOptions | None = ..., gpus: int | None = ..., nodes: int | None = ..., cores: int | None = ...,
    memory: str | None = ..., time: str | timedelta | None = ..., account: str | None = ..., name: str = ...,
    workdir: str | None = ..., setup: Sequence[str] = ..., accept_timeout_s: float = ...,
) -> Job: ...  # fmt: skip
@overload
def submit(
    subject: str | PathLike[str] | Sequence[str], *, on: str | Sequence[str] = ..., array: str,
    options: PlaneOptions | None = ..., gpus: int | None = ..., nodes: int | None = ..., cores: int | None = ...,
    memory: str | None = ..., time: str | timedelta | None = ..., account: str | None = ..., name: str = ...,
    workdir: str | None = ..., setup: Sequence[str] = ..., accept_timeout_s: float = ...,
) -> tuple[Job, ...]: ...  # fmt: skip
def submit(
    subject: str | PathLike[str] | Sequence[str], *, on: str | Sequence[str] = "local", array: str | None = None,
    options: PlaneOptions | None = None, gpus: int | None = None, nodes: int | None = None, cores: int | None = None,
    memory: str | None = None, time: str | timedelta | None = None, account: str | None = None, name: str = "",
    workdir: str | None = None, setup: Sequence[str] = (), accept_timeout_s: float = 60.0,
) -> Job | tuple[Job, ...]:  # fmt: skip
    """Submit a job to the Intelligence Plane, which runs it on this machine or a cluster and manages it.

    Args:
        subject: A command as a list of words, or a workload file with a command.
        on: Places, the preferred one first: ``local``, ``SYSTEM:PARTITION`` or ``slurm[:PARTITION]``.
        array: Elements of a job array, such as ``0-99``; then a handle is returned for each.
        options: Limits of the plane's actions: attempts, copies, cost, checkpoints, deadline, dependencies.
        gpus: GPUs of the whole job; inferred by default.
        nodes: Nodes of the job.
        cores: Cores per node.
        memory: Memory per node with its unit, such as ``16G``; predicted by default on a cluster.
        time: Time limit, a text such as ``2h`` or a ``timedelta``; predicted by default on a cluster.
        account: Project to charge.
        name: Name of the job; its script's by default.
        workdir: Folder to run in; the current one by default.
        setup: Shell lines before the command.
        accept_timeout_s: Seconds to wait for the scheduler's answer; the job stays submitted afterwards.

    Raises:
        LeadlineError: The request is invalid, or no place accepted the job; the message names the fix.
    """
    request = JobRequest(
        (fspath(subject),) if isinstance(subject, (str, PathLike)) else tuple(subject),
        (on,) if isinstance(on, str) else tuple(on),
        account=account, nodes=nodes, gpus=gpus, cores=cores,
        memory_bytes=None if memory is None else parse_bytes(str(memory)),
        walltime_s=None if time is None else duration_s(time), name=name, workdir=workdir,
        setup=tuple(setup),
        options=replace(options or PlaneOptions(), array=array),
    )  # fmt: skip
    submission = resolve_request(request, toolbox(), at_hand=True)
    with open_journal():
        handles = tuple(Job(job.key) for job in submit_jobs(submission))
        step_until(lambda: all(_accepted(handle) for handle in (handles[0], handles[-1])), accept_timeout_s)
        for status in job_statuses([handle.key for handle in handles]):
            if status.closed and status.state is not JobState.COMPLETED and not status.elapsed_s:
                raise LeadlineError(f"job {status.key} was not accepted: {status.why}")
    return handles[0] if array is None else handles


def _accepted(handle: Job) -> bool:
    status = handle.status()
    return status.closed or status.scheduler_id is not None or status.why.startswith("after")
