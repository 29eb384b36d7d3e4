"""The shipped step estimators as adapted to a user's measured steps, one file for each device."""

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
from leadline.files.atomic import write_atomically

ADAPTED_SCHEMA = "leadline.adapted/1"


class AdaptedRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The adapted estimator of one group of jobs on the device, and its errors on left-out models.

    Attributes:
        group: of jobs; ``None`` for all jobs without a record of their own.
        channels_last: images in that layout.
        by_law: a model fitted to the device predicts, instead of a factor on the shipped estimator.
        factor: on the shipped estimator's predictions.
        error: mean of |predicted ÷ measured − 1| with the user's runs.
        before: the same without them.
        spread: standard deviation of ln(measured ÷ predicted).
        runs: number of measured steps.
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
        """Return how far the upper bound at 90 % is above the prediction, as a share of it."""
        return math.expm1(NORMAL_90 * self.spread)


class AdaptedCard(msgspec.Struct, frozen=True, kw_only=True):
    """Everything adapted for one device, except the fitted models."""

    schema: str
    device: str
    records: tuple[AdaptedRecord, ...]

    def find(self, group: StepGroup, *, channels_last: bool) -> AdaptedRecord | None:
        """Return the record of a group, or the one of all jobs on the device."""
        exact = (record for record in self.records if record.group == group and record.channels_last is channels_last)
        return next(exact, next((record for record in self.records if record.group is None), None))


@dataclass(frozen=True, slots=True)
class AdaptedSteps:
    """The card of one device, and the operator models of the groups that have one."""

    card: AdaptedCard
    laws: OpUtilizationModels | None = None


def adapted_steps_path(folder: Path, device: Device) -> Path:
    """Return the path of a device's file."""
    return folder / f"{device.file_stem}.npz"


def save_adapted_steps(adapted: AdaptedSteps, path: Path) -> None:
    """Write the file whole or not at all."""
    card = np.frombuffer(msgspec.json.encode(adapted.card), np.uint8)
    content = BytesIO()
    np.savez_compressed(content, card=card, **(nest("laws", adapted.laws.dump()) if adapted.laws else {}))  # type: ignore[arg-type]
    write_atomically(path, content.getvalue())


def read_adapted_steps(path: Path) -> AdaptedSteps:
    """Read a file that ``save_adapted_steps`` wrote.

    Raises:
        InvalidInput: the file is damaged, of another version, or something else.
    """
    try:
        with np.load(BytesIO(path.read_bytes()), allow_pickle=False) as arrays:
            state = dict(arrays)
        card = msgspec.json.decode(state["card"].tobytes(), type=AdaptedCard)
        laws = (
            OpUtilizationModels.load(unnest("laws", state)) if any(name.startswith("laws.") for name in state) else None
        )
    except (OSError, ValueError, KeyError, EOFError, BadZipFile, msgspec.MsgspecError) as error:
        raise InvalidInput(f"{path} cannot be read ({error}): delete it, and run leadline adapt again") from error
    if card.schema != ADAPTED_SCHEMA:
        raise InvalidInput(f"{path} has the schema {card.schema}, not {ADAPTED_SCHEMA}: run leadline adapt again")
    return AdaptedSteps(card, laws)
