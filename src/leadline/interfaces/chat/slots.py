"""Read the options of a workload, a job and a recommendation from the text of a question."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from leadline.core.units import DAY_S, GIB, HOUR_S, KIB, MIB, MINUTE_S
from leadline.interfaces.chat import cues
from leadline.interfaces.chat.language import number, tidy

UNIT_S = {"s": 1, "m": MINUTE_S, "h": HOUR_S, "d": DAY_S, "w": 7 * DAY_S}
MONTH_S = 30 * DAY_S
LEAST_SAMPLES = 500
"""Smallest number of things of any kind that is taken for that of samples."""
UNIT_BYTES = {"k": KIB, "m": MIB, "g": GIB, "t": 1024 * GIB}


@dataclass(slots=True)
class Reading:
    """A text of which cues take their parts, so that none is read twice.

    Attributes:
        text: what is left; a part that was taken is a row of ``_``.
        slots: argument → value, in the order of the text.
        places: argument → where it was read.
    """

    text: str
    slots: dict[str, Any] = field(default_factory=dict)
    places: dict[str, int] = field(default_factory=dict)

    def take(self, cue: str, *, all_of_them: bool = False) -> Iterator[re.Match[str]]:
        """Yield the match of a cue, or all matches, and take them out of the text."""
        yield from self.take_patterns([cues.pattern(cue)], all_of_them=all_of_them)

    def take_in_order(self, cue: str) -> Iterator[re.Match[str]]:
        """Yield and take the first match of each alternative of a cue."""
        yield from self.take_patterns(cues.alternatives(cue))

    def take_values(self, table: str, row: str = "") -> Iterator[tuple[str, re.Match[str]]]:
        """Yield and take the first match of each alternative in a table of cues, with its value."""
        for value, patterns in cues.by_value(table, row).items():
            for match in self.take_patterns(patterns):
                yield value, match

    def take_patterns(
        self, patterns: Iterable[re.Pattern[str]], *, all_of_them: bool = False
    ) -> Iterator[re.Match[str]]:
        """Yield and take the first match of each pattern, or all matches."""
        for pattern in patterns:
            for match in list(pattern.finditer(self.text))[: None if all_of_them else 1]:
                self.text = f"{self.text[: match.start()]}{'_' * len(match[0])}{self.text[match.end() :]}"
                yield match

    def give_back(self, match: re.Match[str]) -> None:
        """Put a part back into the text."""
        self.text = self.text[: match.start()] + match[0] + self.text[match.end() :]

    def says(self, cue: str) -> bool:
        """Tell whether what is left matches a cue."""
        return cues.says(cue, self.text)

    def put(self, name: str, value: Any, at: int) -> None:  # noqa: ANN401 - of any option
        """Keep the first value of an argument."""
        if name not in self.slots:
            self.slots[name] = value
            self.places[name] = at


def read_spans(reading: Reading) -> Iterator[tuple[int, float]]:
    """Yield place and seconds of every duration in the text, and take them."""
    for match in reading.take("clock", all_of_them=True):
        days, hours, minutes, rest_s = (int(part or 0) for part in match.groups())
        yield match.start(), days * DAY_S + hours * HOUR_S + minutes * MINUTE_S + rest_s
    for match in reading.take("and-a-half", all_of_them=True):
        yield match.start(), (int(match[1]) + 0.5) * UNIT_S[match[2][0].lower()]
    for match in reading.take("span", all_of_them=True):
        yield match.start(), _span_s(match)
    for seconds, match in reading.take_values("durations"):
        yield match.start(), float(seconds)


def _span_s(match: re.Match[str]) -> float:
    """Return the seconds of ``2 days``, ``1 h 30 min``, ``1h30`` or ``3 hours and a half``."""
    digits, unit, half, more, more_unit, minutes = match.groups()
    unit_s = MONTH_S if unit.lower().startswith("mo") else UNIT_S[unit[0].lower()]
    seconds = (float(digits) + (0.5 if half else 0)) * unit_s
    if more:
        return seconds + int(more) * UNIT_S[more_unit[0].lower()]
    return seconds + (int(minutes) * MINUTE_S if minutes and unit[0].lower() == "h" else 0)


def read_workload_options(reading: Reading) -> None:
    """Read the options of a workload but its GPUs, which depend on the places."""
    for name in cues.options():
        for value, match in reading.take_values("options", name):
            # Contexts come in powers of two, answers do not.
            kind = "count" if name == "generate" else value
            reading.put(name, _option(kind, match), match.start())
            break
    if reading.says("qlora"):
        reading.put("quantize", "4bit", 0)


def _option(value: str, match: re.Match[str]) -> object:
    """Return what a match says: a number, or the value whose words it has."""
    if value == "count":
        return tidy(number(match[1], match[2]))
    if value == "tokens":
        return _tokens(match[1], match[2])
    if value == "network":
        return f"{match[1]}{'GB' if match[2].startswith('GB') else 'Gb'}/s{'/gpu' if match[3] else ''}"
    return {"true": True, "false": False}.get(value, value)


def _tokens(digits: str, scale: str | None) -> int:
    """Return a number of tokens, of which ``4k`` are 4,096."""
    count = float(digits.replace(",", ""))
    binary = (scale or "").lower() == "k" and count in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
    return int(count * 1024) if binary else int(number(digits, scale))


def read_samples(reading: Reading) -> None:
    """Read the size of the data set, after all else that is counted."""
    for match in reading.take_in_order("data-set"):
        reading.put("samples", int(number(match[1], match[2])), match.start())
    for match in () if "samples" in reading.slots else reading.take("other-data-set"):
        if (count := int(number(match[1], match[2]))) >= LEAST_SAMPLES:
            reading.put("samples", count, match.start())


def read_size(reading: Reading) -> int | None:
    """Read a memory request such as ``16G`` or ``64 GB of RAM``."""
    for match in reading.take("size"):
        return int(float(match[1]) * UNIT_BYTES[match[2].lower()])
    return None
