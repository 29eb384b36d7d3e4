"""Learn online how long jobs run, from those that have ended: a quantile forest over what is known at submission."""

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
"""How many of the last jobs are learned from: people and their programs change."""
FEWEST = 100
"""Below so many jobs nothing is said."""
EVERY = 250
"""So many jobs later it is learned anew."""
TREES, LEAF = 50, 10
"""How many trees there are, and the fewest jobs of a leaf: 5 to 40 of them were alike on the trace's first fifth."""


@dataclass(slots=True)
class _Past:
    """The logarithms of run times of jobs that ended, the last one last, and how they went."""

    logs: deque[float] = field(default_factory=lambda: deque(maxlen=50))
    shares: deque[float] = field(default_factory=lambda: deque(maxlen=50))
    count: int = 0

    def add(self, log: float, share: float) -> None:
        self.logs.append(log)
        self.shares.append(share)
        self.count += 1

    def described(self) -> list[float]:
        """Return the last run, the mean of two, and of the last ten the mean, the spread and the share of the request.

        The extremes and how many there were follow; what is not known is NaN.
        """
        if not self.logs:
            return [math.nan] * 7 + [0.0]
        logs = list(self.logs)
        ten, two_s = logs[-10:], [math.exp(one) for one in logs[-2:]]
        return [
            logs[-1], math.log(sum(two_s) / len(two_s)), float(np.mean(ten)), float(np.std(ten)),
            float(np.mean(list(self.shares)[-10:])), min(logs), max(logs), math.log1p(self.count),
        ]  # fmt: skip


class RuntimeForest:
    """How long jobs run, learned from those that were told to have ended.

    A job is described by what it asks for, when it came, what is under way of its user's, and how long the last jobs of
    its user, and of its user's with the same request, ran. A forest of extremely randomised trees parts the jobs; the
    jobs that share leaves with a new one, once for each tree, are the distribution of its run time (N. Meinshausen,
    "Quantile regression forests", 2006).
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
        """Note a job that is submitted, as it is known then."""
        self._described[job.id] = self._describe(job)
        self._came[job.user].append(job.submitted_s)
        self._open[job.user][job.id] = job.submitted_s

    def of(self, job: AccountedJob) -> "RuntimeSample | None":
        """Return how long a job that came will run, in seconds; ``None`` while too little is known."""
        if self._ended >= self._due:
            self._learn()
        if not self._trees:
            return None
        row = np.nan_to_num(np.array([self._described[job.id]], dtype=np.float32), nan=-9.0)
        shared = [leaves[int(tree.apply(row)[0])] for tree, leaves in zip(self._trees, self._leaves, strict=True)]
        return RuntimeSample(np.exp(np.sort(np.concatenate(shared))).tolist())

    def ended(self, job: AccountedJob) -> None:
        """Learn how long a job ran that ended by itself."""
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
            float(sum(one >= job.submitted_s - HOUR_S for one in came)), math.log1p(len(under_way)),
            math.log1p(job.submitted_s - min(under_way.values())) if under_way else math.nan,
            *(figure for key in _alike(job) for figure in self._past[key].described()),
        ]  # fmt: skip

    def _code(self, kind: str, name: str) -> int:
        return self._codes.setdefault(f"{kind} {name}", len(self._codes))

    def _learn(self) -> None:
        from sklearn.ensemble import ExtraTreesRegressor  # noqa: PLC0415 - only a replay needs it

        matrix = np.nan_to_num(np.array([row for row, _ in self._rows], dtype=np.float32), nan=-9.0)
        logs = np.array([log for _, log in self._rows])
        forest = ExtraTreesRegressor(TREES, min_samples_leaf=LEAF, max_features=0.5, random_state=self._seed)
        forest.fit(matrix, logs)
        self._trees = [one.tree_ for one in forest.estimators_]
        self._leaves = [_by_leaf(tree.apply(matrix), logs) for tree in self._trees]
        self._due = self._ended + EVERY


def _alike(job: AccountedJob) -> tuple[tuple[object, ...], ...]:
    """Return what names the jobs of the past that a job is like: its user, and the same request of that user's."""
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
        """The value in the middle."""
        return self.quantile(0.5)

    def quantile(self, probability: float) -> float:
        """Return the least of the values that X stays at or below with ``probability``."""
        return self.values[min(len(self.values), max(1, math.ceil(probability * len(self.values) - 1e-9))) - 1]

    def above(self, value: float) -> float:
        """Return the share of the values above ``value``."""
        return 1 - bisect_right(self.values, value) / len(self.values)

    def mean_below(self, value: float) -> float:
        """Return the sum of the values up to ``value`` ÷ how many there are."""
        return self._sums[bisect_right(self.values, value)] / len(self.values)

    def beyond(self, value: float) -> "RuntimeSample | None":
        """Return what is known once X is known to exceed ``value``; ``None`` if no value does."""
        rest = self.values[bisect_right(self.values, value) :]
        return RuntimeSample(rest) if rest else None
