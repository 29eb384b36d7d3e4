"""Files of arrays without pickle, some with a card as JSON; and the cache of fitted models."""

from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Protocol, TypeVar
from zipfile import BadZipFile

import msgspec
import numpy as np

from leadline.core.errors import InvalidInput
from leadline.estimators.ports import State
from leadline.files.atomic import write_atomically

DAMAGED = (OSError, ValueError, KeyError, EOFError, BadZipFile, msgspec.MsgspecError)
"""Errors of reading a damaged file of arrays, and of restoring a state from it."""
CARD = "card"


class _Card(Protocol):
    @property
    def schema(self) -> str: ...


CardT = TypeVar("CardT", bound=_Card)
Restored = TypeVar("Restored")


def read_arrays(content: bytes) -> State:
    """Return the arrays of a file's content; ``DAMAGED`` names the errors."""
    with np.load(BytesIO(content), allow_pickle=False) as arrays:
        return dict(arrays)


def write_arrays(path: Path, state: State) -> None:
    """Write arrays whole or not at all; ``OSError`` if the file cannot be written."""
    content = BytesIO()
    np.savez_compressed(content, **state)  # type: ignore[arg-type]
    write_atomically(path, content.getvalue())


def write_with_card(path: Path, card: object, state: State) -> None:
    """Write arrays and a card whole or not at all; ``OSError`` if the file cannot be written."""
    write_arrays(path, {CARD: np.frombuffer(msgspec.json.encode(card), np.uint8), **state})


def read_with_card(
    path: Path, kind: type[CardT], schema: str, restore: Callable[[CardT, State], Restored], *, fix: str
) -> Restored:
    """Read a file that ``write_with_card`` wrote, and return what ``restore`` makes of it.

    Raises:
        InvalidInput: the file is damaged, of another version, or something else; ``fix`` ends the message.
    """
    try:
        state = read_arrays(path.read_bytes())
        card = msgspec.json.decode(state[CARD].tobytes(), type=kind)
        if card.schema != schema:
            raise InvalidInput(f"{path} has the schema {card.schema}, not {schema}: {fix}")
        return restore(card, state)
    except DAMAGED as error:
        raise InvalidInput(f"{path} cannot be read ({error}): {fix}") from error


def load_cached(path: Path, restore: Callable[[State], Restored]) -> Restored | None:
    """Return what ``restore`` makes of cached arrays; ``None`` if there are none or the file is damaged."""
    try:
        return restore(read_arrays(path.read_bytes()))
    except (*DAMAGED, InvalidInput):
        return None


def keep_cached(path: Path, state: State) -> None:
    """Cache arrays."""
    # A lost file costs only the time to fit again, so a full or read-only disk is no error.
    try:
        write_arrays(path, state)
    except OSError:
        return
