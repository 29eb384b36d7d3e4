"""Steps of vision models as the training table of the black box, and its errors on held-out rows."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.dnn.leafwise_boosting import AMPLE_DATA_ESTIMATOR
from benchmarks.dnn.measured_steps import VISION, MeasuredSteps
from benchmarks.dnn.vision_lab import DEVICES, FOLDS, VisionLab, fold_numbers, setting_of
from leadline.core.runs import Sample, Scale, Value
from leadline.estimators.ports import FittedEstimator, TabularEstimator
from leadline.estimators.step_time.selection import Domain, StepGroup
from leadline.estimators.step_time.step_kernels import BlackBoxKernels, step_features

Array = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class StepTable:
    """The features of m steps, their ideal seconds (the unit of the fitted times), and their measured ones: (m,)."""

    features: list[dict[str, Value]]
    ideal_s: Array
    step_s: Array

    @classmethod
    def of(cls, lab: VisionLab) -> "StepTable":
        """Return the table of all steps."""
        settings = {str(name): setting_of(lab, str(name)) for name in np.unique(lab.setting)}
        questions = [
            (int(graph), lab.devices[str(device)], settings[str(name)])
            for graph, device, name in zip(lab.steps.graph, lab.steps.device, lab.setting, strict=True)
        ]
        features, ideal_s = step_features(lab.steps.table, questions)
        return cls(features, ideal_s, lab.steps.step_s)

    def fitted(self, rows: Whole, estimator: TabularEstimator = AMPLE_DATA_ESTIMATOR) -> FittedEstimator:
        """Fit ``estimator`` to the measured steps of ``rows`` in units of their ideal ones."""
        ratios = self.step_s[rows] / self.ideal_s[rows]
        samples = [
            Sample(self.features[row], float(value), Scale.FULL_SCALE) for row, value in zip(rows, ratios, strict=True)
        ]
        return estimator.fit(samples)

    def predict(self, fitted: FittedEstimator, rows: Whole) -> Array:
        """Return a fitted estimator's seconds for ``rows``."""
        seconds: Array = fitted.predict([self.features[row] for row in rows]).point * self.ideal_s[rows]
        return seconds

    def with_column(self, name: str, rows: Whole, seconds: Array) -> "StepTable":
        """Return the table with one more feature of ``rows``: seconds in units of their ideal ones."""
        features = list(self.features)
        for row, value in zip(rows, seconds / self.ideal_s[rows], strict=True):
            features[row] = features[row] | {name: float(value)}
        return StepTable(features, self.ideal_s, self.step_s)


def black_box_groups(lab: VisionLab, table: StepTable) -> list[MeasuredSteps]:
    """Return the black box's predictions of all steps without their families, on known and on new devices.

    Training is tested on known devices alone, as one of them has too few training steps to learn from.
    """
    fold, training = fold_numbers(lab.steps.family, FOLDS, 0), lab.steps.columns["mode"] == "train"
    same, new = (np.full(len(table.step_s), np.nan) for _ in range(2))
    for number in range(FOLDS):
        ask = np.flatnonzero(fold == number)
        same[ask] = table.predict(table.fitted(np.flatnonzero(fold != number)), ask)
        for device in lab.devices:
            learn = np.flatnonzero((fold != number) & (lab.steps.device != device) & ~training)
            ask = np.flatnonzero((fold == number) & (lab.steps.device == device) & ~training)
            new[ask] = table.predict(table.fitted(learn), ask)
    splits = [(same, ~training, True), (same, training, True), (new, ~training, False)]
    return [_group(lab, seconds, np.flatnonzero(rows), known=known) for seconds, rows, known in splits]


def _group(lab: VisionLab, predicted: Array, rows: Whole, *, known: bool) -> MeasuredSteps:
    phase = "training" if lab.steps.columns["mode"][rows[0]] == "train" else "inference"
    device = np.array([DEVICES[str(name)] for name in lab.steps.device[rows]])
    return MeasuredSteps(
        StepGroup(Domain.VISION, "half", phase), VISION, device, lab.steps.model[rows], lab.steps.step_s[rows],
        {BlackBoxKernels.name: predicted[rows]}, known,
    )  # fmt: skip
