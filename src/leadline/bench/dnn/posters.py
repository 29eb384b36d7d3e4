"""The posters' three settings: a black box with ample data, a white box without any, and both with little data."""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from leadline.bench.dnn.asked import Asked
from leadline.bench.dnn.vision import bounds_by_fold, left_out
from leadline.bench.dnn.vision_devices import FEW, few_runs, pairs_of
from leadline.bench.dnn.vision_lab import DEVICES, OURS, Lab
from leadline.bench.dnn.vision_tabular import features_of, samples
from leadline.core.samples import Sample
from leadline.estimators.tabular.registry import AMPLE, ESTIMATORS

Array = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]

TABLE = "posters' settings"
FIFTHS = 5
DRAWS = 3


def asked(data: Path, *, quick: bool) -> list[Asked]:
    """Return the three settings, on the measured steps of vision models."""
    lab = Lab(data)
    found = samples(lab.steps, lab.devices)
    folds, draws = (2, 1) if quick else (FIFTHS, DRAWS)
    return [_black_box(lab, found, folds), _white_box(lab, folds), _hybrid(lab, found, draws)]


def _black_box(lab: Lab, found: list[Sample], folds: int) -> Asked:
    """Leave out each fifth of the configurations, drawn at random; intervals by the errors of the other fifths."""
    part = np.random.default_rng(0).integers(0, FIFTHS, len(found))
    places, points, others = [], [], []
    for number in range(folds):
        learn, ask = part != number, part == number
        model = AMPLE.fit(_taken(found, learn))
        places.append(np.flatnonzero(ask))
        points.append(model.predict(features_of(_taken(found, ask))).point)
        others.append(lab.baselines.answers(np.flatnonzero(learn), places[-1]))
    rows, said = np.concatenate(places), np.concatenate(points)
    low, high = bounds_by_fold(lab, rows, part[rows], said, np.full(len(rows), np.nan))
    answers = {OURS: said} | {name: np.concatenate([one[name] for one in others]) for name in others[0]}
    how = "configurations left out at random; features of hardware, hyperparameters, input and model, without its name"
    return Asked(
        TABLE, "black box, ample data", lab.steps.step_s[rows], answers, low, high, lab.setting[rows], mape=5.0, how=how
    )


def _white_box(lab: Lab, folds: int) -> Asked:
    """Leave families out: the op graph alone, without a run of any of the family."""
    how = "families left out in five folds, both phases together; intervals by the errors of the other folds"
    return left_out(lab, lab.steps.family, folds, TABLE, "white box, no runs", how, mape=8.0)


def _hybrid(lab: Lab, found: list[Sample], draws: int) -> Asked:
    """Measure a few runs of one setting of a GPU that the white box never saw."""
    parts = []
    for pair in pairs_of(lab):
        for one in pair.parts.values():
            fed = _fed(found, one.rows, one.said)
            for draw in range(draws):
                rest, said, low, high = few_runs(lab, one, draw, knowing=False)
                few = np.setdiff1d(one.rows, rest)
                parts.append((rest, said, low, high, *_boosted(found, fed, few, rest.astype(np.int64))))
    rows = np.concatenate([one[0] for one in parts]).astype(np.int64)
    said, low, high, piped, alone = (np.concatenate([one[column] for one in parts]) for column in range(1, 6))
    answers = {OURS: said, "boosting with the white box as a feature": piped, "boosting alone": alone}
    how = f"{FEW} runs of one setting of a GPU never seen ({' and '.join(DEVICES.values())} in turn), {draws} draws"
    return Asked(
        TABLE, "hybrid, little data", lab.steps.step_s[rows], answers, low, high, lab.setting[rows], mape=8.0, how=how
    )


def _fed(found: list[Sample], rows: Whole, white: Array) -> dict[int, Sample]:
    """Return the samples of ``rows`` with what the white box says among their features."""
    return {
        int(row): Sample(found[row].features | {"white_box_s": float(value)}, found[row].value, found[row].scale)
        for row, value in zip(rows, white, strict=True)
    }


def _boosted(found: list[Sample], fed: dict[int, Sample], few: Whole, rest: Whole) -> tuple[Array, Array]:
    """Return what boosting on the few runs says, with the white box among its features and without."""
    boosting = ESTIMATORS["boosting"]
    piped = boosting.fit([fed[int(row)] for row in few]).predict([fed[int(row)].features for row in rest]).point
    alone = boosting.fit([found[row] for row in few]).predict([found[row].features for row in rest]).point
    return piped, alone


def _taken(found: list[Sample], chosen: npt.NDArray[np.bool_]) -> list[Sample]:
    return [found[row] for row in np.flatnonzero(chosen)]
