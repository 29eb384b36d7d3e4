"""Turn records of runs into the samples of one target, check them, and describe the ranges of their features."""

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from leadline.core.errors import InvalidInput, UnknownName
from leadline.core.frozen import Frozen
from leadline.core.jobs import JobState
from leadline.core.runs import Sample, Scale, TrainingSet, Value
from leadline.core.trained_model import Feature, FeatureRole
from leadline.training.records import COLUMNS, NODE, RESOURCES, RunRecord, TrainingOptions, in_base_unit, unit_of

FEW = 12
"""Distinct values of a number up to which they are listed as well as its range."""
LEAST_RANGE = math.log(2)
"""Logarithmic range assumed for a feature above zero that never varied, as in the tabular estimators."""
TARGETS: dict[str, str] = COLUMNS["targets"]
CENSORED_BY = {target: JobState(state) for target, state in COLUMNS["censored_by"].items()}
LEAST_CONFIGURATIONS = 5
DEFAULTS = TrainingOptions()


def describe_features(
    samples: Sequence[Sample], parameters: Iterable[str], units: Mapping[str, str]
) -> tuple[Feature, ...]:
    """Return every feature of the samples with its role and range, parameters first."""
    parameter_names = frozenset(parameters)
    features = []
    for name in dict.fromkeys(name for sample in samples for name in sample.features):
        values = [sample.features[name] for sample in samples if name in sample.features]
        features.append(_feature(name, role_of(name, parameter_names), values, units))
    return tuple(sorted(features, key=lambda feature: list(FeatureRole).index(feature.role)))


def role_of(name: str, parameters: frozenset[str]) -> FeatureRole:
    """Return where a feature's value comes from."""
    if name.startswith(NODE):
        return FeatureRole.NODE
    if name in RESOURCES:
        return FeatureRole.RESOURCE
    return FeatureRole.PARAMETER if name in parameters else FeatureRole.GRAPH


def complete_rows(rows: Iterable[Mapping[str, Value]], features: Sequence[Feature]) -> list[dict[str, Value]]:
    """Return rows in the form of the samples.

    A missing feature that never varied gets its constant value. Texts become numbers where the samples had numbers,
    with their unit converted (``10 s``), and numbers become texts where the samples had categories.
    """
    constants = {feature.name: only_value(feature) for feature in features if not feature.used}
    is_text = {feature.name: feature.categorical for feature in features}
    completed = []
    for row in rows:
        full = {name: value for name, value in constants.items() if value is not None} | dict(row)
        for name, text in is_text.items():
            if name in full and text != isinstance(full[name], str):
                full[name] = str(full[name]) if text else _number(full[name])
        completed.append(full)
    return completed


def describe_extrapolation(row: Mapping[str, Value], features: Sequence[Feature]) -> tuple[str, ...]:
    """Return a sentence for each feature of a row outside the range of the runs, farthest first."""
    outside = [distance for feature in features if (distance := _outside(feature, row.get(feature.name))) is not None]
    return tuple(sentence for _, sentence in sorted(outside, key=lambda pair: -pair[0]))


def _feature(name: str, role: FeatureRole, values: Sequence[Value], units: Mapping[str, str]) -> Feature:
    unit = units.get(name, "")
    if any(isinstance(value, str) for value in values):
        choices = tuple(sorted({str(value) for value in values}))
        return Feature(name, role, choices=choices, unit=unit, used=len(choices) > 1)
    numbers = sorted({float(value) for value in values})
    whole = all(isinstance(value, int) for value in values)
    few = tuple(numbers) if len(numbers) <= FEW else ()
    return Feature(name, role, numbers[0], numbers[-1], whole, values=few, unit=unit, used=len(numbers) > 1)


def only_value(feature: Feature) -> Value | None:
    """Return the value of a feature that never varied; ``None`` if there is none."""
    if feature.categorical:
        return feature.choices[0]
    return feature.low if feature.low is None or not feature.whole else int(feature.low)


def _number(value: Value) -> Value:
    """Return a text as a number in its base unit; the text itself where it is none."""
    try:
        return in_base_unit(str(value)) if unit_of(str(value)) else float(value)
    except ValueError:
        return value


def _outside(feature: Feature, value: Value | None) -> tuple[float, str] | None:
    """Return how many ranges a value is outside the runs, with a sentence; ``None`` within."""
    name = feature.name
    if value is None:
        return math.inf, f"{name} is not given"
    if feature.categorical:
        if str(value) in feature.choices:
            return None
        listed = ", ".join(str(choice) for choice in feature.choices[:8])
        return math.inf, f"{name} = {value} was never run; runs had {listed}"
    if feature.low is None or feature.high is None or isinstance(value, str):
        return math.inf, f"{name} = {value} is not a number, as it was in the runs"
    return None if feature.low <= value <= feature.high else _excess(name, value, feature.low, feature.high)


def _excess(name: str, value: float, low: float, high: float) -> tuple[float, str]:
    runs = f"{low:g} to {high:g}" if low < high else f"{low:g} alone"
    if low > 0 and value > 0:
        times = value / high if value > high else low / value
        how = f"{times:.3g} times {'the largest' if value > high else 'below the least'}"
        width = max(math.log(high / low), 0.1 * LEAST_RANGE) if high > low else LEAST_RANGE
        return math.log(times) / width, f"{name} = {value:g} is {how} that was run ({runs})"
    excess = max(low - value, value - high) / (high - low or max(abs(high), 1.0))
    side = "above" if value > high else "below"
    return excess, f"{name} = {value:g} is {excess:.2g} ranges {side} the runs ({runs})"


class TrainingData(Frozen):
    """The samples of one target, and the runs that were left out."""

    dataset: TrainingSet
    features: tuple[Feature, ...]
    runs: int  # number of records, used or not
    failures: dict[str, int]  # counts by state of the runs that are neither samples nor lower bounds
    unmeasured: int = 0  # runs that ended well without a measurement of the target
    started: tuple[str, ...] = ()  # start of every run

    @property
    def censored(self) -> int:
        """Return how many samples are lower bounds."""
        return sum(sample.censored for sample in self.dataset.samples)


def make_dataset(
    records: Sequence[RunRecord], target: str = "elapsed_s", options: TrainingOptions = DEFAULTS
) -> TrainingData:
    """Return the samples of a target from the records of one application.

    Of the ``options``, those on features count. By default, the scale features are those whose full-scale values are
    outside the scaled-down ones. ``categories`` are features whose numbers are only names, such as 2 and 3 of
    dimensions.

    Raises:
        InvalidInput: runs of several applications, a run that occurs twice, a missing or impossible value, or too few
            configurations. The message names the run.
        UnknownName: ``categories`` names no feature.
    """
    application = _one_application(records)
    _refuse_duplicates(records)
    values = [(record, value) for record in records if (value := usable_value(record, target)) is not None]
    usable = [record for record, _ in values]
    if not usable:
        raise InvalidInput(_no_samples(records, application, target))
    without, categories = frozenset(options.without), frozenset(options.categories)
    _check_parameters(usable, without)
    features = {name for record in usable for name in record.features}
    for name in options.categories:
        if name not in features:
            raise UnknownName("feature", name, features)
    samples = tuple(_sample(record, target, value, without, categories) for record, value in values)
    uncensored = [sample for sample in samples if not sample.censored]
    configurations = {sample.configuration for sample in uncensored}
    if len(configurations) < LEAST_CONFIGURATIONS:
        raise InvalidInput(
            f"{application} has {len(uncensored)} usable runs of {len(configurations)} configurations "
            f"({_state_counts(records)}), and at least {LEAST_CONFIGURATIONS} configurations are needed: run more of "
            "them"
        )
    units = dict(usable[0].units)
    described = describe_features(samples, usable[0].parameters, units)
    scale_features = _scale_features(samples, described, options.scale_features)
    failures = Counter(record.state.value for record in records if not _is_informative(record, target))
    return TrainingData(
        TrainingSet(application, target, samples, scale_features, units), described, len(records),
        dict(sorted(failures.items())), len(records) - failures.total() - len(usable),
        tuple(record.started_at for record in records),
    )  # fmt: skip


def _one_application(records: Sequence[RunRecord]) -> str:
    names = Counter(record.application for record in records)
    if not names:
        raise InvalidInput("there are no runs to learn from: make some with leadline campaign run or leadline submit")
    if len(names) > 1:
        listed = ", ".join(f"{name} ({count} runs)" for name, count in names.most_common(8))
        raise InvalidInput(f"there are runs of {len(names)} applications: choose one with --application: {listed}")
    return next(iter(names))


def _refuse_duplicates(records: Sequence[RunRecord]) -> None:
    """Refuse a run that occurs twice, by its id or by all its values."""
    ids: dict[str, RunRecord] = {}
    rows: dict[tuple[object, ...], RunRecord] = {}
    for record in records:
        before = ids.setdefault(record.id, record) if record.id else record
        if before is not record:
            raise InvalidInput(
                f"{record.label} and {before.label} are the same run ({record.id}): delete one, or the second table"
            )
        row = (record.started_at, record.state, record.scale, *sorted(record.features.items()),
               *sorted(record.metrics.items()))  # fmt: skip
        # Without a start, repeats may share whole seconds by chance, but hardly a fraction.
        if record.metrics and (record.started_at or any(not float(v).is_integer() for v in record.metrics.values())):
            before = rows.setdefault(row, record)
            if before is not record:
                raise InvalidInput(f"{record.label} and {before.label} are identical: delete one of them")


def _is_informative(record: RunRecord, target: str) -> bool:
    """Return whether a run's final state says something about the target."""
    return record.state in (JobState.COMPLETED, CENSORED_BY.get(target))


def usable_value(record: RunRecord, target: str) -> float | None:
    """Return a run's value of a target, in its unit; the limit for a run that was cut off unmeasured.

    ``None`` for a run that is no sample: it neither completed nor hit the target's own limit, or its value is unknown.

    Raises:
        InvalidInput: the value is impossible.
    """
    if not _is_informative(record, target):
        return None
    value = record.metrics.get(target)
    if value is None and record.state is not JobState.COMPLETED:
        value = record.limits.get(target)
    if value is not None and not (math.isfinite(value) and value > 0):
        raise InvalidInput(
            f"{record.label} has {target} = {value:g}, which must be above 0: correct it, or mark the run FAILED"
        )
    return value


def _state_counts(records: Sequence[RunRecord]) -> str:
    states = Counter(record.state.value for record in records)
    return ", ".join(f"{count} {state}" for state, count in states.most_common())


def _no_samples(records: Sequence[RunRecord], application: str, target: str) -> str:
    if not any(_is_informative(record, target) for record in records):
        return (
            f"none of the {len(records)} runs of {application} ended well ({_state_counts(records)}): there is nothing "
            "to learn from"
        )
    measured = sorted({name for record in records for name in record.metrics})
    had = f"measured were {', '.join(measured)}" if measured else "nothing else was measured either"
    return f"{target} was not measured in any of the {len(records)} runs of {application}: {had}"


def _sample(
    record: RunRecord, target: str, value: float, without: frozenset[str], categories: frozenset[str]
) -> Sample:
    metrics = record.metrics
    features = {name: feature for name, feature in record.features.items() if name not in without}
    timed = metrics if target == "elapsed_s" else {}
    return Sample(
        {name: str(feature) if name in categories else feature for name, feature in features.items()},
        value,
        record.scale,
        censored=record.state is not JobState.COMPLETED,
        startup_s=timed.get("startup_s"),
        work_s=timed.get("work_s"),
        units=timed.get("units"),
        unit_s=timed.get("unit_s"),
        cost_s=metrics.get("elapsed_s", 0.0),
        run_id=record.id,
    )


def _check_parameters(records: Sequence[RunRecord], without: frozenset[str]) -> None:
    """Refuse a parameter that some runs lack, and a feature that mixes numbers and texts."""
    parameters = {name for record in records for name in record.parameters}
    counts = Counter(name for record in records for name in record.features)
    for name, count in counts.items():
        if name in without:
            continue
        if name in parameters and count < len(records):
            lacking = next(record for record in records if name not in record.features)
            raise InvalidInput(
                f"{name} is given in {count} of {len(records)} runs only ({lacking.label} lacks it): fill it in, or "
                f"leave it out with --without {name}"
            )
        _refuse_mixed([record for record in records if name in record.features], name)


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
    """Return the features that carry scale: the named ones, or those that grow from one scale to the other."""
    by_name = {feature.name: feature for feature in features}
    for name in named:
        feature = by_name.get(name)
        if feature is None:
            usable = ", ".join(feature.name for feature in features if feature.used)
            raise InvalidInput(f"no run has a parameter {name!r} to carry scale: it is one of {usable}")
        if feature.categorical:
            raise InvalidInput(f"{name} is not a number, so it carries no scale: leave it out of --scale")
        if not feature.used:
            raise InvalidInput(
                f"{name} is {feature.low:g} in every run, so it carries no scale: leave it out of --scale"
            )
    if named:
        return tuple(dict.fromkeys(named))
    numeric = [feature for feature in features if feature.used and not feature.categorical]
    # A node's properties differ between the machines of both scales; requested memory follows from the size.
    own = [feature.name for feature in numeric if feature.role is not FeatureRole.NODE]
    return tuple(name for name in own if name != "memory_bytes" and _differs_by_scale(samples, name))


def _differs_by_scale(samples: Sequence[Sample], name: str) -> bool:
    """Return whether the median of a feature's full-scale values is outside the scaled-down ones."""
    small, full = (
        numbers_of([sample for sample in samples if sample.scale is scale], name)
        for scale in (Scale.SCALED_DOWN, Scale.FULL_SCALE)
    )
    return bool(small and full) and not min(small) <= statistics.median(full) <= max(small)


def numbers_of(samples: Sequence[Sample], name: str) -> list[float]:
    """Return the values of a feature that are numbers."""
    values = (sample.features.get(name) for sample in samples)
    return [float(value) for value in values if isinstance(value, int | float)]
