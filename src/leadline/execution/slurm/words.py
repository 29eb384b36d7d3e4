"""Slurm's words: durations, moments, sizes and ids, as its commands print them in any version since 20.11."""

import re
from collections.abc import Iterable
from datetime import datetime

from leadline.core.units import DAY_S, HOUR_S, MINUTE_S

EPOCH = {"SLURM_TIME_FORMAT": "%s"}
"""Makes the commands print moments as seconds since the epoch: no time zone, no change of the clocks to summer."""

_DURATION = re.compile(r"(?:(?P<days>\d+)-)?(?:(?P<hours>\d+):)?(?P<minutes>\d+):(?P<seconds>\d+)(?:\.\d+)?")
_SIZE = re.compile(r"(?P<number>\d+(?:\.\d+)?)(?P<unit>[KMGTP]?)")
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
    match = _SIZE.fullmatch(said.strip())
    if match is None:
        return None
    return int(float(match["number"]) * 1024 ** _UNITS[match["unit"]])


def indices_of(said: str) -> list[int]:
    """Read ``3``, ``0-3``, ``[0-3,7%2]``, ``[0-8:4]``; nothing of a job that is no array."""
    found: list[int] = []
    for part in said.strip("[]").partition("%")[0].split(","):
        span, _, step = part.partition(":")
        first, dash, last = span.partition("-")
        if first.isdecimal() and (not dash or last.isdecimal()):
            found += range(int(first), int(last if dash else first) + 1, int(step) if step.isdecimal() else 1)
    return found


def ranges_of(indices: Iterable[int]) -> str:
    """Write ``0-3,7`` for indices in rising order."""
    spans: list[list[int]] = []
    for index in sorted(indices):
        if spans and index == spans[-1][1] + 1:
            spans[-1][1] = index
        else:
            spans.append([index, index])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


def job_id(said: str) -> str | None:
    """Return the id that ``sbatch --parsable`` printed, ``ID`` or ``ID;CLUSTER``; ``None`` if it printed none."""
    match = re.search(r"^(\d+)(?:;\S+)?$", said.strip(), re.MULTILINE)
    return match[1] if match else None
