"""What a user's own measured steps made of the shipped estimators, kept in one file for each device."""

import math
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from zipfile import BadZipFile

import msgspec
import numpy as np

from leadline.core.errors import InvalidInput
from leadline.core.estimate import NORMAL_90
from leadline.core.hardware import Device
from leadline.estimators.learned.law_kernels import StepLaws
from leadline.estimators.learned.selection import Group
from leadline.estimators.tabular.states import nest, within

SCHEMA = "leadline.adapted/1"


class OwnRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Which estimator answers for a group of jobs on the device, its factor, and how far off it was on models left out.

    A ``group`` of ``None`` is that of all jobs that have no record of their own.
    ``error`` and ``before`` are means of |predicted ÷ measured − 1|, with the runs and without; ``spread`` is a
    standard deviation of ln(measured ÷ predicted). ``channels_last`` marks images in that layout, and ``by_law`` that
    the device's own law answers instead of a factor on the shipped estimator.
    """

    group: Group | None
    channels_last: bool
    estimator: str
    by_law: bool
    factor: float
    error: float
    before: float
    spread: float
    runs: int
    source: str
    made_on: str

    @property
    def longest(self) -> float:
        """Return by what share the upper end of the 90 % range lies above the prediction."""
        return math.expm1(NORMAL_90 * self.spread)


class OwnCard(msgspec.Struct, frozen=True, kw_only=True):
    """What was learned of one device, but for the laws."""

    schema: str
    device: str
    records: tuple[OwnRecord, ...]

    def find(self, group: Group, *, channels_last: bool) -> OwnRecord | None:
        """Return what answers for a group: its own record, or else that of all jobs on the device."""
        own = (one for one in self.records if one.group == group and one.channels_last is channels_last)
        return next(own, next((one for one in self.records if one.group is None), None))


@dataclass(frozen=True, slots=True)
class OwnSteps:
    """Everything that was learned of one device, and the laws of those groups that the op law answers for."""

    card: OwnCard
    laws: StepLaws | None = None


def own_path(folder: Path, device: Device) -> Path:
    """Return the file of a device in the folder of adapted estimators."""
    return folder / f"{device.file_stem}.npz"


def save(own: OwnSteps, path: Path) -> None:
    """Write the file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = msgspec.json.encode(own.card)
    state = {"card": np.frombuffer(text, np.uint8), **(nest("laws", own.laws.dump()) if own.laws else {})}
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        np.savez_compressed(file, **state)  # type: ignore[arg-type]
    partial.replace(path)


def read(path: Path) -> OwnSteps:
    """Return what ``save`` wrote.

    Raises:
        InvalidInput: the file is cut short, of another version, or something else.
    """
    try:
        with np.load(BytesIO(path.read_bytes()), allow_pickle=False) as arrays:
            state = dict(arrays)
        card = msgspec.json.decode(state["card"].tobytes(), type=OwnCard)
        laws = StepLaws.load(within("laws", state)) if any(one.startswith("laws.") for one in state) else None
    except (OSError, ValueError, KeyError, EOFError, BadZipFile, msgspec.MsgspecError) as error:
        raise InvalidInput(f"{path} cannot be read ({error}): delete it, and run leadline adapt again") from error
    if card.schema != SCHEMA:
        raise InvalidInput(f"{path} has the schema {card.schema}, not {SCHEMA}: run leadline adapt again")
    return OwnSteps(card, laws)
