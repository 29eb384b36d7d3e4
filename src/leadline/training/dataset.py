"""What a model has seen of every feature, and how far a question lies beyond it."""

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from leadline.core.errors import InvalidInput, UnknownName
from leadline.core.jobs import JobState
from leadline.core.runs import Sample, Scale, TrainingSet, Value
from leadline.core.trained_model import Feature, FeatureRole
from leadline.training.records import NODE, RESOURCES, RunRecord, in_base_unit, unit_of

FEW = 12
"""So many distinct values of a number are listed beside its range."""
LEAST_RANGE = math.log(2)
"""The range that a feature above zero is given where it did not vary; as the tabular estimators have it."""


def describe_features(
    samples: Sequence[Sample], parameters: Iterable[str], units: Mapping[str, str]
) -> tuple[Feature, ...]:
    """Return every feature of the samples, parameters first."""
    choices = frozenset(parameters)
    names = dict.fromkeys(name for sample in samples for name in sample.features)
    found = [
        _feature(name, role_of(name, choices), [s.features[name] for s in samples if name in s.features], units)
        for name in names
    ]
    order = list(FeatureRole)
    return tuple(sorted(found, key=lambda feature: order.index(feature.role)))


def role_of(name: str, parameters: frozenset[str]) -> FeatureRole:
    """Return where a feature's value comes from."""
    if name.startswith(NODE):
        return FeatureRole.NODE
    if name in RESOURCES:
        return FeatureRole.RESOURCE
    return FeatureRole.PARAMETER if name in parameters else FeatureRole.GRAPH


def complete_rows(rows: Iterable[Mapping[str, Value]], features: Sequence[Feature]) -> list[dict[str, Value]]:
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


def describe_extrapolation(row: Mapping[str, Value], features: Sequence[Feature]) -> tuple[str, ...]:
    """Return a sentence for every feature of a row that lies outside what was seen, farthest first."""
    found = [said for one in features if (said := _outside(one, row.get(one.name))) is not None]
    return tuple(sentence for _, sentence in sorted(found, key=lambda each: -each[0]))


def _feature(name: str, role: FeatureRole, values: Sequence[Value], units: Mapping[str, str]) -> Feature:
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


TARGETS = {
    "elapsed_s": "walltime",
    "host_memory_bytes": "peak host memory",
    "gpu_memory_bytes": "peak GPU memory",
    "unit_s": "time of one unit of work",
}
"""Target → what it is; another measured figure can be learned too."""
CENSORED_BY = {
    "elapsed_s": JobState.TIMEOUT,
    "host_memory_bytes": JobState.OUT_OF_MEMORY,
    "gpu_memory_bytes": JobState.OUT_OF_MEMORY,
}
"""Target → the end of a run that makes its figure a lower bound; any other end but COMPLETED says nothing of it."""
LEAST_CONFIGURATIONS = 5


@dataclass(frozen=True, slots=True)
class TrainingData:
    """What is learned from, and what was left out of it.

    ``features`` say what the samples have seen; ``failures`` counts by state the runs that are neither samples nor
    bounds, ``unmeasured`` those that ended well without the target's figure. ``started`` is when each run began.
    """

    dataset: TrainingSet
    features: tuple[Feature, ...]
    runs: int
    failures: dict[str, int]
    unmeasured: int = 0
    started: tuple[str, ...] = ()

    @property
    def censored(self) -> int:
        """Return how many samples are lower bounds."""
        return sum(sample.censored for sample in self.dataset.samples)


def make_dataset(
    records: Sequence[RunRecord],
    target: str = "elapsed_s",
    *,
    scale_features: Sequence[str] = (),
    without: Sequence[str] = (),
    categories: Sequence[str] = (),
) -> TrainingData:
    """Return the samples of ``target``; ``without`` names features to leave out.

    ``categories`` names features whose numbers are but names, as 2 and 3 of dimensions.

    ``scale_features`` names those that carry scale; by default they are those whose full-scale values lie beyond the
    scaled-down ones.

    Raises:
        InvalidInput: there are runs of several applications, or one run twice; a figure or a parameter is missing or
            impossible; too few configurations ended well. The sentence names the run.
    """
    application = _one_application(records)
    _refuse_duplicates(records)
    usable = [record for record in records if is_usable(record, target)]
    if not usable:
        raise InvalidInput(_why_nothing(records, application, target))
    _check_parameters(usable, frozenset(without))
    _refuse_unknown(usable, categories)
    samples = tuple(_sample(record, target, frozenset(without), frozenset(categories)) for record in usable)
    whole = [sample for sample in samples if not sample.censored]
    configurations = {sample.configuration for sample in whole}
    if len(configurations) < LEAST_CONFIGURATIONS:
        raise InvalidInput(_too_few(records, application, len(whole), len(configurations)))
    units = dict(usable[0].units)
    features = describe_features(samples, usable[0].parameters, units)
    dataset = TrainingSet(
        application, target, samples, _scale_features(samples, features, tuple(scale_features)), units
    )
    left_out = Counter(record.state.value for record in records if not _counts(record, target))
    unmeasured = sum(_counts(record, target) for record in records) - len(usable)
    return TrainingData(
        dataset,
        features,
        len(records),
        dict(sorted(left_out.items())),
        unmeasured,
        tuple(one.started_at for one in records),
    )


def _one_application(records: Sequence[RunRecord]) -> str:
    names = Counter(record.application for record in records)
    if not names:
        raise InvalidInput("there are no runs to learn from: leadline campaign run, or leadline submit, makes some")
    if len(names) > 1:
        listed = ", ".join(f"{name} ({count} runs)" for name, count in names.most_common(8))
        raise InvalidInput(f"there are runs of {len(names)} applications, and a model is of one: name it: {listed}")
    return next(iter(names))


def _refuse_duplicates(records: Sequence[RunRecord]) -> None:
    """Refuse one run that is there twice: by its id, or by everything that is known of it."""
    ids: dict[str, RunRecord] = {}
    rows: dict[tuple[object, ...], RunRecord] = {}
    for record in records:
        before = ids.setdefault(record.id, record) if record.id else record
        if before is not record:
            raise InvalidInput(
                f"{record.label} and {before.label} are the same run ({record.id}): delete one, or the same table twice"
            )
        row = (record.started_at, record.state, record.scale, *sorted(record.features.items()),
               *sorted(record.metrics.items()))  # fmt: skip
        # Of repeats without an id or a start, coarse figures may well be equal: only what is measured finely tells.
        if record.metrics and (record.started_at or any(not float(v).is_integer() for v in record.metrics.values())):
            before = rows.setdefault(row, record)
            if before is not record:
                raise InvalidInput(f"{record.label} and {before.label} are identical: delete one of them")


def _counts(record: RunRecord, target: str) -> bool:
    """Whether a run's end lets it say something of the target."""
    return record.state in (JobState.COMPLETED, CENSORED_BY.get(target))


def is_usable(record: RunRecord, target: str) -> bool:
    """Whether a run is a sample: it ended well or at the target's own limit, and its figure is known.

    Raises:
        InvalidInput: the figure is impossible.
    """
    if not _counts(record, target):
        return False
    figure = target_value(record, target)
    if figure is None:
        return False
    if not (math.isfinite(figure) and figure > 0):
        raise InvalidInput(
            f"{record.label} has {target} = {figure:g}, and a run takes more than 0: correct it, or mark the run FAILED"
        )
    return True


def target_value(record: RunRecord, target: str) -> float | None:
    """Return the figure of a run, in the target's unit; of one that was cut off at least its limit."""
    measured = record.metrics.get(target)
    return measured if measured is not None or record.state is JobState.COMPLETED else record.limits.get(target)


def _why_nothing(records: Sequence[RunRecord], application: str, target: str) -> str:
    states = Counter(record.state.value for record in records)
    ended = ", ".join(f"{count} {state}" for state, count in states.most_common())
    if not any(_counts(record, target) for record in records):
        return f"none of the {len(records)} runs of {application} ended well ({ended}): there is nothing to learn from"
    measured = sorted({name for record in records for name in record.metrics})
    had = f"measured were {', '.join(measured)}" if measured else "nothing else was measured either"
    return f"{target} was not measured in any of the {len(records)} runs of {application}: {had}"


def _too_few(records: Sequence[RunRecord], application: str, whole: int, configurations: int) -> str:
    states = Counter(record.state.value for record in records)
    ended = ", ".join(f"{count} {state}" for state, count in states.most_common())
    return (
        f"{application} has {whole} usable runs of {configurations} configurations ({ended}), and at least "
        f"{LEAST_CONFIGURATIONS} configurations are needed: run more of them"
    )


def _sample(record: RunRecord, target: str, without: frozenset[str], categories: frozenset[str]) -> Sample:
    figures = record.metrics
    value = target_value(record, target)
    if value is None:
        raise ValueError(f"{record.label} has no {target}")
    timed = target == "elapsed_s"
    return Sample(
        {
            name: str(value) if name in categories else value
            for name, value in record.features.items()
            if name not in without
        },
        value,
        record.scale,
        censored=record.state is not JobState.COMPLETED,
        startup_s=figures.get("startup_s") if timed else None,
        work_s=figures.get("work_s") if timed else None,
        units=figures.get("units") if timed else None,
        unit_s=figures.get("unit_s") if timed else None,
        cost_s=figures.get("elapsed_s", 0.0),
        run_id=record.id,
    )


def _check_parameters(records: Sequence[RunRecord], without: frozenset[str]) -> None:
    """Refuse a parameter of a part of the runs, and a feature that is a number in some and a text in others."""
    parameters = {name for record in records for name in record.parameters}
    known = Counter(name for record in records for name in record.features)
    for name, count in known.items():
        if name in without:
            continue
        if name in parameters and count < len(records):
            lacks = next(record for record in records if name not in record.features)
            raise InvalidInput(
                f"{name} is given in {count} of {len(records)} runs only ({lacks.label} lacks it): fill it in, or "
                f"leave it out with --without {name}"
            )
        _refuse_mixed([record for record in records if name in record.features], name)


def _refuse_unknown(records: Sequence[RunRecord], categories: Sequence[str]) -> None:
    known = {name for record in records for name in record.features}
    for name in categories:
        if name not in known:
            raise UnknownName("feature", name, known)


def _refuse_mixed(records: Sequence[RunRecord], name: str) -> None:
    texts = [record for record in records if isinstance(record.features[name], str)]
    if not texts or len(texts) == len(records):
        return
    number = next(record for record in records if not isinstance(record.features[name], str))
    raise InvalidInput(
        f"{name} is {texts[0].features[name]!r} in {texts[0].label} and {number.features[name]!r} in {number.label}: "
        f"write numbers or texts in all runs, or leave it out with --without {name}"
    )


def _scale_features(samples: Sequence[Sample], features: Sequence[Feature], named: tuple[str, ...]) -> tuple[str, ...]:
    """Return the features that carry scale: the named ones, else those of which most full-scale values lie beyond."""
    by_name = {one.name: one for one in features}
    for name in named:
        feature = by_name.get(name)
        if feature is None:
            known = ", ".join(one.name for one in features if one.used)
            raise InvalidInput(f"no run has a parameter {name!r} to carry scale: it is one of {known}")
        if feature.categorical:
            raise InvalidInput(f"{name} is no number, so it carries no scale: leave it out of --scale")
        if not feature.used:
            raise InvalidInput(
                f"{name} is {feature.low:g} in every run, so it carries no scale: leave it out of --scale"
            )
    if named:
        return tuple(dict.fromkeys(named))
    may = [one.name for one in features if one.used and not one.categorical and one.role is not FeatureRole.NODE]
    return tuple(name for name in may if name != "memory_bytes" and _lies_beyond(samples, name))


def _lies_beyond(samples: Sequence[Sample], name: str) -> bool:
    """Whether the middle of a feature's full-scale values lies outside the scaled-down ones."""
    values: dict[Scale, list[float]] = {Scale.SCALED_DOWN: [], Scale.FULL_SCALE: []}
    for sample in samples:
        value = sample.features.get(name)
        if isinstance(value, int | float):
            values[sample.scale].append(value)
    small, full = values[Scale.SCALED_DOWN], values[Scale.FULL_SCALE]
    return bool(small and full) and not min(small) <= statistics.median(full) <= max(small)
