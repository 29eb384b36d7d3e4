"""The shipped step estimators as adapted to a user's measured steps, one file for each device."""

import math
from pathlib import Path

import msgspec

from leadline.core.estimate import NORMAL_90
from leadline.core.frozen import Frozen
from leadline.core.hardware import Device
from leadline.estimators.ports import State, nest, unnest
from leadline.estimators.step_time.op_utilization_kernels import OpUtilizationModels
from leadline.estimators.step_time.selection import StepGroup
from leadline.training.array_files import Card, read_with_card, write_with_card
from leadline.training.step_adaptation import AdaptedCoefficients

ADAPTED_SCHEMA = "leadline.adapted/2"


class AdaptedRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The adapted estimator of one group of jobs on the device, and its errors on left-out models."""

    group: StepGroup | None  # of jobs; ``None`` for all jobs without a record of their own
    channels_last: bool
    estimator: str
    by_law: bool  # a model fitted to the device predicts, instead of a factor on the shipped estimator
    factor: float
    error: float  # mean of |predicted ÷ measured − 1| with the user's runs; ``before`` is without them
    before: float
    spread: float  # standard deviation of ln(measured ÷ predicted)
    runs: int  # number of measured steps
    source: str
    made_on: str

    @property
    def longest(self) -> float:
        """Return how far the upper bound at 90 % is above the prediction, as a share of it."""
        return math.expm1(NORMAL_90 * self.spread)


class AdaptedWholeSteps(msgspec.Struct, frozen=True, kw_only=True):
    """The training-step model on the device in its host, and its errors on left-out models, as in a record."""

    estimator: str
    launch_s: float  # of the host for an op
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


class AdaptedCard(Card, frozen=True, kw_only=True):
    """Everything adapted for one device, except the fitted models."""

    device: str
    records: tuple[AdaptedRecord, ...]
    whole_steps: AdaptedWholeSteps | None = None  # of language models in training, predicted as a whole
    power_limit_w: float | None = None  # during the measurement; None at the factory limit, or if unknown

    def find(self, group: StepGroup, *, channels_last: bool) -> AdaptedRecord | None:
        """Return the record of a group, or the one of all jobs on the device."""
        exact = (record for record in self.records if record.group == group and record.channels_last is channels_last)
        return next(exact, next((record for record in self.records if record.group is None), None))


class AdaptedSteps(Frozen):
    """The card of one device, the operator models of the groups that have one, and the training-step model."""

    card: AdaptedCard
    laws: OpUtilizationModels | None = None
    coefficients: AdaptedCoefficients | None = None


def adapted_steps_path(folder: Path, device: Device) -> Path:
    """Return the path of a device's file."""
    return folder / f"{device.file_stem}.npz"


def save_adapted_steps(adapted: AdaptedSteps, path: Path) -> None:
    """Write the file whole or not at all."""
    laws = nest("laws", adapted.laws.dump()) if adapted.laws else {}
    steps = nest("steps", adapted.coefficients.dump()) if adapted.coefficients else {}
    write_with_card(path, adapted.card, {**laws, **steps})


def read_adapted_steps(path: Path) -> AdaptedSteps:
    """Read a file that ``save_adapted_steps`` wrote.

    Raises:
        InvalidInput: the file is damaged, of another version, or something else.
    """

    def restore(card: AdaptedCard, state: State) -> AdaptedSteps:
        laws, steps = unnest("laws", state), unnest("steps", state)
        coefficients = AdaptedCoefficients.load(steps) if steps else None
        if coefficients:
            coefficients.require_names()
        return AdaptedSteps(card, OpUtilizationModels.load(laws) if laws else None, coefficients)

    return read_with_card(path, AdaptedCard, ADAPTED_SCHEMA, restore, fix="delete it, and run leadline adapt again")
