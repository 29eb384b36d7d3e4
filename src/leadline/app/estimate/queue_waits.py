"""How long requests wait in the queues of systems whose accounting the user shows."""

import getpass
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from leadline.core.documents import explain_read_error
from leadline.core.errors import InvalidInput, SchedulerUnreachable
from leadline.core.jobs import ResourceSpec
from leadline.core.ports import Catalog
from leadline.core.processes import ProcessRunner
from leadline.core.queues import AccountedJob, QueueWait
from leadline.execution.processes import run_process
from leadline.history.sacct import SACCT_ENVIRONMENT, read_sacct, sacct_command
from leadline.recommendation.feasibility import PlacementCandidate

DAYS, PATIENCE_S = 60, 300.0
"""What the ``sacct`` of this machine is asked for, and how long it may take."""


class SystemQueue(Protocol):
    """The queue of a system at a moment, in seconds since the epoch."""

    @property
    def accounting(self) -> Sequence[AccountedJob]: ...  # noqa: D102 - a field

    @property
    def now_s(self) -> float: ...  # noqa: D102 - a field

    def waits(self, asked: Sequence[AccountedJob]) -> Sequence[QueueWait]:
        """Foretell the wait of each job were it alone submitted now."""


def read_queues(shown: Sequence[str], catalog: Catalog, runner: ProcessRunner = run_process) -> dict[str, SystemQueue]:
    """Read the accounting of systems, ``SYSTEM=FILE`` each (``-``: standard input), and learn from it.

    ``SYSTEM`` alone asks the ``sacct`` of this machine.

    Raises:
        InvalidInput: an accounting cannot be read, or tells of too few jobs; or there is no ``sacct`` here.
        UnknownName: there is no such system.
        SchedulerUnreachable: ``sacct`` did not answer.
    """
    found: dict[str, SystemQueue] = {}
    for one in shown:
        from leadline.app.estimate.learned_queue import learn_queue  # noqa: PLC0415 - numpy, where it is needed alone

        name, equals, path = one.partition("=")
        if equals and not path:
            raise InvalidInput(f"--waits {one} names no file: write SYSTEM=FILE, such as Pitzer=sacct.txt")
        system = catalog.system(name).name
        jobs = read_sacct(_text(path) if path else _asked_here(name, runner))
        if not jobs:
            raise InvalidInput(f"{path or 'sacct'} tells of no job, so nothing is known of the waits at {system}")
        found[system] = learn_queue(system, jobs)
    return found


def add_waits(
    candidates: Sequence[PlacementCandidate], queues: Mapping[str, SystemQueue]
) -> tuple[list[PlacementCandidate], tuple[str, ...]]:
    """Return the candidates, each with its wait where that is known, and sentences on what the waits rest on."""
    waits: dict[tuple[str, str, ResourceSpec], QueueWait] = {}
    notes: list[str] = []
    for system, queue in queues.items():
        asked = {(one.partition.name, one.request): None for one in candidates if one.system.name == system}
        told = _heard_of(queue)
        known = any(partition in told for partition, _ in asked)
        for (partition, request), wait in predict_queue_waits(queue, list(asked)).items():
            waits[system, partition, request] = wait
        missing = sorted({partition for partition, _ in asked} - told)
        if missing:
            notes.append(
                f"waits in {', '.join(missing)} of {system} are not known: its accounting tells of no job that started "
                "there"
            )
        if known:
            moment = datetime.fromtimestamp(queue.now_s, UTC).strftime("%Y-%m-%d %H:%M UTC")
            notes.append(f"waits at {system} are those of its queue at {moment}")
    timed = [
        replace(one, wait=waits.get((one.system.name, one.partition.name, one.request))) if queues else one
        for one in candidates
    ]
    return timed, tuple(notes)


def predict_queue_waits(
    queue: SystemQueue, asked: Sequence[tuple[str, ResourceSpec]]
) -> dict[tuple[str, ResourceSpec], QueueWait]:
    """Return the waits of requests, each in a partition; of those where no job ever started nothing is known."""
    told, user = _heard_of(queue), _user(queue)
    known = [one for one in dict.fromkeys(asked) if one[0] in told]
    jobs = [_as_job(f"asked-{number}", user, *one) for number, one in enumerate(known)]
    return dict(zip(known, queue.waits(jobs) if jobs else (), strict=True))


def _heard_of(queue: SystemQueue) -> set[str]:
    """Return the partitions where jobs started."""
    return {job.partition for job in queue.accounting if job.started_s is not None}


def _user(queue: SystemQueue) -> str:
    """Return the name that the user's own jobs stand under, if there are any."""
    try:
        name = getpass.getuser()
    except (OSError, KeyError):
        return ""
    return name if any(job.user == name for job in queue.accounting) else ""


def _as_job(key: str, user: str, partition: str, asked: ResourceSpec) -> AccountedJob:
    cores = asked.nodes * asked.tasks_per_node * (asked.cores_per_task or 1)
    memory = asked.memory_bytes_per_node
    return AccountedJob(
        key, 0.0, user=user, partition=partition, nodes=asked.nodes, cores=cores,
        gpus=asked.nodes * asked.gpus_per_node, memory_bytes=None if memory is None else memory * asked.nodes,
        walltime_s=asked.walltime_s,
    )  # fmt: skip


def _asked_here(name: str, runner: ProcessRunner) -> str:
    """Return what the ``sacct`` of this machine tells of the last ``DAYS``."""
    fix = f"on the system itself write its accounting into a file, and name it with --waits {name}=FILE"
    try:
        done = runner(sacct_command(DAYS), env=SACCT_ENVIRONMENT, timeout_s=PATIENCE_S)
    except InvalidInput as error:
        raise InvalidInput(f"--waits {name} asks sacct, which is not here: {fix}") from error
    if done.timed_out or done.returncode:
        said = next(iter(done.stderr.strip().splitlines()[-1:]), f"exit code {done.returncode}")
        why = f"nothing within {PATIENCE_S:.0f} s" if done.timed_out else said
        raise SchedulerUnreachable(f"sacct did not tell of the last {DAYS} days ({why}): {fix}")
    return done.stdout


def _text(path: str) -> str:
    try:
        return sys.stdin.read() if path == "-" else Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path} cannot be read: {explain_read_error(error)}") from error
