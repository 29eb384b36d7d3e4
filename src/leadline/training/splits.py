"""Part samples by configuration, so that no repeat of what was learned from is ever predicted."""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

from leadline.core.runs import Scale
from leadline.core.samples import Sample

LEAST_TO_TEST = 10
"""Configurations of a scale below which none of them is held out for the test."""
LEAST_TO_EXTRAPOLATE = 8
"""Configurations from which larger ones are predicted, to see how well that does."""


@dataclass(frozen=True, slots=True)
class Parting:
    """Two parts of samples, and what was done; ``held_out`` was not learned from."""

    fitted: tuple[Sample, ...]
    held_out: tuple[Sample, ...]
    blocked: bool = False


def hold_out(samples: Sequence[Sample], share: float, seed: int) -> Parting:
    """Hold out a share of the configurations of each scale, for the test; none of a scale that has few.

    Configurations with a censored run are never held out: nothing can be scored against a bound.
    """
    held: set[str] = set()
    for scale in Scale:
        names = _shuffled([one for one in samples if one.scale is scale], seed)
        cut = {one.configuration for one in samples if one.censored}
        if len(names) >= LEAST_TO_TEST:
            held |= set([name for name in names if name not in cut][: max(2, round(share * len(names)))])
    return _part(samples, held)


def folds(samples: Sequence[Sample], count: int, seed: int) -> tuple[Parting, ...]:
    """Part the configurations of each scale into ``count`` folds, each held out once; fewer where there are fewer."""
    dealt: list[set[str]] = [set() for _ in range(count)]
    for scale in Scale:
        for place, name in enumerate(_shuffled([one for one in samples if one.scale is scale], seed)):
            dealt[place % count].add(name)
    return tuple(_part(samples, held) for held in dealt if held)


def blocked(samples: Sequence[Sample], scale_features: Sequence[str], shares: Sequence[float]) -> tuple[Parting, ...]:
    """Hold out the largest configurations, to imitate extrapolation; for each share that is left to fit.

    Nothing where no feature carries scale, and no parting that leaves fewer than ``LEAST_TO_EXTRAPOLATE`` to fit.
    """
    sizes = {one.configuration: size_of(one, scale_features) for one in samples}
    ordered = sorted(set(sizes.values()))
    if not scale_features:
        return ()
    found = []
    for share in shares:
        ranked = sorted(sizes.values())
        limit = ranked[min(len(ranked) - 1, math.floor(share * len(ranked)))]
        held = {name for name, size in sizes.items() if size >= limit and size > ordered[0]}
        if held and len(sizes) - len(held) >= LEAST_TO_EXTRAPOLATE:
            found.append(_part(samples, held, blocked=True))
    return tuple(found)


def first_share(samples: Sequence[Sample], share: float, seed: int) -> tuple[Sample, ...]:
    """Return a share of the configurations of each scale, one at least; a larger share holds all of a smaller one."""
    kept: set[str] = set()
    for scale in Scale:
        names = _shuffled([one for one in samples if one.scale is scale], seed)
        kept |= set(names[: max(1, round(share * len(names)))])
    return tuple(one for one in samples if one.configuration in kept)


def size_of(sample: Sample, scale_features: Sequence[str]) -> float:
    """Return the logarithm of the product of what carries scale, by which runs are ordered."""
    values = [sample.features.get(name, 0.0) for name in scale_features]
    return sum(math.log(max(value, 1e-12)) for value in values if isinstance(value, int | float))


def thinned(samples: Sequence[Sample], most: int, seed: int) -> tuple[Sample, ...]:
    """Return at most about ``most`` samples, whole configurations, as many full-scale ones as may be up to a half."""
    if len(samples) <= most:
        return tuple(samples)
    kept: set[str] = set()
    left = most
    full = [one for one in samples if one.scale is Scale.FULL_SCALE]
    down = [one for one in samples if one.scale is Scale.SCALED_DOWN]
    for part, room in ((full, max(most // 2, most - len(down))), (down, most)):
        counts: dict[str, int] = {}
        for one in part:
            counts[one.configuration] = counts.get(one.configuration, 0) + 1
        taken = 0
        for name in _shuffled(part, seed):
            if taken >= min(room, left):
                break
            kept.add(name)
            taken += counts[name]
        left -= taken
    return tuple(one for one in samples if one.configuration in kept)


def _part(samples: Sequence[Sample], held: set[str], *, blocked: bool = False) -> Parting:
    return Parting(
        tuple(one for one in samples if one.configuration not in held),
        tuple(one for one in samples if one.configuration in held and not one.censored),
        blocked,
    )


def _shuffled(samples: Sequence[Sample], seed: int) -> list[str]:
    """Return the configurations in an order that depends on their names and the seed alone."""
    names = {one.configuration for one in samples}
    return sorted(names, key=lambda name: hashlib.sha256(f"{seed}\n{name}".encode()).digest())
