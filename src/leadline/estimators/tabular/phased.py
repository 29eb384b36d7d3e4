"""A law for each phase of a job, its start-up, its work and what comes after, where these were reported or watched.

HARP's custom mode takes the start-up for a constant; here it may grow too, as the reading of a data set does. And where
the start-up takes most of a scaled-down run, the work is learned from the time in the job's own loops, which the rest
does not blur: of a run's three seconds half a second may be all that grows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from leadline.core.samples import Sample, Value
from leadline.estimators.tabular.ports import Array, FittedEstimator, Kept, Predicted, State
from leadline.estimators.tabular.states import nest, texts, within
from leadline.estimators.tabular.tables import deviation
from leadline.estimators.tabular.unit_law import regress_units

LEAST = 6
"""So many runs at least must show their phases."""
UNLIKE = 0.5
"""Deviation of the logarithms of the units' number from a law above which not the same loops were watched."""
LEAST_SHARE = 0.002
"""The share of a run that a phase takes at least, so that it has a logarithm."""
MOST = 1.02
"""Reported phases that take more than this share of the run together were not measured of the same run."""
STARTUP, WORK, REST, WHOLE = "startup", "work", "rest", "whole"


@dataclass(frozen=True, slots=True)
class FittedPhases:
    """What was fitted to each phase, by its name; their sum is the whole, which may be the only one."""

    name: str
    phases: Mapping[str, FittedEstimator]

    def predict(self, rows: Sequence[Mapping[str, Value]]) -> Predicted:
        """Predict each row as the sum of its phases, whose errors are taken for independent."""
        each = [one.predict(rows) for one in self.phases.values()]
        if len(each) == 1:
            return each[0]
        point = np.sum([one.point for one in each], axis=0)
        spread = np.sqrt(np.sum([(one.point * one.spread) ** 2 for one in each], axis=0)) / point
        return Predicted(point, spread, np.max([one.beyond for one in each], axis=0))

    def dump(self) -> State:
        """Return all phases as arrays."""
        found: State = {"estimator": np.array([self.name]), "phases": texts(list(self.phases))}
        for phase, one in self.phases.items():
            found |= nest(phase, one.dump())
        return found


@dataclass(frozen=True, slots=True)
class Phased:
    """Fits ``recipe`` to the work and ``other`` to the other phases; ``recipe`` to the whole where no phases are known.

    Phases are known where start-ups were reported, and of the same loops in all runs: a run in which another loop was
    watched calls something else its start-up.
    """

    recipe: Kept
    other: Kept

    @property
    def name(self) -> str:
        """Return the name of what is fitted to the work."""
        return self.recipe.name

    def fit(self, samples: Sequence[Sample], *, scale_features: Sequence[str] = (), seed: int = 0) -> FittedPhases:
        """Fit all phases; of a run that reported none the predicted ones are taken off.

        Raises:
            InvalidInput: there are too few runs for an estimator; how many it needs.
        """
        told = [one for one in samples if 0 < _startup(one) < one.value]
        if len(told) < LEAST or _off_units(told, scale_features) > UNLIKE:
            unlike = [replace(one, units=None, unit_s=None) for one in samples]
            return FittedPhases(self.name, {WHOLE: self.recipe.fit(unlike, scale_features=scale_features, seed=seed)})

        def fit(recipe: Kept, runs: Sequence[Sample], values: Sequence[float], *, last: bool) -> FittedEstimator:
            of_phase = [
                replace(one, value=value, startup_s=None, work_s=None, censored=one.censored and last)
                for one, value in zip(runs, values, strict=True)
            ]
            return _fitted(_Phase(recipe, tuple(of_phase), tuple(scale_features), seed))

        startup = fit(self.other, told, [_startup(one) for one in told], last=False)
        left = _left(samples, [one.value for one in samples], [one.startup_s for one in samples], startup)
        watched = [one for one in told if one.work_s and _startup(one) + one.work_s < MOST * one.value]
        if len(watched) < max(LEAST, 0.8 * len(told)):
            return FittedPhases(self.name, {STARTUP: startup, WORK: fit(self.recipe, samples, left, last=True)})
        cut_off = [at for at, one in enumerate(samples) if one.censored]
        watched = [one for one in watched if not one.censored]
        work = fit(
            self.recipe,
            [*watched, *(samples[at] for at in cut_off)],
            [*(one.work_s or 0.0 for one in watched), *(left[at] for at in cut_off)],
            last=True,
        )
        left = _left(samples, left, [one.work_s for one in samples], work)
        return FittedPhases(self.name, {STARTUP: startup, WORK: work, REST: fit(self.other, samples, left, last=True)})

    def load(self, state: State) -> FittedPhases:
        """Return the fitted phases that ``dump`` gave."""
        phases = {}
        for phase in (str(one) for one in state["phases"]):
            recipe = self.recipe if phase in (WORK, WHOLE) else self.other
            phases[phase] = recipe.load(within(phase, state))
        return FittedPhases(self.name, phases)


@dataclass(frozen=True, slots=True, eq=False)
class _Phase:
    """What is fitted to which figures; the same where all that is learned is."""

    recipe: Kept
    samples: tuple[Sample, ...]
    scale_features: tuple[str, ...]
    seed: int

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Phase) and all(getattr(self, one) == getattr(other, one) for one in self.__slots__)

    def __hash__(self) -> int:
        return hash((self.recipe.name, *((one.run_id, one.value) for one in self.samples)))


@lru_cache(maxsize=8)
def _fitted(phase: _Phase) -> FittedEstimator:
    """Fit a phase once: the start-up and the rest are the same, whatever is fitted to the work."""
    return phase.recipe.fit(phase.samples, scale_features=phase.scale_features, seed=phase.seed)


def _off_units(samples: Sequence[Sample], scale_features: Sequence[str]) -> float:
    """Return how far (deviation of logarithms) the numbers of units are from a product of powers of the features."""
    samples = [one for one in samples if not one.censored]
    known = [one for one in samples if one.units]
    if not known or len(known) < len(samples):
        return 0.0
    return deviation(regress_units(known, scale_features)[2])


def _startup(sample: Sample) -> float:
    return sample.startup_s or 0.0


def _left(
    samples: Sequence[Sample], values: Sequence[float], reported: Sequence[float | None], fitted: FittedEstimator
) -> list[float]:
    """Return what is left of ``values`` without a phase, as reported or else as predicted."""
    predicted: Array = fitted.predict([one.features for one in samples]).point
    taken = [one if one is not None else float(guess) for one, guess in zip(reported, predicted, strict=True)]
    return [
        max(value - phase, LEAST_SHARE * one.value) for one, value, phase in zip(samples, values, taken, strict=True)
    ]
