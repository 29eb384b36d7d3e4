"""Parse and format durations, sizes and counts; internally, seconds and bytes are plain numbers."""

import math
import re
from datetime import timedelta

from leadline.core.errors import InvalidInput

KIB, MIB, GIB = 2**10, 2**20, 2**30
GB = 10**9
GBIT_BYTES = 1e9 / 8
"""Bytes in a gigabit."""
MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86400

MOST_DIGITS = 18
LATEST_S = 2.5e11
"""Seconds since the epoch in the last year that dates reach."""

_SIZE = re.compile(r"\s*(?P<number>\d{1,18}(?:\.\d{1,60})?)\s*(?P<unit>[KMGTP]?)(?P<binary>i?)B?\s*", re.IGNORECASE)
_SPAN = re.compile(r"(?P<number>\d{1,15}(?:\.\d{1,60})?)\s*(?P<unit>ms|min|[smhd])", re.IGNORECASE)
_SPAN_S = {"ms": 1e-3, "s": 1.0, "m": MINUTE_S, "min": MINUTE_S, "h": HOUR_S, "d": DAY_S}
_CLOCK = re.compile(r"(?:(?P<days>\d{1,12})-)?(?P<clock>\d{1,15}(?::\d{1,2}){1,2})")


def parse_whole(text: str) -> int | None:
    """Return the whole number that decimal digits write; ``None`` for other text, and beyond 18 digits."""
    # Python refuses to convert thousands of digits, and reads the digits of any script.
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= MOST_DIGITS else None


def parse_epoch_s(text: str) -> float | None:
    """Return the seconds since the epoch that decimal digits write; ``None`` for other text, and beyond all dates."""
    seconds = parse_whole(text)
    return None if seconds is None or seconds > LATEST_S else float(seconds)


def parse_bytes(text: str, *, bare_bytes: int | None = None) -> int:
    """Parse a size such as ``16GiB``, ``16GB``, ``512M`` (binary) or ``4096B``.

    ``K``, ``M``, ``G`` alone are binary, as in Slurm; ``KB``, ``MB``, ``GB`` are decimal. ``bare_bytes`` is the size
    of 1 without a unit, where a format defines it.

    Raises:
        InvalidInput: the text is not a size, or has no unit.
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        raise InvalidInput(f"{text!r} is not a size: write for example 16GiB, 16GB or 512M")
    if not text.strip()[-1].isalpha():
        return round(_bare_number(text, bare_bytes, ("GiB", "MiB", "B")))
    exponent = " KMGTP".index(match["unit"].upper() or " ")
    # Slurm's own suffixes are binary, but people write GB for 10^9 bytes, as vendors do.
    decimal = text.strip().upper().endswith("B") and not match["binary"]
    return round(float(match["number"]) * (1000.0 if decimal else 1024.0) ** exponent)


def parse_duration_s(text: str, *, bare_s: float | None = None) -> float:
    """Parse a duration: ``90s``, ``15m``, ``2h30m``, ``1d``, or Slurm's ``[D-]HH:MM[:SS]``.

    ``bare_s`` is the duration of 1 without a unit, where a format defines it.

    Raises:
        InvalidInput: the text is not a duration, or has no unit.
    """
    # As in Slurm, two clock fields are hours and minutes with days (`1-12:30`), and minutes and seconds without
    # (`12:30`).
    stripped = text.strip()
    if re.fullmatch(r"\d{1,15}(\.\d{1,60})?", stripped):
        return _bare_number(stripped, bare_s, ("h", "m", "s"))
    if clock := _CLOCK.fullmatch(stripped):
        fields = [int(field) for field in clock["clock"].split(":")]
        if len(fields) == 2:
            fields = [*fields, 0] if clock["days"] else [0, *fields]
        hours, minutes, seconds = fields
        return float(int(clock["days"] or 0) * DAY_S + hours * HOUR_S + minutes * MINUTE_S + seconds)
    spans = list(_SPAN.finditer(stripped))
    if not spans or "".join(span.group() for span in spans) != re.sub(r"\s+(?=\d)", "", stripped):
        raise InvalidInput(f"{text!r} is not a duration: write for example 90s, 15m, 2h30m, 1-12:00:00")
    return sum(float(span["number"]) * _SPAN_S[span["unit"].lower()] for span in spans)


def duration_s(value: str | timedelta) -> float:
    """Return a duration in seconds; ``InvalidInput`` as in ``parse_duration_s``, also for a bare number."""
    return value.total_seconds() if isinstance(value, timedelta) else parse_duration_s(str(value))


def _bare_number(text: str, scale: float | None, units: tuple[str, ...]) -> float:
    """Return a number without a unit times ``scale``; without a scale, refuse it."""
    number = text.strip()
    if scale is None:
        *first, last = (f"{number}{unit}" for unit in units)
        raise InvalidInput(f"{text!r} has no unit: write {', '.join(first)} or {last}")
    return float(number) * scale


def format_bytes(size_bytes: float) -> str:
    """Format a size with three digits in a binary unit: ``1.50 GiB``."""
    value = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.0f} B" if unit == "B" else f"{_three_digits(value)} {unit}"


def format_duration(duration_s: float) -> str:
    """Format a duration for people: ``1.25 ms``, ``12.4 s``, ``3m 20s``, ``2h 05m``, ``3d 04h``."""
    if duration_s < 1:
        return f"{_three_digits(duration_s * 1e3)} ms" if duration_s >= 1e-3 else f"{duration_s * 1e6:.3g} µs"
    if duration_s < MINUTE_S:
        return f"{_three_digits(duration_s)} s"
    whole = round(duration_s)
    if whole < HOUR_S:
        return f"{whole // MINUTE_S}m {whole % MINUTE_S:02d}s"
    if whole < DAY_S:
        return f"{whole // HOUR_S}h {whole % HOUR_S // MINUTE_S:02d}m"
    return f"{whole // DAY_S}d {whole % DAY_S // HOUR_S:02d}h"


def format_clock(duration_s: float) -> str:
    """Format a walltime for batch schedulers, rounded up to a second: ``HH:MM:SS``."""
    whole = math.ceil(duration_s)
    return f"{whole // HOUR_S:02d}:{whole % HOUR_S // MINUTE_S:02d}:{whole % MINUTE_S:02d}"


def format_count(count: float) -> str:
    """Format a count with a decimal prefix: ``6.74 G``."""
    value = float(count)
    for prefix in ("", "k", "M", "G", "T", "P", "E"):
        if abs(value) < 1000 or prefix == "E":
            break
        value /= 1000
    return f"{_three_digits(value)} {prefix}".rstrip()


def pluralize(count: int, noun: str) -> str:
    """Return a count with its noun: ``1 run``, ``2 runs``."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _three_digits(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"
