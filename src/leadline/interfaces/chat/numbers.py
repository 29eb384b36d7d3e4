"""Find numbers in a model's words that no tool gave."""

import re
from collections.abc import Iterable, Sequence

_NUMBER = re.compile(r"(?<![\w.])\d{1,3}(?:,\d{3})+(?:\.\d+)?|(?<![\w.])\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
FACTORS = (1.0, 60.0, 3600.0, 86400.0, 1e-3, 1e3, 1e6, 1e9, 1e12, 2.0**10, 2.0**20, 2.0**30, 2.0**40, 100.0)
"""Units in which people give what a tool gives in seconds, bytes or shares."""
SMALL = 10
"""Numbers up to here count things in a sentence: two options, step 3."""


def unfounded_numbers(words: str, sources: Iterable[str]) -> list[str]:
    """Return the numbers in a text that are in no source, whatever their unit and rounding."""
    known = sorted({value for source in sources for _, value in _numbers(source)})
    return list(dict.fromkeys(text for text, value in _numbers(words) if not _is_founded(text, value, known)))


def _numbers(text: str) -> list[tuple[str, float]]:
    return [(match[0], float(match[0].replace(",", ""))) for match in _NUMBER.finditer(text)]


def _is_founded(text: str, value: float, known: Sequence[float]) -> bool:
    if value.is_integer() and value <= SMALL:
        return True
    decimals = len(text.partition(".")[2]) if "e" not in text.lower() else 0
    # Half a unit of the last digit; of 12,000 two zeros may be rounded.
    digits = text.replace(",", "")
    zeros = len(digits) - len(digits.rstrip("0")) if not decimals else 0
    most_off = (
        0.5000001 * 10.0 ** (max(0, min(zeros, 2, len(digits) - 2)) - decimals) if zeros < len(digits) - 1 else 0.5
    )
    return any(abs(one / factor - value) <= most_off or abs(one * factor - value) <= most_off
               for one in known for factor in FACTORS)  # fmt: skip
