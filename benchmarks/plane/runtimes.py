"""Run times learned online from ended jobs: a quantile forest over the features known at submission."""

import math
from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from leadline.core.queues import AccountedJob
from leadline.core.units import DAY_S, HOUR_S

ROWS = 4000
"""Number of last jobs in the training data: users and their programs change."""
FEWEST = 100
"""Fewest ended jobs for a prediction."""
EVERY = 250
"""Ended jobs between two fits."""
TREES, LEAF = 50, 10
"""Trees, and fewest jobs in a leaf; 5 to 40 jobs made no difference on the trace's first fifth."""


@dataclass(slots=True)
class _Past:
    """Logarithms of the run times of ended jobs, the last one last, and their shares of the request."""

    logs: deque[float] = field(default_factory=lambda: deque(maxlen=50))
    shares: deque[float] = field(default_factory=lambda: deque(maxlen=50))
    count: int = 0

    def add(self, log: float, share: float) -> None:
        self.logs.append(log)
        self.shares.append(share)
        self.count += 1

    def described(self) -> list[float]:
        """Return features: last run, mean of two, mean, deviation and share of the last ten, extremes and count.

        Unknown features are NaN.
        """
        if not self.logs:
            return [math.nan] * 7 + [0.0]
        logs = list(self.logs)
        ten, two_s = logs[-10:], [math.exp(log) for log in logs[-2:]]
        return [
            logs[-1], math.log(sum(two_s) / len(two_s)), float(np.mean(ten)), float(np.std(ten)),
            float(np.mean(list(self.shares)[-10:])), min(logs), max(logs), math.log1p(self.count),
        ]  # fmt: skip


class RuntimeForest:
    """The distribution of run times, learned from ended jobs.

    The features are a job's request, its time of submission, its user's running and waiting jobs, and the run times of
    the user's last jobs, with the same request and with any. The jobs that share leaves with a new one in a forest of
    extremely randomised trees, once for each tree, are the distribution of its run time (N. Meinshausen, "Quantile
    regression forests", 2006).
    """

    def __init__(self, *, seed: int = 0) -> None:
        self._seed = seed
        self._codes: dict[str, int] = {}
        self._past: defaultdict[tuple[object, ...], _Past] = defaultdict(_Past)
        self._came: defaultdict[str, deque[float]] = defaultdict(lambda: deque(maxlen=1000))
        self._open: defaultdict[str, dict[str, float]] = defaultdict(dict)
        self._described: dict[str, list[float]] = {}
        self._rows: deque[tuple[list[float], float]] = deque(maxlen=ROWS)
        self._due = FEWEST
        self._ended = 0
        self._trees: list[Any] = []
        self._leaves: list[dict[int, npt.NDArray[np.float64]]] = []

    def came(self, job: AccountedJob) -> None:
        """Record a submitted job with its features at that moment."""
        self._described[job.id] = self._describe(job)
        self._came[job.user].append(job.submitted_s)
        self._open[job.user][job.id] = job.submitted_s

    def of(self, job: AccountedJob) -> "RuntimeSample | None":
        """Return the distribution of a submitted job's run time in seconds; None before the first fit."""
        if self._ended >= self._due:
            self._learn()
        if not self._trees:
            return None
        row = np.nan_to_num(np.array([self._described[job.id]], dtype=np.float32), nan=-9.0)
        shared = [leaves[int(tree.apply(row)[0])] for tree, leaves in zip(self._trees, self._leaves, strict=True)]
        return RuntimeSample(np.exp(np.sort(np.concatenate(shared))).tolist())

    def ended(self, job: AccountedJob) -> None:
        """Add a job that ended by itself to the training data."""
        elapsed_s, request_s = job.elapsed_s or 1.0, job.walltime_s or 1.0
        log = math.log(max(1.0, elapsed_s))
        for key in _alike(job):
            self._past[key].add(log, elapsed_s / request_s)
        self._open[job.user].pop(job.id, None)
        self._rows.append((self._described.pop(job.id), log))
        self._ended += 1

    def _describe(self, job: AccountedJob) -> list[float]:
        came, under_way = self._came[job.user], self._open[job.user]
        day_s = job.submitted_s % DAY_S
        return [
            math.log(job.cores), math.log(job.walltime_s or 1.0), float(self._code("user", job.user)),
            float(self._code("partition", job.partition)), day_s / HOUR_S, float(job.submitted_s // DAY_S % 7),
            math.log1p(job.submitted_s - came[-1]) if came else math.nan,
            float(sum(time_s >= job.submitted_s - HOUR_S for time_s in came)), math.log1p(len(under_way)),
            math.log1p(job.submitted_s - min(under_way.values())) if under_way else math.nan,
            *(feature for key in _alike(job) for feature in self._past[key].described()),
        ]  # fmt: skip

    def _code(self, kind: str, name: str) -> int:
        return self._codes.setdefault(f"{kind} {name}", len(self._codes))

    def _learn(self) -> None:
        from sklearn.ensemble import ExtraTreesRegressor  # noqa: PLC0415 - only a replay needs it

        matrix = np.nan_to_num(np.array([row for row, _ in self._rows], dtype=np.float32), nan=-9.0)
        logs = np.array([log for _, log in self._rows])
        forest = ExtraTreesRegressor(TREES, min_samples_leaf=LEAF, max_features=0.5, random_state=self._seed)
        forest.fit(matrix, logs)
        self._trees = [tree.tree_ for tree in forest.estimators_]
        self._leaves = [_by_leaf(tree.apply(matrix), logs) for tree in self._trees]
        self._due = self._ended + EVERY


def _alike(job: AccountedJob) -> tuple[tuple[object, ...], ...]:
    """Return the keys of similar past jobs: those of its user, and those of its user with the same request."""
    return (job.user,), (job.user, job.cores, job.walltime_s)


def _by_leaf(leaf: npt.NDArray[np.int64], logs: npt.NDArray[np.float64]) -> dict[int, npt.NDArray[np.float64]]:
    order = np.argsort(leaf, kind="stable")
    names, firsts = np.unique(leaf[order], return_index=True)
    return dict(zip(names.tolist(), np.split(logs[order], firsts[1:]), strict=True))


class RuntimeSample:
    """Equally likely values above zero, in ascending order (implements ``recommend.distributions.Distribution``)."""

    def __init__(self, values: Sequence[float]) -> None:
        self.values = values
        self._sums = [0.0, *accumulate(values)]

    @property
    def median(self) -> float:
        """Return the median."""
        return self.quantile(0.5)

    def quantile(self, probability: float) -> float:
        """Return the least value that X does not exceed with ``probability``."""
        return self.values[min(len(self.values), max(1, math.ceil(probability * len(self.values) - 1e-9))) - 1]

    def above(self, value: float) -> float:
        """Return the share of the values above ``value``."""
        return 1 - bisect_right(self.values, value) / len(self.values)

    def mean_below(self, value: float) -> float:
        """Return the sum of the values up to ``value`` ÷ the number of values."""
        return self._sums[bisect_right(self.values, value)] / len(self.values)

    def beyond(self, value: float) -> "RuntimeSample | None":
        """Return the distribution of X given that it exceeds ``value``; None if no value does."""
        larger = self.values[bisect_right(self.values, value) :]
        return RuntimeSample(larger) if larger else None
