"""Fit a device at hand into the learned model, from kernels that were measured on it."""

from dataclasses import dataclass, replace

import numpy as np

from leadline.core.errors import InvalidInput
from leadline.estimators.learned.fit_kernels import HIDDEN, LEAST, Timings, groups_of, measure
from leadline.estimators.learned.fitted_kernels import FARTHEST, FittedKernels, Swept, group_of, law_of
from leadline.estimators.learned.kernel_law import alone_s
from leadline.estimators.learned.law_fit import fit_law
from leadline.estimators.learned.nearby import Grown, Nearby, nearby_of, placed_at
from leadline.estimators.tabular.ports import Array

APART = np.array([1.0, 0.3, 0.3])
"""Standard deviations of what a device may be apart in, given its own kernels: its host's launch may be anything."""


@dataclass(frozen=True, slots=True)
class _Own:
    effects: Array
    launches: dict[int, float]
    swept: Swept


def with_sweep(fitted: FittedKernels, sweep: Timings) -> FittedKernels:
    """Return the model with what the measured kernels say of their device: its own law, launch, and nearby kernels.

    Raises:
        InvalidInput: the kernels come from several devices.
    """
    if len(np.unique(sweep.device)) != 1:
        raise InvalidInput(
            f"a sweep is of one device, but these {len(sweep)} kernels come from several: take them apart"
        )
    device = sweep.boards.names[int(sweep.device[0])]
    effects, launches, near = dict(fitted.effects), dict(fitted.launches), dict(fitted.near)
    group = group_of(sweep.placed())
    for number in np.unique(group).tolist():
        own = sweep.at(np.flatnonzero(group == number))
        if number not in fitted.laws or len(own) < LEAST:
            continue
        found = _adapted(fitted, number, own)
        effects[device, number] = found.effects
        launches |= {(device, name): value for name, value in found.launches.items()}
        near[device, number] = found.swept
    return replace(fitted, effects=effects, launches=launches, near=near)


def _adapted(fitted: FittedKernels, number: int, own: Timings) -> _Own:
    """Return what a device's own kernels of one group say, the law that others taught being what is expected of it."""
    expected = replace(law_of(number), start=tuple(fitted.laws[number].at.tolist()))
    found = fit_law(expected, measure(own), apart=APART)
    groups, keys = groups_of(own)
    per_row = np.stack([found.effects[groups[:, i], i] for i in range(3)], axis=1)
    launches = {kind: float(found.effects[i, 0]) for i, (_, kind) in enumerate(keys) if kind >= 0}
    whole = found.effects[next(i for i, (_, kind) in enumerate(keys) if kind < 0)].copy()
    if launches:
        whole[0] = float(np.median(list(launches.values())))
    return _Own(whole, launches, Swept(found.at, _near(fitted, number, own, found.at, per_row)))


def _near(fitted: FittedKernels, number: int, own: Timings, at: Array, effects: Array) -> Nearby | None:
    placed = own.placed()
    kernel_s, launch_s = law_of(number).parts(placed, at, effects)
    launch_s = launch_s * own.launched
    seen = np.flatnonzero((kernel_s + law_of(number).wait * launch_s > HIDDEN * launch_s) & (own.seconds > launch_s))
    if len(seen) < LEAST:
        return None
    left = np.log(alone_s(own.seconds[seen], launch_s[seen], law_of(number).wait) / kernel_s[seen])
    part, grown = placed.at(seen), None
    trees = fitted.laws[number].trees
    if trees is not None:
        told, leaves = fitted.grown(number, part, kernel_s[seen])
        grown = Grown(told, leaves, len(trees.value))
    return nearby_of(placed_at(number, part.kernels), np.clip(left, -FARTHEST, FARTHEST), grown)
