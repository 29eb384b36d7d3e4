"""The posters' three settings: a black box with ample data, a white box without runs, and a hybrid with few runs.

No setting is split by rows: nearly every row has the same model in another layout, release or GPU beside it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.dnn.splits import LEVEL, SplitResult
from benchmarks.dnn.vision import bounds_by_fold, held_out_split
from benchmarks.dnn.vision_devices import FEW, few_run_predictions, pairs_of
from benchmarks.dnn.vision_lab import DEVICES, LEADLINE, VisionLab, fold_numbers
from benchmarks.dnn.vision_tabular import StepTable
from benchmarks.normalized_errors import normalize_errors
from leadline.estimators.tabular.registry import ESTIMATORS

Array = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]

TABLE = "posters' settings"
WHITE_BOX = "white box alone"
"""Leadline's method in the settings with few runs: an op model that is fitted or adapted to them."""
FIFTHS = 5
DRAWS = 3


def splits(data: Path, *, quick: bool) -> list[SplitResult]:
    """Return the three settings, on the measured steps of vision models."""
    lab = VisionLab(data)
    table = StepTable.of(lab)
    folds, draws = (2, 1) if quick else (FIFTHS, DRAWS)
    return [
        *_black_box(lab, table, folds),
        _white_box(lab, folds),
        _hybrid_training(lab, table, folds, draws),
        _hybrid_inference(lab, table, draws),
    ]


def _black_box(lab: VisionLab, table: StepTable, folds: int) -> list[SplitResult]:
    """Hold out each fifth of the models, and each fifth of the families; intervals by the other fifths."""
    by_model = fold_numbers(lab.steps.model, FIFTHS, 0)
    by_family = fold_numbers(lab.steps.family, FIFTHS, 0)
    how = "features of hardware, setting and op graph, no model's name"
    return [
        _left_out(
            lab, table, by_model, folds, "black box, ample data, unseen models",
            f"models left out with their twins; {how}", 5.0,
        ),
        _left_out(
            lab, table, by_family, folds, "black box, ample data, unseen families",
            f"families left out, without twins; {how}", None,
        ),
    ]  # fmt: skip


def _left_out(
    lab: VisionLab, table: StepTable, part: Whole, folds: int, split: str, how: str, mape: float | None
) -> SplitResult:  # fmt: skip
    """Hold out each part in turn."""
    places, points, baselines = [], [], []
    for number in range(folds):
        ask = np.flatnonzero(part == number)
        learn = lab.without_twins(np.flatnonzero(part != number), ask)
        places.append(ask)
        points.append(table.predict(table.fitted(learn), ask))
        baselines.append(lab.baselines.answers(learn, ask))
    rows, predicted = np.concatenate(places), np.concatenate(points)
    low, high = bounds_by_fold(lab, rows, part[rows], predicted, np.full(len(rows), np.nan))
    answers = {LEADLINE: predicted} | {
        name: np.concatenate([fold[name] for fold in baselines]) for name in baselines[0]
    }
    return SplitResult(TABLE, split, lab.steps.step_s[rows], answers, low, high, lab.setting[rows], mape=mape, how=how)


def _white_box(lab: VisionLab, folds: int) -> SplitResult:
    """Hold out families: predict from the op graph alone, without a run of the family."""
    how = f"families left out in {FIFTHS} folds, without twins, both phases together; intervals by the other folds"
    return held_out_split(lab, lab.steps.family, folds, TABLE, "white box, no runs of the family", how, mape=8.0)


@dataclass(frozen=True, slots=True)
class FewTrainingSteps:
    """Predictors of training steps of one setting that learn from the same few runs."""

    lab: VisionLab
    table: StepTable
    setting: str

    def white_box(self, few: Whole, ask: Whole) -> Array:
        """Return the seconds of ``ask`` by an op model that is fitted to ``few`` alone."""
        device = self.setting.partition(" ")[0]
        step_s: Array = self.lab.priced(ask, device, self.lab.laws(few), self.setting).step_s
        return step_s

    def boosting(self, few: Whole, ask: Whole) -> Array:
        """Return the seconds by boosting on the features of the black box."""
        return self.table.predict(self.table.fitted(few, ESTIMATORS["boosting"]), ask)

    def out_of_fold(self, few: Whole) -> Array:
        """Return the seconds of the few runs by the white box, each without the runs of its family's fold."""
        folds, seconds = fold_numbers(self.lab.steps.family[few], FIFTHS, 1), np.empty(len(few))
        for number in np.unique(folds):
            out = folds == number
            seconds[out] = self.white_box(few[~out], few[out])
        return seconds

    def predict(self, few: Whole, ask: Whole) -> tuple[Array, Array, Array, Array, Array]:
        """Return the white box with its interval, boosting with the white box as a feature, and boosting alone.

        The feature of the few runs is out of fold, and so are the errors that the interval is made of.
        """
        inner, predicted = self.out_of_fold(few), self.white_box(few, ask)
        fed = self.table.with_column("white_box", few, inner).with_column("white_box", ask, predicted)
        both = fed.predict(fed.fitted(few, ESTIMATORS["boosting"]), ask)
        scores = normalize_errors(np.log(self.lab.steps.step_s[few] / inner), np.ones(len(few)))
        low, high = scores.interval(predicted, np.ones(len(ask)), LEVEL)
        return predicted, low, high, both, self.boosting(few, ask)


def _hybrid_training(lab: VisionLab, table: StepTable, folds: int, draws: int) -> SplitResult:
    """Hold out families; learn their training steps from a few runs of other families in the same setting."""
    family = fold_numbers(lab.steps.family, FIFTHS, 0)
    parts = []
    for name in (str(name) for name in np.unique(lab.setting) if " train " in str(name)):
        methods = FewTrainingSteps(lab, table, name)
        for number in range(folds):
            ask = np.flatnonzero((lab.setting == name) & (family == number))
            learn = lab.without_twins(np.flatnonzero((lab.setting == name) & (family != number)), ask)
            for draw in range(draws):
                few = np.sort(np.random.default_rng(draw).permutation(learn)[:FEW])
                parts.append((ask, *methods.predict(few, ask)))
    how = (
        f"{FEW} training steps of one setting, the same for each method and no other data; families left out in "
        f"{FIFTHS} folds, without twins; {draws} draws"
    )
    return _compared(lab, "hybrid, little data, training steps of unseen families", parts, WHITE_BOX, how)


def _compared(
    lab: VisionLab, split: str, parts: Sequence[tuple[npt.NDArray[np.generic], ...]], first: str, how: str
) -> SplitResult:
    """Join the parts: rows, predictions, their interval, boosting with the white box, and boosting alone."""
    rows = np.concatenate([part[0] for part in parts]).astype(np.int64)
    predicted, low, high, piped, alone = (
        np.concatenate([part[column] for part in parts]).astype(float) for column in range(1, 6)
    )
    answers = {first: predicted, "boosting with the white box": piped, "boosting alone": alone}
    return SplitResult(
        TABLE, split, lab.steps.step_s[rows], answers, low, high, lab.setting[rows], mape=8.0, how=how, compared=True
    )


def _hybrid_inference(lab: VisionLab, table: StepTable, draws: int) -> SplitResult:
    """Train on a few runs of one setting of a GPU outside the white box's training data."""
    boosting, parts = ESTIMATORS["boosting"], []
    for pair in pairs_of(lab):
        for setting in pair.parts.values():
            fed = table.with_column("white_box", setting.rows, setting.predicted)
            for draw in range(draws):
                tested, predicted, low, high = few_run_predictions(lab, setting, draw, knowing=False)
                few = np.setdiff1d(setting.rows, tested)
                boosted = [each.predict(each.fitted(few, boosting), tested.astype(np.int64)) for each in (fed, table)]
                parts.append((tested, predicted, low, high, *boosted))
    how = (
        f"{FEW} runs of one setting of a GPU never seen ({' and '.join(DEVICES.values())} in turn), whose models were "
        f"measured on the other GPU; {draws} draws"
    )
    return _compared(lab, "hybrid, little data, inference on an unseen GPU", parts, WHITE_BOX, how)
