"""Cards of the shipped models: training data, errors and limits, kept as JSON next to each model."""

from functools import cache
from pathlib import Path

import msgspec

from leadline.estimators.step_time.selection import AccuracyRecord
from leadline.training.shipped_files import read_shipped


class ShippedEstimatorsCard(msgspec.Struct, frozen=True, kw_only=True):
    """Training data of the shipped estimators, and the error of each on held-out steps.

    Attributes:
        learned_from: estimator to its measurements, their licence and number; the op graphs are Leadline's own.
    """

    schema: str
    made_on: str
    learned_from: dict[str, tuple[str, ...]]
    records: tuple[AccuracyRecord, ...]
    limits: tuple[str, ...]
    versions: dict[str, str]


class NetworkCard(msgspec.Struct, frozen=True, kw_only=True):
    """Training data and errors of a trained network.

    Attributes:
        settings: device, phase, layout and release of the training steps.
        errors: split to errors in percent (``mape``, ``median``, ``p90``) and the number of rows ``n``.
        law: the same for the operator model on the same rows.
    """

    schema: str
    made_on: str
    sources: tuple[str, ...]
    licence: str
    rows: int
    graphs: int
    devices: tuple[str, ...]
    settings: tuple[str, ...]
    training: dict[str, float]
    errors: dict[str, dict[str, float]]
    law: dict[str, dict[str, float]]
    versions: dict[str, str]
    limits: str


class StepModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """Training data and errors of the model of training steps.

    Attributes:
        errors: split to errors in percent (``mape``, ``median``, ``p90``) and the number of rows ``n``.
        coefficients: of the model, by name.
    """

    schema: str
    made_on: str
    sources: tuple[str, ...]
    licence: str
    rows: int
    devices: tuple[str, ...]
    ranges: dict[str, tuple[float, float]]
    errors: dict[str, dict[str, float]]
    coefficients: dict[str, float]
    refused: tuple[str, ...]
    limits: tuple[str, ...]
    versions: dict[str, str]


class ProductTimesCard(msgspec.Struct, frozen=True, kw_only=True):
    """Training data and errors of the curves of matrix products.

    Attributes:
        curves: compute capability and dtype to the law's parameters.
        errors: split to errors in percent (``median``, ``p90``, and ``roofline``, the median of the peak with one
            constant) and the number of products ``n``.
    """

    schema: str
    made_on: str
    sources: tuple[str, ...]
    licence: str
    rows: int
    devices: tuple[str, ...]
    curves: dict[str, dict[str, float]]
    errors: dict[str, dict[str, float]]
    limits: tuple[str, ...]
    versions: dict[str, str]


@cache
def shipped_network_card() -> NetworkCard:
    """Return the card of the network that comes with Leadline."""
    return msgspec.json.decode(read_shipped("gnn.json"), type=NetworkCard)


def write_card(path: Path, card: msgspec.Struct) -> None:
    """Write a card as indented JSON."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(card), indent=2) + b"\n")
