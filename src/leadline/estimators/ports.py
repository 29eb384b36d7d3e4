"""Protocols of tabular estimators, and their state as plain arrays."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import UnionType
from typing import Any, ClassVar, Protocol, Self, get_args

import numpy as np
import numpy.typing as npt
from msgspec import structs

from leadline.core.frozen import Frozen
from leadline.core.runs import Sample, Value

Array = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Single = npt.NDArray[np.float32]
# A fitted estimator as named arrays without objects: numbers, and texts as `<U` arrays. Kept without pickle.
State = dict[str, npt.NDArray[np.generic]]


class Predictions(Frozen):
    """Predictions of n rows, each array of shape (n,)."""

    point: Array  # above zero, in the target's unit
    spread: Array  # standard deviation of ln(true ÷ point) by the estimator itself; NaN if it has none
    # Distance of a row to the fitted range: 0 inside, else the largest excess of a feature in units of its fitted range
    # (of its logarithm if positive), infinity for an unknown category.
    extrapolation: Array


class Columns(Frozen):
    """A table: each field is an array with one entry for each row, or is such a table."""

    def at(self, rows: npt.NDArray[np.generic] | slice) -> Self:
        """Return the rows that a mask, positions or a slice name."""
        columns = structs.astuple(self)
        return type(self)(*(column.at(rows) if isinstance(column, Columns) else column[rows] for column in columns))

    @classmethod
    def joined(cls, *parts: Self) -> Self:
        """Concatenate tables of arrays."""
        return cls(*map(np.concatenate, zip(*map(structs.astuple, parts), strict=True)))


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

    @classmethod
    def load(cls, state: State) -> Self:
        """Return the regressor that ``dump`` gave."""


class Regression(Frozen):
    """A recipe for a ``Regressor`` of the class ``fitted``; it needs ``least`` rows."""

    fitted: ClassVar[type[Regressor]]

    least: int = 6

    @abstractmethod
    def fit(self, x: Array, y: Array, weight: Array, seed: int) -> Regressor:
        """Fit ``y`` (n,) on ``x`` (n, columns), each row counting by its ``weight`` (n,), whose mean is one."""


class Stored(Frozen):
    """A frozen value that is kept as arrays, one for each field: numbers, arrays, texts or further such values.

    The fields in ``figures`` share one array of that name; the last of them may be an array. ``None`` is left out.
    The parts of a tuple such as ``laws`` are ``law0``, ``law1`` and so on.
    """

    figures: ClassVar[tuple[str, ...]] = ()

    def dump(self) -> State:
        """Return all fields as arrays."""
        state: State = {}
        if self.figures:
            state["figures"] = np.hstack([getattr(self, name) for name in self.figures])
        for name in self.__struct_fields__:
            if name not in self.figures:
                state |= _dump_field(name, getattr(self, name))
        return state

    @classmethod
    def load(cls, state: State, **parts: Callable[[State], Any]) -> Self:
        """Return the value that ``dump`` gave; ``parts`` load the fields of those names."""
        values = {name: load(unnest(name, state)) for name, load in parts.items()}
        for field in structs.fields(cls):
            if field.name in cls.figures:
                rest = floats(state["figures"])[cls.figures.index(field.name) :]
                values[field.name] = rest if field.type == Array else float(rest[0])
            elif field.name not in values:
                values[field.name] = _load_field(field.name, field.type, state)
        return cls(**values)


class FittedModel(Stored):
    """A fitted estimator; its state has its name as ``estimator``."""

    name: str

    def dump(self) -> State:
        """Return all that ``predict`` needs."""
        state = super().dump()
        return {"estimator": state.pop("name"), **state}

    @classmethod
    def load(cls, state: State, **parts: Callable[[State], Any]) -> Self:
        """Return the estimator that ``dump`` gave; ``parts`` load the fields of those names."""
        return super().load({**state, "name": state["estimator"]}, **parts)


def _dump_field(name: str, value: Any) -> State:  # noqa: ANN401 - of any type
    if value is None:
        return {}
    if isinstance(value, np.ndarray):
        return {name: value.astype(np.int64) if value.dtype == np.bool_ else value}
    if isinstance(value, tuple) and value and hasattr(value[0], "dump"):
        state: State = {}
        for number, part in enumerate(value):
            state |= nest(f"{name.removesuffix('s')}{number}", part.dump())
        return state
    if isinstance(value, tuple):
        return {name: text_array(value)}
    return nest(name, value.dump()) if hasattr(value, "dump") else {name: np.array([value])}


def _load_field(name: str, kind: Any, state: State) -> Any:  # noqa: ANN401 - of any type
    if isinstance(kind, UnionType):
        kind, part = kind.__args__[0], unnest(name, state)
        return kind.load(part) if part else None
    if isinstance(kind, type) and issubclass(kind, Stored):
        return kind.load(unnest(name, state))
    if kind in (float, int, str):
        return kind(state[name][0])
    if kind == tuple[str, ...]:
        return strings(state[name])
    (entry,) = get_args(get_args(kind)[1])  # of `Array`, `Mask` and so on
    return state[name].astype(entry)


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
