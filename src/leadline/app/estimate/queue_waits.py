"""Predict how long requests wait in queues, from the job accounting that the user provides."""

import getpass
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from leadline.app import settings
from leadline.core.errors import InvalidInput, SchedulerUnreachable
from leadline.core.frozen import Frozen
from leadline.core.jobs import ResourceSpec
from leadline.core.ports import Catalog
from leadline.core.processes import ProcessRunner
from leadline.core.queues import AccountedJob, QueueWait
from leadline.core.units import DAY_S
from leadline.execution.transport.environment import run_without_settings
from leadline.files.read import decode_input, read_input_text
from leadline.history.sacct import SACCT_ENVIRONMENT, read_sacct, sacct_command
from leadline.recommendation.feasibility import PlacementCandidate

if TYPE_CHECKING:
    from leadline.training.queue_wait import QueueWaitModel

DAYS, PATIENCE_S = 60, 300.0
"""What the ``sacct`` of this machine is asked for, and how long it may take."""
VALID_S = DAY_S
"""Lifetime of a cached wait model: the users of a system change from day to day."""


class LearnedQueue(Frozen):
    """The jobs of a system as known at ``now_s``, and the wait model fitted to them."""

    learned: "QueueWaitModel"
    accounting: Sequence[AccountedJob]
    now_s: float


def learn_queue(system: str, jobs: Sequence[AccountedJob]) -> LearnedQueue:
    """Return the queue one second after the last event in the accounting.

    The fitted model is cached for ``VALID_S``.

    Raises:
        InvalidInput: too few jobs started.
    """
    from leadline.training.array_files import keep_cached, load_cached  # noqa: PLC0415 - numpy loads on use
    from leadline.training.queue_wait import QueueWaitModel, fit_queue_wait_model  # noqa: PLC0415 - see above

    moments = [(job.submitted_s, job.started_s, job.ended_s) for job in jobs]
    # One second later, so that no job of the accounting is submitted at the same moment.
    now_s = max(at_s for moment in moments for at_s in moment if at_s is not None) + 1.0
    path = settings.data_dir() / "waits" / f"{system.lower().replace('/', '-')}.npz"
    learned = load_cached(path, QueueWaitModel.load)
    if learned is None or not 0 <= now_s - learned.learned_until_s < VALID_S:
        learned = fit_queue_wait_model(jobs, now_s)
        keep_cached(path, learned.dump())
    return LearnedQueue(learned, jobs, now_s)


def read_queues(
    arguments: Sequence[str], catalog: Catalog, runner: ProcessRunner = run_without_settings
) -> dict[str, LearnedQueue]:
    """Read the accounting of systems, ``SYSTEM=FILE`` each (``-``: standard input), and fit a wait model to each.

    ``SYSTEM`` alone runs the ``sacct`` of this machine.

    Raises:
        InvalidInput: an accounting cannot be read or has too few jobs, or there is no ``sacct``.
        UnknownName: there is no such system.
        SchedulerUnreachable: ``sacct`` did not answer.
    """
    queues: dict[str, LearnedQueue] = {}
    for argument in arguments:
        name, equals, path = argument.partition("=")
        if equals and not path:
            raise InvalidInput(f"--waits {argument} has no file name: write SYSTEM=FILE, such as Pitzer=sacct.txt")
        system = catalog.system(name).name
        jobs = read_accounting_file(path) if path else read_sacct(_run_sacct(name, runner))
        if not jobs:
            raise InvalidInput(f"{path or 'sacct'} has no jobs, so the waits at {system} are unknown")
        queues[system] = learn_queue(system, jobs)
    return queues


def add_waits(
    candidates: Sequence[PlacementCandidate], queues: Mapping[str, LearnedQueue]
) -> tuple[list[PlacementCandidate], tuple[str, ...]]:
    """Return the candidates with their predicted wait where known, and notes on the waits."""
    waits: dict[tuple[str, str, ResourceSpec], QueueWait] = {}
    notes: list[str] = []
    for system, queue in queues.items():
        here = [candidate for candidate in candidates if candidate.system.name == system]
        partitions = {candidate.partition.name for candidate in here}
        started = _started_partitions(queue)
        requests = [(candidate.partition.name, candidate.request) for candidate in here]
        for (partition, request), wait in predict_queue_waits(queue, requests).items():
            waits[system, partition, request] = wait
        if missing := sorted(partitions - started):
            notes.append(
                f"waits in {', '.join(missing)} of {system} are unknown: the accounting has no started job there"
            )
        if partitions & started:
            moment = datetime.fromtimestamp(queue.now_s, UTC).strftime("%Y-%m-%d %H:%M UTC")
            notes.append(f"waits at {system} are those of its queue at {moment}")
    if not queues:
        return list(candidates), ()
    keys = [(candidate.system.name, candidate.partition.name, candidate.request) for candidate in candidates]
    timed = [replace(candidate, wait=waits.get(key)) for candidate, key in zip(candidates, keys, strict=True)]
    return timed, tuple(notes)


def predict_queue_waits(
    queue: LearnedQueue, requests: Sequence[tuple[str, ResourceSpec]]
) -> dict[tuple[str, ResourceSpec], QueueWait]:
    """Return the waits of (partition, request) pairs; partitions without a started job are left out."""
    started, user = _started_partitions(queue), _user(queue)
    known_requests = [request for request in dict.fromkeys(requests) if request[0] in started]
    jobs = [_to_job(f"asked-{number}", user, *request) for number, request in enumerate(known_requests)]
    # Each wait is predicted as if the job alone were submitted now.
    waits = queue.learned.predict(queue.accounting, jobs, queue.now_s) if jobs else ()
    return dict(zip(known_requests, waits, strict=True))


def _started_partitions(queue: LearnedQueue) -> set[str]:
    """Return the partitions where jobs started."""
    return {job.partition for job in queue.accounting if job.started_s is not None}


def _user(queue: LearnedQueue) -> str:
    """Return the user's name in the accounting; empty if it has no job of theirs."""
    try:
        # A container may run without an entry in the password file.
        name = getpass.getuser()
    except (OSError, KeyError):
        return ""
    return name if any(job.user == name for job in queue.accounting) else ""


def _to_job(key: str, user: str, partition: str, request: ResourceSpec) -> AccountedJob:
    cores = request.nodes * request.tasks_per_node * (request.cores_per_task or 1)
    memory = request.memory_bytes_per_node
    return AccountedJob(
        key, 0.0, user=user, partition=partition, nodes=request.nodes, cores=cores,
        gpus=request.nodes * request.gpus_per_node, memory_bytes=None if memory is None else memory * request.nodes,
        walltime_s=request.walltime_s,
    )  # fmt: skip


def _run_sacct(name: str, runner: ProcessRunner) -> str:
    """Return the output of this machine's ``sacct`` for the last ``DAYS``."""
    fix = f"on that system write its accounting to a file, and pass it with --waits {name}=FILE"
    try:
        done = runner(sacct_command(DAYS), env=SACCT_ENVIRONMENT, timeout_s=PATIENCE_S)
    except InvalidInput as error:
        raise InvalidInput(f"--waits {name} needs sacct, which is not on this machine: {fix}") from error
    if done.timed_out or done.returncode:
        message = next(iter(done.stderr.strip().splitlines()[-1:]), f"exit code {done.returncode}")
        why = f"no answer within {PATIENCE_S:.0f} s" if done.timed_out else message
        raise SchedulerUnreachable(f"sacct failed for the last {DAYS} days ({why}): {fix}")
    return done.stdout


def read_accounting_file(path: str) -> list[AccountedJob]:
    """Return the jobs of an accounting in a file, or on standard input for ``-``.

    Raises:
        InvalidInput: it cannot be read, or is no accounting.
    """
    return read_sacct(decode_input(sys.stdin.buffer.read(), path) if path == "-" else read_input_text(Path(path)))
