"""What a law of powers misses of the unit time: cliffs, optima and categories that act together."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from leadline.estimators.tabular.encoding import Encoding
from leadline.estimators.tabular.gaussian_process import GaussianProcess, Process
from leadline.estimators.tabular.ports import Array, State
from leadline.estimators.tabular.tables import Table, deviation, parts

REGRESSION = GaussianProcess(trend=False)
WORTHWHILE = 0.8
"""A correction is kept where it leaves at most this share of the squares that were left, on folds not fitted."""
FOLDS, TRIED_ON = 4, 400
FEW = 12
"""No correction is learnt from fewer rows …"""
LEAST_SHARE = 0.2
"""… of which the work takes at least this share of the time."""
MOST = 1.5
"""No unit time is corrected by more than e to this power."""


@dataclass(frozen=True, slots=True)
class Correction:
    """Adds to ln(unit time) what ``process`` expects of the columns that carry no scale.

    So more work still takes more time.
    """

    process: Process
    columns: npt.NDArray[np.int64]

    def at(self, x: Array) -> tuple[Array, Array]:
        """Return what to add to the logarithm of the work at each row (n, columns), and its deviation."""
        mean, deviation = self.process.predict(x[:, self.columns])
        return np.clip(mean, -MOST, MOST), deviation

    def dump(self) -> State:
        """Return the correction as arrays."""
        return {"columns": self.columns, **self.process.dump()}


def load(state: State) -> Correction | None:
    """Return the correction that ``dump`` gave, or none of nothing."""
    return Correction(REGRESSION.load(state), state["columns"].astype(np.int64)) if state else None


def learn(x: Array, left: Array, share: Array, table: Table, known: Encoding, seed: int) -> Correction | None:
    """Return the correction of what is ``left`` of ln t, where the work's ``share`` of t tells of it; none if idle.

    ``x`` (n, columns) are the table's encoded rows. Whether it is worthwhile is tried on configurations left out.
    """
    columns, rows = np.flatnonzero(known.scales == 0), np.flatnonzero(share > LEAST_SHARE)
    if not len(columns) or len(rows) < FEW:
        return None
    inputs, target = x[np.ix_(rows, columns)], left[rows] / share[rows]
    heed = table.weight[rows] * share[rows] ** 2
    heed *= np.minimum(1.0, (4 * deviation(target) / np.maximum(np.abs(target), 1e-12)) ** 2)  # wild ones tell less
    heed = np.maximum(heed / heed.mean(), 1e-3)
    if not _worthwhile(inputs, target, heed, table.folds[rows], seed):
        return None
    return Correction(REGRESSION.fit(inputs, target, heed, seed), columns)


def _worthwhile(x: Array, target: Array, heed: Array, folds: npt.NDArray[np.int64], seed: int) -> bool:
    tried = np.random.default_rng(seed).permutation(len(x))[:TRIED_ON]
    part = parts(folds[tried], FOLDS, seed)
    before = after = 0.0
    for fold in range(FOLDS):
        inside, outside = tried[part != fold], tried[part == fold]
        if len(inside) >= FEW and len(outside):
            found = REGRESSION.fit(x[inside], target[inside], heed[inside], seed)
            held = np.clip(found.predict(x[outside])[0], -MOST, MOST)
            before += float(np.sum(heed[outside] * target[outside] ** 2))
            after += float(np.sum(heed[outside] * (target[outside] - held) ** 2))
    return after < WORTHWHILE * before
