"""Cache fitted models in files of arrays; a lost file costs only the time to fit again."""

from io import BytesIO
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from leadline.estimators.ports import State


def load_state(path: Path) -> State | None:
    """Return the cached arrays; ``None`` if there are none or the file is damaged."""
    try:
        with np.load(BytesIO(path.read_bytes()), allow_pickle=False) as arrays:
            return dict(arrays)
    except (OSError, ValueError, KeyError, EOFError, BadZipFile):
        return None


def save_state(path: Path, state: State) -> None:
    """Write arrays to the cache atomically; without space or permission nothing is cached."""
    partial = path.with_suffix(".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as file:
            np.savez_compressed(file, **state)  # type: ignore[arg-type]
        partial.replace(path)
    except OSError:
        return
