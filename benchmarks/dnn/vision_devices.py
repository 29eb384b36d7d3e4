"""Steps of vision models on a GPU that was never seen: from its specifications, and from a few runs on it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

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
from leadline.estimators.step_time.op_fitting import SettingModels, expected_errors, fit_few_steps
from leadline.uncertainty.normalized_scores import NormalizedScores

Array = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]

TABLE = "vision steps"
PAIRS = (("rtx3090", "rtx4090"), ("rtx4090", "rtx3090"))
"""The GPU that was seen, and the one that was not."""
FEW = 50


@dataclass(frozen=True, slots=True)
class DevicePair:
    """A GPU that was seen, with its laws, and one that was not, with the rows of inference of each of its settings."""

    seen: str
    unseen: str
    laws: SettingModels
    parts: dict[str, StandIn]

    @property
    def how(self) -> str:
        """What was learned from what."""
        return f"learned on the {DEVICES[self.seen]}"


def pairs_of(lab: VisionLab) -> list[DevicePair]:
    """Return both GPUs in turn as the one that was not seen."""
    found = []
    for seen, unseen in PAIRS:
        laws, ask = lab.laws(inference(lab, seen)), inference(lab, unseen)
        names = np.unique(lab.setting[ask]).tolist()
        parts = {one: stand_in(lab, laws, ask[lab.setting[ask] == one], seen, unseen) for one in names}
        found.append(DevicePair(seen, unseen, laws, parts))
    return found


def other_gpu(lab: VisionLab, pair: DevicePair) -> list[SplitResult]:
    """Leave one GPU out: from its specifications alone, and with the same models known on the other."""
    learn = inference(lab, pair.seen)
    uneven = unevenness(lab, learn, pair.laws)
    tried = other_releases(lab, learn, pair.laws, pair.seen)
    ask = np.concatenate([one.rows for one in pair.parts.values()])
    others = lab.baselines.answers(learn, ask)
    others["same model × bandwidth"] = _by_bandwidth(lab, learn, ask, pair.seen, pair.unseen)
    return [
        _transferred(lab, pair, device_uncertainty(lab, tried, uneven, knowing=knowing), others, knowing=knowing)
        for knowing in (False, True)
    ]


def _transferred(
    lab: VisionLab, pair: DevicePair, doubts: DeviceUncertainty, others: dict[str, Array], *, knowing: bool
) -> SplitResult:
    """Return the answers from specifications alone; ``knowing``, those about models that were measured on the other."""
    said, half = [], []
    for setting, one in pair.parts.items():
        said.append(one.said * np.exp(expected_errors(one.elsewhere) if knowing else 0.0))
        half.append(doubts.half(setting, one))
    rows = np.concatenate([one.rows for one in pair.parts.values()])
    known = np.isfinite(np.concatenate([one.elsewhere for one in pair.parts.values()]))
    chosen = known if knowing else np.ones(len(rows), bool)
    ask, points, wide = rows[chosen], np.concatenate(said)[chosen], np.exp(np.concatenate(half)[chosen])
    answers = {LEADLINE: points} | {name: one[chosen] for name, one in others.items()}
    split = "model known on the other" if knowing else "specs only"
    return SplitResult(
        TABLE, f"unseen {DEVICES[pair.unseen]}, {split}", lab.steps.step_s[ask], answers, points / wide, points * wide,
        lab.steps.setting[ask], mape=6.0 if knowing else 9.0,
        how=f"{pair.how}, asked about the {DEVICES[pair.unseen]}; intervals by models and releases left out there",
        limits="the release: 2.9 was measured on one GPU only, and clocks under load, which no specification tells",
    )  # fmt: skip


def after_few_runs(lab: VisionLab, pair: DevicePair, draws: int) -> list[SplitResult]:
    """Measure a few runs on the unseen GPU, of each setting; the others are asked about."""
    found, how = [], f"{pair.how}, and from {FEW} runs of each setting here; {draws} draws"
    for knowing, split, target in ((False, "", 6.0), (True, ", model known", 4.0)):
        drawn = [
            few_run_predictions(lab, one, draw, knowing=knowing) for one in pair.parts.values() for draw in range(draws)
        ]
        found.append(_pooled(lab, f"{FEW} runs of an unseen {DEVICES[pair.unseen]}{split}", drawn, target, how))
    return found


def few_run_predictions(lab: VisionLab, one: StandIn, seed: int, *, knowing: bool) -> tuple[Array, ...]:
    """Return (rows, said, low, high) of what a draw of few runs leaves, under the law adapted to these few.

    ``knowing`` carries the models' errors elsewhere, and leaves out what was not measured there. Intervals are those
    of folds of the few, in terms of how unsure the law was of each before it saw any.
    """
    chosen = np.random.default_rng(seed).permutation(len(one.rows))
    few, rest = np.sort(chosen[:FEW]), np.sort(chosen[FEW:])
    if knowing:
        rest = rest[np.isfinite(one.elsewhere[rest])]
    shift = expected_errors(one.elsewhere) if knowing else np.zeros(len(one.rows))
    fold = np.arange(FEW) % FOLDS
    errors = np.empty(FEW)
    for number in range(FOLDS):
        out = fold == number
        said = _said(lab, one, few[~out], few[out], shift)
        errors[out] = np.log(lab.steps.step_s[one.rows[few[out]]] / said)
    said = _said(lab, one, few, rest, shift)
    scores = NormalizedScores.of(errors, one.relative[few])
    return (one.rows[rest].astype(float), said, *scores.interval(said, one.relative[rest], LEVEL))


def _said(lab: VisionLab, one: StandIn, few: Whole, ask: Whole, shift: Array) -> Array:
    """Return what the law says of ``ask`` once adapted to ``few``; both are places among the rows."""
    law = fit_few_steps(one.law, lab.observed(one.rows[few], one.basis), shift[few])
    said: Array = lab.priced(one.rows[ask], one.basis, {"": law}, "").step_s * np.exp(shift[ask])
    return said


def _pooled(lab: VisionLab, split: str, parts: Sequence[tuple[Array, ...]], target: float, how: str) -> SplitResult:
    rows = np.concatenate([one[0] for one in parts]).astype(np.int64)
    said, low, high = (np.concatenate([one[column] for one in parts]) for column in (1, 2, 3))
    return SplitResult(
        TABLE, split, lab.steps.step_s[rows], {LEADLINE: said}, low, high, lab.steps.setting[rows], mape=target, how=how
    )


def _by_bandwidth(lab: VisionLab, learn: Whole, ask: Whole, seen: str, unseen: str) -> Array:
    """Return the same model's time a sample on the seen GPU, by the ratio of bandwidths; NaN where it is not known."""
    columns = lab.steps.columns
    ratio = (lab.devices[seen].memory_bytes_per_s or 1.0) / (lab.devices[unseen].memory_bytes_per_s or 1.0)

    def name(row: int) -> tuple[object, ...]:
        return (str(lab.steps.model[row]), int(columns["img_size"][row]), str(columns["layout"][row]))

    sample_s = {name(row): lab.steps.step_s[row] / columns["batch_size"][row] for row in learn}
    return np.array([sample_s.get(name(row), np.nan) * columns["batch_size"][row] * ratio for row in ask])
