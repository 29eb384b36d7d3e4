"""Write what a native job array is submitted as, and read what Slurm says of its elements: pure text.

Formats are asked for explicitly and read by their delimiter, for pending reasons hold spaces and commas, and JSON
changes from one Slurm to the next.
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
"""The module that looks its element up and runs it measured."""
ARRAY_SQUEUE_FORMAT = "%F|%K|%T|%r"
"""Array's id, element, state, reason."""
ARRAY_SACCT_FIELDS = "JobID,State,ExitCode,DerivedExitCode,Elapsed,NodeList,Start,End"
MAX_ARRAY_SIZE = 1000
"""Elements of one array; Slurm's own limit (MaxArraySize) is 1001 where nobody changed it."""

_ELEMENT = re.compile(r"(?P<array>\d+)(?:_(?P<indices>\d+|\[[^\]]+\]))?(?:\.(?P<step>\S+))?")

ArrayElement = tuple[str, int]
"""An array's id at the scheduler, and the number of one of its elements."""
WHOLE_ARRAY = -1
"""In place of that number: what the accounting says of an array before, or without, telling its elements apart."""


@dataclass(frozen=True, slots=True)
class QueuedElement:
    """What squeue says of an element."""

    state: JobState
    reason: str = ""


@dataclass(frozen=True, slots=True)
class AccountedElement:
    """What sacct says of an element, its steps taken in; ``exit_code`` and ``signal`` are of what ended it."""

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
    """Return the script of an array of ``count`` jobs that ask for what ``spec`` asks for.

    ``most`` elements run at once (``None``: as many as the site lets). Each looks up its command in ``lookup``; what
    Slurm itself has to say goes to a file beside it. ``key`` makes the array's name unique, and ``python`` is an
    interpreter of the nodes that has Leadline.

    Raises:
        InvalidInput: a value cannot stand in a script, is beyond the partition's limits, or is missing though the
            site demands it.
    """
    options = directives(spec, partition, key=key)
    options.pop("--signal", None)
    options["--array"] = f"0-{count - 1}" + (f"%{most}" if most else "")
    options["--output"] = str(lookup.with_suffix(".out")).replace("%", "%%")
    options["--open-mode"] = "append"
    lines = ["#!/bin/bash", *(f"#SBATCH {name}={shlex.quote(value)}" for name, value in options.items())]
    lines += ["#SBATCH --no-requeue"]  # what is made again is made again as an attempt of its own
    lines += [f"# {' '.join(note.split())}" for note in (partition.rules.notes if partition else ())]
    command = shlex.join([python, "-P", "-m", ELEMENT_MODULE, str(lookup)])
    return "\n".join([*lines, "", f'exec {command} "$SLURM_ARRAY_TASK_ID"', ""])


def resource_shape(spec: JobSpec) -> JobSpec:
    """Return what a job asks for, without what it runs: jobs of one shape make one array."""
    return replace(spec, command=(), environment={}, setup=(), workdir=None)


def group_by_shape(jobs: Iterable[tuple[str, JobSpec]]) -> list[tuple[JobSpec, list[str]]]:
    """Return (shape, keys of its jobs) in the order of the first of each, none longer than an array may be."""
    found: dict[str, tuple[JobSpec, list[str]]] = {}
    for key, spec in jobs:
        asked = resource_shape(spec)
        found.setdefault(repr(asked), (asked, []))[1].append(key)
    return [
        (asked, keys[at : at + MAX_ARRAY_SIZE])
        for asked, keys in found.values()
        for at in range(0, len(keys), MAX_ARRAY_SIZE)
    ]


def read_squeue(listing: str) -> dict[ArrayElement, QueuedElement]:
    """Read lines in the format ``ARRAY_SQUEUE_FORMAT``; elements that still pend together (``0-3,7%2``) are told apart."""
    found: dict[ArrayElement, QueuedElement] = {}
    for line in listing.splitlines():
        array, _, rest = line.strip().partition("|")
        indices, _, rest = rest.partition("|")
        state, _, reason = rest.partition("|")
        if array.isdecimal() and state:
            queued = QueuedElement(JobState.from_slurm(state), reason)
            found.update({(array, index): queued for index in parse_indices(indices)})
    return found


def read_sacct(listing: str) -> dict[ArrayElement, AccountedElement]:
    """Read lines in the format ``ARRAY_SACCT_FIELDS``, with ``-P -n``; elements that never started share one (``7_[4-9]``).

    A row may name the array alone. Of one that was cancelled before it had a node it is under ``WHOLE_ARRAY``, and holds for
    the elements that have none of their own; else it is of one element only, for a second or two, until sacct knows of
    which, and says nothing.

    The state is the job's own, but for a step that ran out of memory, which Slurm calls FAILED in the job's row.
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
        one: replace(row, state=JobState.OUT_OF_MEMORY) if one in killed and row.state is JobState.FAILED else row
        for one, row in jobs.items()
    }


def read_array_id(listing: str) -> str | None:
    """Return the array's id among lines of ids (``12``, ``12_3``, ``12_[0-3]``); ``None`` where there is none."""
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


def _time(said: str) -> str | None:
    return None if said in ("", "Unknown", "None") else said
