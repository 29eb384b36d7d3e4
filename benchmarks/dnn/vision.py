"""Steps of vision models: held-out families, held-out GPUs, and models known on another GPU."""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.dnn.setting_models import SettingModels
from benchmarks.dnn.splits import LEVEL, SplitResult
from benchmarks.dnn.vision_devices import TABLE, after_few_runs, other_gpu, pairs_of, unseen_families
from benchmarks.dnn.vision_lab import FOLDS, LEADLINE, VisionLab, fold_numbers, residuals
from benchmarks.dnn.vision_uncertainty import INNER
from leadline.uncertainty.conformal import Residuals, calibrate

Array = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]
Texts = npt.NDArray[np.str_]

DRAWS = 6
"""Draws of the few runs; the coverage of one draw has a deviation of four points."""


def splits(data: Path, *, quick: bool) -> list[SplitResult]:
    """Return all splits; a quick run takes one fold in five, and one draw."""
    lab = VisionLab(data)
    pairs = pairs_of(lab)
    folds = 1 if quick else FOLDS
    return [
        *(unseen_families(lab, pair, folds) for pair in pairs),
        *_by_family(lab, folds),
        *_by_model(lab, folds),
        *(split for pair in pairs for split in other_gpu(lab, pair)),
        *(split for pair in pairs for split in after_few_runs(lab, pair, 1 if quick else DRAWS)),
    ]


def _by_family(lab: VisionLab, folds: int) -> list[SplitResult]:
    """Hold out families and fit each setting of the GPU to the others; intervals from inner held-out families."""
    steps = lab.steps
    fold = fold_numbers(steps.family, FOLDS, 0)
    asked_rows, predicted, low, high, baselines = [], [], [], [], []
    for number in range(folds):
        ask = np.flatnonzero(fold == number)
        learn = lab.without_twins(np.flatnonzero(fold != number), ask)
        laws = lab.laws(learn)
        calibration = calibrate(_inner_errors(lab, learn, laws))
        points, spread = lab.answered(ask, laws)
        ends = calibration.interval(points, spread, np.zeros(len(ask)), lab.setting[ask].tolist(), LEVEL)
        asked_rows.append(ask)
        predicted.append(points)
        low.append(ends[0])
        high.append(ends[1])
        baselines.append(lab.baselines.answers(learn, ask))
    rows = np.concatenate(asked_rows)
    answers = {LEADLINE: np.concatenate(predicted)} | {
        name: np.concatenate([fold[name] for fold in baselines]) for name in baselines[0]
    }
    return _phases(lab, rows, answers, np.concatenate(low), np.concatenate(high))


def _phases(lab: VisionLab, rows: Whole, answers: dict[str, Array], low: Array, high: Array) -> list[SplitResult]:
    """Return the split by families for inference and for training, as one row each."""
    splits_by_phase = []
    for mode, word in (("infer", "inference"), ("train", "training")):
        mask = lab.steps.columns["mode"][rows] == mode
        splits_by_phase.append(
            SplitResult(
                TABLE, f"unseen families, {word}", lab.steps.step_s[rows][mask],
                {name: seconds[mask] for name, seconds in answers.items()}, low[mask], high[mask],
                lab.setting[rows][mask],
                mape=6.0, median=4.0, p90=20.0,
                how="each setting of a GPU fitted to other families, without twins, in five folds of families",
                limits="kernels that only the unseen family calls (talking heads, 9 × 9 depthwise, odd grouped widths "
                "in channels-last), which the libraries of each release run 2 to 10 times slower",
            )
        )  # fmt: skip
    return splits_by_phase


def _by_model(lab: VisionLab, folds: int) -> list[SplitResult]:
    """Hold out models at random; other sizes of the same family are in the training data."""
    how = f"models left out at random with their twins, in {FOLDS} folds; intervals by the errors of the other folds"
    return [held_out_split(lab, lab.steps.model, folds, TABLE, "unseen models of seen families", how)]


def held_out_split(
    lab: VisionLab, names: Texts, folds: int, table: str, split: str, how: str, *, mape: float | None = None
) -> SplitResult:
    """Hold out rows by ``names`` in turn, all settings together; intervals by the errors of the other folds."""
    fold = fold_numbers(names, FOLDS, 0)
    parts = []
    for number in range(folds):
        ask = np.flatnonzero(fold == number)
        learn = lab.without_twins(np.flatnonzero(fold != number), ask)
        parts.append((ask, *lab.answered(ask, lab.laws(learn)), lab.baselines.answers(learn, ask)))
    rows = np.concatenate([part[0] for part in parts])
    predicted, spread = (np.concatenate([part[column] for part in parts]) for column in (1, 2))
    low, high = bounds_by_fold(lab, rows, fold[rows], predicted, spread)
    answers = {LEADLINE: predicted} | {name: np.concatenate([part[3][name] for part in parts]) for name in parts[0][3]}
    return SplitResult(table, split, lab.steps.step_s[rows], answers, low, high, lab.setting[rows], mape=mape, how=how)


def bounds_by_fold(lab: VisionLab, rows: Whole, fold: Whole, predicted: Array, spread: Array) -> tuple[Array, Array]:
    """Return the ends of intervals around ``predicted``, by the errors of other folds, if there are any."""
    low, high = np.empty(len(rows)), np.empty(len(rows))
    for number in np.unique(fold):
        mask = fold == number
        learned = ~mask if not mask.all() else mask
        bounds = calibrate(residuals(lab, rows[learned], predicted[learned], spread[learned]))
        settings = lab.setting[rows[mask]].tolist()
        low[mask], high[mask] = bounds.interval(predicted[mask], spread[mask], np.zeros(mask.sum()), settings, LEVEL)
    return low, high


def _inner_errors(lab: VisionLab, learn: Whole, laws: SettingModels) -> Residuals:
    """Return the errors of the training rows by op models fitted without their families."""
    inner = fold_numbers(lab.steps.family, INNER, 1)
    errors = []
    for part in range(INNER):
        out = learn[inner[learn] == part]
        others = lab.without_twins(learn[inner[learn] != part], out)
        errors.append(residuals(lab, out, *lab.answered(out, lab.laws(others, start=laws))))
    return Residuals.joined(*errors)
