"""Fit an estimator to a few measured steps of one's own device: a factor on any of them, or the op law adapted.

Which of the two is taken, and how unsure it is, is found by asking about models that were left out of the fit.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from leadline.core.estimate import NORMAL_90
from leadline.core.graph import OpGraph
from leadline.core.hardware import Device
from leadline.estimators.learned.law_kernels import (
    LawKernels,
    StepLaws,
    StepSetting,
    is_channels_last,
)
from leadline.estimators.learned.op_law import Array, Basis, Observed
from leadline.estimators.learned.op_table import OpTable
from leadline.estimators.learned.steps import adapt

FOLDS = 5
LEAST = 5
"""Fewer steps of one group tell neither a factor nor how unsure it is."""
NEWER = (9999,)
"""The release under which a device's own law is kept: it wins over every published one."""
DOUBTED = 0.25
"""How many steps' worth the belief weighs that the shipped estimator is right: what a device adds to its error is about
twice what two models differ by."""
SUREST = 0.01
"""No spread is less: clocks and neighbours alone make more."""


@dataclass(frozen=True, slots=True)
class FewRuns:
    """n measured steps of one group on one device; ``model`` names what steps at other batches share."""

    graphs: Sequence[OpGraph]
    step_s: Array
    model: Sequence[str]

    def at(self, rows: npt.NDArray[np.int64]) -> "FewRuns":
        """Return the steps at those positions."""
        return FewRuns([self.graphs[one] for one in rows], self.step_s[rows], [self.model[one] for one in rows])


@dataclass(frozen=True, slots=True)
class Adapted:
    """What few runs made of an estimator: a ``factor`` on its seconds, or the law of ``laws`` in its place.

    ``error`` and ``before`` are the mean |predicted ÷ measured − 1| on models left out, with and without the few
    runs; ``spread`` is a standard deviation of ln(measured ÷ predicted).
    """

    estimator: str
    factor: float
    error: float
    before: float
    spread: float
    runs: int
    laws: StepLaws | None = None


def by_factor(estimator: str, said: Array, runs: FewRuns) -> Adapted:
    """Return ``estimator`` with the factor that the runs ask for; ``said`` (n,) are its own seconds."""
    logs = np.log(runs.step_s / said)
    left = np.empty(len(logs))
    for rest, out in _folds(runs):
        left[out] = logs[out] - _shift(logs[rest])
    return Adapted(estimator, math.exp(_shift(logs)), _error(left), _error(logs), _spread(left), len(logs))


def by_law(laws: StepLaws, device: Device, runs: FewRuns, devices: Callable[[str], Device]) -> Adapted:
    """Return the op law adapted to the runs: of those that tell of the device, the one that was least off before.

    ``devices`` gives the devices that laws were learned on, by name.

    Raises:
        InvalidInput: the law has no such steps, or a graph is unlike all that it learned.
    """
    tried = [laws.only([one]) for one in laws.of(device, runs.graphs[0])]
    logs = [np.log(runs.step_s / _law_s(one, device, runs, devices)) for one in tried]
    best = min(range(len(tried)), key=lambda one: _error(logs[one]))
    left = np.empty(len(runs.step_s))
    for rest, out in _folds(runs):
        own = _adapted(tried[best], device, runs.at(rest), devices)
        left[out] = np.log(runs.step_s[out] / _law_s(own, device, runs.at(out), devices))
    found = _adapted(tried[best], device, runs, devices)
    return Adapted(LawKernels.name, 1.0, _error(left), _error(logs[best]), _spread(left), len(left), found)


def _adapted(laws: StepLaws, device: Device, runs: FewRuns, devices: Callable[[str], Device]) -> StepLaws:
    """Return the law of the device itself, made of the only one in ``laws``."""
    (place, law), graph = next(iter(laws.laws.items())), runs.graphs[0]
    origin = laws.origin(place)
    learned_on = None if origin == device.name else devices(origin)
    basis = Basis.of(OpTable.of([one.ops for one in runs.graphs]), device, learned_on=learned_on)
    own = adapt(law, Observed(basis, np.arange(len(runs.graphs)), runs.step_s))
    here = StepSetting(device.name, graph.is_training, is_channels_last(graph), NEWER)
    kept = replace(own, variance=law.variance)  # how far a graph is from the published ones is still theirs to say
    return StepLaws({here: kept}, {here: laws.usual[place]}, {here: laws.seen[place]}, {here: origin})


def _law_s(laws: StepLaws, device: Device, runs: FewRuns, devices: Callable[[str], Device]) -> Array:
    return np.array([LawKernels(laws, device, graph, devices=devices).step_s(graph) for graph in runs.graphs])


def _folds(runs: FewRuns) -> list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    """Return (learned, left out) positions; models are left out whole, or steps where there are few models."""
    names, place = np.unique(np.array(runs.model), return_inverse=True)
    groups = place if len(names) >= FOLDS else np.arange(len(runs.step_s))
    fold = np.random.default_rng(0).permutation(int(groups.max()) + 1)[groups] % FOLDS
    return [(np.flatnonzero(fold != one), np.flatnonzero(fold == one)) for one in np.unique(fold)]


def _shift(logs: Array) -> float:
    """Return the logarithm of the factor: the median, drawn towards none by what is believed of the estimator."""
    return float(np.median(logs)) * len(logs) / (len(logs) + DOUBTED)


def _error(logs: Array) -> float:
    return float(np.mean(np.abs(np.expm1(-logs))))


def _spread(left: Array) -> float:
    """Return the deviation of a normal whose 90 % are those of Student's predictive distribution of the errors.

    Its quantile is the expansion of Abramowitz and Stegun, 26.7.5.
    """
    n = len(left)
    z, nu = NORMAL_90, max(n - 1, 1)
    student = z + (z**3 + z) / (4 * nu) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * nu**2)
    deviation = math.sqrt(float(np.mean(left**2)) * n / nu)
    return max(student / z * deviation * math.sqrt(1 + 1 / n), SUREST)
