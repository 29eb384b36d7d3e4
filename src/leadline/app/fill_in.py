"""Ask for what a job needs where its owner left that open: the GPUs it trains on, and the rest as it is predicted."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from leadline.app.estimate import RISK, Toolbox
from leadline.app.submit import Request, find_partition, job_spec, predict_at
from leadline.app.workloads import launched
from leadline.core.estimate import Estimate
from leadline.core.jobs import JobSpec, ResourceSpec
from leadline.core.systems import Partition
from leadline.core.units import format_bytes, format_clock
from leadline.recommend.requests import request_for


@dataclass(frozen=True, slots=True)
class Filled:
    """A request with nothing left open that could be known, and a sentence for each thing that was filled in.

    ``predicted`` is what it rests on, where something was left open that a prediction tells; the job's runs carry
    ``tags``.
    """

    request: Request
    notes: tuple[str, ...] = ()
    predicted: Estimate | None = None
    tags: dict[str, str] = field(default_factory=dict)


def fill_in(request: Request, subject: Sequence[str], place: str, tools: Toolbox) -> Filled:
    """Return ``request`` for ``place`` with its GPUs, nodes, cores, memory and walltime filled in.

    GPUs are the workload's: its file's, else as many as its launcher starts processes, and at least one where the
    partition has them (all of a node that is given whole). Cores, memory and walltime are those that ``recommend``
    asks for there. What the user asked for stays, and on a cluster that the catalog does not know so does the rest.

    Raises:
        UnknownName: no such system or partition.
        InvalidInput: the place has no batch scheduler, or there is no command.
    """
    spec = job_spec(subject, place, replace(request, nodes=1))
    partition = find_partition(spec, tools.catalog)
    if partition is None:
        return Filled(request)
    used, nodes, why = (spec.resources.gpus_per_node, 0, "") if request.gpus is not None else _used(spec, partition)
    per_node = partition.node.gpus if partition.node.device else 0
    nodes = request.nodes or nodes or (max(1, math.ceil(used / per_node)) if per_node else 1)
    asked = max(used, per_node * nodes) if why and partition.rules.whole_nodes else used
    filled = replace(request, gpus=asked, nodes=nodes)
    notes = []
    if why and asked:
        notes.append(f"{asked} GPU{'s are' if asked > 1 else ' is'} asked for, {why}: --gpus changes it")
    if None in (request.cores, request.memory_bytes, request.walltime_s):
        found = _predicted(filled, subject, place, partition, tools, used)
        return replace(found, notes=(*notes, *found.notes))
    return Filled(filled, tuple(notes))


def _used(spec: JobSpec, partition: Partition) -> tuple[int, int, str]:
    """Return how many GPUs a job uses whose owner asked for none, on how many nodes, and why.

    0 nodes are as many as the GPUs take. There is no reason to give where the job's own file says it, nor where there
    are no GPUs.
    """
    if said := spec.resources.gpus_per_node:
        return said, 0, ""
    if not partition.node.device:
        return 0, 0, ""
    processes, nodes = launched(spec.command)
    if processes > 1:
        return processes, nodes, "one for each process that the command starts"
    has = "gives whole nodes with GPUs" if partition.rules.whole_nodes else "has GPUs"
    return 1, 0, f"as {spec.system}:{partition.name} {has} and nothing says how many the job uses"


def _predicted(
    request: Request, subject: Sequence[str], place: str, partition: Partition, tools: Toolbox, gpus: int
) -> Filled:
    """Fill cores, memory and walltime in from what is predicted at ``place`` on ``gpus``; say so, or why not."""
    found = predict_at(place, subject, tools, gpus=gpus or None, name=request.name)
    predicted = found.estimate
    if predicted is None:
        why = f"what is not asked for is left to the site, as nothing could be predicted: {found.why_not}"
        return Filled(request, (why,))
    asked = request_for(predicted, partition, RISK)
    filled = replace(
        request,
        cores=asked.cores_per_task if request.cores is None else request.cores,
        memory_bytes=asked.memory_bytes_per_node if request.memory_bytes is None else request.memory_bytes,
        walltime_s=asked.walltime_s if request.walltime_s is None else request.walltime_s,
    )
    filled, sooner = _sooner(filled, request, asked.walltime_s)
    filled_in = _words(request, asked)
    notes = [f"asked for as predicted there, at a risk of {RISK:.0%}: {filled_in}"] if filled_in else []
    notes += sooner
    needed, there = predicted.gpu_memory_bytes, predicted.device_memory_bytes
    if needed and there and needed.point > there:
        notes.append(
            f"the job needs about {format_bytes(needed.point)} of GPU memory and a {predicted.target.device} has "
            f"{format_bytes(there)}: leadline recommend shows where it fits"
        )
    return Filled(filled, tuple(notes), predicted, found.tags)


def _sooner(filled: Request, request: Request, enough_s: float | None) -> tuple[Request, list[str]]:
    """Let the scheduler give a shorter limit than the user asks for, if so much is enough as far as is known."""
    asked_s = request.walltime_s
    if asked_s is None or enough_s is None or request.least_walltime_s is not None or enough_s >= asked_s:
        return filled, []
    said = f"a limit of {format_clock(enough_s)} may be given it, if it then starts sooner: --time-min changes that"
    return replace(filled, least_walltime_s=enough_s), [said]


def _words(request: Request, asked: ResourceSpec) -> str:
    """Name what was filled in, each with the option that changes it."""
    cores, memory, walltime = asked.cores_per_task, asked.memory_bytes_per_node, asked.walltime_s
    found = [
        ("--cores", request.cores, f"{cores} cores" if cores else None),
        ("--memory", request.memory_bytes, f"{format_bytes(memory)} of memory a node" if memory else None),
        ("--time", request.walltime_s, f"{format_clock(walltime)} of walltime" if walltime else None),
    ]
    return ", ".join(f"{words or 'what the site gives'} ({option})" for option, said, words in found if said is None)
