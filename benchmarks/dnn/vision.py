"""Steps of vision models: families that were never seen, GPUs that were never seen, and both known from elsewhere."""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.dnn.splits import LEVEL, SplitResult
from benchmarks.dnn.vision_devices import TABLE, after_few_runs, other_gpu, pairs_of
from benchmarks.dnn.vision_lab import FOLDS, LEADLINE, VisionLab, fold_numbers, residuals
from benchmarks.dnn.vision_uncertainty import INNER
from leadline.estimators.step_time.op_fitting import SettingModels
from leadline.uncertainty.conformal import Residuals, calibrate

Array = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]
Texts = npt.NDArray[np.str_]

DRAWS = 6
"""The width after few runs rests on these few: the coverage of one draw has a deviation of four points."""


def splits(data: Path, *, quick: bool) -> list[SplitResult]:
    """Return all splits; a quick run asks one fold in five, and one draw."""
    lab = VisionLab(data)
    pairs = pairs_of(lab)
    folds = 1 if quick else FOLDS
    return [
        *_by_family(lab, folds),
        *_by_model(lab, folds),
        *(one for pair in pairs for one in other_gpu(lab, pair)),
        *(one for pair in pairs for one in after_few_runs(lab, pair, 1 if quick else DRAWS)),
    ]


def _by_family(lab: VisionLab, folds: int) -> list[SplitResult]:
    """Leave families out, learn each setting of the GPU from the others; intervals from families left out inside."""
    steps = lab.steps
    fold = fold_numbers(steps.family, FOLDS, 0)
    asked_rows, said, low, high, others = [], [], [], [], []
    for number in range(folds):
        learn, ask = np.flatnonzero(fold != number), np.flatnonzero(fold == number)
        laws = lab.laws(learn)
        calibration = calibrate(_inner_errors(lab, learn, laws))
        points, spread = lab.answered(ask, laws)
        ends = calibration.interval(points, spread, np.zeros(len(ask)), lab.setting[ask].tolist(), LEVEL)
        asked_rows.append(ask)
        said.append(points)
        low.append(ends[0])
        high.append(ends[1])
        others.append(lab.baselines.answers(learn, ask))
    rows = np.concatenate(asked_rows)
    answers = {LEADLINE: np.concatenate(said)} | {
        name: np.concatenate([one[name] for one in others]) for name in others[0]
    }
    return _phases(lab, rows, answers, np.concatenate(low), np.concatenate(high))


def _phases(lab: VisionLab, rows: Whole, answers: dict[str, Array], low: Array, high: Array) -> list[SplitResult]:
    """Return the split by families for inference and for training, as one row each."""
    found = []
    for mode, word in (("infer", "inference"), ("train", "training")):
        own = lab.steps.columns["mode"][rows] == mode
        found.append(
            SplitResult(
                TABLE, f"unseen families, {word}", lab.steps.step_s[rows][own],
                {name: one[own] for name, one in answers.items()}, low[own], high[own], lab.setting[rows][own],
                mape=6.0, median=4.0, p90=20.0,
                how="each setting of a GPU learned from other families, in five folds of families",
                limits="kernels that only the unseen family calls (talking heads, 9 × 9 depthwise, odd grouped widths "
                "in channels-last), which the libraries of each release run 2 to 10 times slower",
            )
        )  # fmt: skip
    return found


def _by_model(lab: VisionLab, folds: int) -> list[SplitResult]:
    """Leave models out at random: other sizes of the same family were seen."""
    how = "models left out at random, in five folds; intervals by the errors of the other folds"
    return [held_out_split(lab, lab.steps.model, folds, TABLE, "random models", how)]


def held_out_split(
    lab: VisionLab, names: Texts, folds: int, table: str, split: str, how: str, *, mape: float | None = None
) -> SplitResult:
    """Leave rows of some ``names`` out in turn, all settings together; intervals by the errors of the other folds."""
    fold = fold_numbers(names, FOLDS, 0)
    parts = []
    for number in range(folds):
        learn, ask = np.flatnonzero(fold != number), np.flatnonzero(fold == number)
        parts.append((ask, *lab.answered(ask, lab.laws(learn)), lab.baselines.answers(learn, ask)))
    rows = np.concatenate([one[0] for one in parts])
    said, spread = (np.concatenate([one[column] for one in parts]) for column in (1, 2))
    low, high = bounds_by_fold(lab, rows, fold[rows], said, spread)
    answers = {LEADLINE: said} | {name: np.concatenate([one[3][name] for one in parts]) for name in parts[0][3]}
    return SplitResult(table, split, lab.steps.step_s[rows], answers, low, high, lab.setting[rows], mape=mape, how=how)


def bounds_by_fold(lab: VisionLab, rows: Whole, fold: Whole, said: Array, spread: Array) -> tuple[Array, Array]:
    """Return the ends of intervals around ``said``, each by the errors of the rows of other folds, if there are any."""
    low, high = np.empty(len(rows)), np.empty(len(rows))
    for number in np.unique(fold):
        own = fold == number
        rest = ~own if not own.all() else own
        bounds = calibrate(residuals(lab, rows[rest], said[rest], spread[rest]))
        settings = lab.setting[rows[own]].tolist()
        low[own], high[own] = bounds.interval(said[own], spread[own], np.zeros(own.sum()), settings, LEVEL)
    return low, high


def _inner_errors(lab: VisionLab, learn: Whole, laws: SettingModels) -> Residuals:
    """Return the errors of the learning rows, by laws that were learned without their families."""
    inner = fold_numbers(lab.steps.family, INNER, 1)
    errors = []
    for part in range(INNER):
        out = learn[inner[learn] == part]
        errors.append(residuals(lab, out, *lab.answered(out, lab.laws(learn[inner[learn] != part], start=laws))))
    return Residuals.joined(*errors)
