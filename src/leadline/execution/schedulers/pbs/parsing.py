"""Parse the output of qsub and qstat.

``qstat -f`` wraps long values at some column and indents the continuation. ``-F json`` does not, but some versions
write invalid JSON if a variable of the job contains a quote. Attributes are described in the PBS Professional Reference
Guide, "Job Attributes", and in Torque's "Job Exit Status".
"""

import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from leadline.core.jobs import JobSpec, JobState, ResourceSpec
from leadline.core.units import parse_epoch_s
from leadline.execution.clock import epoch_s
from leadline.execution.schedulers.figures import duration_s, size_bytes
from leadline.execution.schedulers.port import LivingJob, SchedulerStatus
from leadline.execution.wrapper.outcome import JobOutcome

JobAttributes = dict[str, str]
"""A job's attributes by lower-case name, such as ``resource_list.walltime``."""

SIGNALLED = 256
"""Exit statuses from here on are this value plus the number of the ending signal."""
_WAITS, _RUNS, _ENDED = frozenset("QHWT"), frozenset("REBSU"), frozenset("FCX")
_END_STATES = {
    -26: JobState.OUT_OF_MEMORY, -27: JobState.OUT_OF_MEMORY, -28: JobState.TIMEOUT, -29: JobState.TIMEOUT,
    -24: JobState.FAILED, -25: JobState.FAILED,
}  # fmt: skip
"""PBS Professional's JOB_EXEC_KILL_VMEM, _MEM, _CPUT, _WALLTIME, _NCPUS_BURST and _NCPUS_SUM."""
_JOB = re.compile(r"^Job Id:\s*(\S+)\s*$")
_ATTRIBUTE = re.compile(r"^(\s+)([A-Za-z_][\w.]*) = (.*)$")
_INDENT = re.compile(r"^(\t| {1,8})")
_ID = re.compile(r"^(\d+(?:\[\])?(?:\.[A-Za-z0-9.-]+)?)\s*$", re.MULTILINE)
_ELEMENT = re.compile(r"(\d+)\[(\d+)\](.*)")
_OUTPUT = re.compile(r"/jobs/([\w.-]+)\.out(?:[.-](?:\d+|\^array_index\^))?$")
"""Path of PBS's own output about a job; some versions append an element's index."""
_KEY = re.compile(r"[0-9a-f]{12}")
_MEMORY = re.compile(r"\b(p?v?mem\w*|memory)\b.*exceed|out of memory|oom", re.IGNORECASE)
_TIME = re.compile(r"walltime.*exceed|exceed.*walltime", re.IGNORECASE)


def read_job_id(output: str) -> str | None:
    """Return the id that qsub printed, ``12``, ``12.server`` or ``12[].server``; None if there is none."""
    match = _ID.search(output)
    return match[1] if match else None


def pbs_id(scheduler_id: str) -> str:
    """Return PBS's own id. Leadline writes array elements as ``12[].server_3``, PBS as ``12[3].server``."""
    array = array_id(scheduler_id)
    return scheduler_id if array == scheduler_id else array.replace("[]", f"[{scheduler_id[len(array) + 1 :]}]", 1)


def array_id(scheduler_id: str) -> str:
    """Return the id of an element's array, or the id itself."""
    array, _, index = scheduler_id.rpartition("_")
    return array if "[]" in array and index.isdigit() else scheduler_id


def leadline_id(pbs_id: str) -> str:
    """Return Leadline's form of a PBS id."""
    match = _ELEMENT.fullmatch(pbs_id)
    return f"{match[1]}[]{match[3]}_{match[2]}" if match else pbs_id


def read_qstat_json(output: str) -> dict[str, JobAttributes] | None:
    """Parse ``qstat -f -F json`` by Leadline's ids; None for invalid JSON."""
    try:
        # Some versions write raw control characters into strings.
        document = json.loads(output, strict=False)
    except (ValueError, RecursionError):
        return None
    jobs = document.get("Jobs", {}) if isinstance(document, dict) else {}
    return {leadline_id(number): dict(_flat("", job)) for number, job in jobs.items() if isinstance(job, dict)}


def read_qstat_text(output: str) -> dict[str, JobAttributes]:
    """Parse ``qstat -f`` by Leadline's ids.

    All attributes of a job have the indentation of its first one. Any other indented line continues the previous value.
    """
    jobs: dict[str, JobAttributes] = {}
    attributes: JobAttributes = {}
    indent, name = None, ""
    for line in output.splitlines():
        if (match := _JOB.match(line)) is not None:
            attributes = jobs.setdefault(leadline_id(match[1]), {})
            indent, name = None, ""
        elif (match := _ATTRIBUTE.match(line)) is not None and indent in (None, match[1]):
            indent, name = match[1], match[2].lower()
            attributes[name] = match[3]
        elif name and line[:1].isspace():
            attributes[name] += _INDENT.sub("", line)
        else:
            name = ""
    return jobs


def job_key(job: Mapping[str, str]) -> str:
    """Return the key in a job's output file, or in its name, which a hook of the site may rewrite; empty without one.

    Torque appends an element's index to the name.
    """
    if (match := _OUTPUT.search(job.get("output_path", ""))) is not None:
        return match[1]
    key = job.get("job_name", "").partition(".")[2]
    return key.rpartition("-")[0] if "job_array_id" in job and key.endswith(f"-{job['job_array_id']}") else key


def read_living(jobs: Mapping[str, JobAttributes], user: str) -> Iterator[LivingJob]:
    """Yield a user's living jobs with a key of Leadline."""
    for number, job in jobs.items():
        status, batch = job_status(job), job_key(job)
        is_own = job.get("job_owner", "").partition("@")[0] == user and _KEY.fullmatch(batch)
        if is_own and status.state in (JobState.PENDING, JobState.RUNNING):
            resources = ResourceSpec(status.nodes or 1, walltime_s=status.walltime_s)
            spec = JobSpec(job.get("job_name", "").partition(".")[0], (), resources, partition=job.get("queue"))
            yield LivingJob(batch, number, status.state, spec)


def ended_without_status(job: Mapping[str, str]) -> bool:
    """True if a job ended and its attributes do not show how."""
    return job.get("job_state", "") in _ENDED and _whole(job.get("exit_status")) is None


def short_id(scheduler_id: str) -> str:
    """Return an id without the server name, which commands abbreviate differently."""
    match = re.fullmatch(r"(\d+(?:\[\])?)[^_]*(_\d+)?", scheduler_id)
    return match[1] + (match[2] or "") if match else scheduler_id


def job_status(job: Mapping[str, str]) -> SchedulerStatus:
    """Return the status of a job from its attributes.

    The state is UNKNOWN if a job ended without an exit status or moved to another server.
    """
    letter, comment = job.get("job_state", ""), job.get("comment", "")
    common = SchedulerStatus(
        JobState.UNKNOWN,
        reason=comment,
        submitted_s=_epoch_s(job.get("qtime")),
        started_s=_epoch_s(job.get("stime") or job.get("start_time")),
        expected_start_s=_epoch_s(job.get("estimated.start_time")),
        walltime_s=duration_s(job.get("resource_list.walltime", "")),
        elapsed_s=duration_s(job.get("resources_used.walltime", "")),
        nodes=_whole(job.get("resource_list.nodect")),
        node=_nodes(job.get("exec_host")),
        memory_bytes=size_bytes(job.get("resources_used.mem", "")),
    )
    if letter in _WAITS:
        return replace(common, state=JobState.PENDING, started_s=None)
    if letter in _RUNS:
        return replace(common, state=JobState.RUNNING)
    if letter not in _ENDED:
        return replace(common, reason=f"PBS calls it {letter!r}: {comment}".removesuffix(": "))
    ended = next((job[name] for name in ("comp_time", "obittime", "mtime") if name in job), None)
    return _ended(job, replace(common, ended_s=_epoch_s(ended)))


def status_from_wrapper(status: SchedulerStatus, outcome: JobOutcome) -> SchedulerStatus:
    """Return the status of a job whose end only its wrapper knows."""
    return replace(
        status,
        state=outcome.state,
        reason=outcome.reason,
        started_s=epoch_s(outcome.started_at),
        ended_s=None if outcome.ended_at is None else epoch_s(outcome.ended_at),
        exit_code=outcome.exit_code,
        signal=outcome.signal,
    )


def _ended(job: Mapping[str, str], status: SchedulerStatus) -> SchedulerStatus:
    """Return how a job ended, by its exit status and comment."""
    code = _whole(job.get("exit_status"))
    if code is None:
        return replace(status, ended_s=None, reason=status.reason or "it ended for a reason that PBS does not report")
    if code < 0:
        return replace(
            status, state=_END_STATES.get(code, JobState.NODE_FAIL), reason=f"PBS ended it ({code}) {status.reason}"
        )
    if code < SIGNALLED:
        state = JobState.COMPLETED if code == 0 else JobState.FAILED
        # Shells report a signal as 128 plus its number.
        shell_signal = code - 128 if 128 < code < 128 + 65 else None
        return replace(status, state=state, exit_code=code, signal=shell_signal)
    signal = code - SIGNALLED
    return replace(status, state=_why_killed(job, status), signal=signal if 0 < signal < 65 else None)


def _why_killed(job: Mapping[str, str], status: SchedulerStatus) -> JobState:
    """Tell a limit from a cancellation; PBS sends the same signals for both."""
    # The comment is missing on some versions, so the used time counts as well.
    if _TIME.search(status.reason) or _reached(status.elapsed_s, status.walltime_s):
        return JobState.TIMEOUT
    limit = size_bytes(job.get("resource_list.mem", ""))
    if _MEMORY.search(status.reason) or _reached(status.memory_bytes, limit):
        return JobState.OUT_OF_MEMORY
    return JobState.CANCELLED


def _reached(used: float | None, limit: float | None) -> bool:
    return used is not None and limit is not None and used >= limit


def _flat(prefix: str, job: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    for name, value in job.items():
        if isinstance(value, dict):
            yield from _flat(f"{prefix}{name}.", value)
        elif value is not None:
            yield f"{prefix}{name}".lower(), str(value)


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch(r"-?\d{1,18}", text) else None


def _nodes(text: str | None) -> str | None:
    """Parse ``one/0*8+two/0*8``."""
    # A node appears once for each of its chunks.
    names = dict.fromkeys(part.partition("/")[0] for part in (text or "").split("+") if part)
    return ",".join(names) or None


def _epoch_s(text: str | None) -> float | None:
    """Parse ``Tue Mar 12 10:27:52 2024`` in this machine's time zone, or seconds since the epoch."""
    if text is None or text.isdigit():
        return parse_epoch_s(text or "")
    try:
        return time.mktime(time.strptime(text, "%a %b %d %H:%M:%S %Y"))
    except (ValueError, OverflowError):
        return None
