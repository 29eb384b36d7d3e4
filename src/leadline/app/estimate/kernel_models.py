"""The shipped kernel models of a GPU step, the choice among them, and those fitted to its own sweep or steps."""

import hashlib
import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache, lru_cache
from importlib.util import find_spec
from pathlib import Path

from leadline.app import settings
from leadline.catalog.read import TomlCatalog
from leadline.core.documents import to_json
from leadline.core.errors import InvalidInput
from leadline.core.estimate import EstimatorChoice
from leadline.core.graph import OpGraph, TracedJob
from leadline.core.hardware import Device
from leadline.core.ports import KernelModel
from leadline.estimators.ports import State, strings, text_array
from leadline.estimators.recent_cache import RecentCache
from leadline.estimators.step_time.adaptation import ScaledKernels
from leadline.estimators.step_time.fitted_kernels import FittedKernels, LearnedKernels
from leadline.estimators.step_time.op_utilization_kernels import OpUtilizationKernels, is_channels_last
from leadline.estimators.step_time.power_limit import describe_power_limit, limit_spread
from leadline.estimators.step_time.roofline import UNMEASURED_SPREAD, RooflineKernels, describe_doubts, widen_spread
from leadline.estimators.step_time.selection import (
    AccuracyRecord,
    StepGroup,
    describe_choice,
    find_step_group,
    rank_estimators,
)
from leadline.estimators.step_time.step_kernels import BlackBoxKernels, NetworkKernels
from leadline.estimators.step_time.swept_kernels import SweptKernels, fit_calibration
from leadline.training.adapted_steps import AdaptedSteps, adapted_steps_path, read_adapted_steps
from leadline.training.array_files import keep_cached, load_cached
from leadline.training.shipped_files import read_shipped
from leadline.training.shipped_models import (
    KERNELS_FILE,
    shipped_accuracy,
    shipped_black_box,
    shipped_kernels,
    shipped_network,
    shipped_op_utilization,
)

MADE_OF = "made_of"
"""Entry of a cache file: a hash of the shipped kernels and the calibration that it was made from."""


def _fit_sweep(device: Device) -> FittedKernels:
    """Return the shipped kernels fitted to the sweep of ``device``."""
    # The fit takes seconds, so its result is cached in a file. It is redone when the calibration or the shipped kernels
    # change, or when the file is damaged or cannot be written.
    path = settings.data_dir() / "swept" / f"{device.file_stem}.npz"
    made_of = hashlib.sha256(read_shipped(KERNELS_FILE) + to_json(device).encode()).hexdigest()

    def restore(state: State) -> FittedKernels | None:
        return FittedKernels.load(state) if strings(state[MADE_OF]) == (made_of,) else None

    fitted = load_cached(path, restore)
    if fitted is None:
        fitted = fit_calibration(shipped_kernels(), device).for_device(device.name)
        keep_cached(path, {**fitted.dump(), MADE_OF: text_array([made_of])})
    return shipped_kernels().merge(fitted)


swept_kernels = RecentCache(_fit_sweep)
"""The kernels fitted to a device's sweep, cached per device.

Raises:
    InvalidInput: the device is not calibrated, or lacks specs that the estimators need.
"""


LAW, NETWORK, SPECS = OpUtilizationKernels.name, NetworkKernels.name, RooflineKernels.name
BLACK_BOX = BlackBoxKernels.name


def most_accurate_kernels(device: Device, graph: OpGraph) -> KernelModel:
    """Return the estimator with the smallest error on measured steps of the graph's group, of those that cover it.

    Raises:
        InvalidInput: not even the vendor's specs suffice.
    """
    group = find_step_group(graph, device)
    order = _ranked_records(device, graph, group)
    refused: list[str] = []
    for place, record in enumerate(order):
        try:
            spread, doubts = record.spread_on(device)
            why = (describe_choice(record, order[place + 1 :]), *doubts, *refused)
            return _build_kernels(record.estimator, device, graph, spread, why)
        except InvalidInput as error:
            refused.append(f"the {record.estimator} (error {record.error:.0%}) does not apply: {error}")
    why = (f"the interval is an assumption: no measured steps are like this job ({group})", *describe_doubts(device))
    name = SweptKernels.name if device.is_calibrated else SPECS
    return _build_kernels(name, device, graph, widen_spread(UNMEASURED_SPREAD, device), (*why, *refused))


def chosen_kernels(device: Device, graph: OpGraph, choice: EstimatorChoice) -> KernelModel:
    """Return the estimator that the user chose, with its known error.

    Raises:
        InvalidInput: it does not cover the graph on this device.
        MissingExtra: it is the network, and onnxruntime is not installed.
    """
    name = _NAMES.get(choice, _kernels_on(device))
    order = _ranked_records(device, graph, group := find_step_group(graph, device))
    chosen = next((record for record in order if record.estimator == name), None)
    if chosen is None:
        why = (
            f"estimated with the {name}, your choice; the interval is an assumption, because no "
            f"measured steps are like this job ({group})"
        )
        spread = widen_spread(UNMEASURED_SPREAD, device)
        return _build_kernels(name, device, graph, spread, (why, *describe_doubts(device)))
    spread, doubts = chosen.spread_on(device)
    reason_text = describe_choice(chosen, [record for record in order if record is not chosen], by_user=True)
    return _build_kernels(name, device, graph, spread, (reason_text, *doubts))


def _kernels_on(device: Device) -> str:
    return SweptKernels.name if device.is_calibrated else LearnedKernels.name


def _ranked_records(device: Device, graph: OpGraph, group: StepGroup) -> list[AccuracyRecord]:
    """Return the records of the available estimators, the smallest error first."""
    kernels, records = _kernels_on(device), shipped_accuracy()
    # If swept kernels have no record of a group, that of kernels without a sweep is used.
    if not any(record.estimator == kernels and record.group == group for record in records):
        unswept = [record for record in records if record.estimator == LearnedKernels.name and record.group == group]
        records += tuple(
            replace(record, estimator=kernels, source=f"{record.source}, without a sweep") for record in unswept
        )
    names = (LAW, kernels, BLACK_BOX, SPECS, *([NETWORK] if find_spec("onnxruntime") else []))
    knows = shipped_op_utilization().has_device(device, training=graph.is_training)
    return rank_estimators(records, group, names, (LAW, BLACK_BOX, NETWORK) if knows else ())


def _build_kernels(name: str, device: Device, graph: OpGraph, spread: float, reasons: tuple[str, ...]) -> KernelModel:
    """Return the estimator of a name, with a standard deviation and reasons.

    Raises:
        InvalidInput: it does not cover the graph on this device.
    """
    if name == SPECS:
        return RooflineKernels(device, spread=spread, reasons=reasons)
    if name in (LearnedKernels.name, SweptKernels.name):
        is_swept = name == SweptKernels.name
        kind, fitted = (SweptKernels, swept_kernels(device)) if is_swept else (LearnedKernels, shipped_kernels())
        kernels = kind(fitted, device, spread=spread, reasons=reasons)
        # Raises now, and not at the first estimate, if the device lacks the graph's dtype.
        kernels.step_s(graph)
        return kernels
    models = shipped_op_utilization()
    # Raises for kernels without training data, also for the network and the black box.
    by_ops = OpUtilizationKernels(models, device, graph, devices=shipped_device, spread=spread, reasons=reasons)
    if name == LAW:
        return by_ops
    newest = max(models.settings_for(device, graph), key=lambda setting: setting.release)
    if name == NETWORK:
        return NetworkKernels(shipped_network(), device, newest, spread=spread, reasons=reasons)
    return BlackBoxKernels(shipped_black_box(), device, newest, spread=spread, reasons=reasons)


_NAMES = {
    EstimatorChoice.OP_UTILIZATION: LAW, EstimatorChoice.NETWORK: NETWORK, EstimatorChoice.BLACK_BOX: BLACK_BOX,
    EstimatorChoice.SPECS: SPECS,
}  # fmt: skip


@cache
def shipped_device(name: str) -> Device:
    """Return a device that a shipped model was trained on, with its shipped specs."""
    return TomlCatalog(None, settings.cache_dir()).device(name)


Shipped = Callable[[Device, TracedJob], KernelModel]
"""Returns the kernel model of a device without adapted steps."""


def adapted_kernels(device: Device, job: TracedJob, shipped: Shipped) -> KernelModel | None:
    """Return the estimator adapted to measured steps of such jobs; ``None`` if there is none.

    Raises:
        InvalidInput: the file of the device cannot be read.
    """
    adapted = load_adapted_steps(device)
    if adapted is None:
        return None
    record = adapted.card.find(find_step_group(job.step, device), channels_last=is_channels_last(job.step))
    if record is None:
        return None
    reason = (
        f"adapted to {record.runs} measured steps of {record.group or 'all kinds of job'} ({record.source}): error "
        f"{record.error:.0%} on left-out models, {record.before:.0%} before"
    )
    reasons = (reason, *describe_power_limit(device))
    spread = math.hypot(record.spread, limit_spread(device, adapted.card.power_limit_w))
    if record.by_law and adapted.laws is not None:
        refitted = OpUtilizationKernels(adapted.laws, device, job.step, devices=shipped_device, spread=spread)
        return ScaledKernels(refitted, 1.0, reasons=reasons)
    return ScaledKernels(shipped(device, job), record.factor, spread, reasons)


def in_adapted_host(device: Device) -> Device:
    """Return the device with the launch cost that its adapted steps showed, unless it was measured.

    Raises:
        InvalidInput: the file of the device cannot be read.
    """
    adapted = None if device.launch_s else load_adapted_steps(device)
    if adapted is None or adapted.card.whole_steps is None:
        return device
    return device.with_launch(adapted.card.whole_steps.launch_s)


def load_adapted_steps(device: Device) -> AdaptedSteps | None:
    """Return what was learned of a device; ``None`` where nothing was.

    Raises:
        InvalidInput: the file of the device cannot be read.
    """
    path = adapted_steps_path(settings.adapted_dir(), device)
    return _read(path, path.stat().st_mtime_ns) if path.is_file() else None


@lru_cache(maxsize=8)
def _read(path: Path, _changed_ns: int) -> AdaptedSteps:
    return read_adapted_steps(path)
