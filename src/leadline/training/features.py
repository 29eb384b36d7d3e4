"""What a model has seen of every feature, and how far a question lies beyond it."""

import math
from collections.abc import Iterable, Mapping, Sequence

from leadline.core.models import Feature, Role
from leadline.core.samples import Sample, Value
from leadline.training.quantities import in_base_unit, unit_of
from leadline.training.records import NODE, RESOURCES

FEW = 12
"""So many distinct values of a number are listed beside its range."""
LEAST_RANGE = math.log(2)
"""The range that a feature above zero is given where it did not vary; as the tabular estimators have it."""


def describe(samples: Sequence[Sample], parameters: Iterable[str], units: Mapping[str, str]) -> tuple[Feature, ...]:
    """Return every feature of the samples, parameters first."""
    choices = frozenset(parameters)
    names = dict.fromkeys(name for sample in samples for name in sample.features)
    found = [
        _feature(name, role_of(name, choices), [s.features[name] for s in samples if name in s.features], units)
        for name in names
    ]
    order = list(Role)
    return tuple(sorted(found, key=lambda feature: order.index(feature.role)))


def role_of(name: str, parameters: frozenset[str]) -> Role:
    """Return where a feature's value comes from."""
    if name.startswith(NODE):
        return Role.NODE
    if name in RESOURCES:
        return Role.RESOURCE
    return Role.PARAMETER if name in parameters else Role.GRAPH


def complete(rows: Iterable[Mapping[str, Value]], features: Sequence[Feature]) -> list[dict[str, Value]]:
    """Return rows as the samples had them.

    A feature that never varied and is not named has the value it always had; a number with a unit (``10 s``) counts in
    the unit of its column, as a whole number written as text does, and a number of a category is its text.
    """
    usual = {one.name: _only_value(one) for one in features if not one.used}
    texts = {one.name: one.categorical for one in features}
    found = []
    for row in rows:
        whole = {name: value for name, value in usual.items() if value is not None} | dict(row)
        odd = {name: text for name, text in texts.items() if name in whole and text != isinstance(whole[name], str)}
        found.append(whole | {name: _as_run(whole[name], text=text) for name, text in odd.items()})
    return found


def beyond(row: Mapping[str, Value], features: Sequence[Feature]) -> tuple[str, ...]:
    """Return a sentence for every feature of a row that lies outside what was seen, farthest first."""
    found = [said for one in features if (said := _outside(one, row.get(one.name))) is not None]
    return tuple(sentence for _, sentence in sorted(found, key=lambda each: -each[0]))


def _feature(name: str, role: Role, values: Sequence[Value], units: Mapping[str, str]) -> Feature:
    unit = units.get(name, "")
    if any(isinstance(value, str) for value in values):
        choices = tuple(sorted({str(value) for value in values}))
        return Feature(name, role, choices=choices, unit=unit, used=len(choices) > 1)
    numbers = sorted({float(value) for value in values})
    whole = all(isinstance(value, int) for value in values)
    few = tuple(numbers) if len(numbers) <= FEW else ()
    return Feature(name, role, numbers[0], numbers[-1], whole, values=few, unit=unit, used=len(numbers) > 1)


def _only_value(feature: Feature) -> Value | None:
    if feature.categorical:
        return feature.choices[0]
    if feature.low is None:
        return None
    return int(feature.low) if feature.whole else feature.low


def _as_run(value: Value, *, text: bool) -> Value:
    """Return a value as the runs had it: a text, or a number where it is one."""
    if text:
        return str(value)
    try:
        return in_base_unit(str(value)) if unit_of(str(value)) else float(value)
    except ValueError:
        return value


def _outside(feature: Feature, value: Value | None) -> tuple[float, str] | None:
    """Return how far a value lies beyond what was seen, in ranges, with a sentence; ``None`` within."""
    name = feature.name
    if value is None:
        return math.inf, f"{name} is not given"
    if feature.categorical:
        if str(value) in feature.choices:
            return None
        listed = ", ".join(str(one) for one in feature.choices[:8])
        return math.inf, f"{name} = {value} was never run; runs had {listed}"
    if feature.low is None or feature.high is None or isinstance(value, str):
        return math.inf, f"{name} = {value} is no number, as it was in the runs"
    return None if feature.low <= value <= feature.high else _excess(name, value, feature.low, feature.high)


def _excess(name: str, value: float, low: float, high: float) -> tuple[float, str]:
    seen = f"{low:g} to {high:g}" if low < high else f"{low:g} alone"
    if low > 0 and value > 0:
        times = value / high if value > high else low / value
        how = f"{times:.3g} times {'the largest' if value > high else 'below the least'}"
        width = max(math.log(high / low), 0.1 * LEAST_RANGE) if high > low else LEAST_RANGE
        return math.log(times) / width, f"{name} = {value:g} is {how} that was run ({seen})"
    excess = max(low - value, value - high) / (high - low or max(abs(high), 1.0))
    side = "above" if value > high else "below"
    return excess, f"{name} = {value:g} lies {excess:.2g} ranges {side} what was run ({seen})"
