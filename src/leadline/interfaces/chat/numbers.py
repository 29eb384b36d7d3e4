"""Find numbers in a model's words that no tool gave."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from leadline.core.frozen import Frozen
from leadline.core.units import DAY_S, HOUR_S, MINUTE_S

SMALL = 10
"""Whole numbers up to here without a unit count parts of a sentence: two options, step 3."""
_TIME_S = {"s": 1.0, "m": MINUTE_S, "h": HOUR_S, "d": DAY_S, "w": 7 * DAY_S}
_POWERS = {"k": 1, "thousand": 1, "m": 2, "million": 2, "g": 3, "billion": 3, "t": 4, "trillion": 4, "p": 5}
_QUANTITY = re.compile(
    r"(?P<money>[$€£]\s?)?(?<![\w.])(?P<digits>\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)"
    r"(?:[ -]?(?:(?P<ms>ms)\b|(?P<time>s|secs?|seconds?|m|mins?|minutes?|h|hrs?|hours?|d|days?|w|weeks?)\b"
    r"|(?P<power>[kMGTP]|thousand|million|billion|trillion)\b|(?P<prefix>[kKMGTP]?)i?(?:B|bytes?|b/s|FLOP|Hz)"
    r"|(?P<share>%|percent\b)|(?P<currency>USD|dollars?)\b))?"
)
_SPAN = re.compile(r"(?<![\w.:-])(?:(\d+)([dhm]) (\d\d)([hms])\b|(\d+):(\d\d):(\d\d)(?!:))")
"""A duration as tools write it: ``2h 05m`` or ``02:05:00``."""


class Quantity(Frozen):
    """A number in a text.

    Attributes:
        text: its digits.
        value: its value in its unit.
        most_off: half a unit of its last digit.
        kind: what its unit measures: time, amount, share or money; empty without a unit.
        scales: seconds, bytes or shares that its unit may mean: a GB has 1000³ or 1024³ bytes.
    """

    text: str
    value: float
    most_off: float
    kind: str = ""
    scales: tuple[float, ...] = (1.0,)


def unfounded_numbers(words: str, sources: Iterable[str]) -> list[str]:
    """Return the numbers in a text that are in no source, in another unit or with fewer digits."""
    quoted = [quantity for source in sources for quantity in read_quantities(source)]
    quantities = read_quantities(words)
    units = {(quantity.kind, quantity.scales) for quantity in quantities}
    return list(dict.fromkeys(each.text for each in quantities if not _is_founded(each, quoted, units)))


def read_quantities(text: str) -> list[Quantity]:
    """Return the numbers in a text with their units."""
    spans = [_span(match) for match in _SPAN.finditer(text)]
    return [*spans, *map(_quantity, _QUANTITY.finditer(_SPAN.sub(" ", text)))]


def _span(match: re.Match[str]) -> Quantity:
    if match[1] is None:
        seconds = float(match[5]) * HOUR_S + float(match[6]) * MINUTE_S + float(match[7])
        return Quantity(match[0], seconds, 0.5, "time")
    last_s = _TIME_S[match[4]]
    return Quantity(match[0], float(match[1]) * _TIME_S[match[2]] + float(match[3]) * last_s, last_s / 2, "time")


def _quantity(match: re.Match[str]) -> Quantity:
    number = match["digits"].replace(",", "")
    plain = Quantity(match["digits"], float(number), _half_unit(number))
    if match["money"] or match["currency"]:
        return replace(plain, kind="money")
    if match["ms"] or match["time"]:
        return replace(plain, kind="time", scales=(1e-3 if match["ms"] else float(_TIME_S[match["time"][0]]),))
    if match["share"]:
        return replace(plain, kind="share", scales=(0.01,))
    if (prefix := match["power"] or match["prefix"]) is None:
        return plain
    # A bare B is a byte or a billion.
    scales = tuple(base ** _POWERS[prefix.lower()] for base in (1e3, 1024.0)) if prefix else (1.0, 1e9)
    return replace(plain, kind="amount", scales=scales)


def _half_unit(number: str) -> float:
    """Return half a unit of the last digit; of 12000 two zeros may be rounded."""
    if "e" in number.lower():
        return 0.5
    decimals = len(number.partition(".")[2])
    zeros = 0 if decimals else len(number) - len(number.rstrip("0"))
    rounded = min(zeros, 2, len(number) - 2) if zeros < len(number) - 1 else 0
    return 0.5000001 * 10.0 ** (rounded - decimals)


def _is_founded(
    quantity: Quantity, sources: Sequence[Quantity], units: Iterable[tuple[str, tuple[float, ...]]]
) -> bool:
    """Tell whether a source has a number; without a unit it may have one of ``units``: 2.5 h (2.1 to 3.2)."""
    if quantity.kind:
        return any(_is_same(quantity, each) for each in sources)
    if quantity.value.is_integer() and quantity.value <= SMALL:
        return True
    readings = [replace(quantity, kind=kind, scales=scales) for kind, scales in {("", (1.0,)), *units}]
    return any(_is_same(reading, each) for reading in readings for each in sources)


def _is_same(quantity: Quantity, source: Quantity) -> bool:
    """Tell whether two numbers are equal in a unit that both may have; a number without a unit may have any."""
    if quantity.kind and source.kind:
        if quantity.kind != source.kind:
            return False
        pairs = [(scale, source_scale) for scale in quantity.scales for source_scale in source.scales]
    else:
        pairs = [(1.0, 1.0), *((scale, 1.0) for scale in quantity.scales), *((1.0, scale) for scale in source.scales)]
    return any(
        abs(source.value * source_scale - quantity.value * scale) <= quantity.most_off * scale
        for scale, source_scale in pairs
    )
