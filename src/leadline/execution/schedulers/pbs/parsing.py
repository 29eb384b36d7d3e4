"""Read what qsub and qstat say: pure text.

``qstat -f`` wraps long values at some column and indents what follows; ``-F json`` does not, but writes invalid JSON
where a variable of the job holds a quote in some versions. Attributes are described in the PBS Professional Reference
Guide, "Job Attributes", and in Torque's "Job Exit Status".
"""

import json
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from leadline.core.jobs import JobState
from leadline.core.units import HOUR_S, MINUTE_S
from leadline.execution.schedulers.port import SchedulerStatus
from leadline.execution.wrapper.outcome import JobOutcome

JobAttributes = dict[str, str]
"""A job's attributes by their names in small letters, such as ``resource_list.walltime``."""

SIGNALLED = 256
"""An exit status from here on is this plus the number of the signal that ended the job."""
_WAITS, _RUNS, _ENDED = frozenset("QHWT"), frozenset("REBSU"), frozenset("FCX")
_OWN = {
    -26: JobState.OUT_OF_MEMORY, -27: JobState.OUT_OF_MEMORY, -28: JobState.TIMEOUT, -29: JobState.TIMEOUT,
    -24: JobState.FAILED, -25: JobState.FAILED,
}  # fmt: skip
"""PBS Professional's JOB_EXEC_KILL_VMEM, _MEM, _CPUT, _WALLTIME, _NCPUS_BURST and _NCPUS_SUM."""
_JOB = re.compile(r"^Job Id:\s*(\S+)\s*$")
_ATTRIBUTE = re.compile(r"^(\s+)([A-Za-z_][\w.]*) = (.*)$")
_INDENT = re.compile(r"^(\t| {1,8})")
_ID = re.compile(r"^(\d+(?:\[\])?(?:\.[A-Za-z0-9.-]+)?)\s*$", re.MULTILINE)
_ELEMENT = re.compile(r"(\d+)\[(\d+)\](.*)")
_SIZE = re.compile(r"(\d+)(b|kb|mb|gb|tb|)", re.IGNORECASE)
_MEMORY = re.compile(r"\b(p?v?mem\w*|memory)\b.*exceed|out of memory|oom", re.IGNORECASE)
_TIME = re.compile(r"walltime.*exceed|exceed.*walltime", re.IGNORECASE)


def read_job_id(said: str) -> str | None:
    """Return the id that qsub printed, ``12``, ``12.server`` or ``12[].server``; ``None`` if it printed none."""
    match = _ID.search(said)
    return match[1] if match else None


def pbs_id(scheduler_id: str) -> str:
    """Return PBS's own id: an array's element is ``12[].server_3`` to Leadline and ``12[3].server`` to PBS."""
    whole, _, index = scheduler_id.rpartition("_")
    return whole.replace("[]", f"[{index}]", 1) if "[]" in whole and index.isdigit() else scheduler_id


def array_id(scheduler_id: str) -> str:
    """Return the id of the array that an element is of, or the id itself."""
    whole, _, index = scheduler_id.rpartition("_")
    return whole if "[]" in whole and index.isdigit() else scheduler_id


def leadline_id(pbs_id: str) -> str:
    """Return Leadline's id of what PBS names."""
    match = _ELEMENT.fullmatch(pbs_id)
    return f"{match[1]}[]{match[3]}_{match[2]}" if match else pbs_id


def read_qstat_json(said: str) -> dict[str, JobAttributes] | None:
    """Read ``qstat -f -F json``, by Leadline's ids; ``None`` if it is no JSON."""
    try:
        document = json.loads(said, strict=False)
    except ValueError:
        return None
    jobs = document.get("Jobs", {}) if isinstance(document, dict) else {}
    return {leadline_id(number): dict(_flat("", one)) for number, one in jobs.items() if isinstance(one, dict)}


def read_qstat_text(said: str) -> dict[str, JobAttributes]:
    """Read ``qstat -f``, by Leadline's ids.

    An attribute is indented as the first of its job is; whatever else is indented goes on with the value before it.
    """
    found: dict[str, JobAttributes] = {}
    attributes: JobAttributes = {}
    indent, name = None, ""
    for line in said.splitlines():
        if (match := _JOB.match(line)) is not None:
            attributes = found.setdefault(leadline_id(match[1]), {})
            indent, name = None, ""
        elif (match := _ATTRIBUTE.match(line)) is not None and indent in (None, match[1]):
            indent, name = match[1], match[2].lower()
            attributes[name] = match[3]
        elif name and line[:1].isspace():
            attributes[name] += _INDENT.sub("", line)
        else:
            name = ""
    return found


def job_key(job: Mapping[str, str]) -> str:
    """Return the key in a job's name; empty where there is none. Torque appends an element's index to it."""
    key = job.get("job_name", "").partition(".")[2]
    return key.rpartition("-")[0] if "job_array_id" in job and key.endswith(f"-{job['job_array_id']}") else key


def ended_without_status(job: Mapping[str, str]) -> bool:
    """Whether a job ended and its attributes do not say how."""
    return job.get("job_state", "") in _ENDED and _whole(job.get("exit_status")) is None


def short_id(scheduler_id: str) -> str:
    """Return an id without the server's name, which commands write shorter or longer."""
    match = re.fullmatch(r"(\d+(?:\[\])?)[^_]*(_\d+)?", scheduler_id)
    return match[1] + (match[2] or "") if match else scheduler_id


def job_status(job: Mapping[str, str]) -> SchedulerStatus:
    """Return what a job's attributes say.

    The state of a job that ended without an exit status is UNKNOWN; so is one that PBS moved to another server.
    """
    letter, comment = job.get("job_state", ""), job.get("comment", "")
    common = SchedulerStatus(
        JobState.UNKNOWN,
        reason=comment,
        submitted_s=_epoch_s(job.get("qtime")),
        started_s=_epoch_s(job.get("stime") or job.get("start_time")),
        expected_start_s=_epoch_s(job.get("estimated.start_time")),
        walltime_s=parse_duration_s(job.get("resource_list.walltime")),
        elapsed_s=parse_duration_s(job.get("resources_used.walltime")),
        nodes=_whole(job.get("resource_list.nodect")),
        node=_nodes(job.get("exec_host")),
        memory_bytes=size_bytes(job.get("resources_used.mem")),
    )
    if letter in _WAITS:
        return replace(common, state=JobState.PENDING, started_s=None)
    if letter in _RUNS:
        return replace(common, state=JobState.RUNNING)
    if letter not in _ENDED:
        return replace(common, reason=f"PBS calls it {letter!r}: {comment}".removesuffix(": "))
    return _ended(job, replace(common, ended_s=_epoch_s(_first(job, ("comp_time", "obittime", "mtime")))))


def status_from_wrapper(status: SchedulerStatus, outcome: JobOutcome) -> SchedulerStatus:
    """Return the status of a job of which its wrapper alone tells how it ended."""
    return replace(
        status,
        state=outcome.state,
        reason=outcome.reason,
        started_s=datetime.fromisoformat(outcome.started_at).timestamp(),
        ended_s=None if outcome.ended_at is None else datetime.fromisoformat(outcome.ended_at).timestamp(),
        exit_code=outcome.exit_code,
        signal=outcome.signal,
    )


def _ended(job: Mapping[str, str], status: SchedulerStatus) -> SchedulerStatus:
    """Return how a job ended, by its exit status and by what PBS says beside it."""
    code = _whole(job.get("exit_status"))
    if code is None:
        return replace(status, ended_s=None, reason=status.reason or "it ended, and PBS does not say how")
    if code < 0:
        return replace(
            status, state=_OWN.get(code, JobState.NODE_FAIL), reason=f"PBS ended it ({code}) {status.reason}"
        )
    if code < SIGNALLED:
        state = JobState.COMPLETED if code == 0 else JobState.FAILED
        shell = code - 128 if 128 < code < 128 + 65 else None  # a shell's way to tell of a signal
        return replace(status, state=state, exit_code=code, signal=shell)
    signal = code - SIGNALLED
    return replace(status, state=_why_killed(job, status), signal=signal if 0 < signal < 65 else None)


def _why_killed(job: Mapping[str, str], status: SchedulerStatus) -> JobState:
    """Tell a limit from a cancellation: PBS sends the same signals for both."""
    if _TIME.search(status.reason) or _reached(status.elapsed_s, status.walltime_s, 1.0):
        return JobState.TIMEOUT
    limit = size_bytes(job.get("resource_list.mem"))
    if _MEMORY.search(status.reason) or _reached(status.memory_bytes, limit, 1.0):
        return JobState.OUT_OF_MEMORY
    return JobState.CANCELLED


def _reached(used: float | None, limit: float | None, share: float) -> bool:
    return used is not None and limit is not None and used >= share * limit


def read_tails(said: str, paths: Sequence[str]) -> dict[str, str]:
    """Read ``tail -v`` of files in this order; those that it could not read are absent."""
    found = {}
    for path in reversed(paths):
        before, mark, text = said.rpartition(f"==> {path} <==\n")
        if mark:
            found[path] = text
            said = before.removesuffix("\n")
    return found


def parse_duration_s(said: str | None) -> float | None:
    """Read ``HH:MM:SS``, or a number of seconds."""
    parts = (said or "").split(":")
    if not all(part.isdigit() for part in parts) or len(parts) > 3:
        return None
    hours, minutes, rest = (0, 0, *map(int, parts))[-3:]
    return float(hours * HOUR_S + minutes * MINUTE_S + rest)


def size_bytes(said: str | None) -> int | None:
    """Read ``3500kb``; PBS's units are powers of 1024."""
    match = _SIZE.fullmatch(said or "")
    if match is None:
        return None
    power: int = ("", "kb", "mb", "gb", "tb").index(match[2].lower().removeprefix("b"))
    return int(match[1]) * int(1024**power)


def _flat(prefix: str, job: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    for name, value in job.items():
        if isinstance(value, dict):
            yield from _flat(f"{prefix}{name}.", value)
        elif value is not None:
            yield f"{prefix}{name}".lower(), str(value)


def _first(job: Mapping[str, str], names: Iterable[str]) -> str | None:
    return next((job[name] for name in names if name in job), None)


def _whole(said: str | None) -> int | None:
    return int(said) if said is not None and re.fullmatch(r"-?\d+", said) else None


def _nodes(said: str | None) -> str | None:
    """Read ``one/0*8+two/0*8``."""
    names = dict.fromkeys(part.partition("/")[0] for part in (said or "").split("+") if part)
    return ",".join(names) or None


def _epoch_s(said: str | None) -> float | None:
    """Read ``Tue Mar 12 10:27:52 2024`` in this machine's time zone, or seconds since the epoch."""
    if said is None or said.isdigit():
        return float(said) if said else None
    try:
        return time.mktime(time.strptime(said, "%a %b %d %H:%M:%S %Y"))
    except (ValueError, OverflowError):
        return None
