"""Parse the output of squeue, sacct and scontrol, of any version since 20.11.

Every output format is requested explicitly and split at its delimiter. For fields with arbitrary text, such as job
names and comments, the delimiter is random.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import groupby

from leadline.core.jobs import JobSpec, JobState, ResourceSpec
from leadline.core.units import MINUTE_S, format_bytes, parse_epoch_s, parse_whole
from leadline.execution.schedulers.attempt_files import RUNS_FOLDER, log_name
from leadline.execution.schedulers.figures import duration_s, size_bytes
from leadline.execution.schedulers.port import LivingJob, SchedulerStatus

OUTPUT: dict[str, str | None] = {"SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0", "SLURM_CLUSTERS": None}
"""Makes the commands print times as seconds since the epoch, array indices in full, and this cluster alone."""

MOST_INDICES = 1_000_000
"""Elements of an array that are read; no Slurm allows more than four times as many."""


def moment_s(text: str) -> float | None:
    """Return a time in seconds since the epoch, from that form or from local ISO 8601."""
    if text.isdecimal():
        return parse_epoch_s(text) or None
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        return None


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
    # Within a range, each index is equally far from its position.
    groups = groupby(enumerate(sorted(indices)), lambda pair: pair[1] - pair[0])
    spans = [[index for _, index in group] for _, group in groups]
    return ",".join(f"{span[0]}-{span[-1]}" if len(span) > 1 else str(span[0]) for span in spans)


def read_job_id(output: str) -> str | None:
    """Return the id that ``sbatch --parsable`` printed, ``ID`` or ``ID;CLUSTER``; None if there is none."""
    match = re.search(r"^(\d+)(?:;(\S+))?$", output.strip(), re.MULTILINE)
    return with_cluster(match[2] or "", match[1]) if match else None


def with_cluster(cluster: str, job_id: str) -> str:
    """Return the id of a job of a named cluster, ``CLUSTER:ID``; of this cluster, ``ID``."""
    return f"{cluster}:{job_id}" if cluster else job_id


def by_cluster(job_ids: Iterable[str]) -> dict[str, list[str]]:
    """Return Slurm's own ids by the name of their cluster, empty for this one."""
    clusters: dict[str, list[str]] = {}
    for job_id in job_ids:
        cluster, _, number = job_id.rpartition(":")
        clusters.setdefault(cluster, []).append(number)
    return clusters


SQUEUE_FORMAT = "%i|%T|%V|%S|%l|%M|%D|%N|%k|%j|%r"
"""Id, state, submission, start (or predicted start), limit, elapsed, nodes, node names, comment, name, reason.

Reasons may contain spaces and commas. Leadline's own comments and names never contain the delimiter; others only need
to be recognized as foreign.
"""
_TIMES = "ElapsedRaw,Submit,Start,End,TimelimitRaw"
TRACE = "SubmitLine"
"""Field with the options of sbatch, which no plug-in of the site changes; Slurm has it since 21.08."""
SACCT_FIELDS = f"JobID,State,ExitCode,DerivedExitCode,{_TIMES},NNodes,MaxRSS,ReqMem,NodeList,Partition,JobName,{TRACE}"
NAME_FIELDS = f"Cluster,JobID,State,NodeList,Comment,JobName,{TRACE}"
OUT_OF_MEMORY = "0:125"
"""Slurm's exit code for a process that the kernel killed for memory."""
NEARLY = 0.95
"""A killed task that used this share of its requested memory gets a remark about it."""

LIVING_FIELDS = ("JobArrayID", "State", "Partition", "TimeLimit", "NumNodes", "Comment", "Name", "StdOut")

_LIVING_COMMENT = re.compile(r"leadline:([0-9a-f]+)")
_LIVING_NAME = re.compile(r".*-([0-9a-f]{12})", re.DOTALL)
"""A name with a key at its end, for sites that drop comments."""
_LIVING_OUTPUT = re.compile(rf"/{RUNS_FOLDER}/([0-9a-f]{{12}})(?:-(?:\d+|%a))?{re.escape(log_name(''))}\b")
"""An output file, for sites that rewrite names too."""
_ID = re.compile(r"(?P<array>\d+)(?:_(?P<indices>\d+|\[[^\]]+\]))?(?:\+\d+)?(?:\.(?P<step>\S+))?")
_OUTPUT = re.compile(rf"/{RUNS_FOLDER}/([\w.%-]+){re.escape(log_name(''))}\b")
_INDEX = re.compile(r"-(\d+|%a)$")
_SUBMITTED = re.compile(r"\s--(?:comment=leadline:(\S+)|job-name=(\S+))")
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


def records(listing: str, mark: str, count: int) -> Iterator[tuple[str, ...]]:
    """Yield the records of so many fields in a listing with the mark before each field, which is in none of them."""
    return zip(*[iter(listing.split(mark)[1:])] * count, strict=False)


def read_outputs(rows: Iterable[Sequence[str]]) -> dict[str, str]:
    """Return id -> key from records of an id and an output file, for jobs with Leadline's files."""
    pairs = ((job_id.strip(), _output_key(path, job_id)) for job_id, path in rows)
    return {job_id: key for job_id, key in pairs if key}


def read_accounting(listing: str, wanted_ids: Collection[str], *, owner: str = "") -> dict[str, SchedulerStatus]:
    """Parse ``SACCT_FIELDS`` lines (``-P -n --duplicates``): the last run of each wanted id, with its steps.

    A row may name an array only. If it was cancelled before it had a node, the row holds for all elements without a row
    of their own. Otherwise it belongs to one element, and sacct shows which within a second or two.
    """
    jobs: dict[str, _Accounted] = {}
    for line in listing.splitlines():
        row = _row(line.strip())
        match = _ID.fullmatch(row.get("JobID", ""))
        if match is None:
            continue
        array_id, indices, step = match.groups()
        ids = [f"{array_id}_{index}" for index in parse_indices(indices)] if indices else [array_id]
        for job_id in ids:
            if step is not None:
                if job_id in jobs:
                    jobs[job_id].steps.append(row)
            elif not (is_revoked(row["State"]) and job_id in jobs):
                jobs[job_id] = _Accounted(row, [], jobs.get(job_id))
    statuses = {}
    for job_id in wanted_ids:
        job, array = jobs.get(job_id), jobs.get(job_id.partition("_")[0])
        if job is None and array is not None and array.never_ran:
            job = array
        if job is not None:
            statuses[job_id] = job.status(owner)
    return statuses


def read_controller(listing: str, wanted_ids: Collection[str]) -> dict[str, SchedulerStatus]:
    """Parse ``scontrol --oneliner show job ID`` for the wanted ids, one line for each array element."""
    ids, statuses = frozenset(wanted_ids), dict[str, SchedulerStatus]()
    for line in listing.splitlines():
        fields: dict[str, str] = {}
        for name, value in re.findall(r"(?:^|\s)([A-Za-z:/]+)=(\S*)", line):
            fields.setdefault(name, value)
        array, index = fields.get("ArrayJobId"), fields.get("ArrayTaskId")
        job_ids = [f"{array}_{at}" for at in parse_indices(index)] if array and index else [fields.get("JobId", "")]
        if "JobState" in fields:
            statuses |= {job_id: _controlled(fields, line) for job_id in job_ids if job_id in ids}
    return statuses


def _controlled(fields: Mapping[str, str], line: str) -> SchedulerStatus:
    name = _key(fields.get("Comment", "")) or _output_key(line, "_") or fields.get("JobName", "")
    row = {"State": fields["JobState"], "ExitCode": fields.get("ExitCode", ""), "JobName": name,
           "DerivedExitCode": fields.get("DerivedExitCode", ""), "Submit": fields.get("SubmitTime", ""),
           "Start": fields.get("StartTime", ""), "End": fields.get("EndTime", ""),
           "NNodes": fields.get("NumNodes", "").partition("-")[0], "NodeList": fields.get("NodeList", ""),
           "Partition": fields.get("Partition", "")}  # fmt: skip
    status = _Accounted(_NO_ROW | row).status()
    return replace(
        status,
        reason=status.reason or fields.get("Reason", "").replace("None", ""),
        ended_s=status.ended_s if status.state.final else None,
        walltime_s=duration_s(fields.get("TimeLimit", "")),
        elapsed_s=duration_s(fields.get("RunTime", "")),
    )


def read_names(rows: Iterable[Sequence[str]], keys: Collection[str]) -> dict[str, str]:
    """Return key -> id from records of id, state, node, comment, name and trace.

    Fields may contain anything. A comment ``leadline:KEY`` is certain. If the site drops comments, the
    name ends with ``-KEY``. If it rewrites names too, the trace has the key: the output file or the submit line. Of
    several jobs with one key, the first counts. A job that FAILED without a node is Slurm's trace of a refused
    submission and is skipped.
    """
    key_set, ids = frozenset(keys), dict[str, str]()
    for scheduler_id, state, node, comment, name, trace in rows:
        match = re.match(r"\s*(\d{1,18})", scheduler_id)
        if match is None or (JobState.from_slurm(state) is JobState.FAILED and _named(node.strip()) is None):
            continue
        matched_key = _key(comment) or max(
            (key for key in key_set if name.strip().endswith(f"-{key}")), key=len, default=""
        )
        for key in (matched_key, _output_key(trace, ""), _output_key(trace, "_")):
            if key in key_set:
                ids[key] = min(match[1], ids.get(key, match[1]), key=int)
                break
    return ids


def read_living(rows: Iterable[Sequence[str]]) -> Iterator[LivingJob]:
    """Yield the living jobs with a key of Leadline from records of ``LIVING_FIELDS``."""
    for job_id, state_text, partition, limit, nodes, comment, name, output in rows:
        state, plain_name = JobState.from_slurm(state_text), name.rstrip("\n")
        match = _LIVING_COMMENT.fullmatch(comment.strip()) or _LIVING_NAME.fullmatch(plain_name)
        match = match or _LIVING_OUTPUT.search(output)
        if match is not None and state in (JobState.PENDING, JobState.RUNNING):
            resources = ResourceSpec(parse_whole(nodes) or 1, walltime_s=duration_s(limit))
            spec = JobSpec(plain_name.removesuffix(f"-{match[1]}"), (), resources, partition=partition)
            yield LivingJob(match[1], job_id.strip(), state, spec)


def read_forecast(output: str) -> float | None:
    """Return the time in ``Job 5 to start at 1795349658 using 1 processors ...``; None if there is none."""
    match = re.search(r"\bto start at (\S+)", output)
    return moment_s(match[1]) if match else None


_COLUMNS = tuple(SACCT_FIELDS.split(","))
_NO_ROW = dict.fromkeys(_COLUMNS, "")


def _row(line: str) -> dict[str, str]:
    """Return the fields of a line of ``SACCT_FIELDS`` by name; empty for another line."""
    # The submit line may contain the delimiter, so it is the last field.
    fields = line.split("|", len(_COLUMNS) - 1)
    return dict(zip(_COLUMNS, fields, strict=True)) if len(fields) == len(_COLUMNS) else {}


@dataclass(slots=True)
class _Accounted:
    """The accounting row of a job and those of its steps, by field, after that of an earlier run."""

    row: dict[str, str]
    steps: list[dict[str, str]] = field(default_factory=list)
    earlier: "_Accounted | None" = None

    @property
    def never_ran(self) -> bool:
        """True if it was cancelled before it had a node."""
        return JobState.from_slurm(self.row["State"]) is JobState.CANCELLED and _named(self.row["NodeList"]) is None

    def status(self, owner: str = "") -> SchedulerStatus:
        """Return the status from the job's row and its steps; ``owner`` is the user's numeric id."""
        row = self.row
        state, evidence = JobState.from_slurm(row["State"]), tuple(self._evidence())
        if state is JobState.FAILED and self._out_of_memory():
            state = JobState.OUT_OF_MEMORY
        code, sign = _codes(row["ExitCode"])
        _, _, reason = row["State"].partition(" ")
        canceller = reason.removeprefix("by ")
        return SchedulerStatus(
            state,
            row["State"] if state is JobState.UNKNOWN else reason,
            moment_s(row["Submit"]), moment_s(row["Start"]), moment_s(row["End"]),
            walltime_s=None if (minutes := parse_whole(row["TimelimitRaw"])) is None else float(minutes) * MINUTE_S,
            elapsed_s=None if (seconds := parse_whole(row["ElapsedRaw"])) is None else float(seconds),
            nodes=parse_whole(row["NNodes"]) or None,
            node=_named(row["NodeList"]),
            exit_code=code if state in _ENDED and not sign else None,
            # 125 marks a memory kill and is not a signal.
            signal=sign if 0 < sign < 65 else None,
            memory_bytes=self._memory_bytes(),
            evidence=evidence,
            name=_submitted_key(row[TRACE]) or row["JobName"] or None,
            partition=row["Partition"] or None,
            # The id in the row is 0 until the accounting has all of it.
            by_owner=canceller == owner if canceller.isdecimal() and owner else None,
        )  # fmt: skip

    def _memory_bytes(self) -> int | None:
        """Return the largest sampled memory of a task. Slurm reports 0 if a task ended before the first sample."""
        return max((size_bytes(step["MaxRSS"]) or 0 for step in self.steps), default=0) or None

    def _out_of_memory(self) -> bool:
        return any(JobState.OUT_OF_MEMORY is JobState.from_slurm(row["State"]) or
                   OUT_OF_MEMORY in (row["ExitCode"], row["DerivedExitCode"])
                   for row in (self.row, *self.steps))  # fmt: skip

    def _evidence(self) -> Iterator[str]:
        """Yield remarks of the steps and of an earlier run that the job's own row lacks."""
        if self.earlier is not None and self.earlier.row["State"].startswith("REQUEUE"):
            yield f"its run on {self.earlier.row['NodeList']} was REQUEUED"
        for step in self.steps:
            state = JobState.from_slurm(step["State"])
            if state is JobState.OUT_OF_MEMORY or step["ExitCode"] == OUT_OF_MEMORY:
                yield f"step {step['JobID']} ran out of memory"
            elif state.final and state is not JobState.COMPLETED:
                yield f"step {step['JobID']} ended {step['State']} with exit code {step['ExitCode']}"
        codes = (self.row["ExitCode"], self.row["DerivedExitCode"])
        if OUT_OF_MEMORY in codes and not any(step["ExitCode"] == OUT_OF_MEMORY for step in self.steps):
            yield f"exit code {OUT_OF_MEMORY} means that a process was killed for memory"
        requested, peak = size_bytes(self.row["ReqMem"].removesuffix("n")), self._memory_bytes()
        is_failed = JobState.from_slurm(self.row["State"]) is JobState.FAILED
        if is_failed and requested and peak and peak > NEARLY * requested:
            yield f"one of its tasks used {format_bytes(peak)} of the requested {format_bytes(requested)}"


def is_revoked(state_text: str) -> bool:
    """True if another cluster of the federation has the job; this one only keeps a record of it."""
    return state_text.startswith("REVOKED")


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


def _output_key(text: str, job_id: str) -> str:
    """Return the key in the path of an output file, without the index of an array element; empty without one."""
    match = _OUTPUT.search(text)
    if match is None:
        return ""
    return _INDEX.sub("", match[1]) if "_" in job_id else match[1]


def _submitted_key(line: str) -> str:
    """Return the key, or the name that ends with it, from a submit line of Leadline; empty for other lines."""
    match = _SUBMITTED.search(line)
    return match[1] or match[2] if match else ""


def _codes(text: str) -> tuple[int, int]:
    code, _, sign = text.partition(":")
    return parse_whole(code) or 0, parse_whole(sign) or 0


def _named(nodes: str) -> str | None:
    return None if nodes in ("", "None assigned", "(null)") else nodes
