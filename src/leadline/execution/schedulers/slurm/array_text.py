"""Write the script of a native job array, and parse what Slurm reports about its elements.

Every output format is requested explicitly and split at its delimiter, because pending reasons contain spaces and
commas, and the JSON output changes between Slurm versions.
"""

import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath

from leadline.core.jobs import JobSpec, JobState
from leadline.core.systems import Partition
from leadline.execution.schedulers.slurm.parsing import duration_s, parse_indices
from leadline.execution.schedulers.slurm.script import directives

ELEMENT_MODULE = "leadline.execution.array_element"
"""Module that looks up an array element and runs it measured."""
ARRAY_SQUEUE_FORMAT = "%F|%K|%T|%r"
"""Array id, element, state, reason."""
ARRAY_SACCT_FIELDS = "JobID,State,ExitCode,DerivedExitCode,Elapsed,NodeList,Start,End"
MAX_ARRAY_SIZE = 1000
"""Elements of one array. Slurm's default limit (MaxArraySize) is 1001."""

_ELEMENT = re.compile(r"(?P<array>\d+)(?:_(?P<indices>\d+|\[[^\]]+\]))?(?:\.(?P<step>\S+))?")

ArrayElement = tuple[str, int]
"""Id of an array at the scheduler, and the number of an element."""
WHOLE_ARRAY = -1
"""Element number of an accounting row that represents a whole array."""


@dataclass(frozen=True, slots=True)
class QueuedElement:
    """State of an element in squeue."""

    state: JobState
    reason: str = ""


@dataclass(frozen=True, slots=True)
class AccountedElement:
    """State of an element in sacct, with its steps; ``exit_code`` and ``signal`` are of the process that ended it."""

    state: JobState
    exit_code: int = 0
    signal: int = 0
    elapsed_s: float | None = None
    node: str | None = None
    start: str | None = None
    end: str | None = None


def array_script(
    spec: JobSpec,
    partition: Partition | None,
    *,
    key: str,
    count: int,
    most: int | None,
    lookup: PurePath,
    python: str,
) -> str:
    """Return the script of an array of jobs with equal requests.

    Args:
        spec: the common request.
        partition: rules of the partition, if known.
        key: makes the array's name unique.
        count: number of elements.
        most: elements that may run at once (None: the site's limit).
        lookup: file with the command of each element. Slurm's own output goes to the same folder.
        python: interpreter on the nodes with Leadline.

    Raises:
        InvalidInput: a value cannot stand in a script, exceeds the partition's limits, or is required but missing.
    """
    options = directives(spec, partition, key=key)
    options.pop("--signal", None)
    options["--array"] = f"0-{count - 1}" + (f"%{most}" if most else "")
    options["--output"] = str(lookup.with_suffix(".out")).replace("%", "%%")
    options["--open-mode"] = "append"
    lines = ["#!/bin/bash", *(f"#SBATCH {name}={shlex.quote(value)}" for name, value in options.items())]
    # A retry is a new attempt with its own outcome, so Slurm must not requeue.
    lines += ["#SBATCH --no-requeue"]
    lines += [f"# {' '.join(note.split())}" for note in (partition.rules.notes if partition else ())]
    command = shlex.join([python, "-P", "-m", ELEMENT_MODULE, str(lookup)])
    return "\n".join([*lines, "", f'exec {command} "$SLURM_ARRAY_TASK_ID"', ""])


def resource_shape(spec: JobSpec) -> JobSpec:
    """Return the request of a job without its command; jobs of one shape form one array."""
    return replace(spec, command=(), environment={}, setup=(), workdir=None)


def group_by_shape(jobs: Iterable[tuple[str, JobSpec]]) -> list[tuple[JobSpec, list[str]]]:
    """Return (shape, job keys) in order of first appearance, split at the maximal array size."""
    groups: dict[str, tuple[JobSpec, list[str]]] = {}
    for key, spec in jobs:
        job_shape = resource_shape(spec)
        groups.setdefault(repr(job_shape), (job_shape, []))[1].append(key)
    return [
        (job_shape, keys[start : start + MAX_ARRAY_SIZE])
        for job_shape, keys in groups.values()
        for start in range(0, len(keys), MAX_ARRAY_SIZE)
    ]


def read_squeue(listing: str) -> dict[ArrayElement, QueuedElement]:
    """Parse ``ARRAY_SQUEUE_FORMAT`` lines; elements pending together (``0-3,7%2``) are separated."""
    elements: dict[ArrayElement, QueuedElement] = {}
    for line in listing.splitlines():
        array, _, remainder = line.strip().partition("|")
        indices, _, remainder = remainder.partition("|")
        state, _, reason = remainder.partition("|")
        if array.isdecimal() and state:
            queued = QueuedElement(JobState.from_slurm(state), reason)
            elements.update({(array, index): queued for index in parse_indices(indices)})
    return elements


def read_sacct(listing: str) -> dict[ArrayElement, AccountedElement]:
    """Parse ``ARRAY_SACCT_FIELDS`` lines (``-P -n``); elements that never started share a row (``7_[4-9]``).

    A row may name the array only. If it was cancelled before it had a node, it is stored under ``WHOLE_ARRAY`` and
    holds for elements without a row. Otherwise it belongs to one element, which sacct names within a second or two, and
    is skipped.

    The state is the job's own, except after a step ran out of memory: Slurm then calls the job FAILED.
    """
    jobs: dict[ArrayElement, AccountedElement] = {}
    killed: set[ArrayElement] = set()
    for line in listing.splitlines():
        fields = line.strip().split("|")
        match = _ELEMENT.fullmatch(fields[0])
        if match is None or len(fields) < 8:
            continue
        indices = parse_indices(match["indices"]) if match["indices"] else [WHOLE_ARRAY]
        elements, row = [(match["array"], index) for index in indices], _accounted(fields)
        if match["step"] is None and (match["indices"] or (row.state is JobState.CANCELLED and row.node is None)):
            jobs.update(dict.fromkeys(elements, row))
        if JobState.OUT_OF_MEMORY is row.state or "0:125" in fields[2:4]:
            killed.update(elements)
    return {
        element: replace(row, state=JobState.OUT_OF_MEMORY)
        if element in killed and row.state is JobState.FAILED
        else row
        for element, row in jobs.items()
    }


def read_array_id(listing: str) -> str | None:
    """Return the array's id among lines of ids (``12``, ``12_3``, ``12_[0-3]``); None if there is none."""
    match = re.search(r"^\s*(\d+)", listing, re.MULTILINE)
    return match[1] if match else None


def _accounted(fields: Sequence[str]) -> AccountedElement:
    code, _, sign = fields[2].partition(":")
    return AccountedElement(
        JobState.from_slurm(fields[1]),
        int(code) if code.isdecimal() else 0,
        int(sign) if sign.isdecimal() else 0,
        duration_s(fields[4]),
        fields[5] if fields[5] not in ("", "None assigned") else None,
        _time(fields[6]),
        _time(fields[7]),
    )


def _time(text: str) -> str | None:
    return None if text in ("", "Unknown", "None") else text
