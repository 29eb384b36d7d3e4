"""The fitted estimators that come with Leadline, and what was found of them."""

from functools import cache
from io import BytesIO

import msgspec
import numpy as np

from leadline.estimators.learned.fitted_kernels import FittedKernels
from leadline.estimators.learned.law_kernels import StepLaws
from leadline.estimators.learned.selection import Record
from leadline.estimators.tabular import registry
from leadline.estimators.tabular.ports import FittedEstimator, State
from leadline.training.shipped_files import content_of

KERNELS, STEPS, BLACK_BOX, CARD = "kernels.npz", "steps.npz", "black_box.npz", "estimators.json"


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """What the shipped estimators learned from, and how far each was off on steps that it had not learned from."""

    schema: str
    made_on: str
    learned_from: dict[str, tuple[str, ...]]
    """Estimator → measurements, their licence, and how many; op graphs of Leadline's own beside them."""
    records: tuple[Record, ...]
    limits: tuple[str, ...]
    versions: dict[str, str]


@cache
def shipped_kernels() -> FittedKernels:
    """Return the kernels of all measured devices."""
    return FittedKernels.load(_state(KERNELS))


@cache
def shipped_laws() -> StepLaws:
    """Return the laws of all measured steps."""
    return StepLaws.load(_state(STEPS))


@cache
def shipped_black_box() -> FittedEstimator:
    """Return the boosting of all measured steps, in terms of their ideal ones (``step_table.features``)."""
    return registry.load(_state(BLACK_BOX))


@cache
def shipped_card() -> Card:
    """Return what was found of the shipped estimators."""
    return msgspec.json.decode(content_of(CARD), type=Card)


def _state(name: str) -> State:
    with np.load(BytesIO(content_of(name))) as state:
        return dict(state)
