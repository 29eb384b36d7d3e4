"""Adapt an estimator to measured steps of one's own device: by a factor, or by its parameters.

The better adaptation, and its spread, are found on models that were left out of the fit.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from leadline.core.estimate import NORMAL_90, Tier
from leadline.core.frozen import Frozen
from leadline.core.graph import Op, OpGraph
from leadline.core.hardware import Device
from leadline.core.ports import KernelModel
from leadline.estimators.ports import Array, IntArray
from leadline.estimators.step_time.op_fitting import fit_few_steps
from leadline.estimators.step_time.op_table import OpTable
from leadline.estimators.step_time.op_utilization import ObservedSteps, OpBasis
from leadline.estimators.step_time.op_utilization_kernels import (
    OpUtilizationKernels,
    OpUtilizationModels,
    StepSetting,
    is_channels_last,
)
from leadline.estimators.student_t import expand_student_90

# Suffix of the names of adapted estimators.
ADAPTED = ", adapted"


class ScaledKernels(Frozen):
    """A ``KernelModel`` whose times are ``factor`` times those of ``kernels``.

    Without a ``spread`` of its own it has that of ``kernels``.
    """

    kernels: KernelModel
    factor: float
    spread: float | None = None
    reasons: tuple[str, ...] = ()
    tier = Tier.LEARNED
    # This host launched the runs.
    host_spread = 0.0

    @property
    def name(self) -> str:
        """Name of the method, marked as adapted."""
        return self.kernels.name + ADAPTED

    def spread_of(self, graph: OpGraph) -> float:
        """Return the spread on models left out of the runs."""
        return self.kernels.spread_of(graph) if self.spread is None else self.spread

    def ops_s(self, ops: Sequence[Op]) -> list[float]:
        """Return the seconds of one call of each op."""
        return [self.factor * seconds for seconds in self.kernels.ops_s(ops)]

    def launch_s(self, op: Op) -> float:
        """Return the host seconds of one call."""
        return self.factor * self.kernels.launch_s(op)

    def step_s(self, graph: OpGraph) -> float:
        """Return the seconds of the whole graph."""
        return self.factor * self.kernels.step_s(graph)


FOLDS = 5
# Fewer steps of one group tell neither a factor nor how unsure it is.
LEAST_STEPS = 5
# Release of a device's own model: newer than every published one, so that it wins.
NEWER = (9999,)
# Weight of the shipped estimator in steps: a device's error varies about twice as much as a model's.
DOUBTED = 0.25
# No spread is less: clocks and neighbours alone make more.
SUREST = 0.01


class MeasuredSteps(Frozen):
    """n measured steps of one group on one device; ``model`` groups steps of different batches."""

    graphs: Sequence[OpGraph]
    step_s: Array
    model: Sequence[str]

    def at(self, rows: IntArray) -> "MeasuredSteps":
        """Return the steps at those positions."""
        return MeasuredSteps([self.graphs[row] for row in rows], self.step_s[rows], [self.model[row] for row in rows])


class AdaptedEstimator(Frozen):
    """An estimator adapted to few runs: a ``factor`` on its seconds, or the models in ``laws``.

    ``error`` and ``error_before`` are the mean |predicted ÷ measured − 1| on models left out, with and without the
    runs. ``spread`` is a standard deviation of ln(measured ÷ predicted).
    """

    estimator: str
    factor: float
    error: float
    error_before: float
    spread: float
    runs: int
    laws: OpUtilizationModels | None = None


def adapt_by_factor(estimator: str, predicted_s: Array, runs: MeasuredSteps) -> AdaptedEstimator:
    """Return ``estimator`` with a factor fitted to the runs; ``predicted_s`` (n,) are its seconds."""
    logs = np.log(runs.step_s / predicted_s)
    errors = np.empty(len(logs))
    for training, test in model_folds(runs.model):
        errors[test] = logs[test] - _shift(logs[training])
    spread = spread_of_errors(errors)
    return AdaptedEstimator(estimator, math.exp(_shift(logs)), _error(errors), _error(logs), spread, len(logs))


def adapt_op_utilization(
    laws: OpUtilizationModels, device: Device, runs: MeasuredSteps, devices: Callable[[str], Device]
) -> AdaptedEstimator:
    """Return the best op-utilization model for the device, adapted to the runs.

    ``devices`` returns a device of the training data by name.

    Raises:
        InvalidInput: the models have no such steps, or a graph is unlike all training graphs.
    """
    settings = laws.settings_for(device, runs.graphs[0])
    candidates = [OpUtilizationModels({setting: laws.models[setting]}) for setting in settings]
    logs = [np.log(runs.step_s / _law_s(candidate, device, runs, devices)) for candidate in candidates]
    best = min(range(len(candidates)), key=lambda candidate: _error(logs[candidate]))
    errors = np.empty(len(runs.step_s))
    for training, test in model_folds(runs.model):
        adapted = _adapted(candidates[best], device, runs.at(training), devices)
        errors[test] = np.log(runs.step_s[test] / _law_s(adapted, device, runs.at(test), devices))
    final = _adapted(candidates[best], device, runs, devices)
    return AdaptedEstimator(
        OpUtilizationKernels.name, 1.0, _error(errors), _error(logs[best]), spread_of_errors(errors), len(errors), final
    )


def _adapted(
    laws: OpUtilizationModels, device: Device, runs: MeasuredSteps, devices: Callable[[str], Device]
) -> OpUtilizationModels:
    """Return the only model in ``laws``, adapted to the device itself."""
    (original,), graph = laws.models.values(), runs.graphs[0]
    learned_on = None if original.learned_on == device.name else devices(original.learned_on)
    table = OpTable.from_graphs([training_graph.ops for training_graph in runs.graphs])
    basis = OpBasis.from_table(table, device, learned_on=learned_on)
    law = fit_few_steps(original.law, ObservedSteps(basis, np.arange(len(runs.graphs)), runs.step_s))
    setting = StepSetting(device.name, graph.is_training, is_channels_last(graph), NEWER)
    # How far a graph is from the published ones is still theirs to say.
    kept = replace(law, variance=original.law.variance)
    return OpUtilizationModels({setting: replace(original, law=kept)})


def _law_s(laws: OpUtilizationModels, device: Device, runs: MeasuredSteps, devices: Callable[[str], Device]) -> Array:
    return np.array([OpUtilizationKernels(laws, device, graph, devices=devices).step_s(graph) for graph in runs.graphs])


def model_folds(models: Sequence[str]) -> list[tuple[IntArray, IntArray]]:
    """Return (training, test) positions; whole models are left out, or steps if there are few models."""
    names, place = np.unique(np.array(models), return_inverse=True)
    groups = place if len(names) >= FOLDS else np.arange(len(models))
    fold = np.random.default_rng(0).permutation(int(groups.max()) + 1)[groups] % FOLDS
    return [(np.flatnonzero(fold != number), np.flatnonzero(fold == number)) for number in np.unique(fold)]


def _shift(logs: Array) -> float:
    """Return the log factor: the median, shrunk towards zero by trust in the shipped estimator."""
    return float(np.median(logs)) * len(logs) / (len(logs) + DOUBTED)


def _error(logs: Array) -> float:
    return float(np.mean(np.abs(np.expm1(-logs))))


def spread_of_errors(errors: Array) -> float:
    """Return the deviation of a normal with the 90 % quantile of Student's predictive distribution."""
    n = len(errors)
    freedom = max(n - 1, 1)
    deviation = math.sqrt(float(np.mean(errors**2)) * n / freedom)
    return max(expand_student_90(freedom) / NORMAL_90 * deviation * math.sqrt(1 + 1 / n), SUREST)
