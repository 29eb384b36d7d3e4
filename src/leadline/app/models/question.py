"""Read a question to a trained model: values set, values to try, and defaults for the rest."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path

from leadline.core.errors import InvalidInput, UnknownName
from leadline.core.frozen import Frozen
from leadline.core.runs import Value
from leadline.core.trained_model import Feature, FeatureRole
from leadline.core.units import parse_bytes, parse_duration_s
from leadline.training.dataset import only_value

RESOURCES = ("nodes", "cores", "gpus", "memory_bytes")
"""Resources of a job, as features are called; they can be set even if the model does not use them."""
ALIASES = {"memory": "memory_bytes"}
SUFFIXES = (".model", ".npz")
_MAGIC = b"PK\x03\x04"
MAX_CONFIGURATIONS = 100_000
"""More configurations than this are a typing error."""


class ModelQuestion(Frozen):
    """A question: the model's file, ``given`` as ``name=value``, and ``varied`` as ``name=value,value``."""

    model: Path
    given: tuple[str, ...] = ()
    varied: tuple[str, ...] = ()


class Configurations(Frozen):
    """Values to try for each parameter and resource."""

    values: dict[str, tuple[Value, ...]]

    def __iter__(self) -> Iterator[dict[str, Value]]:
        """Yield every combination."""
        for combination in product(*self.values.values()):
            yield dict(zip(self.values, combination, strict=True))

    def __len__(self) -> int:
        """Return the number of combinations."""
        return math.prod(map(len, self.values.values()))


def is_model(word: str) -> bool:
    """Return whether a word names a trained model, by the file's first bytes or its suffix."""
    path = Path(word)
    if path.suffix in SUFFIXES:
        return True
    try:
        with path.open("rb") as stream:
            return stream.read(len(_MAGIC)) == _MAGIC
    except (OSError, ValueError):  # a word with a NUL is no path
        return False


def read_question(
    question: ModelQuestion, features: Sequence[Feature], *, free: bool, traced: bool = False
) -> Configurations:
    """Return the configurations of a question.

    A feature that never varied in the runs keeps its value. With ``free``, a resource without a value is tried at the
    values of the runs and the powers of two between them. With ``traced``, graph features may be left out.

    Raises:
        InvalidInput: a value is missing, given twice, of the wrong kind, or out of range.
        UnknownName: the model has no such parameter or category.
    """
    by_name = {feature.name: feature for feature in features}
    typed = [("--set", text) for text in question.given] + [("--vary", text) for text in question.varied]
    chosen: dict[str, tuple[Value, ...]] = {}
    for option, text in typed:
        name, values = _read(option, text, by_name)
        if name in chosen:
            raise InvalidInput(f"{name} is given twice (also in {option} {text}): keep one")
        chosen[name] = values
    if traced:
        features = [feature for feature in features if feature.role is not FeatureRole.GRAPH]
    tried = {**chosen, **_defaults(features, chosen, free=free)}
    _refuse_missing(features, tried)
    configurations = Configurations(tried)
    if len(configurations) > MAX_CONFIGURATIONS:
        raise InvalidInput(
            f"--vary makes {len(configurations):,} configurations, but at most {MAX_CONFIGURATIONS:,} are allowed"
        )
    return configurations


def describe_range(feature: Feature) -> str:
    """Return the range of a feature in the runs, such as ``runs had 1 to 100``."""
    if feature.categorical:
        return f"runs had {', '.join(map(str, feature.choices[:8]))}{' …' if len(feature.choices) > 8 else ''}"
    if feature.low is None or feature.high is None:
        return "runs had no number"
    return f"runs had {feature.low:g}" + (f" to {feature.high:g}" if feature.high > feature.low else "")


def _read(option: str, text: str, by_name: Mapping[str, Feature]) -> tuple[str, tuple[Value, ...]]:
    name, equals, value_text = (part.strip() for part in text.partition("="))
    needs_unit = name in ALIASES and name not in by_name
    name = ALIASES[name] if needs_unit else name
    if not equals or not name or not value_text:
        example = "batch=32,64,128" if option == "--vary" else "epochs=30"
        raise InvalidInput(f"{option} {text} is not valid: write NAME=VALUE, as in {option} {example}")
    feature = by_name.get(name)
    if feature is None and name not in RESOURCES:
        names = [feature.name for feature in by_name.values() if _is_settable(feature)]
        raise UnknownName("parameter of the model", name, [*names, *RESOURCES])
    if feature is not None and not _is_settable(feature):
        raise InvalidInput(f"{option} {text}: {name} belongs to a system: name one with --on SYSTEM:PARTITION")
    texts = [part.strip() for part in value_text.split(",")] if option == "--vary" else [value_text]
    if "" in texts:
        raise InvalidInput(f"{option} {text} has an empty value")
    if needs_unit:
        _check_sizes(f"{option} {text}", texts)
    values = tuple(_value(option, name, part, feature) for part in texts)
    if len(set(values)) < len(values):
        raise InvalidInput(f"{option} {text} has the same value twice")
    return name, values


def _check_sizes(where: str, texts: Sequence[str]) -> None:
    try:
        for text in texts:
            parse_bytes(text)
    except InvalidInput as error:
        raise InvalidInput(f"{where}: {error}") from error


def _is_settable(feature: Feature) -> bool:
    # The others belong to a system.
    return feature.role is not FeatureRole.NODE and feature.name != "partition"


def _value(option: str, name: str, text: str, feature: Feature | None) -> Value:
    if feature is not None and feature.categorical:
        named = {str(choice): choice for choice in feature.choices}
        if text not in named:
            raise UnknownName(f"value of {name}", text, named, fix=f"it was never run; {describe_range(feature)}")
        return named[text]
    number = _number(name, text, feature)
    where = f"{option} {name}={text}"
    hint = f" ({describe_range(feature)})" if feature is not None else ""
    if number is None or not math.isfinite(number):
        raise InvalidInput(f"{where}: {name} must be a number{hint}")
    whole = name in RESOURCES if feature is None else feature.whole
    if whole and number != int(number):
        raise InvalidInput(f"{where}: {name} must be a whole number{hint}")
    least = 0 if name == "gpus" else 1 if name in RESOURCES else None
    if least is None and feature is not None and feature.low is not None and feature.low >= 0:
        least = 1 if feature.low > 0 and whole else 0
    if least is not None and number < least:
        raise InvalidInput(f"{where}: {name} must be at least {least}{hint}")
    return int(number) if whole else number


def _number(name: str, text: str, feature: Feature | None) -> float | None:
    try:
        # float() accepts 1_000, which is more likely a typing error here.
        return float(text.replace("_", "x"))
    except ValueError:
        unit = feature.unit if feature is not None else ""
    try:
        if unit == "bytes" or name.endswith("_bytes"):
            return parse_bytes(text)
        return parse_duration_s(text) if unit == "s" or name.endswith("_s") else None
    except InvalidInput:
        return None


def _defaults(features: Sequence[Feature], chosen: Mapping[str, object], *, free: bool) -> dict[str, tuple[Value, ...]]:
    """Return values for features without one: the only value of the runs, or the values to try of a free resource."""
    defaults: dict[str, tuple[Value, ...]] = {}
    for feature in features:
        if feature.name in chosen or not _is_settable(feature):
            continue
        if not feature.used:
            if (only := only_value(feature)) is not None:
                defaults[feature.name] = (only,)
        elif free and feature.role is FeatureRole.RESOURCE and not feature.categorical:
            defaults[feature.name] = _values_to_try(feature)
    return defaults


def _values_to_try(feature: Feature) -> tuple[Value, ...]:
    """Return the values of a resource in the runs, and the powers of two between them."""
    low, high = feature.low or 0.0, feature.high or 0.0
    powers = [2.0**power for power in range(64) if low <= 2.0**power <= high]
    numbers = sorted({*feature.values, low, high, *powers})
    return tuple(int(number) if feature.whole else number for number in numbers)


def _refuse_missing(features: Sequence[Feature], values: Mapping[str, object]) -> None:
    missing = [feature for feature in features if feature.name not in values and feature.used and _is_settable(feature)]
    if not missing:
        return
    names = [feature.name for feature in missing]
    needed = " ".join(f"--set {name}=…" for name in names)
    had = "; ".join(f"{feature.name}: {describe_range(feature)}" for feature in missing)
    listed = " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
    raise InvalidInput(f"the model needs {listed}: add {needed} ({had})")
