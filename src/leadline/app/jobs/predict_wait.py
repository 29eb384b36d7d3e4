"""Predict the queue waits of jobs at one system: ``python -m leadline.app.jobs.predict_wait``.

It reads a ``WaitQuestion`` as JSON from stdin and prints a ``WaitForecast``. It runs in a process of its own, because
the accounting of weeks needs much memory.
"""

import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from leadline.app.background import answer_question
from leadline.app.composition import user_catalog
from leadline.app.estimate.queue_waits import DAYS, PATIENCE_S, LearnedQueue, learn_queue, predict_queue_waits
from leadline.app.jobs.schedulers import PBS_FLAVOURS, build_scheduler, scheduler_kind, transport_to
from leadline.app.machines.remotes import find_remote
from leadline.app.machines.targets import lookup_partition
from leadline.core.errors import LeadlineError
from leadline.core.frozen import Frozen
from leadline.core.jobs import JobSpec
from leadline.core.ports import Catalog
from leadline.core.queues import QueueWait
from leadline.execution.schedulers.port import Submission
from leadline.execution.transport.port import Transport
from leadline.history.sacct import SACCT_ENVIRONMENT, read_sacct, sacct_command

MAX_PLANNED = 5
"""Maximum number of start forecasts per question: each uses up a job number of the scheduler."""


class WaitQuestion(Frozen):
    """Jobs that might be submitted to a system, each with its partition and request."""

    system: str
    jobs: tuple[JobSpec, ...]


class WaitForecast(Frozen):
    """Wait of each job, in order: predicted from accounting, else planned by the scheduler (seconds).

    ``reason`` says why the accounting could not be used.
    """

    learned: tuple[QueueWait | None, ...]
    planned_s: tuple[float | None, ...]
    reason: str = ""


def predict_wait(question: WaitQuestion, catalog: Catalog, transport: Transport | None = None) -> WaitForecast:
    """Return the waits of jobs at a system."""
    learned: list[QueueWait | None] = [None] * len(question.jobs)
    why = ""
    try:
        queue = read_queue(question.system, catalog, transport or transport_to(find_remote(question.system)))
        pairs = [(queue_name(job, catalog), job.resources) for job in question.jobs]
        waits = predict_queue_waits(queue, [pair for pair in pairs if pair[0]])
        learned = [waits.get(pair) for pair in pairs]
    except LeadlineError as error:
        why = str(error)
    planned = [None if wait is not None else job for job, wait in zip(question.jobs, learned, strict=True)]
    return WaitForecast(tuple(learned), tuple(_planned(question.system, planned, catalog)), why)


def read_queue(system: str, catalog: Catalog, transport: Transport) -> LearnedQueue:
    """Return the queue of a system from its own accounting.

    Raises:
        LeadlineError: there is no accounting, it cannot be read, or it has too few jobs.
    """
    if scheduler_kind(system, find_remote(system), catalog) in PBS_FLAVOURS:
        raise LeadlineError(f"cannot read the accounting of {system}: only Slurm's sacct is supported")
    done = transport.run(sacct_command(DAYS), env=SACCT_ENVIRONMENT, timeout_s=PATIENCE_S)
    if done.timed_out or done.returncode:
        raise LeadlineError(f"sacct of {system} failed ({done.stderr.strip() or 'no reason given'})")
    jobs = read_sacct(done.stdout)
    if not jobs:
        raise LeadlineError(f"the accounting of {system} has no jobs")
    return learn_queue(system, jobs)


def queue_name(spec: JobSpec, catalog: Catalog) -> str:
    """Return the scheduler's name of a job's partition; empty if the job names none."""
    partition = lookup_partition(spec.system, spec.partition, catalog)
    return (spec.partition or "") if partition is None or partition.queue is None else partition.queue


def _planned(system: str, jobs: Sequence[JobSpec | None], catalog: Catalog) -> list[float | None]:
    """Return the waits that the scheduler plans for the first few of these jobs."""
    waits: list[float | None] = [None] * len(jobs)
    first = [(at, job) for at, job in enumerate(jobs) if job is not None][:MAX_PLANNED]
    if not first:
        return waits
    with suppress(LeadlineError), tempfile.TemporaryDirectory() as folder:
        scheduler = build_scheduler(system, catalog, Path(folder))
        for at, job in first:
            # The setup lines do not affect the start time.
            start_s = scheduler.forecast_start_s(Submission("forecast", replace(job, setup=())))
            waits[at] = None if start_s is None else max(0.0, start_s - time.time())
    return waits


if __name__ == "__main__":
    sys.exit(answer_question(WaitQuestion, lambda question: predict_wait(question, user_catalog())))
