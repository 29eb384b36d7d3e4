"""Foretell the waits of jobs at one system, in a process of its own: ``python -m leadline.app.foretell``.

It reads ``Asked`` as JSON and prints ``Foretold``: an accounting of weeks is large, and is gone with the process.
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
from leadline.app.queue_waits import DAYS, PATIENCE_S, Queue, waits_of
from leadline.app.reach import reach_of
from leadline.app.schedulers import PBS, kind_of, known_partition, scheduler_of
from leadline.core.documents import dump, load
from leadline.core.errors import LeadlineError
from leadline.core.jobs import JobSpec
from leadline.core.ports import Catalog
from leadline.core.waits import QueueWait
from leadline.execution.scheduler import Submission
from leadline.execution.ssh import Ssh
from leadline.execution.transport import Here, Transport
from leadline.history.sacct import ENVIRONMENT, read_sacct, sacct_command

PLANNED_MOST = 5
"""Jobs that a scheduler itself is asked about at once: each such question uses up one of its numbers of jobs."""
NICENESS = 10


@dataclass(frozen=True, slots=True)
class Asked:
    """Jobs that might be submitted to a system now, each with its partition and request."""

    system: str
    jobs: tuple[JobSpec, ...]


@dataclass(frozen=True, slots=True)
class Foretold:
    """What is known of each job's wait, in their order: learned of the accounting, else planned by the scheduler (s).

    ``why`` says why nothing was learned.
    """

    learned: tuple[QueueWait | None, ...]
    planned_s: tuple[float | None, ...]
    why: str = ""


def foretell(asked: Asked, catalog: Catalog, transport: Transport | None = None) -> Foretold:
    """Return how long jobs would wait at a system."""
    learned: list[QueueWait | None] = [None] * len(asked.jobs)
    why = ""
    try:
        queue = queue_of(asked.system, catalog, transport or transport_to(asked.system))
        pairs = [(queue_name(one, catalog), one.resources) for one in asked.jobs]
        told = waits_of(queue, [pair for pair in pairs if pair[0]])
        learned = [told.get(pair) for pair in pairs]
    except LeadlineError as error:
        why = str(error)
    planned = [None if known is not None else job for job, known in zip(asked.jobs, learned, strict=True)]
    return Foretold(tuple(learned), tuple(_planned(asked.system, planned, catalog)), why)


def queue_of(system: str, catalog: Catalog, transport: Transport) -> Queue:
    """Return the queue of a system as its own accounting tells of it.

    Raises:
        LeadlineError: it has no such accounting, it cannot be read, or it tells of too few jobs.
    """
    if kind_of(system, reach_of(system), catalog) in PBS:
        raise LeadlineError(f"{system} has no accounting that is known how to read")
    done = transport.run(sacct_command(DAYS), env=ENVIRONMENT, timeout_s=PATIENCE_S)
    if done.timed_out or done.returncode:
        raise LeadlineError(f"the accounting of {system} did not answer ({done.stderr.strip() or 'no reason given'})")
    jobs = read_sacct(done.stdout)
    if not jobs:
        raise LeadlineError(f"the accounting of {system} tells of no job")
    from leadline.app.learned_queue import learned_queue  # noqa: PLC0415 - numpy, where it is needed alone

    return learned_queue(system, jobs)


def transport_to(system: str) -> Transport:
    """Return the way to a system."""
    host = reach_of(system).host
    return Here() if host is None else Ssh(host)


def queue_name(spec: JobSpec, catalog: Catalog) -> str:
    """Return what the scheduler calls a job's partition; empty where the job names none."""
    partition = known_partition(spec, catalog)
    if partition is not None and partition.queue is not None:
        return partition.queue
    return spec.partition or ""


def _planned(system: str, jobs: Sequence[JobSpec | None], catalog: Catalog) -> list[float | None]:
    """Return the waits that the scheduler itself plans for the first few of these jobs."""
    found: list[float | None] = [None] * len(jobs)
    places = [at for at, job in enumerate(jobs) if job is not None][:PLANNED_MOST]
    if not places:
        return found
    with suppress(LeadlineError), tempfile.TemporaryDirectory() as folder:
        scheduler = scheduler_of(system, catalog, Path(folder))
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
        asked = load(sys.stdin.read(), Asked, what="the question")
        sys.stdout.write(dump(foretell(asked, toolbox().catalog), indent=0))
    except LeadlineError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
