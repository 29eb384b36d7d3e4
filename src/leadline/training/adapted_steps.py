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
from leadline.estimators.ports import nest, unnest
from leadline.estimators.step_time.op_utilization_kernels import OpUtilizationModels
from leadline.estimators.step_time.selection import StepGroup

ADAPTED_SCHEMA = "leadline.adapted/1"


class AdaptedRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Which estimator answers for a group of jobs on the device, its factor, and how far off it was on models left out.

    A ``group`` of ``None`` is that of all jobs that have no record of their own.
    ``error`` and ``before`` are means of |predicted ÷ measured − 1|, with the runs and without; ``spread`` is a
    standard deviation of ln(measured ÷ predicted). ``channels_last`` marks images in that layout, and ``by_law`` that
    the device's own law answers instead of a factor on the shipped estimator.
    """

    group: StepGroup | None
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


class AdaptedCard(msgspec.Struct, frozen=True, kw_only=True):
    """What was learned of one device, but for the laws."""

    schema: str
    device: str
    records: tuple[AdaptedRecord, ...]

    def find(self, group: StepGroup, *, channels_last: bool) -> AdaptedRecord | None:
        """Return what answers for a group: its own record, or else that of all jobs on the device."""
        own = (one for one in self.records if one.group == group and one.channels_last is channels_last)
        return next(own, next((one for one in self.records if one.group is None), None))


@dataclass(frozen=True, slots=True)
class AdaptedSteps:
    """Everything that was learned of one device, and the laws of those groups that the op law answers for."""

    card: AdaptedCard
    laws: OpUtilizationModels | None = None


def adapted_steps_path(folder: Path, device: Device) -> Path:
    """Return the file of a device in the folder of adapted estimators."""
    return folder / f"{device.file_stem}.npz"


def save_adapted_steps(own: AdaptedSteps, path: Path) -> None:
    """Write the file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = msgspec.json.encode(own.card)
    state = {"card": np.frombuffer(text, np.uint8), **(nest("laws", own.laws.dump()) if own.laws else {})}
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        np.savez_compressed(file, **state)  # type: ignore[arg-type]
    partial.replace(path)


def read_adapted_steps(path: Path) -> AdaptedSteps:
    """Return what ``save_adapted_steps`` wrote.

    Raises:
        InvalidInput: the file is cut short, of another version, or something else.
    """
    try:
        with np.load(BytesIO(path.read_bytes()), allow_pickle=False) as arrays:
            state = dict(arrays)
        card = msgspec.json.decode(state["card"].tobytes(), type=AdaptedCard)
        laws = (
            OpUtilizationModels.load(unnest("laws", state)) if any(one.startswith("laws.") for one in state) else None
        )
    except (OSError, ValueError, KeyError, EOFError, BadZipFile, msgspec.MsgspecError) as error:
        raise InvalidInput(f"{path} cannot be read ({error}): delete it, and run leadline adapt again") from error
    if card.schema != ADAPTED_SCHEMA:
        raise InvalidInput(f"{path} has the schema {card.schema}, not {ADAPTED_SCHEMA}: run leadline adapt again")
    return AdaptedSteps(card, laws)
