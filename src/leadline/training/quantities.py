"""Cells with a unit (``10s``, ``2 GB``) as plain seconds and bytes."""

import re

from leadline.core.units import parse_bytes, parse_duration_s

_UNITS = r"ms|s|secs?|m|mins?|h|hrs?|d|days?|[KMGT]i?B"
_WITH_UNIT = re.compile(rf"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>{_UNITS})", re.IGNORECASE)
_SPELLINGS = {"sec": "s", "secs": "s", "min": "m", "mins": "m", "hr": "h", "hrs": "h", "day": "d", "days": "d"}


def unit_of(cell: str) -> str | None:
    """Return the unit that a number carries (``s``, ``m``, ``gib`` …); ``None`` of a cell that is no such number."""
    match = _WITH_UNIT.fullmatch(cell)
    if match is None:
        return None
    unit = match["unit"].lower()
    return _SPELLINGS.get(unit, unit)


def base_unit(unit: str) -> str:
    """Return what ``in_base_unit`` counts in: ``s`` or ``bytes``."""
    return "bytes" if unit.endswith("b") else "s"


def in_base_unit(cell: str) -> float:
    """Return the seconds or the bytes that a cell with a unit says.

    Raises:
        ValueError: it has no unit.
    """
    match = _WITH_UNIT.fullmatch(cell)
    unit = unit_of(cell)
    if match is None or unit is None:
        raise ValueError(f"{cell!r} has no unit")
    written = match["number"] + unit
    return float(parse_bytes(written)) if base_unit(unit) == "bytes" else parse_duration_s(written)
