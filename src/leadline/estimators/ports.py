"""Protocols of tabular estimators, and their state as plain arrays."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt
from msgspec import structs

from leadline.core.frozen import Frozen
from leadline.core.runs import Sample, Value

Array = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
# A fitted estimator as named arrays without objects: numbers, and texts as `<U` arrays. Kept without pickle.
State = dict[str, npt.NDArray[np.generic]]


class Predictions(Frozen):
    """Predictions of n rows, each array of shape (n,)."""

    point: Array  # above zero, in the target's unit
    spread: Array  # standard deviation of ln(true ÷ point) by the estimator itself; NaN if it has none
    # Distance of a row to the fitted range: 0 inside, else the largest excess of a feature in units of its fitted range
    # (of its logarithm if positive), infinity for an unknown category.
    extrapolation: Array


class FittedEstimator(Protocol):
    """A fitted estimator; needs numpy only, so that prediction starts fast."""

    @property
    def name(self) -> str: ...  # noqa: D102 - a field

    def predict(self, rows: Sequence[Mapping[str, Value]]) -> Predictions:
        """Predict each row; a missing or unknown feature gives a wide spread, never an error."""

    def dump(self) -> State:
        """Return all that ``predict`` needs; the module's ``load`` restores the estimator."""


class TabularEstimator(Protocol):
    """A recipe for fitting; scikit-learn and scipy may be needed to fit."""

    @property
    def name(self) -> str: ...  # noqa: D102 - a field

    def fit(self, samples: Sequence[Sample], *, scale_features: Sequence[str] = (), seed: int = 0) -> FittedEstimator:
        """Fit on ``samples``; censored ones are lower bounds.

        Raises:
            InvalidInput: there are too few samples that are not censored for this estimator; how many it needs.
        """

    def load(self, state: State) -> FittedEstimator:
        """Return the fitted estimator that ``dump`` gave."""


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


class Stored(Frozen):
    """A frozen value that is kept as arrays, one for each field: numbers, arrays, texts or further such values."""

    def dump(self) -> State:
        """Return all fields as arrays."""
        state: State = {}
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if isinstance(value, Stored):
                state |= nest(name, value.dump())
            elif isinstance(value, tuple):
                state[name] = text_array(value)
            elif isinstance(value, np.ndarray):
                state[name] = value.astype(np.int64) if value.dtype == np.bool_ else value
            else:
                state[name] = np.array([value])
        return state

    @classmethod
    def load(cls, state: State) -> Self:
        """Return the value that ``dump`` gave."""
        return cls(*(_load_field(field.name, field.type, state) for field in structs.fields(cls)))


def _load_field(name: str, kind: Any, state: State) -> Any:  # noqa: ANN401 - of any type
    if isinstance(kind, type) and issubclass(kind, Stored):
        return kind.load(unnest(name, state))
    if kind in (float, int):
        return kind(state[name][0])
    return _READERS[kind](state[name])


def nest(part: str, state: State) -> State:
    """Return ``state`` with ``part.`` before every name."""
    return {f"{part}.{name}": array for name, array in state.items()}


def unnest(part: str, state: State) -> State:
    """Return the state that was nested as ``part``."""
    start = f"{part}."
    return {name.removeprefix(start): array for name, array in state.items() if name.startswith(start)}


def floats(array: npt.NDArray[np.generic]) -> npt.NDArray[np.float64]:
    """Return an array of a state as numbers."""
    return array.astype(np.float64)


def integers(array: npt.NDArray[np.generic]) -> npt.NDArray[np.int64]:
    """Return an array of a state as whole numbers."""
    return array.astype(np.int64)


END = "\x01"  # stands behind a text that ends with a NUL, since arrays of texts fill up with NULs


def text_array(values: Sequence[str]) -> npt.NDArray[np.generic]:
    """Return texts as an array that needs no pickle."""
    kept = [f"{text}{END}" if text.endswith(("\x00", END)) else text for text in values]
    return np.array(kept, dtype=np.str_) if kept else np.zeros(0, dtype="<U1")


def strings(array: npt.NDArray[np.generic]) -> tuple[str, ...]:
    """Return an array of a state as texts."""
    return tuple(str(text).removesuffix(END) for text in array.tolist())


_READERS: dict[Any, Callable[[npt.NDArray[np.generic]], Any]] = {
    Array: floats,
    IntArray: integers,
    Mask: lambda array: array.astype(np.bool_),
    tuple[str, ...]: strings,
}
