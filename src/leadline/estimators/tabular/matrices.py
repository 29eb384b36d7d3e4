"""What learns a column of numbers from a matrix: the inside of an estimator, after its encoding."""

from typing import Protocol

from leadline.estimators.tabular.ports import Array, State


class Regressor(Protocol):
    """A fitted function of the columns of a matrix; needs numpy alone."""

    def predict(self, x: Array) -> tuple[Array, Array]:
        """Return the value expected for each row of ``x`` (n, columns), and its standard deviation or NaN."""

    def dump(self) -> State:
        """Return all that ``predict`` needs."""


class Regression(Protocol):
    """A recipe for a ``Regressor``."""

    @property
    def least(self) -> int:
        """Return how many rows it needs."""

    def fit(self, x: Array, y: Array, weight: Array, seed: int) -> Regressor:
        """Fit ``y`` (n,) on ``x`` (n, columns), each row counting by its ``weight`` (n,), whose mean is one."""

    def load(self, state: State) -> Regressor:
        """Return the regressor that ``dump`` gave."""
