"""Put the state of one part of an estimator into that of the whole, and take it out again."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from leadline.estimators.tabular.ports import State


def nest(part: str, state: State) -> State:
    """Return ``state`` with ``part.`` before every name."""
    return {f"{part}.{name}": array for name, array in state.items()}


def within(part: str, state: State) -> State:
    """Return the state that was nested as ``part``."""
    start = f"{part}."
    return {name.removeprefix(start): array for name, array in state.items() if name.startswith(start)}


def floats(array: npt.NDArray[np.generic]) -> npt.NDArray[np.float64]:
    """Return an array of a state as numbers."""
    return array.astype(np.float64)


def wholes(array: npt.NDArray[np.generic]) -> npt.NDArray[np.int64]:
    """Return an array of a state as whole numbers."""
    return array.astype(np.int64)


END = "\x01"
"""Stands behind a text that ends with a NUL, since arrays of texts fill up with NULs."""


def texts(values: Sequence[str]) -> npt.NDArray[np.generic]:
    """Return texts as an array that needs no pickle."""
    kept = [f"{one}{END}" if one.endswith(("\x00", END)) else one for one in values]
    return np.array(kept, dtype=np.str_) if kept else np.zeros(0, dtype="<U1")


def lines(array: npt.NDArray[np.generic]) -> tuple[str, ...]:
    """Return an array of a state as texts."""
    return tuple(str(text).removesuffix(END) for text in array.tolist())
