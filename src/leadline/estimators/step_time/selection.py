"""Choose the estimator of a graph by its error on measured steps of the same group."""

import math
from collections import defaultdict
from collections.abc import Collection, Sequence
from enum import StrEnum

from leadline.core.estimate import NORMAL_90
from leadline.core.frozen import Frozen
from leadline.core.graph import OpGraph, OpKind, Stage
from leadline.core.hardware import Device
from leadline.estimators.step_time.roofline import MATRIX_KINDS, UNMEASURED_SPREAD, describe_doubts, widen_spread

PRECISIONS = {"float32": "single", "tf32": "TF32", "float16": "half", "bfloat16": "half"}
# Share of the arithmetic in convolutions from which on a model works on images, whatever else it does.
CONVOLVING = 0.5
# Spread added for another architecture of the same vendor, an assumption.
ANOTHER_ARCHITECTURE = 0.1
# The same for float32 on an unmeasured device with 128 lanes a unit. On GeForce boards half of them share their work
# with integers, on H100 none, and no measured step tells the two apart. An assumption that covers a factor of 1.22.
LANES, OTHER_LANES = 128, 0.12


class Domain(StrEnum):
    """Field of a model, which decides its kernels."""

    VISION = "vision"
    LANGUAGE = "language"
    OTHER = "other"


class StepGroup(Frozen):
    """Graphs with similar errors: same domain, precision of products, and phase."""

    domain: Domain
    precision: str
    phase: str

    def __str__(self) -> str:
        precision = "TF32" if self.precision == "TF32" else f"{self.precision} precision"
        if self.domain is Domain.OTHER:
            return f"{self.phase} in {precision} of models that are neither vision nor language"
        return f"{self.domain} {self.phase} in {precision}"


class AccuracyRecord(Frozen):
    """Accuracy of an estimator on steps of a group that it had not learned from.

    ``known`` is true if it had learned from other steps of the same device. ``error`` is the mean of |predicted ÷
    measured − 1|. ``within`` bounds nine in ten |ln(measured ÷ predicted)|. Each device counts the same. ``steps`` were
    measured on ``devices``; ``source`` names the measurements. ``swept`` is true if kernels of those devices were
    measured, as by ``leadline calibrate``.
    """

    estimator: str
    group: StepGroup
    known: bool
    error: float
    within: float
    steps: int
    devices: tuple[str, ...]
    vendors: tuple[str, ...]
    architectures: tuple[str, ...]
    source: str
    swept: bool = False

    @property
    def spread(self) -> float:
        """Standard deviation of a log-normal that has nine in ten errors ``within``."""
        return self.within / NORMAL_90

    def spread_on(self, device: Device) -> tuple[float, tuple[str, ...]]:
        """Return the spread on ``device``, and a sentence for each reason to widen it.

        A device of another vendor gets the spread of unmeasured devices. One of another architecture gets slightly more
        than the measured ones, and so does one whose figures the catalog lacks.
        """
        spread, doubts = self.spread, describe_doubts(device)
        if device.vendor not in self.vendors:
            spread = max(spread, UNMEASURED_SPREAD)
            doubts += (f"none of those steps ran on a device of {device.vendor}: the range is an assumption",)
        elif device.architecture not in self.architectures:
            measured, architecture = ", ".join(self.architectures), device.architecture or "such an architecture"
            spread = math.hypot(spread, ANOTHER_ARCHITECTURE)
            doubts += (f"wider interval (assumed): those steps ran on {measured}, none on {architecture}",)
        if not self.known and self.group.precision == "single" and device.lanes_per_unit == LANES:
            spread = math.hypot(spread, OTHER_LANES)
            doubts += (f"wider interval (assumed): the float32 lanes of {device.name} were not measured",)
        return widen_spread(spread, device), doubts


def find_domain(graph: OpGraph) -> Domain:
    """Return the domain of the model of a graph.

    It is vision if convolutions do much of the arithmetic, or some without word embeddings. It is language if words are
    embedded and attended to.
    """
    arithmetic, kinds = _sum_flops(graph, "kind"), {op.kind for op in graph.ops}
    share = arithmetic.get(OpKind.CONV, 0.0) / (sum(arithmetic.values()) or 1.0)
    words = OpKind.EMBEDDING in kinds
    if share > CONVOLVING or (share > 0 and not words):
        return Domain.VISION
    return Domain.LANGUAGE if words and kinds & {OpKind.ATTENTION, OpKind.SOFTMAX} else Domain.OTHER


def find_step_group(graph: OpGraph, device: Device) -> StepGroup:
    """Return the group of a graph on ``device``; float32 convolutions count as TF32 where available."""
    by_dtype, domain = _sum_flops(graph, "dtype"), find_domain(graph)
    dtype = max(by_dtype, key=lambda candidate: by_dtype[candidate]) if by_dtype else "float32"
    if dtype == "float32" and domain is Domain.VISION and "tf32" in device.peak_flops_per_s:
        dtype = "tf32"
    return StepGroup(domain, PRECISIONS.get(dtype, dtype), "training" if graph.is_training else "inference")


def _sum_flops(graph: OpGraph, field: str) -> dict[str, float]:
    """Return the arithmetic of products by a field of theirs."""
    sums = defaultdict[str, float](float)
    for op in graph.ops:
        if op.kind in MATRIX_KINDS and op.stage is not Stage.OPTIMIZER:
            sums[getattr(op, field)] += op.flops * op.count
    return sums


def rank_estimators(
    records: Sequence[AccuracyRecord], group: StepGroup, candidates: Collection[str], knowing: Collection[str]
) -> list[AccuracyRecord]:
    """Return each estimator's record on the group, least error first.

    ``candidates`` are the available estimators. Those in ``knowing`` learned from steps of this device, and their
    records on known devices count. For the others, records on unknown devices count.
    """
    best_records: dict[str, AccuracyRecord] = {}
    for record in records:
        is_better = record.estimator in knowing if record.known else record.estimator not in best_records
        if is_better and record.estimator in candidates and record.group == group:
            best_records[record.estimator] = record
    return sorted(best_records.values(), key=lambda record: record.error)


def describe_choice(chosen: AccuracyRecord, alternatives: Sequence[AccuracyRecord], *, by_user: bool = False) -> str:
    """Return the reason for choosing an estimator; ``by_user`` if the user chose it."""
    where = "in its training data" if chosen.known else "outside its training data"
    where = "on swept devices of which it knew no steps" if chosen.swept else f"on devices {where}"
    by = f"{chosen.estimator}, as asked" if by_user else chosen.estimator
    text = (
        f"priced by the {by}: {chosen.error:.0%} off on {chosen.steps:,} steps of {chosen.group} {where} "
        f"({chosen.source})"
    )
    if not alternatives:
        return text
    return f"{text}; " + ", ".join(f"the {record.estimator} {record.error:.0%}" for record in alternatives)
