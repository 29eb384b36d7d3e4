"""Read what Slurm's ``sacct`` tells of a site's jobs: pure text, in a format that is asked for explicitly.

Fields are parted by a character that nobody types, and the name stands last: a job may be called anything, line breaks
included. A line that does not begin as a job's does is the rest of the name above it.
"""

import math
import re
from collections.abc import Iterator
from datetime import UTC, datetime, tzinfo

from leadline.core.errors import InvalidInput
from leadline.core.jobs import JobState
from leadline.core.queues import AccountedJob
from leadline.core.units import MINUTE_S, parse_bytes

DELIMITER = "\x1f"
SACCT_FIELDS = (
    "JobID", "Submit", "Eligible", "Start", "End", "State", "User", "Account", "Partition", "QOS", "ReqNodes",
    "ReqCPUS", "ReqTRES", "TimelimitRaw", "JobName",
)  # fmt: skip
SACCT_ENVIRONMENT = {"SLURM_TIME_FORMAT": "%s"}
"""With this, ``sacct`` writes moments as seconds since the epoch, whatever the zone."""
MOST_ELEMENTS = 10_000
"""So many elements of an array that pend together are told apart; further ones are left out."""
_ID = re.compile(r"\d+(?:_(?:\d+|\[(?P<elements>[\d,-]+)(?:%\d+)?\]))?(?:\+\d+)?")
_MOMENT = re.compile(r"\d+|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d")


def sacct_command(days: int) -> list[str]:
    """Return the command that tells of everybody's jobs of the last ``days``, as far as the site lets the user see."""
    return [
        "sacct", "--allusers", "--allocations", "--duplicates", "--noheader", "--parsable2",
        f"--delimiter={DELIMITER}", f"--starttime=now-{days}days", "--endtime=now", f"--format={','.join(SACCT_FIELDS)}",
    ]  # fmt: skip


def read_sacct(listing: str, zone: tzinfo = UTC) -> list[AccountedJob]:
    """Read the lines of ``SACCT_FIELDS``, parted by ``DELIMITER`` or by ``|``, in the order of submission.

    Moments are seconds since the epoch, or written out, and then in ``zone``. A job that cannot start yet is eligible
    at infinity. Cores, GPUs and memory are what was asked for, which is known before a job starts. Elements of an
    array that still pend together become jobs each.

    Raises:
        InvalidInput: there are lines, and none of them is a job in this format.
    """
    found: list[AccountedJob] = []
    rows = list(_rows(listing))
    for fields in rows:
        found += _jobs(fields, zone)
    if not found and listing.strip():
        raise InvalidInput(
            "this is no accounting that Leadline can read: it asks for it as SLURM_TIME_FORMAT=%s "
            + " ".join(part if DELIMITER not in part else "--delimiter=$'\\x1f'" for part in sacct_command(60))
        )
    return sorted(found, key=lambda job: job.submitted_s)


def _rows(listing: str) -> Iterator[list[str]]:
    """Yield the fields of each job, its name whole."""
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
    asked = _asked(row["ReqTRES"])
    state = JobState.from_slurm(row["State"])
    one = {
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
        "nodes": max(1, _whole(row["ReqNodes"]) or _whole(asked.get("node", ""))),
        "cores": max(1, _whole(row["ReqCPUS"]) or _whole(asked.get("cpu", ""))),
        "gpus": _gpus(asked),
        "memory_bytes": parse_bytes(asked["mem"]) if asked.get("mem") else None,
        "walltime_s": float(_whole(row["TimelimitRaw"]) * MINUTE_S) or None,
    }
    return [AccountedJob(each, **one) for each in _ids(row["JobID"])]  # type: ignore[arg-type]


def _ids(said: str) -> list[str]:
    """Return the ids of a row: one, or that of each element of an array that pends (``7_[1-3,9%2]``)."""
    match = _ID.fullmatch(said)
    if match is None or match["elements"] is None:
        return [said]
    found: list[str] = []
    for part in match["elements"].split(","):
        first, _, last = part.partition("-")
        if first.isdigit() and (last or first).isdigit():
            room = range(int(first), int(last or first) + 1)[: MOST_ELEMENTS - len(found)]
            found += [f"{said.partition('_')[0]}_{number}" for number in room]
    return found


def _moment(said: str, zone: tzinfo) -> float | None:
    if said.isdigit():
        return float(said)
    if _MOMENT.fullmatch(said) is None:
        return None
    return datetime.fromisoformat(said).replace(tzinfo=zone).timestamp()


def _asked(tres: str) -> dict[str, str]:
    """Read ``billing=4,cpu=4,gres/gpu:a100=2,mem=16G,node=1``."""
    pairs = (part.partition("=") for part in tres.split(","))
    return {name: value for name, _, value in pairs if value}


def _gpus(asked: dict[str, str]) -> int:
    typed = sum(_whole(value) for name, value in asked.items() if name.startswith("gres/gpu:"))
    return _whole(asked.get("gres/gpu", "")) or typed


def _whole(said: str) -> int:
    return int(said) if said.isdigit() else 0
