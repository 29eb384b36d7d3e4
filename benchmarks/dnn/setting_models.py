"""Op models of whole settings, fitted to all of their steps, and what a model's error on one device says of another."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from leadline.estimators.step_time.op_fitting import add_op_residuals, fit_few_steps, fit_op_utilization
from leadline.estimators.step_time.op_table import KERNEL_CLASSES
from leadline.estimators.step_time.op_utilization import (
    CLASS_COLUMNS,
    SHARED_COLUMNS,
    WEIGHT_COUNT,
    ObservedSteps,
    OpBasis,
    OpUtilization,
    predict_graphs_and_ops,
)

Array = npt.NDArray[np.float64]
SettingModels = dict[str, OpUtilization]

PRIOR_F = -0.4
"""Prior of f."""
COMMON_RIDGE = 20.0
OWN_RIDGE = 10.0
CARRIED = 0.8
"""Share of a model's error that carries over to another device, since library and graph cause much of it."""
SEEN_SHARE, SEEN_GRAPHS = 0.01, 5
"""A class was learned if it takes this share of the time of so many graphs."""


def prior_op_utilization() -> OpUtilization:
    """Return the prior model, without any measured step."""
    f = np.zeros(WEIGHT_COUNT)
    f[SHARED_COLUMNS::CLASS_COLUMNS] = PRIOR_F
    return OpUtilization(f)


def fit_settings(
    observed: Mapping[str, ObservedSteps], alike: Mapping[str, str], *, start: SettingModels | None = None
) -> SettingModels:
    """Return the model of each setting; ``alike`` names the group that shares weights.

    ``start`` holds models of nearly the same steps, which shorten the search.
    """
    models: SettingModels = {}
    for group in dict.fromkeys(alike[name] for name in observed):
        names = [name for name in observed if alike[name] == group]
        near = start.get(f"{group} in common") if start else None
        together = fit_op_utilization(
            [observed[name] for name in names], prior_op_utilization(), ridge=COMMON_RIDGE, start=near
        )
        for name, common in zip(names, together, strict=True):
            models[name] = add_op_residuals(
                observed[name], fit_op_utilization([observed[name]], common, ridge=OWN_RIDGE)[0]
            )
        models[f"{group} in common"] = together[0]
    return models


def expected_errors(elsewhere: Array) -> Array:
    """Return the expected ln(measured ÷ predicted) given errors on another device; 0 for NaN."""
    expected: Array = CARRIED * np.nan_to_num(elsewhere)
    return expected


def fit_few_expected(weights: OpUtilization, few: ObservedSteps, expected: Array) -> OpUtilization:
    """Return the model nearest to ``weights`` for few steps whose errors are ``expected`` (k,) in part.

    This keeps a model's peculiarity from counting as the device's.
    """
    return fit_few_steps(weights, ObservedSteps(few.basis, few.graph, few.step_s * np.exp(-expected)))


def find_learned_classes(basis: OpBasis, law: OpUtilization) -> npt.NDArray[np.bool_]:
    """Return a mask (classes,) of the kernel classes that enough graphs contain."""
    table = basis.table
    seconds = predict_graphs_and_ops(basis, law)[2] * table.count
    share = seconds / table.summed(seconds)[table.owner]
    cell = np.bincount(table.owner * len(KERNEL_CLASSES) + table.classes, share, table.graphs * len(KERNEL_CLASSES))
    learned: npt.NDArray[np.bool_] = (cell.reshape(table.graphs, -1) >= SEEN_SHARE).sum(axis=0) >= SEEN_GRAPHS
    return learned
