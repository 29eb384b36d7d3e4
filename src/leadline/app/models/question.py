"""Read what a trained model is asked: the values set, the values to try, and the defaults of what is left open."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from leadline.core.errors import InvalidInput, UnknownName
from leadline.core.runs import Value
from leadline.core.trained_model import Feature, FeatureRole
from leadline.core.units import parse_bytes, parse_duration_s

RESOURCES = ("nodes", "cores", "gpus", "memory_bytes")
"""The resources that a job asks for, as features are called; they can be set whatever the model has learned."""
ALIASES = {"memory": "memory_bytes"}
SUFFIXES = (".model", ".npz")
_BEGINS = b"PK\x03\x04"
MAX_CONFIGURATIONS = 100_000
"""Configurations beyond which a question is a slip of the keyboard."""


@dataclass(frozen=True, slots=True)
class ModelQuestion:
    """A trained model's file, and what was typed: ``given`` as ``name=value``, ``varied`` as ``name=value,value``."""

    model: Path
    given: tuple[str, ...] = ()
    varied: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Configurations:
    """Values to try for each parameter and resource; ``varied`` names those with several, in the order of the user."""

    values: dict[str, tuple[Value, ...]]
    varied: tuple[str, ...]

    def __iter__(self) -> Iterator[dict[str, Value]]:
        """Yield every combination."""
        for combination in product(*self.values.values()):
            yield dict(zip(self.values, combination, strict=True))

    def __len__(self) -> int:
        """Return how many there are."""
        return math.prod(map(len, self.values.values()))


def is_model(word: str) -> bool:
    """Whether a word names a trained model: a file that begins as one, or any name that ends as one."""
    path = Path(word)
    if path.suffix in SUFFIXES:
        return True
    try:
        with path.open("rb") as stream:
            return stream.read(len(_BEGINS)) == _BEGINS
    except OSError:
        return False


def read_question(
    question: ModelQuestion, features: Sequence[Feature], *, free: bool, traced: bool = False
) -> Configurations:
    """Return the configurations that the question names.

    What never varied in the runs keeps its value. A resource that is left open is tried at what was run and at the
    powers of two between, where ``free`` allows it. White-box figures may be left open where commands are ``traced``.

    Raises:
        InvalidInput: a value is missing, given twice, of the wrong kind, or cannot be.
        UnknownName: the model knows no such parameter, or no such category.
    """
    known = {one.name: one for one in features}
    typed = [("--set", text) for text in question.given] + [("--vary", text) for text in question.varied]
    asked: dict[str, tuple[Value, ...]] = {}
    for option, text in typed:
        name, values = _read(option, text, known)
        if name in asked:
            raise InvalidInput(f"{name} is given twice, in {option} {text} too: keep one of them")
        asked[name] = values
    if traced:
        features = [one for one in features if one.role is not FeatureRole.GRAPH]
    tried = {**asked, **_defaults(features, asked, free=free)}
    _refuse_missing(features, tried)
    found = Configurations(tried, tuple(name for name, several in tried.items() if len(several) > 1))
    if len(found) > MAX_CONFIGURATIONS:
        raise InvalidInput(
            f"--vary makes {len(found):,} configurations, and at most {MAX_CONFIGURATIONS:,} can be tried: vary less"
        )
    return found


def describe_range(feature: Feature) -> str:
    """Return what the runs had of a feature, for a sentence: ``runs had 1 to 100``."""
    if feature.categorical:
        return f"runs had {', '.join(map(str, feature.choices[:8]))}{' …' if len(feature.choices) > 8 else ''}"
    if feature.low is None or feature.high is None:
        return "runs had no number"
    return f"runs had {feature.low:g}" + (f" to {feature.high:g}" if feature.high > feature.low else "")


def _read(option: str, text: str, known: Mapping[str, Feature]) -> tuple[str, tuple[Value, ...]]:
    name, equals, said = (part.strip() for part in text.partition("="))
    name = ALIASES.get(name, name) if name not in known else name
    if not equals or not name or not said:
        example = "batch=32,64,128" if option == "--vary" else "epochs=30"
        raise InvalidInput(f"{option} {text} is not usable: write a name and a value, as in {option} {example}")
    feature = known.get(name)
    if feature is None and name not in RESOURCES:
        raise UnknownName("parameter of the model", name, [*_settable(known), *RESOURCES])
    if name == "partition" or (feature is not None and feature.role is FeatureRole.NODE):
        raise InvalidInput(f"{option} {text}: {name} is what a place has, so name the place: --on SYSTEM:PARTITION")
    texts = [one.strip() for one in said.split(",")] if option == "--vary" else [said]
    if "" in texts:
        raise InvalidInput(f"{option} {text} has an empty value: write the values with one comma between them")
    values = tuple(_value(option, name, one, feature) for one in texts)
    if len(set(values)) < len(values):
        raise InvalidInput(f"{option} {text} names a value twice: keep one of them")
    return name, values


def _settable(known: Mapping[str, Feature]) -> list[str]:
    return [name for name, one in known.items() if one.role is not FeatureRole.NODE and name != "partition"]


def _value(option: str, name: str, text: str, feature: Feature | None) -> Value:
    if feature is not None and feature.categorical:
        named = {str(choice): choice for choice in feature.choices}
        if text not in named:
            raise UnknownName(f"value of {name}", text, named, fix=f"it was never run; {describe_range(feature)}")
        return named[text]
    number = _number(name, text, feature)
    what = f"{option} {name}={text}"
    told = f" ({describe_range(feature)})" if feature is not None else ""
    if number is None or not math.isfinite(number):
        raise InvalidInput(f"{what}: {name} must be a number{told}")
    whole = name in RESOURCES if feature is None else feature.whole
    if whole and number != int(number):
        raise InvalidInput(f"{what}: {name} must be a whole number{told}")
    least = 0 if name == "gpus" else 1 if name in RESOURCES else None
    if least is None and feature is not None and feature.low is not None and feature.low >= 0:
        least = 1 if feature.low > 0 and whole else 0
    if least is not None and number < least:
        raise InvalidInput(f"{what}: {name} must be at least {least}{told}")
    return int(number) if whole else number


def _number(name: str, text: str, feature: Feature | None) -> float | None:
    try:
        return float(text.replace("_", "x"))
    except ValueError:
        unit = feature.unit if feature is not None else ""
    try:
        if unit == "bytes" or name.endswith("_bytes"):
            return parse_bytes(text)
        return parse_duration_s(text) if unit == "s" or name.endswith("_s") else None
    except InvalidInput:
        return None


def _defaults(features: Sequence[Feature], asked: Mapping[str, object], *, free: bool) -> dict[str, tuple[Value, ...]]:
    """Return the values of what was not asked: the only one of the runs, or those to try of a free resource."""
    found: dict[str, tuple[Value, ...]] = {}
    for one in features:
        if one.name in asked or one.role is FeatureRole.NODE or one.name == "partition":
            continue
        if not one.used:
            only = one.choices[0] if one.categorical else one.low
            if only is not None:
                found[one.name] = (int(only) if one.whole and isinstance(only, float) else only,)
        elif free and one.role is FeatureRole.RESOURCE and not one.categorical:
            found[one.name] = _tried(one)
    return found


def _tried(feature: Feature) -> tuple[Value, ...]:
    """Return what was run of a resource, and the powers of two between."""
    low, high = feature.low or 0.0, feature.high or 0.0
    powers = [2.0**power for power in range(64) if low <= 2.0**power <= high]
    numbers = sorted({*feature.values, low, high, *powers})
    return tuple(int(one) if feature.whole else one for one in numbers)


def _refuse_missing(features: Sequence[Feature], values: Mapping[str, object]) -> None:
    missing = [one for one in features if one.name not in values and one.role is not FeatureRole.NODE]
    missing = [one for one in missing if one.name != "partition" and one.used]
    if not missing:
        return
    names = [one.name for one in missing]
    needed = " ".join(f"--set {name}=…" for name in names)
    had = "; ".join(f"{one.name}: {describe_range(one)}" for one in missing)
    listed = " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
    raise InvalidInput(f"the model needs {listed}: add {needed} ({had})")
