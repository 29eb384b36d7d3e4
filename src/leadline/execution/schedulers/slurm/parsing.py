"""Parse the output of squeue, sacct and scontrol, of any version since 20.11.

Every output format is requested explicitly and split at its delimiter. For fields with arbitrary text, such as job
names and comments, the delimiter is random.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from leadline.core.jobs import JobState
from leadline.core.units import DAY_S, HOUR_S, MINUTE_S, format_bytes, parse_epoch_s, parse_whole
from leadline.execution.schedulers.port import SchedulerStatus

EPOCH_TIMES = {"SLURM_TIME_FORMAT": "%s"}
"""Makes the commands print times as seconds since the epoch, free of time zones and daylight saving."""

_DURATION = re.compile(
    r"(?:(?P<days>\d{1,9})-)?(?:(?P<hours>\d{1,9}):)?(?P<minutes>\d{1,9}):(?P<seconds>\d{1,9})(?:\.\d+)?"
)
_SIZE_PATTERN = re.compile(r"(?P<number>\d{1,18}(?:\.\d+)?)(?P<unit>[KMGTP]?)")
MOST_INDICES = 1_000_000
"""Elements of an array that are read; no Slurm allows more than four times as many."""
_UNITS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}


def duration_s(text: str) -> float | None:
    """Return the seconds of ``1-02:03:04``, ``02:03:04`` or ``03:04``; None for ``UNLIMITED`` and the like."""
    match = _DURATION.fullmatch(text)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(match[name] or 0) for name in ("days", "hours", "minutes", "seconds"))
    return float(days * DAY_S + hours * HOUR_S + minutes * MINUTE_S + seconds)


def moment_s(text: str) -> float | None:
    """Return a time in seconds since the epoch, from that form or from local ISO 8601."""
    if text.isdecimal():
        return parse_epoch_s(text) or None
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        return None


def size_bytes(text: str) -> int | None:
    """Return the bytes of ``216K``, ``1.5G`` or ``0``; None for other text."""
    match = _SIZE_PATTERN.fullmatch(text.strip())
    if match is None:
        return None
    return int(float(match["number"]) * 1024 ** _UNITS[match["unit"]])


def parse_indices(text: str) -> list[int]:
    """Parse ``3``, ``0-3``, ``[0-3,7%2]`` or ``[0-8:4]``; empty for a job that is no array."""
    indices: list[int] = []
    for part in text.strip("[]").partition("%")[0].split(","):
        span, _, step = part.partition(":")
        first, dash, last = span.partition("-")
        low, high = parse_whole(first), parse_whole(last if dash else first)
        if low is not None and high is not None:
            indices += range(low, high + 1, parse_whole(step) or 1)[: MOST_INDICES - len(indices)]
    return indices


def format_ranges(indices: Iterable[int]) -> str:
    """Return indices as ``0-3,7``."""
    spans: list[list[int]] = []
    for index in sorted(indices):
        if spans and index == spans[-1][1] + 1:
            spans[-1][1] = index
        else:
            spans.append([index, index])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


def read_job_id(output: str) -> str | None:
    """Return the id that ``sbatch --parsable`` printed, ``ID`` or ``ID;CLUSTER``; None if there is none."""
    match = re.search(r"^(\d+)(?:;\S+)?$", output.strip(), re.MULTILINE)
    return match[1] if match else None


SQUEUE_FORMAT = "%i|%T|%V|%S|%l|%M|%D|%N|%k|%j|%r"
"""Id, state, submission, start (or predicted start), limit, elapsed, nodes, node names, comment, name, reason.

Reasons may contain spaces and commas. Leadline's own comments and names never contain the delimiter; others only need
to be recognized as foreign.
"""
_TIMES = "ElapsedRaw,Submit,Start,End,TimelimitRaw"
SACCT_FIELDS = f"JobID,State,ExitCode,DerivedExitCode,{_TIMES},NNodes,MaxRSS,ReqMem,NodeList,JobName"
OUT_OF_MEMORY = "0:125"
"""Slurm's exit code for a process that the kernel killed for memory."""
NEARLY = 0.95
"""A killed task that used this share of its requested memory gets a remark about it."""

_ID = re.compile(r"(?P<array>\d+)(?:_(?P<indices>\d+|\[[^\]]+\]))?(?:\+\d+)?(?:\.(?P<step>\S+))?")
_ENDED = (JobState.COMPLETED, JobState.FAILED, JobState.OUT_OF_MEMORY)


def read_queue(listing: str, wanted_ids: Collection[str]) -> dict[str, SchedulerStatus]:
    """Parse ``SQUEUE_FORMAT`` lines of the wanted ids; ``squeue -r`` lists array elements one by one."""
    ids, statuses = frozenset(wanted_ids), dict[str, SchedulerStatus]()
    for line in listing.splitlines():
        scheduler_id, _, remainder = line.partition("|")
        # Foreign jobs first drop out, because their fields may contain anything.
        if scheduler_id in ids:
            fields = remainder.split("|", 9)
            if len(fields) == 10:
                statuses[scheduler_id] = _queued(fields)
    return statuses


def read_accounting(listing: str, wanted_ids: Collection[str]) -> dict[str, SchedulerStatus]:
    """Parse ``SACCT_FIELDS`` lines (``-P -n --duplicates``): the last run of each wanted id, with its steps.

    A row may name an array only. If it was cancelled before it had a node, the row holds for all elements without a row
    of their own. Otherwise it belongs to one element, and sacct shows which within a second or two.
    """
    jobs: dict[str, _Accounted] = {}
    for line in listing.splitlines():
        # Job names may contain the delimiter, so the name is the last field.
        fields = line.strip().split("|", 13)
        match = _ID.fullmatch(fields[0])
        if match is None or len(fields) != 14:
            continue
        ids = (
            [f"{match['array']}_{index}" for index in parse_indices(match["indices"])]
            if match["indices"]
            else [match["array"]]
        )
        for job_id in ids:
            if match["step"] is None:
                jobs[job_id] = _Accounted(fields, [])
            elif job_id in jobs:
                jobs[job_id].steps.append(fields)
    statuses = {}
    for job_id in wanted_ids:
        row, array_row = jobs.get(job_id), jobs.get(job_id.partition("_")[0])
        if row is None and array_row is not None and array_row.never_ran:
            row = array_row
        if row is not None:
            statuses[job_id] = row.status()
    return statuses


def read_controller(listing: str, wanted_ids: Collection[str]) -> dict[str, SchedulerStatus]:
    """Parse ``scontrol --oneliner show job ID`` for the wanted ids, one line for each array element."""
    ids, statuses = frozenset(wanted_ids), dict[str, SchedulerStatus]()
    for line in listing.splitlines():
        fields: dict[str, str] = {}
        for name, value in re.findall(r"(?:^|\s)([A-Za-z:/]+)=(\S*)", line):
            fields.setdefault(name, value)
        array, index = fields.get("ArrayJobId"), fields.get("ArrayTaskId")
        job_id = f"{array}_{index}" if array and index else fields.get("JobId", "")
        if job_id in ids and "JobState" in fields:
            statuses[job_id] = _controlled(fields)
    return statuses


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
    """Return key -> id from records of the mark and one field each: id, state, node, comment, name.

    Names and comments may contain anything but the mark. A comment ``leadline:KEY`` is certain. If the site drops
    comments, the name ends with ``-KEY``. Of several jobs with one key, the first counts. A job that FAILED without a
    node is Slurm's trace of a refused submission and is skipped.
    """
    key_set, ids = frozenset(keys), dict[str, str]()
    pieces = iter(listing.split(mark)[1:])
    for scheduler_id, state, node, comment, name in zip(*[pieces] * 5, strict=False):
        match = re.match(r"\s*(\d{1,18})", scheduler_id)
        if match is None or (JobState.from_slurm(state) is JobState.FAILED and _named(node.strip()) is None):
            continue
        if key := _key(comment):
            matched_key = key
        else:
            matched_key = max((key for key in key_set if name.strip().endswith(f"-{key}")), key=len, default="")
        if matched_key in key_set:
            ids[matched_key] = min(match[1], ids.get(matched_key, match[1]), key=int)
    return ids


def read_forecast(output: str) -> float | None:
    """Return the time in ``Job 5 to start at 1795349658 using 1 processors ...``; None if there is none."""
    match = re.search(r"\bto start at (\S+)", output)
    return moment_s(match[1]) if match else None


@dataclass(slots=True)
class _Accounted:
    """The accounting row of a job and those of its steps, as in ``SACCT_FIELDS``."""

    row: list[str]
    steps: list[list[str]] = field(default_factory=list)

    @property
    def never_ran(self) -> bool:
        """True if it was cancelled before it had a node."""
        return JobState.from_slurm(self.row[1]) is JobState.CANCELLED and _named(self.row[12]) is None

    def status(self) -> SchedulerStatus:
        """Return the status from the job's row and its steps."""
        _, state_text, _, _, elapsed, submitted, started, ended, limit, nodes, _, _, names, name = self.row
        state, evidence = JobState.from_slurm(state_text), tuple(self._evidence())
        if state is JobState.FAILED and self._out_of_memory():
            state = JobState.OUT_OF_MEMORY
        code, sign = _codes(self.row[2])
        words = state_text.split(maxsplit=1)
        return SchedulerStatus(
            state,
            state_text if state is JobState.UNKNOWN else words[1] if len(words) > 1 else "",
            moment_s(submitted), moment_s(started), moment_s(ended),
            walltime_s=None if (minutes := parse_whole(limit)) is None else float(minutes) * MINUTE_S,
            elapsed_s=None if (seconds := parse_whole(elapsed)) is None else float(seconds),
            nodes=parse_whole(nodes) or None,
            node=_named(names),
            exit_code=code if state in _ENDED and not sign else None,
            # 125 marks a memory kill and is not a signal.
            signal=sign if 0 < sign < 65 else None,
            memory_bytes=self._memory_bytes(),
            evidence=evidence,
            name=name or None,
        )  # fmt: skip

    def _memory_bytes(self) -> int | None:
        """Return the largest sampled memory of a task. Slurm reports 0 if a task ended before the first sample."""
        return max((size_bytes(step[10]) or 0 for step in self.steps), default=0) or None

    def _out_of_memory(self) -> bool:
        return any(JobState.OUT_OF_MEMORY is JobState.from_slurm(row[1]) or OUT_OF_MEMORY in row[2:4]
                   for row in (self.row, *self.steps))  # fmt: skip

    def _evidence(self) -> Iterator[str]:
        """Yield remarks of the steps that the job's own row lacks."""
        for step in self.steps:
            state = JobState.from_slurm(step[1])
            if state is JobState.OUT_OF_MEMORY or step[2] == OUT_OF_MEMORY:
                yield f"step {step[0]} ran out of memory"
            elif state.final and state is not JobState.COMPLETED:
                yield f"step {step[0]} ended {step[1]} with exit code {step[2]}"
        if OUT_OF_MEMORY in self.row[2:4] and not any(step[2] == OUT_OF_MEMORY for step in self.steps):
            yield f"exit code {OUT_OF_MEMORY} means that a process was killed for memory"
        requested, peak = size_bytes(self.row[11].removesuffix("n")), self._memory_bytes()
        if JobState.from_slurm(self.row[1]) is JobState.FAILED and requested and peak and peak > NEARLY * requested:
            yield f"one of its tasks used {format_bytes(peak)} of the requested {format_bytes(requested)}"


def _queued(fields: list[str]) -> SchedulerStatus:
    state_text, submitted, start, limit, elapsed, nodes, names, comment, name, reason = fields
    state, start_s = JobState.from_slurm(state_text), moment_s(start)
    waits = state is JobState.PENDING
    return SchedulerStatus(
        state,
        f"{state_text}: {reason}" if state is JobState.UNKNOWN else "" if reason == "None" else reason,
        moment_s(submitted),
        started_s=None if waits else start_s,
        expected_start_s=start_s if waits else None,
        walltime_s=duration_s(limit),
        elapsed_s=duration_s(elapsed),
        nodes=parse_whole(nodes) or None,
        node=_named(names),
        name=_key(comment) or name or None,
    )


def _key(comment: str) -> str:
    """Return the key in a comment of Leadline; empty for other comments."""
    return comment.removeprefix("leadline:").strip() if comment.startswith("leadline:") else ""


def _codes(text: str) -> tuple[int, int]:
    code, _, sign = text.partition(":")
    return parse_whole(code) or 0, parse_whole(sign) or 0


def _named(nodes: str) -> str | None:
    return None if nodes in ("", "None assigned", "(null)") else nodes
