"""What was learned here, kept in files of arrays so that it need not be learned again; losing one costs time only."""

from io import BytesIO
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from leadline.estimators.ports import State


def load_state(path: Path) -> State | None:
    """Return the arrays that were kept there; ``None`` where there are none, or the file is damaged."""
    try:
        with np.load(BytesIO(path.read_bytes()), allow_pickle=False) as arrays:
            return dict(arrays)
    except (OSError, ValueError, KeyError, EOFError, BadZipFile):
        return None


def save_state(path: Path, state: State) -> None:
    """Keep arrays, whole or not at all; a home without room or rights keeps nothing, and the next one learns again."""
    partial = path.with_suffix(".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as file:
            np.savez_compressed(file, **state)  # type: ignore[arg-type]
        partial.replace(path)
    except OSError:
        return
