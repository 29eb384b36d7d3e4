"""Steps of vision models on a held-out GPU: from its specifications, and from a few runs on it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.dnn.setting_models import SettingModels, expected_errors, fit_few_expected
from benchmarks.dnn.splits import LEVEL, SplitResult
from benchmarks.dnn.vision_lab import DEVICES, FOLDS, LEADLINE, VisionLab, fold_numbers, inference
from benchmarks.dnn.vision_uncertainty import (
    DeviceUncertainty,
    StandIn,
    device_uncertainty,
    family_errors,
    other_releases,
    stand_in,
    unevenness,
)
from benchmarks.normalized_errors import normalize_errors

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
        pairs.append(DevicePair(learned, unseen, laws, _stand_ins(lab, laws, ask, learned, unseen)))
    return pairs


def _stand_ins(lab: VisionLab, laws: SettingModels, rows: Whole, learned: str, unseen: str) -> dict[str, StandIn]:
    """Return the rows of each setting of a GPU, predicted by op models of another one."""
    return {
        name: stand_in(lab, laws, rows[lab.setting[rows] == name], learned, unseen)
        for name in np.unique(lab.setting[rows]).tolist()
    }


def unseen_families(lab: VisionLab, pair: DevicePair, folds: int) -> SplitResult:
    """Hold out a GPU and, in turn, families: neither is in the training data.

    The interval adds the errors of the same held-out families on the known GPU to the uncertainty of a device.
    """
    learn, ask = inference(lab, pair.learned), inference(lab, pair.unseen)
    fold = fold_numbers(lab.steps.family, FOLDS, 0)
    stand_ins, known, baselines = [], [], []
    for number in range(folds):
        out = ask[fold[ask] == number]
        others = lab.without_twins(learn[fold[learn] != number], out)
        laws = lab.laws(others, start=pair.laws)
        stand_ins.append(_stand_ins(lab, laws, out, pair.learned, pair.unseen))
        known.append(_stand_ins(lab, laws, learn[fold[learn] == number], pair.learned, pair.learned))
        baselines.append(lab.baselines.answers(others, np.concatenate([part.rows for part in stand_ins[-1].values()])))
    unknown = family_errors(lab, known)
    releases = other_releases(lab, learn, pair.laws, pair.learned)
    uncertainty = device_uncertainty(lab, releases, unevenness(lab, learn, pair.laws), knowing=False)
    parts = [(name, part) for fold_parts in stand_ins for name, part in fold_parts.items()]
    half = [np.hypot(uncertainty.half(name, part), unknown[part.near] * part.relative) for name, part in parts]
    rows, points = (np.concatenate([getattr(part, name) for _, part in parts]) for name in ("rows", "predicted"))
    wide = np.exp(np.concatenate(half))
    answers = {LEADLINE: points} | {
        name: np.concatenate([answered[name] for answered in baselines]) for name in baselines[0]
    }
    return SplitResult(
        TABLE, f"unseen {DEVICES[pair.unseen]} and unseen families, inference", lab.steps.step_s[rows], answers,
        points / wide, points * wide, lab.steps.setting[rows], mape=9.0,
        how=f"{pair.how}, from its specifications; families left out in {FOLDS} folds, without twins",
        limits="the release: 2.9 was measured on one GPU only; clocks under load, which are in no specification",
    )  # fmt: skip


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
    split = "each model's own error on the other GPU carried over" if knowing else "models measured on the other GPU"
    return SplitResult(
        TABLE, f"unseen {DEVICES[pair.unseen]}, families seen, {split}", lab.steps.step_s[ask], answers,
        points / wide, points * wide, lab.steps.setting[ask], mape=6.0 if knowing else 9.0,
        how=f"{pair.how}, tested on the {DEVICES[pair.unseen]}; intervals by models and releases held out there",
        limits="the release: 2.9 was measured on one GPU only; clocks under load, which are in no specification",
    )  # fmt: skip


def after_few_runs(lab: VisionLab, pair: DevicePair, draws: int) -> list[SplitResult]:
    """Train on a few runs of each setting of the held-out GPU; test on the others."""
    splits, how = [], f"{pair.how}, and from {FEW} runs of each setting here; {draws} draws"
    for knowing, split, target in ((False, "", 6.0), (True, ", each model's own error carried over", 4.0)):
        drawn = [
            few_run_predictions(lab, part, draw, knowing=knowing)
            for part in pair.parts.values()
            for draw in range(draws)
        ]
        name = f"{FEW} runs of an unseen {DEVICES[pair.unseen]}, families seen{split}"
        splits.append(_pooled(lab, name, drawn, target, how))
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
    scores = normalize_errors(errors, part.relative[few])
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
