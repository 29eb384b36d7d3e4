"""The posters' three settings: a black box with ample data, a white box without any, and both with little data."""

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
    """Leave out each fifth of the configurations, and each fifth of the families; intervals by the other fifths."""
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
    """Leave out each part in turn."""
    places, points, others = [], [], []
    for number in range(folds):
        learn, ask = np.flatnonzero(part != number), np.flatnonzero(part == number)
        places.append(ask)
        points.append(table.told(table.fitted(learn), ask))
        others.append(lab.baselines.answers(learn, ask))
    rows, said = np.concatenate(places), np.concatenate(points)
    low, high = bounds_by_fold(lab, rows, part[rows], said, np.full(len(rows), np.nan))
    answers = {LEADLINE: said} | {name: np.concatenate([one[name] for one in others]) for name in others[0]}
    return SplitResult(TABLE, split, lab.steps.step_s[rows], answers, low, high, lab.setting[rows], mape=mape, how=how)


def _white_box(lab: VisionLab, folds: int) -> SplitResult:
    """Leave families out: the op graph alone, without a run of any of the family."""
    how = "families left out in five folds, both phases together; intervals by the errors of the other folds"
    return held_out_split(lab, lab.steps.family, folds, TABLE, "white box, no runs", how, mape=8.0)


def _hybrid(lab: VisionLab, table: StepTable, draws: int) -> SplitResult:
    """Measure a few runs of one setting of a GPU that the white box never saw."""
    boosting, parts = ESTIMATORS["boosting"], []
    for pair in pairs_of(lab):
        for one in pair.parts.values():
            fed = table.with_column("white_box", one.rows, one.said)
            for draw in range(draws):
                rest, said, low, high = few_run_predictions(lab, one, draw, knowing=False)
                few = np.setdiff1d(one.rows, rest)
                boosted = [each.told(each.fitted(few, boosting), rest.astype(np.int64)) for each in (fed, table)]
                parts.append((rest, said, low, high, *boosted))
    rows = np.concatenate([one[0] for one in parts]).astype(np.int64)
    said, low, high, piped, alone = (np.concatenate([one[column] for one in parts]) for column in range(1, 6))
    answers = {LEADLINE: said, "boosting with the white box as a feature": piped, "boosting alone": alone}
    how = f"{FEW} runs of one setting of a GPU never seen ({' and '.join(DEVICES.values())} in turn), {draws} draws"
    return SplitResult(
        TABLE, "hybrid, little data", lab.steps.step_s[rows], answers, low, high, lab.setting[rows], mape=8.0, how=how
    )
