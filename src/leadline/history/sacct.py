"""Read Slurm's job accounting, as text of ``sacct`` in an explicitly requested format.

A control character separates the fields. The job name is last, because it may contain anything, even line breaks. A
line that does not begin like a job continues the name above it.
"""

import math
import re
from collections.abc import Iterator
from datetime import UTC, datetime, tzinfo

from leadline.core.errors import InvalidInput
from leadline.core.jobs import JobState
from leadline.core.queues import AccountedJob
from leadline.core.units import MIB, MINUTE_S, parse_bytes, parse_epoch_s, parse_whole

DELIMITER = "\x1f"
SACCT_FIELDS = (
    "JobID", "Submit", "Eligible", "Start", "End", "State", "User", "Account", "Partition", "QOS", "ReqNodes",
    "ReqCPUS", "ReqTRES", "TimelimitRaw", "JobName",
)  # fmt: skip
SACCT_ENVIRONMENT = {"SLURM_TIME_FORMAT": "%s"}
"""Makes ``sacct`` write times as seconds since the epoch, in any time zone."""
MOST_ELEMENTS = 10_000  # elements of a pending array that become jobs; further ones are left out
_ID = re.compile(r"\d+(?:_(?:\d+|\[(?P<elements>[\d,-]+)(?:%\d+)?\]))?(?:\+\d+)?")
_MOMENT = re.compile(r"\d+|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d")


def sacct_command(days: int) -> list[str]:
    """Return the command that lists all users' jobs of the last days, as far as the site allows."""
    return [
        "sacct", "--allusers", "--allocations", "--duplicates", "--noheader", "--parsable2",
        f"--delimiter={DELIMITER}", f"--starttime=now-{days}days", "--endtime=now",
        f"--format={','.join(SACCT_FIELDS)}",
    ]  # fmt: skip


def read_sacct(listing: str, zone: tzinfo = UTC) -> list[AccountedJob]:
    """Return the jobs of an accounting, in the order of submission.

    Cores, GPUs and memory are the requested ones, which are known before a job starts. A job that cannot start yet is
    eligible at infinity. Pending elements of an array become jobs.

    Args:
        listing: lines of ``SACCT_FIELDS``, separated by ``DELIMITER`` or ``|``.
        zone: of times that are not seconds since the epoch.

    Raises:
        InvalidInput: there are lines, and none of them is a job in this format.
    """
    jobs = [job for fields in _rows(listing) for job in _jobs(fields, zone)]
    if not jobs and listing.strip():
        raise InvalidInput(
            "this is no job accounting that Leadline can read; make it with: SLURM_TIME_FORMAT=%s "
            + " ".join(part if DELIMITER not in part else "--delimiter=$'\\x1f'" for part in sacct_command(60))
        )
    return sorted(jobs, key=lambda job: job.submitted_s)


def _rows(listing: str) -> Iterator[list[str]]:
    """Yield the fields of each job, with the whole name."""
    delimiter = DELIMITER if DELIMITER in listing else "|"
    last: list[str] | None = None
    for line in listing.split("\n"):
        fields = line.split(delimiter, len(SACCT_FIELDS) - 1)
        if len(fields) == len(SACCT_FIELDS) and _ID.fullmatch(fields[0]) and _MOMENT.fullmatch(fields[1]):
            if last is not None:
                yield last
            last = fields
        elif last is not None:
            last[-1] += "\n" + line
    if last is not None:
        last[-1] = last[-1].removesuffix("\n")
        yield last


def _jobs(fields: list[str], zone: tzinfo) -> list[AccountedJob]:
    row = dict(zip(SACCT_FIELDS, fields, strict=True))
    submitted = _moment(row["Submit"], zone)
    if submitted is None:
        return []
    started, ended = _moment(row["Start"], zone), _moment(row["End"], zone)
    eligible = _moment(row["Eligible"], zone)
    request = _resources(row["ReqTRES"])
    state = JobState.from_slurm(row["State"])
    shared = {
        "submitted_s": submitted,
        "started_s": started,
        "ended_s": ended if state not in (JobState.PENDING, JobState.RUNNING) else None,
        "eligible_s": math.inf if eligible is None and started is None else eligible,
        "state": state,
        "user": row["User"],
        "account": row["Account"],
        "partition": row["Partition"],
        "qos": row["QOS"],
        "name": row["JobName"],
        "nodes": max(1, _whole(row["ReqNodes"]) or _whole(request.get("node", ""))),
        "cores": max(1, _whole(row["ReqCPUS"]) or _whole(request.get("cpu", ""))),
        "gpus": _gpus(request),
        "memory_bytes": parse_bytes(request["mem"], bare_bytes=MIB) if request.get("mem") else None,
        "walltime_s": float(_whole(row["TimelimitRaw"]) * MINUTE_S) or None,
    }
    return [AccountedJob(job_id, **shared) for job_id in _ids(row["JobID"])]  # type: ignore[arg-type]


def _ids(text: str) -> list[str]:
    """Return the ids of a row: one, or one for each element of a pending array (``7_[1-3,9%2]``)."""
    match = _ID.fullmatch(text)
    if match is None or match["elements"] is None:
        return [text]
    ids: list[str] = []
    for part in match["elements"].split(","):
        first, _, last = part.partition("-")
        low, high = parse_whole(first), parse_whole(last or first)
        if low is not None and high is not None:
            numbers = range(low, high + 1)[: MOST_ELEMENTS - len(ids)]
            ids += [f"{text.partition('_')[0]}_{number}" for number in numbers]
    return ids


def _moment(text: str, zone: tzinfo) -> float | None:
    if text.isdigit():
        return parse_epoch_s(text)
    try:
        return datetime.fromisoformat(text).replace(tzinfo=zone).timestamp() if _MOMENT.fullmatch(text) else None
    except (ValueError, OverflowError):  # no day of the calendar
        return None


def _resources(tres: str) -> dict[str, str]:
    """Return the parts of ``billing=4,cpu=4,gres/gpu:a100=2,mem=16G,node=1``."""
    pairs = (part.partition("=") for part in tres.split(","))
    return {name: value for name, _, value in pairs if value}


def _gpus(request: dict[str, str]) -> int:
    typed = sum(_whole(value) for name, value in request.items() if name.startswith("gres/gpu:"))
    return _whole(request.get("gres/gpu", "")) or typed


def _whole(text: str) -> int:
    return parse_whole(text) or 0
