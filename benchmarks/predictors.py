"""HARP as published, plain boosting, and Leadline, each asked about the same runs after learning from the same."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial

import numpy as np
import numpy.typing as npt

from benchmarks.histories import Split
from leadline.core.samples import Sample
from leadline.estimators.tabular.registry import ESTIMATORS
from leadline.training.build import Options, Origin, build
from leadline.training.harp import build_harp
from leadline.uncertainty.metrics import coverage, mae, mape, ov_mape, over_request, underprediction

Array = npt.NDArray[np.float64]

LEVEL = 0.9
RISK = 0.05


@dataclass(frozen=True, slots=True)
class Answered:
    """What was measured and predicted for n runs; ``low`` and ``high`` are NaN where a method knows no interval.

    ``low`` to ``high`` is to hold 90 %, so that ``high`` is what is requested at a risk of 5 %.
    """

    measured: Array
    point: Array
    low: Array
    high: Array

    @classmethod
    def pooled(cls, parts: Sequence["Answered"]) -> "Answered":
        """Return several answers as one."""
        return cls(*(np.concatenate([getattr(part, one.name) for part in parts]) for one in fields(cls)))

    def figures(self) -> dict[str, float | None]:
        """Return every figure of merit by name: percent, but for ``MAE`` (the target's unit) and ``over-request``."""
        measured, point = self.measured.tolist(), self.point.tolist()
        low, high = self.low.tolist(), self.high.tolist()
        bounded = not np.isnan(self.high).any()
        return {
            "MAE": mae(measured, point),
            "MAPE": mape(measured, point),
            "UPP": underprediction(measured, point),
            "OV_MAPE": ov_mape(measured, point),
            "coverage": coverage(measured, low, high) if bounded else None,
            "under-predicted at 5 % risk": underprediction(measured, high) if bounded else None,
            "over-request": over_request(measured, high) if bounded else None,
        }


Contender = Callable[[Split, str, int], dict[str, Answered]]
"""(split, target, seed) → what its methods, which share all that is fitted, answer for the runs asked about."""
OURS, PLAIN, HARP, CUSTOM = "Leadline", "boosting", "HARP", "HARP, custom"
"""Methods: HARP and its custom mode as it is released, with its walltime metric for a policy."""
POLICY_MAE = ", policy MAE"


def leadline(split: Split, target: str, seed: int) -> dict[str, Answered]:
    """Build the model that ``leadline train`` writes, and ask it."""
    test = split.test(target)
    history = split.history
    options = Options((target,), scale_features=history.scale_features, categories=history.categories, seed=seed)
    model, _ = build(split.learned, ESTIMATORS, Origin(history.name, "", ""), options)
    rows = [one.features for one in test]
    said = model.predict(target, rows, LEVEL)
    high = model.upper(target, rows, RISK)
    return {OURS: Answered(_measured(test), np.asarray(said.point), np.asarray(said.low), np.asarray(high))}


def boosting(split: Split, target: str, seed: int) -> dict[str, Answered]:
    """Fit scikit-learn's gradient boosting as it comes, and its quantile loss for the interval."""
    from sklearn.ensemble import HistGradientBoostingRegressor  # noqa: PLC0415 - heavy, and not at start-up

    test = split.test(target)
    learned = [one for one in split.training(target).dataset.samples if not one.censored]
    rows = _numbers([*learned, *test])
    values = _measured(learned)

    def predict(**loss: object) -> Array:
        fitted = HistGradientBoostingRegressor(random_state=seed, **loss).fit(rows[: len(learned)], values)
        found: Array = fitted.predict(rows[len(learned) :])
        return found

    bounds = [predict(loss="quantile", quantile=one) for one in ((1 - LEVEL) / 2, (1 + LEVEL) / 2)]
    return {PLAIN: Answered(_measured(test), predict(), *bounds)}


def harp(split: Split, target: str, seed: int, *, custom: bool = False) -> dict[str, Answered]:
    """Build HARP as published, faults included, and pick by its own policy and by the mean absolute error."""
    test = split.test(target)
    work = split.history.work if custom else None
    built = build_harp(split.training(target).dataset.samples, test, work=work, seed=seed)
    name, unknown = CUSTOM if custom else HARP, np.full(len(test), np.nan)
    return {
        said: Answered(_measured(test), built.pick(policy).predicted, unknown, unknown)
        for said, policy in ((name, "wtm-published"), (name + POLICY_MAE, "mae"))
    }


CONTENDERS: dict[str, Contender] = {OURS: leadline, PLAIN: boosting, HARP: harp, CUSTOM: partial(harp, custom=True)}


def _measured(samples: Sequence[Sample]) -> Array:
    return np.asarray([one.value for one in samples])


def _numbers(samples: Sequence[Sample]) -> Array:
    """Return the features as a table; categories are numbered, what is not known is NaN."""
    names = sorted({name for one in samples for name in one.features})
    table = np.full((len(samples), len(names)), np.nan)
    for column, name in enumerate(names):
        known = sorted({str(one.features[name]) for one in samples if isinstance(one.features.get(name), str)})
        for row, one in enumerate(samples):
            value = one.features.get(name)
            if value is not None:
                table[row, column] = known.index(value) if isinstance(value, str) else value
    return table
