"""Learn from a site's job accounting how long jobs wait, and predict the wait of a job before it is submitted."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Self

import numpy as np

from leadline.core.errors import InvalidInput, MissingExtra
from leadline.core.estimate import Interval
from leadline.core.queues import IMMEDIATE_START_S, AccountedJob, QueueWait
from leadline.core.units import HOUR_S
from leadline.estimators.ports import Array, Columns, IntArray, State, Stored, strings
from leadline.estimators.queue_wait import (
    FORECAST_COLUMN,
    QUEUE_FEATURES,
    UNKNOWN_VALUE,
    WaitForest,
    accounting_at,
    current_queue_rows,
    eligible_at_s,
    queue_rows,
    wait_grid,
    wait_probability,
    wait_quantile,
)
from leadline.estimators.tabular.trees import convert_trees
from leadline.uncertainty.recalibration import Recalibration

LEAST_STARTED = 200
"""Started jobs that an accounting must have to learn from it."""
MORE = "read a longer period of it"
MOST_LEARNED = 30_000
"""Jobs to learn from, the last ones; all jobs count in the state of the queue."""
TREES, FOLD_TREES = 60, 20
LEAF, LEAST_LEAF, LEAVES = 30, 5, 200
"""Jobs in a leaf: at least 30, or fewer where that would make fewer than 200 leaves."""
FOLDS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
"""Shares of the jobs in time order; the jobs up to each share predict those up to the next."""
QUANTILES, SEED = 40, 0
LEAST_SEEN = 0.02
"""Least probability of having been observed by which a wait is weighted."""


class RecalibratedForest(Stored):
    """A forest of waits, the recalibration of its quantile levels, and the number of started jobs behind both."""

    forest: WaitForest
    recalibration: Recalibration
    jobs: int

    def predict_rows(self, x: Array, as_of_s: float, level: float, reason: str) -> list[QueueWait]:
        """Predict the waits of jobs from their rows of shape (n, len(QUEUE_FEATURES)).

        An interval is central, except where it begins with no wait: then it is one-sided.
        """
        distribution, grid_s = self.forest.distribution(x), self.forest.grid_s

        def at(probability: float) -> Array:
            return wait_quantile(grid_s, distribution, np.full(len(x), probability))

        tail, nominal = (1 - level) / 2, self.recalibration
        least, median = at(nominal.lower(tail)), at(nominal.upper(0.5))
        immediate = least <= IMMEDIATE_START_S
        low = np.where(immediate, 0.0, np.minimum(least, median))
        high = np.maximum(np.where(immediate, at(nominal.upper(level)), at(nominal.upper(1 - tail))), IMMEDIATE_START_S)
        quantiles = np.stack([at(nominal.upper((number + 0.5) / QUANTILES)) for number in range(QUANTILES)], axis=1)
        at_once = (quantiles <= IMMEDIATE_START_S).mean(axis=1)
        intervals = zip(median.tolist(), low.tolist(), np.maximum(high, median).tolist(), strict=True)
        reasons = (f"{reason} {self.jobs} jobs",)
        return [
            QueueWait(Interval(*interval, level), probability, tuple(waits_s), as_of_s, reasons)
            for interval, probability, waits_s in zip(intervals, at_once.tolist(), quantiles.tolist(), strict=True)
        ]


class QueueWaitModel(Stored):
    """Waits of a site as learned up to a moment, in seconds since the epoch; predicting needs numpy alone.

    ``with_forecast`` predicts jobs for which the scheduler forecasts a start, where enough such jobs started.
    """

    plain: RecalibratedForest
    with_forecast: RecalibratedForest | None
    learned_until_s: float
    features: tuple[str, ...] = QUEUE_FEATURES

    def predict(
        self, accounting: Sequence[AccountedJob], jobs: Sequence[AccountedJob], now_s: float
    ) -> list[QueueWait]:
        """Predict the wait of each job as if it alone were submitted now, in seconds since the epoch."""
        past = sorted(accounting_at(accounting, now_s), key=lambda job: job.submitted_s)
        submitted = [replace(job, submitted_s=now_s, eligible_s=None) for job in jobs]
        return self.predict_rows(current_queue_rows(past, submitted), now_s)

    def predict_rows(self, x: Array, as_of_s: float, level: float = 0.9) -> list[QueueWait]:
        """Predict the waits of jobs from their rows of shape (n, len(QUEUE_FEATURES))."""
        waits = self.plain.predict_rows(x, as_of_s, level, "learned from the waits of")
        if self.with_forecast is not None and len(rows := np.flatnonzero(x[:, FORECAST_COLUMN] != UNKNOWN_VALUE)):
            reason = "learned from the scheduler's forecasts for"
            better = self.with_forecast.predict_rows(x[rows], as_of_s, level, reason)
            for row, wait in zip(rows.tolist(), better, strict=True):
                waits[row] = wait
        return waits

    @classmethod
    def load(cls, state: State, **parts: Callable[[State], Any]) -> Self:
        """Restore a model from its state.

        Raises:
            InvalidInput: it was learned by a version with other features.
        """
        if "features" not in state or strings(state["features"]) != QUEUE_FEATURES:
            raise InvalidInput("these waits were learned by another version of Leadline: learn them again")
        return super().load(state, **parts)


class _WaitTable(Columns):
    """Jobs in the order of their eligibility: features (n, p), eligible time, wait or NaN, and batch (n,)."""

    x: Array
    eligible_s: Array
    wait_s: Array
    batch: IntArray

    @property
    def started(self) -> int:
        return int(np.isfinite(self.wait_s).sum())

    def observed_by(self, now_s: float) -> tuple["_WaitTable", Array]:
        """Return the jobs whose start was observed, and how many jobs each of them represents.

        Long waits often end after the accounting does. So each observed wait is weighted by the inverse of the share of
        jobs that came early enough for such a wait to be observed (Robins and Rotnitzky 1992).
        """
        room = np.sort(now_s - self.eligible_s[self.eligible_s < now_s])
        rows = self.at(np.flatnonzero(self.eligible_s + self.wait_s < now_s))
        share = 1 - np.searchsorted(room, rows.wait_s) / max(1, len(room))
        return rows, 1 / np.maximum(share, LEAST_SEEN)


def fit_queue_wait_model(
    jobs: Sequence[AccountedJob], now_s: float, *, forecasts: Mapping[str, float] | None = None
) -> QueueWaitModel:
    """Learn the waits of a site from its accounting.

    Events later than ``now_s`` (seconds since the epoch) are ignored. ``forecasts`` maps the id of a job to the wait in
    seconds that the scheduler forecast.

    Raises:
        InvalidInput: fewer than ``LEAST_STARTED`` jobs started.
        MissingExtra: scikit-learn is not installed.
    """
    table = _wait_table(accounting_at(jobs, now_s), forecasts or {})
    if (started := table.started) < LEAST_STARTED:
        need = f"waits are learned from {LEAST_STARTED} jobs that started or more"
        raise InvalidInput(f"{need}, and this accounting has {started}: {MORE}")
    forecast = table.at(np.flatnonzero(table.x[:, FORECAST_COLUMN] != UNKNOWN_VALUE))
    without = np.where(np.arange(len(QUEUE_FEATURES)) == FORECAST_COLUMN, UNKNOWN_VALUE, table.x)
    plain = _fit(replace(table, x=without), now_s)
    if plain is None:
        raise InvalidInput(
            f"cannot validate the wait model: no job of this accounting came after earlier ones had started: {MORE}"
        )
    return QueueWaitModel(plain, _fit(forecast, now_s) if forecast.started >= LEAST_STARTED else None, now_s)


def _fit(table: _WaitTable, now_s: float) -> RecalibratedForest | None:
    """Return the recalibrated forest; ``None`` where no job came after enough others had started."""
    transforms, weights = _held_out_transforms(table, now_s)
    if not len(transforms):
        return None
    forest = _grow(*table.observed_by(now_s), TREES)
    return RecalibratedForest(forest, Recalibration.of(transforms, weights), table.started)


def _wait_table(jobs: Sequence[AccountedJob], forecasts: Mapping[str, float]) -> _WaitTable:
    """Return the last eligible jobs as a table, without jobs cancelled before they started."""
    ordered = sorted(jobs, key=lambda job: job.submitted_s)
    eligible = [place for place, job in enumerate(ordered) if eligible_at_s(job) < np.inf]
    usable = [place for place in eligible if ordered[place].wait_s is not None or ordered[place].ended_s is None]
    rows = sorted(usable[-MOST_LEARNED:], key=lambda place: eligible_at_s(ordered[place]))
    # Jobs that were submitted together waited together.
    batches: dict[object, int] = {}
    keys = [
        (job.user, job.partition, job.cores, job.gpus, job.walltime_s, job.submitted_s // HOUR_S)
        for job in (ordered[place] for place in rows)
    ]
    batch = [batches.setdefault(key, len(batches)) for key in keys]
    waits = [ordered[place].wait_s for place in rows]
    return _WaitTable(
        queue_rows(ordered, rows, forecasts),
        np.array([eligible_at_s(ordered[place]) for place in rows]),
        np.array([np.nan if wait_s is None else wait_s for wait_s in waits]),
        np.array(batch, np.int64),
    )


def _held_out_transforms(table: _WaitTable, now_s: float) -> tuple[Array, Array]:
    """Return the probability integral transforms of waits predicted from earlier jobs, and their weights."""
    transforms, weights = [np.zeros(0)], [np.zeros(0)]
    for begin, end in pairwise(FOLDS):
        first, last = int(begin * len(table.x)), int(end * len(table.x))
        before, counts = table.at(np.arange(first)).observed_by(float(table.eligible_s[first]))
        rows, row_weights = table.at(np.arange(first, last)).observed_by(now_s)
        if len(before.x) < 2 * LEAF or not len(rows.x):
            continue
        forest = _grow(before, counts, FOLD_TREES)
        distribution = forest.distribution(rows.x)
        # Jobs that start at once differ by chance only: their transforms are spread over the first step.
        first_step = rows.wait_s <= forest.grid_s[0]
        probability = wait_probability(forest.grid_s, distribution, rows.wait_s)
        spread = np.random.default_rng(SEED).random(len(probability))
        transforms.append(np.where(first_step, spread * distribution[:, 0], probability))
        weights.append(row_weights)
    return np.concatenate(transforms), np.concatenate(weights)


def _grow(rows: _WaitTable, counts: Array, trees: int) -> WaitForest:
    """Grow a forest on indicators of waits; its splits minimise the ranked probability score of their logarithms."""
    try:
        from sklearn.tree import DecisionTreeRegressor  # noqa: PLC0415 - needed to fit alone
    except ModuleNotFoundError as error:
        raise MissingExtra("learning how long jobs wait", "train") from error
    grid_s = wait_grid(float(rows.wait_s.max()))
    x, y = rows.x.astype(np.float32), (rows.wait_s[:, None] <= grid_s).astype(np.float64)
    # Jobs submitted together wait together, and are hardly more than one observation of the queue. So each tree draws
    # batches of jobs instead of jobs, and a batch counts as the root of its size.
    _, batch, sizes = np.unique(rows.batch, return_inverse=True, return_counts=True)
    weight = counts / np.sqrt(sizes[batch])
    draw, leaf = np.random.default_rng(SEED), max(LEAST_LEAF, min(LEAF, len(x) // LEAVES))
    grown = []
    for number in range(trees):
        drawn = draw.poisson(1.0, len(sizes))[batch] * weight
        if not drawn.any():
            continue
        sampled = drawn > 0
        tree = DecisionTreeRegressor(min_samples_leaf=leaf, random_state=SEED + number)
        grown.append(tree.fit(x[sampled], y[sampled], sample_weight=drawn[sampled]).tree_)
    converted = convert_trees(grown, base=0.0, rate=1.0)
    # Through float32, the precision of the file: a model predicts the same before and after it is saved.
    shares = np.concatenate([tree.value[:, :, 0] for tree in grown]).astype(np.float32).astype(np.float64)
    return WaitForest(replace(converted, value=np.arange(len(shares), dtype=np.float64)), grid_s, shares)
