"""Vision models' steps as the table that the black box learns from, and how far off it is of rows left out."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.dnn.measured_steps import VISION, MeasuredSteps
from benchmarks.dnn.vision_lab import DEVICES, FOLDS, VisionLab, fold_numbers, setting_of
from leadline.core.runs import Sample, Scale, Value
from leadline.estimators.ports import FittedEstimator, StorableEstimator
from leadline.estimators.step_time.selection import Domain, StepGroup
from leadline.estimators.step_time.step_kernels import BlackBoxKernels, step_features
from leadline.estimators.tabular.registry import AMPLE_DATA_ESTIMATOR

Array = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class StepTable:
    """The features of m steps, their ideal seconds, in terms of which times are learned, and those measured: (m,)."""

    features: list[dict[str, Value]]
    ideal_s: Array
    step_s: Array

    @classmethod
    def of(cls, lab: VisionLab) -> "StepTable":
        """Return the table of all steps."""
        settings = {str(name): setting_of(lab, str(name)) for name in np.unique(lab.setting)}
        asked = [
            (int(graph), lab.devices[str(device)], settings[str(name)])
            for graph, device, name in zip(lab.steps.graph, lab.steps.device, lab.setting, strict=True)
        ]
        found, ideal_s = step_features(lab.steps.table, asked)
        return cls(found, ideal_s, lab.steps.step_s)

    def fitted(self, rows: Whole, estimator: StorableEstimator = AMPLE_DATA_ESTIMATOR) -> FittedEstimator:
        """Return what ``estimator`` learns of the measured steps of ``rows``, in terms of their ideal ones."""
        said = self.step_s[rows] / self.ideal_s[rows]
        samples = [
            Sample(self.features[row], float(value), Scale.FULL_SCALE) for row, value in zip(rows, said, strict=True)
        ]
        return estimator.fit(samples)

    def told(self, fitted: FittedEstimator, rows: Whole) -> Array:
        """Return the seconds that a fitted estimator says of ``rows``."""
        told: Array = fitted.predict([self.features[row] for row in rows]).point * self.ideal_s[rows]
        return told

    def with_column(self, name: str, rows: Whole, seconds: Array) -> "StepTable":
        """Return the table with one more feature of ``rows``: seconds, in terms of their ideal ones."""
        found = list(self.features)
        for row, value in zip(rows, seconds / self.ideal_s[rows], strict=True):
            found[row] = found[row] | {name: float(value)}
        return StepTable(found, self.ideal_s, self.step_s)


def black_box_groups(lab: VisionLab, table: StepTable) -> list[MeasuredSteps]:
    """Return what the black box says of all steps without their families: knowing the device, and not.

    Training is asked on known devices alone, as one of them has too few steps of it to teach the other.
    """
    fold, training = fold_numbers(lab.steps.family, FOLDS, 0), lab.steps.columns["mode"] == "train"
    known, new = (np.full(len(table.step_s), np.nan) for _ in range(2))
    for number in range(FOLDS):
        ask = np.flatnonzero(fold == number)
        known[ask] = table.told(table.fitted(np.flatnonzero(fold != number)), ask)
        for device in lab.devices:
            learn = np.flatnonzero((fold != number) & (lab.steps.device != device) & ~training)
            ask = np.flatnonzero((fold == number) & (lab.steps.device == device) & ~training)
            new[ask] = table.told(table.fitted(learn), ask)
    splits = [(known, ~training, True), (known, training, True), (new, ~training, False)]
    return [_tried(lab, said, np.flatnonzero(rows), known=seen) for said, rows, seen in splits]


def _tried(lab: VisionLab, said: Array, rows: Whole, *, known: bool) -> MeasuredSteps:
    phase = "training" if lab.steps.columns["mode"][rows[0]] == "train" else "inference"
    device = np.array([DEVICES[str(one)] for one in lab.steps.device[rows]])
    return MeasuredSteps(
        StepGroup(Domain.VISION, "half", phase), VISION, device, lab.steps.model[rows], lab.steps.step_s[rows],
        {BlackBoxKernels.name: said[rows]}, known,
    )  # fmt: skip
