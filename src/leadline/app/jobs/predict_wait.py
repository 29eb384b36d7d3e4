"""Foretell the waits of jobs at one system, in a process of its own: ``python -m leadline.app.jobs.predict_wait``.

It reads ``WaitQuestion`` as JSON and prints ``WaitForecast``: an accounting of weeks is large, and is gone with the process.
"""

import os
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from leadline.app.composition import toolbox
from leadline.app.estimate.queue_waits import DAYS, PATIENCE_S, SystemQueue, predict_queue_waits
from leadline.app.jobs.schedulers import PBS_FLAVOURS, build_scheduler, lookup_partition, scheduler_kind
from leadline.app.machines.remotes import find_remote
from leadline.core.documents import from_json, to_json
from leadline.core.errors import LeadlineError
from leadline.core.jobs import JobSpec
from leadline.core.ports import Catalog
from leadline.core.queues import QueueWait
from leadline.execution.schedulers.port import Submission
from leadline.execution.transport.port import LocalTransport, Transport
from leadline.execution.transport.ssh import SshTransport
from leadline.history.sacct import SACCT_ENVIRONMENT, read_sacct, sacct_command

MAX_PLANNED = 5
"""Jobs that a scheduler itself is asked about at once: each such question uses up one of its numbers of jobs."""
NICENESS = 10


@dataclass(frozen=True, slots=True)
class WaitQuestion:
    """Jobs that might be submitted to a system now, each with its partition and request."""

    system: str
    jobs: tuple[JobSpec, ...]


@dataclass(frozen=True, slots=True)
class WaitForecast:
    """What is known of each job's wait, in their order: learned of the accounting, else planned by the scheduler (s).

    ``reason`` says why nothing was learned.
    """

    learned: tuple[QueueWait | None, ...]
    planned_s: tuple[float | None, ...]
    reason: str = ""


def predict_wait(asked: WaitQuestion, catalog: Catalog, transport: Transport | None = None) -> WaitForecast:
    """Return how long jobs would wait at a system."""
    learned: list[QueueWait | None] = [None] * len(asked.jobs)
    why = ""
    try:
        queue = read_queue(asked.system, catalog, transport or open_transport(asked.system))
        pairs = [(queue_name(one, catalog), one.resources) for one in asked.jobs]
        told = predict_queue_waits(queue, [pair for pair in pairs if pair[0]])
        learned = [told.get(pair) for pair in pairs]
    except LeadlineError as error:
        why = str(error)
    planned = [None if known is not None else job for job, known in zip(asked.jobs, learned, strict=True)]
    return WaitForecast(tuple(learned), tuple(_planned(asked.system, planned, catalog)), why)


def read_queue(system: str, catalog: Catalog, transport: Transport) -> SystemQueue:
    """Return the queue of a system as its own accounting tells of it.

    Raises:
        LeadlineError: it has no such accounting, it cannot be read, or it tells of too few jobs.
    """
    if scheduler_kind(system, find_remote(system), catalog) in PBS_FLAVOURS:
        raise LeadlineError(f"{system} has no accounting that is known how to read")
    done = transport.run(sacct_command(DAYS), env=SACCT_ENVIRONMENT, timeout_s=PATIENCE_S)
    if done.timed_out or done.returncode:
        raise LeadlineError(f"the accounting of {system} did not answer ({done.stderr.strip() or 'no reason given'})")
    jobs = read_sacct(done.stdout)
    if not jobs:
        raise LeadlineError(f"the accounting of {system} tells of no job")
    from leadline.app.estimate.learned_queue import learn_queue  # noqa: PLC0415 - numpy, where it is needed alone

    return learn_queue(system, jobs)


def open_transport(system: str) -> Transport:
    """Return the way to a system."""
    host = find_remote(system).host
    return LocalTransport() if host is None else SshTransport(host)


def queue_name(spec: JobSpec, catalog: Catalog) -> str:
    """Return what the scheduler calls a job's partition; empty where the job names none."""
    partition = lookup_partition(spec, catalog)
    if partition is not None and partition.queue is not None:
        return partition.queue
    return spec.partition or ""


def _planned(system: str, jobs: Sequence[JobSpec | None], catalog: Catalog) -> list[float | None]:
    """Return the waits that the scheduler itself plans for the first few of these jobs."""
    found: list[float | None] = [None] * len(jobs)
    places = [at for at, job in enumerate(jobs) if job is not None][:MAX_PLANNED]
    if not places:
        return found
    with suppress(LeadlineError), tempfile.TemporaryDirectory() as folder:
        scheduler = build_scheduler(system, catalog, Path(folder))
        for at in places:
            job = jobs[at]
            if job is not None:
                start_s = scheduler.forecast_start_s(Submission("forecast", replace(job, setup=())))
                found[at] = None if start_s is None else max(0.0, start_s - time.time())
    return found


def main() -> int:
    """Answer one question, out of the way of whatever else runs here."""
    os.nice(NICENESS)
    try:
        asked = from_json(sys.stdin.read(), WaitQuestion, label="the question")
        sys.stdout.write(to_json(predict_wait(asked, toolbox().catalog), indent=0))
    except LeadlineError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
