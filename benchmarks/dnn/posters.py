"""The posters' three settings: a black box with ample data, a white box without runs, and a hybrid with few runs."""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.dnn.splits import SplitResult
from benchmarks.dnn.vision import bounds_by_fold, held_out_split
from benchmarks.dnn.vision_devices import FEW, few_run_predictions, pairs_of
from benchmarks.dnn.vision_lab import DEVICES, LEADLINE, VisionLab, fold_numbers
from benchmarks.dnn.vision_tabular import StepTable
from leadline.estimators.tabular.registry import ESTIMATORS

Array = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]

TABLE = "posters' settings"
FIFTHS = 5
DRAWS = 3


def splits(data: Path, *, quick: bool) -> list[SplitResult]:
    """Return the three settings, on the measured steps of vision models."""
    lab = VisionLab(data)
    table = StepTable.of(lab)
    folds, draws = (2, 1) if quick else (FIFTHS, DRAWS)
    return [*_black_box(lab, table, folds), _white_box(lab, folds), _hybrid(lab, table, draws)]


def _black_box(lab: VisionLab, table: StepTable, folds: int) -> list[SplitResult]:
    """Hold out each fifth of the configurations, and each fifth of the families; intervals by the other fifths."""
    at_random = np.random.default_rng(0).integers(0, FIFTHS, len(table.step_s))
    by_family = fold_numbers(lab.steps.family, FIFTHS, 0)
    how = "features of hardware, setting and op graph, no model's name"
    return [
        _left_out(lab, table, at_random, folds, "black box, ample data", f"configurations left out; {how}", 5.0),
        _left_out(lab, table, by_family, folds, "black box, unseen families", f"families left out; {how}", None),
    ]


def _left_out(
    lab: VisionLab, table: StepTable, part: Whole, folds: int, split: str, how: str, mape: float | None
) -> SplitResult:  # fmt: skip
    """Hold out each part in turn."""
    places, points, baselines = [], [], []
    for number in range(folds):
        learn, ask = np.flatnonzero(part != number), np.flatnonzero(part == number)
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
    how = "families left out in five folds, both phases together; intervals by the errors of the other folds"
    return held_out_split(lab, lab.steps.family, folds, TABLE, "white box, no runs", how, mape=8.0)


def _hybrid(lab: VisionLab, table: StepTable, draws: int) -> SplitResult:
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
    rows = np.concatenate([part[0] for part in parts]).astype(np.int64)
    predicted, low, high, piped, alone = (np.concatenate([part[column] for part in parts]) for column in range(1, 6))
    answers = {LEADLINE: predicted, "boosting with the white box as a feature": piped, "boosting alone": alone}
    how = f"{FEW} runs of one setting of a GPU never seen ({' and '.join(DEVICES.values())} in turn), {draws} draws"
    return SplitResult(
        TABLE, "hybrid, little data", lab.steps.step_s[rows], answers, low, high, lab.setting[rows], mape=8.0, how=how
    )
