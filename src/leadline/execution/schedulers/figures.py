"""Parse durations and sizes as Slurm and PBS print them."""

import re

from leadline.core.units import DAY_S, HOUR_S, MINUTE_S

_DURATION = re.compile(
    r"(?:(?:(?P<days>\d{1,9})-)?(?:(?P<hours>\d{1,9}):)?(?P<minutes>\d{1,9}):)?(?P<seconds>\d{1,18})(?:\.\d+)?",
    re.ASCII,
)
_SIZE = re.compile(r"(?P<number>\d{1,18}(?:\.\d+)?)(?P<unit>[KMGTP]?)B?", re.ASCII | re.IGNORECASE)


def duration_s(text: str) -> float | None:
    """Return the seconds of ``1-02:03:04``, ``02:03:04``, ``03:04`` or ``184``; None for ``UNLIMITED`` and the like."""
    match = _DURATION.fullmatch(text)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(number or 0) for number in match.groups())
    return float(days * DAY_S + hours * HOUR_S + minutes * MINUTE_S + seconds)


def size_bytes(text: str) -> int | None:
    """Return the bytes of ``216K``, ``1.5G``, ``3500kb`` or ``0``; None for other text. Units are powers of 1024."""
    match = _SIZE.fullmatch(text.strip())
    return None if match is None else int(float(match["number"]) * 1024 ** " KMGTP".index(match["unit"].upper() or " "))
