"""Steps of vision models on a held-out GPU: from its specifications, and from a few runs on it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.dnn.setting_models import SettingModels, expected_errors, fit_few_expected
from benchmarks.dnn.splits import LEVEL, SplitResult
from benchmarks.dnn.vision_lab import DEVICES, FOLDS, LEADLINE, VisionLab, inference
from benchmarks.dnn.vision_uncertainty import (
    DeviceUncertainty,
    StandIn,
    device_uncertainty,
    other_releases,
    stand_in,
    unevenness,
)
from leadline.uncertainty.normalized_scores import NormalizedScores

Array = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]

TABLE = "vision steps"
PAIRS = (("rtx3090", "rtx4090"), ("rtx4090", "rtx3090"))
"""The GPU of the training data, and the held-out one."""
FEW = 50


@dataclass(frozen=True, slots=True)
class DevicePair:
    """A GPU with its op models, and a held-out one with the inference rows of each of its settings."""

    learned: str
    unseen: str
    laws: SettingModels
    parts: dict[str, StandIn]

    @property
    def how(self) -> str:
        """Return a description of the training data."""
        return f"learned on the {DEVICES[self.learned]}"


def pairs_of(lab: VisionLab) -> list[DevicePair]:
    """Return both GPUs in turn as the held-out one."""
    pairs = []
    for learned, unseen in PAIRS:
        laws, ask = lab.laws(inference(lab, learned)), inference(lab, unseen)
        names = np.unique(lab.setting[ask]).tolist()
        parts = {name: stand_in(lab, laws, ask[lab.setting[ask] == name], learned, unseen) for name in names}
        pairs.append(DevicePair(learned, unseen, laws, parts))
    return pairs


def other_gpu(lab: VisionLab, pair: DevicePair) -> list[SplitResult]:
    """Hold out one GPU: predict from its specifications alone, and with the same models known on the other."""
    learn = inference(lab, pair.learned)
    uneven = unevenness(lab, learn, pair.laws)
    releases = other_releases(lab, learn, pair.laws, pair.learned)
    ask = np.concatenate([part.rows for part in pair.parts.values()])
    baselines = lab.baselines.answers(learn, ask)
    baselines["same model × bandwidth"] = _by_bandwidth(lab, learn, ask, pair.learned, pair.unseen)
    return [
        _transferred(lab, pair, device_uncertainty(lab, releases, uneven, knowing=knowing), baselines, knowing=knowing)
        for knowing in (False, True)
    ]


def _transferred(
    lab: VisionLab, pair: DevicePair, uncertainty: DeviceUncertainty, baselines: dict[str, Array], *, knowing: bool
) -> SplitResult:
    """Return the predictions from specifications; with ``knowing``, of models that were measured on the other GPU."""
    predicted, half = [], []
    for setting, part in pair.parts.items():
        predicted.append(part.predicted * np.exp(expected_errors(part.elsewhere) if knowing else 0.0))
        half.append(uncertainty.half(setting, part))
    rows = np.concatenate([part.rows for part in pair.parts.values()])
    measured = np.isfinite(np.concatenate([part.elsewhere for part in pair.parts.values()]))
    chosen = measured if knowing else np.ones(len(rows), bool)
    ask, points, wide = rows[chosen], np.concatenate(predicted)[chosen], np.exp(np.concatenate(half)[chosen])
    answers = {LEADLINE: points} | {name: seconds[chosen] for name, seconds in baselines.items()}
    split = "model known on the other" if knowing else "specs only"
    return SplitResult(
        TABLE, f"unseen {DEVICES[pair.unseen]}, {split}", lab.steps.step_s[ask], answers, points / wide, points * wide,
        lab.steps.setting[ask], mape=6.0 if knowing else 9.0,
        how=f"{pair.how}, tested on the {DEVICES[pair.unseen]}; intervals by models and releases held out there",
        limits="the release: 2.9 was measured on one GPU only; clocks under load, which are in no specification",
    )  # fmt: skip


def after_few_runs(lab: VisionLab, pair: DevicePair, draws: int) -> list[SplitResult]:
    """Train on a few runs of each setting of the held-out GPU; test on the others."""
    splits, how = [], f"{pair.how}, and from {FEW} runs of each setting here; {draws} draws"
    for knowing, split, target in ((False, "", 6.0), (True, ", model known", 4.0)):
        drawn = [
            few_run_predictions(lab, part, draw, knowing=knowing)
            for part in pair.parts.values()
            for draw in range(draws)
        ]
        splits.append(_pooled(lab, f"{FEW} runs of an unseen {DEVICES[pair.unseen]}{split}", drawn, target, how))
    return splits


def few_run_predictions(lab: VisionLab, part: StandIn, seed: int, *, knowing: bool) -> tuple[Array, ...]:
    """Return (rows, predicted, low, high) of the rows outside a draw of few runs, by the op model adapted to these.

    ``knowing`` corrects by the models' errors in the other setting, and leaves out models without. Intervals come from
    folds of the few runs, normalized by the spread before adaptation.
    """
    chosen = np.random.default_rng(seed).permutation(len(part.rows))
    few, test = np.sort(chosen[:FEW]), np.sort(chosen[FEW:])
    if knowing:
        test = test[np.isfinite(part.elsewhere[test])]
    shift = expected_errors(part.elsewhere) if knowing else np.zeros(len(part.rows))
    fold = np.arange(FEW) % FOLDS
    errors = np.empty(FEW)
    for number in range(FOLDS):
        out = fold == number
        predicted = _adapted(lab, part, few[~out], few[out], shift)
        errors[out] = np.log(lab.steps.step_s[part.rows[few[out]]] / predicted)
    predicted = _adapted(lab, part, few, test, shift)
    scores = NormalizedScores.of(errors, part.relative[few])
    return (part.rows[test].astype(float), predicted, *scores.interval(predicted, part.relative[test], LEVEL))


def _adapted(lab: VisionLab, part: StandIn, few: Whole, ask: Whole, shift: Array) -> Array:
    """Predict ``ask`` by the op model adapted to ``few``; both are positions among the part's rows."""
    law = fit_few_expected(part.law, lab.observed(part.rows[few], part.basis), shift[few])
    step_s: Array = lab.priced(part.rows[ask], part.basis, {"": law}, "").step_s * np.exp(shift[ask])
    return step_s


def _pooled(lab: VisionLab, split: str, parts: Sequence[tuple[Array, ...]], target: float, how: str) -> SplitResult:
    rows = np.concatenate([part[0] for part in parts]).astype(np.int64)
    predicted, low, high = (np.concatenate([part[column] for part in parts]) for column in (1, 2, 3))
    return SplitResult(
        TABLE, split, lab.steps.step_s[rows], {LEADLINE: predicted}, low, high, lab.steps.setting[rows],
        mape=target, how=how,
    )  # fmt: skip


def _by_bandwidth(lab: VisionLab, learn: Whole, ask: Whole, learned: str, unseen: str) -> Array:
    """Scale the same model's time a sample on the other GPU by the ratio of bandwidths; NaN where it is unknown."""
    columns = lab.steps.columns
    ratio = (lab.devices[learned].memory_bytes_per_s or 1.0) / (lab.devices[unseen].memory_bytes_per_s or 1.0)

    def name(row: int) -> tuple[object, ...]:
        return (str(lab.steps.model[row]), int(columns["img_size"][row]), str(columns["layout"][row]))

    sample_s = {name(row): lab.steps.step_s[row] / columns["batch_size"][row] for row in learn}
    return np.array([sample_s.get(name(row), np.nan) * columns["batch_size"][row] * ratio for row in ask])
