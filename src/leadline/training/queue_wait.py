"""Learn from a site's accounting how long jobs wait, and say it of a job before it is submitted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from leadline.core.errors import InvalidInput, MissingExtra
from leadline.core.estimate import Interval
from leadline.core.queues import IMMEDIATE_START_S, AccountedJob, QueueWait
from leadline.core.units import HOUR_S
from leadline.estimators.ports import Array, State, nest, strings, text_array, unnest
from leadline.estimators.queue_state import (
    FORECAST_COLUMN,
    QUEUE_FEATURES,
    UNKNOWN_VALUE,
    accounting_at,
    current_queue_rows,
    eligible_at_s,
    queue_rows,
)
from leadline.estimators.queue_wait import WaitForest, load_wait_forest, wait_grid, wait_probability, wait_quantile
from leadline.estimators.tabular.trees import convert_trees
from leadline.uncertainty.recalibration import Recalibration

LEAST_STARTED = 200
"""Jobs that started, below which nothing is learned."""
MORE = "read a longer time of it"
MOST_LEARNED = 30_000
"""Jobs that are learned from, the last ones; all of them count in the queue."""
TREES, FOLD_TREES = 60, 20
LEAF, LEAST_LEAF, LEAVES = 30, 5, 200
"""Jobs in a leaf at least: 30, or fewer where there would be fewer than 200 leaves of so many."""
FOLDS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
"""Shares of the jobs, in the order in which they came: from what came before one, what came up to the next is told."""
QUANTILES = 40
LEAST_SEEN = 0.02
"""The least probability of having been seen that a wait is weighted by."""


@dataclass(frozen=True, slots=True)
class RecalibratedForest:
    """A forest of waits, how its levels are to be read, and from how many jobs that started both were learned."""

    forest: WaitForest
    recalibration: Recalibration
    jobs: int

    def predict_rows(self, x: Array, as_of_s: float, level: float, reason: str) -> list[QueueWait]:
        """Foretell the waits of jobs by their rows (n, len(FEATURES)).

        An interval has as much doubt below it as above; but where it begins with no wait, all doubt is above.
        """
        told, grid_s = self.forest.distribution(x), self.forest.grid_s

        def at(one: float) -> Array:
            return wait_quantile(grid_s, told, np.full(len(x), one))

        tail, read = (1 - level) / 2, self.recalibration
        least, middle = at(read.lower(tail)), at(read.upper(0.5))
        none = least <= IMMEDIATE_START_S
        low = np.where(none, 0.0, np.minimum(least, middle))
        high = np.maximum(np.where(none, at(read.upper(level)), at(read.upper(1 - tail))), IMMEDIATE_START_S)
        quantiles = np.stack([at(read.upper((one + 0.5) / QUANTILES)) for one in range(QUANTILES)], axis=1)
        at_once = (quantiles <= IMMEDIATE_START_S).mean(axis=1)
        ends = zip(middle.tolist(), low.tolist(), np.maximum(high, middle).tolist(), strict=True)
        why = (f"{reason} {self.jobs} jobs",)
        return [
            QueueWait(Interval(*three, level), once, tuple(all_of), as_of_s, why)
            for three, once, all_of in zip(ends, at_once.tolist(), quantiles.tolist(), strict=True)
        ]

    def dump(self) -> State:
        """Return the whole as arrays."""
        return {
            "jobs": np.array([self.jobs]),
            **nest("forest", self.forest.dump()),
            **nest("recalibration", self.recalibration.dump()),
        }

    @classmethod
    def load(cls, state: State) -> "RecalibratedForest":
        """Return what was dumped."""
        recalibration = Recalibration.load(unnest("recalibration", state))
        return cls(load_wait_forest(unnest("forest", state)), recalibration, int(state["jobs"].astype(int)[0]))


@dataclass(frozen=True, slots=True)
class QueueWaitModel:
    """What was learned of the waits at a site until a moment, in seconds since the epoch; needs numpy alone.

    ``with_forecast`` is for jobs of which the scheduler itself foretells something, where enough such ones started.
    """

    plain: RecalibratedForest
    with_forecast: RecalibratedForest | None
    learned_until_s: float

    def predict(
        self, accounting: Sequence[AccountedJob], asked: Sequence[AccountedJob], now_s: float, *,
        forecasts: Mapping[str, float] | None = None, level: float = 0.9,
    ) -> list[QueueWait]:  # fmt: skip
        """Foretell the waits of jobs each of which is submitted at ``now_s``, without the others.

        ``accounting`` is what is known of the site's jobs by then; ``forecasts`` are the waits that the scheduler
        itself foretells of some, by their ids: it counts on every job taking all of its walltime.
        """
        known = sorted(accounting_at(accounting, now_s), key=lambda job: job.submitted_s)
        come = [replace(job, submitted_s=now_s, eligible_s=None) for job in asked]
        return self.predict_rows(current_queue_rows(known, come, forecasts), now_s, level)

    def predict_rows(self, x: Array, as_of_s: float, level: float = 0.9) -> list[QueueWait]:
        """Foretell the waits of jobs by their rows (n, len(FEATURES))."""
        found = self.plain.predict_rows(x, as_of_s, level, "learned from the waits of")
        if self.with_forecast is not None and len(told := np.flatnonzero(x[:, FORECAST_COLUMN] != UNKNOWN_VALUE)):
            better = self.with_forecast.predict_rows(
                x[told], as_of_s, level, "learned from what the scheduler foretold of"
            )
            for place, one in zip(told.tolist(), better, strict=True):
                found[place] = one
        return found

    def dump(self) -> State:
        """Return the whole as arrays."""
        own = {} if self.with_forecast is None else nest("foretold", self.with_forecast.dump())
        return {
            "features": text_array(QUEUE_FEATURES),
            "until_s": np.array([self.learned_until_s]),
            **nest("plain", self.plain.dump()),
            **own,
        }


def load_queue_wait_model(state: State) -> QueueWaitModel:
    """Return what was dumped.

    Raises:
        InvalidInput: it was learned by a version that looked at other figures.
    """
    if "features" not in state or strings(state["features"]) != QUEUE_FEATURES:
        raise InvalidInput("these waits were learned by another version of Leadline: learn them again")
    foretold = unnest("foretold", state)
    return QueueWaitModel(
        RecalibratedForest.load(unnest("plain", state)),
        RecalibratedForest.load(foretold) if foretold else None,
        float(state["until_s"].astype(float)[0]),
    )


@dataclass(frozen=True, slots=True)
class _Table:
    """Jobs in the order in which they could start: figures (n, p), that moment (n,), wait (n,) or NaN, batch (n,)."""

    x: Array
    ready_s: Array
    wait_s: Array
    batch: npt.NDArray[np.int64]

    def at(self, chosen: npt.NDArray[np.intp]) -> "_Table":
        return _Table(self.x[chosen], self.ready_s[chosen], self.wait_s[chosen], self.batch[chosen])

    @property
    def started(self) -> int:
        return int(np.isfinite(self.wait_s).sum())

    def seen(self, now_s: float) -> tuple["_Table", Array]:
        """Return the jobs whose start was seen by ``now_s``, and how many each stands for.

        Long waits are seen more seldom, as they end after the accounting does: each counts by the inverse of the
        share of jobs that came early enough for such a wait to be seen (Robins and Rotnitzky 1992).
        """
        room = np.sort(now_s - self.ready_s[self.ready_s < now_s])
        rows = self.at(np.flatnonzero(self.ready_s + self.wait_s < now_s))
        share = 1 - np.searchsorted(room, rows.wait_s) / max(1, len(room))
        return rows, 1 / np.maximum(share, LEAST_SEEN)


def fit_queue_wait_model(
    jobs: Sequence[AccountedJob], now_s: float, *, forecasts: Mapping[str, float] | None = None, seed: int = 0
) -> QueueWaitModel:
    """Learn from the accounting of a site as it is at ``now_s`` (seconds since the epoch).

    ``forecasts`` are waits in seconds that the scheduler itself foretold, by the ids of the jobs of which it was asked.

    Raises:
        InvalidInput: fewer than ``LEAST_STARTED`` jobs started.
        MissingExtra: scikit-learn is not installed.
    """
    table = _table(accounting_at(jobs, now_s), forecasts or {})
    if (started := table.started) < LEAST_STARTED:
        raise InvalidInput(
            f"waits are learned from {LEAST_STARTED} jobs that started or more, and this accounting has {started}: "
            f"{MORE}"
        )
    foretold = table.at(np.flatnonzero(table.x[:, FORECAST_COLUMN] != UNKNOWN_VALUE))
    unaided = replace(table, x=np.where(np.arange(len(QUEUE_FEATURES)) == FORECAST_COLUMN, UNKNOWN_VALUE, table.x))
    plain = _learn(unaided, now_s, seed)
    if plain is None:
        raise InvalidInput(f"no job of this accounting came after others had started, so no wait can be tried: {MORE}")
    return QueueWaitModel(plain, _learn(foretold, now_s, seed) if foretold.started >= LEAST_STARTED else None, now_s)


def _learn(table: _Table, now_s: float, seed: int) -> RecalibratedForest | None:
    """Return what the table teaches; ``None`` where no job came after enough others had started."""
    transforms, weights = _tried(table, now_s, seed)
    if not len(transforms):
        return None
    forest = _grow(*table.seen(now_s), TREES, seed)
    return RecalibratedForest(forest, Recalibration.of(transforms, weights), table.started)


def _table(jobs: Sequence[AccountedJob], forecasts: Mapping[str, float]) -> _Table:
    """Return the last jobs that could start as a table; those that were cancelled before they started say nothing."""
    ordered = sorted(jobs, key=lambda job: job.submitted_s)
    usable = [i for i, job in enumerate(ordered) if eligible_at_s(job) < np.inf and (job.wait_s is not None or
                                                                               job.ended_s is None)]  # fmt: skip
    chosen = sorted(usable[-MOST_LEARNED:], key=lambda i: eligible_at_s(ordered[i]))
    batches: dict[object, int] = {}
    batch = [batches.setdefault(_batch(ordered[i]), len(batches)) for i in chosen]
    waits = [ordered[i].wait_s for i in chosen]
    return _Table(
        queue_rows(ordered, chosen, forecasts),
        np.array([eligible_at_s(ordered[i]) for i in chosen]),
        np.array([np.nan if one is None else one for one in waits]),
        np.array(batch, np.int64),
    )


def _batch(job: AccountedJob) -> object:
    """Return what jobs share that were submitted together, and so waited together."""
    return job.user, job.partition, job.cores, job.gpus, job.walltime_s, job.submitted_s // HOUR_S


def _tried(table: _Table, now_s: float, seed: int) -> tuple[Array, Array]:
    """Return the transforms of waits foretold from what came before, and how many jobs each stands for."""
    transforms, weights = [np.zeros(0)], [np.zeros(0)]
    for begin, end in pairwise(FOLDS):
        first, last = int(begin * len(table.x)), int(end * len(table.x))
        then_s = float(table.ready_s[first])
        before, counts = table.at(np.arange(first)).seen(then_s)
        rows, counted = table.at(np.arange(first, last)).seen(now_s)
        if len(before.x) < 2 * LEAF or not len(rows.x):
            continue
        forest = _grow(before, counts, FOLD_TREES, seed)
        told = forest.distribution(rows.x)
        # jobs that start at once are alike in all but chance: their transforms are spread over what was foretold
        first_step = rows.wait_s <= forest.grid_s[0]
        found = wait_probability(forest.grid_s, told, rows.wait_s)
        spread = np.random.default_rng(seed).random(len(found))
        transforms.append(np.where(first_step, spread * told[:, 0], found))
        weights.append(counted)
    return np.concatenate(transforms), np.concatenate(weights)


def _grow(rows: _Table, counts: Array, trees: int, seed: int) -> WaitForest:
    """Grow a forest on indicators of waits: a tree's splits lessen the ranked probability score of their logarithms.

    Each tree draws batches of jobs rather than jobs, and a batch counts as the root of its size: what was submitted
    together waits together, and is hardly more than one observation of the queue.
    """
    try:
        from sklearn.tree import DecisionTreeRegressor  # noqa: PLC0415 - needed to fit alone
    except ModuleNotFoundError as error:
        raise MissingExtra("learning how long jobs wait", "train") from error
    grid_s = wait_grid(float(rows.wait_s.max()))
    x, y = rows.x.astype(np.float32), (rows.wait_s[:, None] <= grid_s).astype(np.float64)
    _, batch, sizes = np.unique(rows.batch, return_inverse=True, return_counts=True)
    weight = counts / np.sqrt(sizes[batch])
    draw, leaf = np.random.default_rng(seed), max(LEAST_LEAF, min(LEAF, len(x) // LEAVES))
    grown = []
    for number in range(trees):
        drawn = draw.poisson(1.0, len(sizes))[batch] * weight
        if not drawn.any():
            continue
        some = drawn > 0
        tree = DecisionTreeRegressor(min_samples_leaf=leaf, random_state=seed + number)
        grown.append(tree.fit(x[some], y[some], sample_weight=drawn[some]).tree_)
    kept = convert_trees(grown, base=0.0, rate=1.0)
    shares = np.concatenate([tree.value[:, :, 0] for tree in grown]).astype(np.float32).astype(np.float64)  # as kept
    numbered = replace(kept, value=np.arange(len(shares), dtype=np.float64))
    return WaitForest(numbered, grid_s, shares)
