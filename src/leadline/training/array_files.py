"""Files of arrays without pickle, some with a card as JSON; and the cache of fitted models."""

from collections.abc import Callable
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np

from leadline.core.documents import from_json, refuse_damaged
from leadline.core.errors import InvalidInput
from leadline.estimators.ports import State
from leadline.files.arrays import read_arrays
from leadline.files.atomic import write_atomically
from leadline.files.read import read_input

CARD = "card"


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """The description in a file of arrays."""

    schema: str


CardT = TypeVar("CardT", bound=Card)
Restored = TypeVar("Restored")


def write_arrays(path: Path, state: State) -> None:
    """Write arrays whole or not at all; ``OSError`` if the file cannot be written."""
    content = BytesIO()
    np.savez_compressed(content, **state)  # type: ignore[arg-type]
    write_atomically(path, content.getvalue())


def write_with_card(path: Path, card: Card, state: State) -> None:
    """Write arrays and a card whole or not at all; ``OSError`` if the file cannot be written."""
    write_arrays(path, {CARD: np.frombuffer(msgspec.json.encode(card), np.uint8), **state})


def read_with_card(
    path: Path, kind: type[CardT], schema: str, restore: Callable[[CardT, State], Restored], *, fix: str
) -> Restored:
    """Read a file that ``write_with_card`` wrote, and return what ``restore`` makes of it.

    Raises:
        InvalidInput: the file is damaged, of another version, or something else; ``fix`` ends the message.
    """
    content = read_input(path, fix=f", or {fix}")
    try:
        state = read_arrays(content, str(path))
        with refuse_damaged(f"{path} is damaged"):
            card = from_json(state[CARD].tobytes(), kind, label=f"the card of {path}")
            if card.schema == schema:
                return restore(card, state)
    except InvalidInput as error:
        raise InvalidInput(f"{error}: {fix}") from error
    raise InvalidInput(f"{path} has the schema {card.schema}, not {schema}: {fix}")


def load_cached(path: Path, restore: Callable[[State], Restored]) -> Restored | None:
    """Return what ``restore`` makes of cached arrays; ``None`` if there are none or the file is damaged."""
    try:
        with refuse_damaged(f"{path} is damaged"):
            return restore(read_arrays(read_input(path), str(path)))
    except InvalidInput:
        return None


def keep_cached(path: Path, state: State) -> None:
    """Cache arrays."""
    # A lost file costs only the time to fit again, so a full or read-only disk is no error.
    with suppress(OSError):
        write_arrays(path, state)
