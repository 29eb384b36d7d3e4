"""Slurm's words: durations, moments, sizes and ids, as its commands print them in any version since 20.11."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from leadline.core.jobs import JobState
from leadline.core.units import DAY_S, HOUR_S, MINUTE_S, format_bytes
from leadline.execution.schedulers.port import SchedulerStatus

EPOCH_TIMES = {"SLURM_TIME_FORMAT": "%s"}
"""Makes the commands print moments as seconds since the epoch: no time zone, no change of the clocks to summer."""

_DURATION = re.compile(r"(?:(?P<days>\d+)-)?(?:(?P<hours>\d+):)?(?P<minutes>\d+):(?P<seconds>\d+)(?:\.\d+)?")
_SIZE_PATTERN = re.compile(r"(?P<number>\d+(?:\.\d+)?)(?P<unit>[KMGTP]?)")
_UNITS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}


def duration_s(said: str) -> float | None:
    """Return the seconds of ``1-02:03:04``, ``02:03:04`` or ``03:04``; ``None`` of ``UNLIMITED`` and the like."""
    match = _DURATION.fullmatch(said)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(match[name] or 0) for name in ("days", "hours", "minutes", "seconds"))
    return float(days * DAY_S + hours * HOUR_S + minutes * MINUTE_S + seconds)


def moment_s(said: str) -> float | None:
    """Return the epoch second of a moment, printed as such or (by a Slurm that keeps to it) as local ISO 8601."""
    if said.isdecimal():
        return float(said) or None
    try:
        return datetime.fromisoformat(said).timestamp()
    except (ValueError, OverflowError):
        return None


def size_bytes(said: str) -> int | None:
    """Return the bytes of ``216K``, ``1.5G``, ``0``; ``None`` of what is no size."""
    match = _SIZE_PATTERN.fullmatch(said.strip())
    if match is None:
        return None
    return int(float(match["number"]) * 1024 ** _UNITS[match["unit"]])


def parse_indices(said: str) -> list[int]:
    """Read ``3``, ``0-3``, ``[0-3,7%2]``, ``[0-8:4]``; nothing of a job that is no array."""
    found: list[int] = []
    for part in said.strip("[]").partition("%")[0].split(","):
        span, _, step = part.partition(":")
        first, dash, last = span.partition("-")
        if first.isdecimal() and (not dash or last.isdecimal()):
            found += range(int(first), int(last if dash else first) + 1, int(step) if step.isdecimal() else 1)
    return found


def format_ranges(indices: Iterable[int]) -> str:
    """Write ``0-3,7`` for indices in rising order."""
    spans: list[list[int]] = []
    for index in sorted(indices):
        if spans and index == spans[-1][1] + 1:
            spans[-1][1] = index
        else:
            spans.append([index, index])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


def read_job_id(said: str) -> str | None:
    """Return the id that ``sbatch --parsable`` printed, ``ID`` or ``ID;CLUSTER``; ``None`` if it printed none."""
    match = re.search(r"^(\d+)(?:;\S+)?$", said.strip(), re.MULTILINE)
    return match[1] if match else None


SQUEUE_FORMAT = "%i|%T|%V|%S|%l|%M|%D|%N|%k|%j|%r"
"""Id, state, submitted, start (or forecast), limit, elapsed, nodes, their names, comment, name, reason.

Reasons hold spaces and commas. Leadline's own comments and names hold no delimiter, and of others it is enough to see
that they are others.
"""
_TIMES = "ElapsedRaw,Submit,Start,End,TimelimitRaw"
SACCT_FIELDS = f"JobID,State,ExitCode,DerivedExitCode,{_TIMES},NNodes,MaxRSS,ReqMem,NodeList,JobName"
OUT_OF_MEMORY = "0:125"
"""The exit code by which Slurm marks what the kernel killed for memory."""
NEARLY = 0.95
"""A killed task that used so much of the memory it asked for is said to have done so."""

_ID = re.compile(r"(?P<array>\d+)(?:_(?P<indices>\d+|\[[^\]]+\]))?(?:\+\d+)?(?:\.(?P<step>\S+))?")
_ENDED = (JobState.COMPLETED, JobState.FAILED, JobState.OUT_OF_MEMORY)


def read_queue(listing: str, wanted: Collection[str]) -> dict[str, SchedulerStatus]:
    """Read lines in the format ``SQUEUE_FORMAT`` (elements told apart by ``-r``), of the wanted ids alone."""
    ids, found = frozenset(wanted), dict[str, SchedulerStatus]()
    for line in listing.splitlines():
        scheduler_id, _, rest = line.partition("|")
        if scheduler_id in ids:
            fields = rest.split("|", 9)
            if len(fields) == 10:
                found[scheduler_id] = _queued(fields)
    return found


def read_accounting(listing: str, wanted: Collection[str]) -> dict[str, SchedulerStatus]:
    """Read lines in the format ``SACCT_FIELDS`` (``-P -n --duplicates``): the last incarnation of wanted ids, and their steps.

    A row may name an array alone. Of one that was cancelled before it had a node it holds for all elements without a
    row of their own; else it is of one element only, for a second or two, until sacct knows of which.
    """
    jobs: dict[str, _Accounted] = {}
    for line in listing.splitlines():
        fields = line.strip().split("|", 13)
        match = _ID.fullmatch(fields[0])
        if match is None or len(fields) != 14:
            continue
        ids = (
            [f"{match['array']}_{at}" for at in parse_indices(match["indices"])]
            if match["indices"]
            else [match["array"]]
        )
        for one in ids:
            if match["step"] is None:
                jobs[one] = _Accounted(fields, [])
            elif one in jobs:
                jobs[one].steps.append(fields)
    found = {}
    for one in wanted:
        row, whole = jobs.get(one), jobs.get(one.partition("_")[0])
        if row is None and whole is not None and whole.never_ran:
            row = whole
        if row is not None:
            found[one] = row.status()
    return found


def read_controller(listing: str, wanted: Collection[str]) -> dict[str, SchedulerStatus]:
    """Read what ``scontrol --oneliner show job ID`` says, a line for each element of an array, of the wanted ids."""
    ids, found = frozenset(wanted), dict[str, SchedulerStatus]()
    for line in listing.splitlines():
        fields: dict[str, str] = {}
        for name, value in re.findall(r"(?:^|\s)([A-Za-z:/]+)=(\S*)", line):
            fields.setdefault(name, value)
        array, index = fields.get("ArrayJobId"), fields.get("ArrayTaskId")
        one = f"{array}_{index}" if array and index else fields.get("JobId", "")
        if one in ids and "JobState" in fields:
            found[one] = _controlled(fields)
    return found


def _controlled(fields: Mapping[str, str]) -> SchedulerStatus:
    row = [fields.get("JobId", ""), fields["JobState"], fields.get("ExitCode", ""), fields.get("DerivedExitCode", ""),
           "", *(fields.get(name, "") for name in ("SubmitTime", "StartTime", "EndTime")), "",
           fields.get("NumNodes", "").partition("-")[0], "", "", fields.get("NodeList", ""),
           _key(fields.get("Comment", "")) or fields.get("JobName", "")]  # fmt: skip
    status = _Accounted(row, []).status()
    elapsed_s, limit_s = duration_s(fields.get("RunTime", "")), duration_s(fields.get("TimeLimit", ""))
    reason = status.reason or fields.get("Reason", "").replace("None", "")
    return SchedulerStatus(
        status.state, reason, status.submitted_s, status.started_s, status.ended_s if status.state.final else None,
        walltime_s=limit_s, elapsed_s=elapsed_s, nodes=status.nodes, node=status.node, exit_code=status.exit_code,
        signal=status.signal, evidence=status.evidence, name=status.name,
    )  # fmt: skip


def read_names(listing: str, mark: str, keys: Collection[str]) -> dict[str, str]:
    """Return key → id of records of ``MARK`` and a field each: id, state, node, comment, name.

    Names and comments may hold anything but the mark. A comment ``leadline:KEY`` is certain; where the site keeps
    none, the name ends in ``-KEY``. Of several jobs of one key the first is meant; one that FAILED without ever having
    had a node is what Slurm keeps of a submission that it refused, and none of them.
    """
    wanted, found = frozenset(keys), dict[str, str]()
    pieces = iter(listing.split(mark)[1:])
    for scheduler_id, state, node, comment, name in zip(*[pieces] * 5, strict=False):
        match = re.match(r"\s*(\d+)", scheduler_id)
        if match is None or (JobState.from_slurm(state) is JobState.FAILED and _named(node.strip()) is None):
            continue
        if key := _key(comment):
            named = key
        else:
            named = max((key for key in wanted if name.strip().endswith(f"-{key}")), key=len, default="")
        if named in wanted:
            found[named] = min(match[1], found.get(named, match[1]), key=int)
    return found


def read_forecast(said: str) -> float | None:
    """Return the moment of ``Job 5 to start at 1795349658 using 1 processors …``; ``None`` if there is none."""
    match = re.search(r"\bto start at (\S+)", said)
    return moment_s(match[1]) if match else None


@dataclass(slots=True)
class _Accounted:
    """A job's row and those of its steps, in the order of ``SACCT_FIELDS``."""

    row: list[str]
    steps: list[list[str]] = field(default_factory=list)

    @property
    def never_ran(self) -> bool:
        """Whether it was cancelled before it had a node."""
        return JobState.from_slurm(self.row[1]) is JobState.CANCELLED and _named(self.row[12]) is None

    def status(self) -> SchedulerStatus:
        """Return what they say together."""
        _, said, _, _, elapsed, submitted, started, ended, limit, nodes, _, _, names, name = self.row
        state, evidence = JobState.from_slurm(said), tuple(self._evidence())
        if state is JobState.FAILED and self._out_of_memory():
            state = JobState.OUT_OF_MEMORY
        code, sign = _codes(self.row[2])
        words = said.split(maxsplit=1)
        return SchedulerStatus(
            state,
            said if state is JobState.UNKNOWN else words[1] if len(words) > 1 else "",
            moment_s(submitted), moment_s(started), moment_s(ended),
            walltime_s=float(limit) * MINUTE_S if limit.isdecimal() else None,
            elapsed_s=float(elapsed) if elapsed.isdecimal() else None,
            nodes=int(nodes) or None if nodes.isdecimal() else None,
            node=_named(names),
            exit_code=code if state in _ENDED and not sign else None,
            signal=sign if 0 < sign < 65 else None,  # 125 is a mark and no signal
            memory_bytes=self._memory_bytes(),
            evidence=evidence,
            name=name or None,
        )  # fmt: skip

    def _memory_bytes(self) -> int | None:
        """Return the largest memory that was sampled of a task; 0 is what is said of one that ended too soon."""
        return max((size_bytes(step[10]) or 0 for step in self.steps), default=0) or None

    def _out_of_memory(self) -> bool:
        return any(JobState.OUT_OF_MEMORY is JobState.from_slurm(one[1]) or OUT_OF_MEMORY in one[2:4]
                   for one in (self.row, *self.steps))  # fmt: skip

    def _evidence(self) -> Iterator[str]:
        """Tell what the steps say beyond the job's own row."""
        for step in self.steps:
            state = JobState.from_slurm(step[1])
            if state is JobState.OUT_OF_MEMORY or step[2] == OUT_OF_MEMORY:
                yield f"step {step[0]} ran out of memory"
            elif state.final and state is not JobState.COMPLETED:
                yield f"step {step[0]} ended {step[1]} with exit code {step[2]}"
        if OUT_OF_MEMORY in self.row[2:4] and not any(step[2] == OUT_OF_MEMORY for step in self.steps):
            yield f"the exit code {OUT_OF_MEMORY} says that a process was killed for memory"
        asked, seen = size_bytes(self.row[11].removesuffix("n")), self._memory_bytes()
        if JobState.from_slurm(self.row[1]) is JobState.FAILED and asked and seen and seen > NEARLY * asked:
            yield f"one of its tasks used {format_bytes(seen)} of the {format_bytes(asked)} asked for"


def _queued(fields: list[str]) -> SchedulerStatus:
    said, submitted, start, limit, elapsed, nodes, names, comment, name, reason = fields
    state, start_s = JobState.from_slurm(said), moment_s(start)
    waits = state is JobState.PENDING
    return SchedulerStatus(
        state,
        f"{said}: {reason}" if state is JobState.UNKNOWN else "" if reason == "None" else reason,
        moment_s(submitted),
        started_s=None if waits else start_s,
        expected_start_s=start_s if waits else None,
        walltime_s=duration_s(limit),
        elapsed_s=duration_s(elapsed),
        nodes=int(nodes) or None if nodes.isdecimal() else None,
        node=_named(names),
        name=_key(comment) or name or None,
    )


def _key(comment: str) -> str:
    """Return the key that a comment of Leadline's holds; nothing if it is another's."""
    return comment.removeprefix("leadline:").strip() if comment.startswith("leadline:") else ""


def _codes(said: str) -> tuple[int, int]:
    code, _, sign = said.partition(":")
    return int(code) if code.isdecimal() else 0, int(sign) if sign.isdecimal() else 0


def _named(nodes: str) -> str | None:
    return None if nodes in ("", "None assigned", "(null)") else nodes
