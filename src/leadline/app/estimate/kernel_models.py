"""The kernels of a calibrated GPU: the shipped ones with its own sweep fitted in, kept for the next estimate."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from importlib.util import find_spec
from pathlib import Path

from leadline.app import settings
from leadline.app.estimate.state_cache import load_state, save_state
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
from leadline.estimators.step_time.fitted_kernels import FittedKernels
from leadline.estimators.step_time.learned_kernels import KernelTableFactory as KernelTables
from leadline.estimators.step_time.learned_kernels import LearnedKernels, kernel_table_factory
from leadline.estimators.step_time.network import GraphNetwork
from leadline.estimators.step_time.op_table import index_ops
from leadline.estimators.step_time.op_utilization_kernels import OpTableFactory as OpTables
from leadline.estimators.step_time.op_utilization_kernels import OpUtilizationKernels, StepSetting, is_channels_last
from leadline.estimators.step_time.roofline import UNMEASURED_SPREAD, RooflineKernels
from leadline.estimators.step_time.selection import (
    AccuracyRecord,
    StepGroup,
    describe_choice,
    find_step_group,
    rank_estimators,
)
from leadline.estimators.step_time.step_kernels import BlackBoxKernels, NetworkKernels
from leadline.estimators.step_time.swept_kernels import SweptKernels, fit_calibration
from leadline.training.adapted_steps import AdaptedRecord, AdaptedSteps, adapted_steps_path, read_adapted_steps
from leadline.training.shipped_files import read_shipped
from leadline.training.shipped_models import (
    KERNELS_FILE,
    shipped_black_box,
    shipped_estimators_card,
    shipped_kernels,
    shipped_op_utilization,
)

MADE_OF = "made_of"
"""The entry of a kept file that names the shipped kernels and the calibration that it was made of."""


def _fit_sweep(device: Device) -> FittedKernels:
    """Return the shipped kernels with what the sweep of ``device`` says of it.

    Fitting it in takes seconds, so what it gave is kept in a file, which is made anew when the calibration or the
    shipped kernels change. Where it cannot be written, or is damaged, it costs these seconds again and nothing else.
    """
    path = settings.swept_dir() / f"{device.file_stem}.npz"
    made_of = hashlib.sha256(read_shipped(KERNELS_FILE) + to_json(device).encode()).hexdigest()
    own = _load(load_state(path), made_of)
    if own is None:
        own = fit_calibration(shipped_kernels(), device).for_device(device.name)
        save_state(path, {**own.dump(), MADE_OF: text_array([made_of])})
    return shipped_kernels().merge(own)


def _load(state: State | None, made_of: str) -> FittedKernels | None:
    try:
        return FittedKernels.load(state) if state is not None and strings(state[MADE_OF]) == (made_of,) else None
    except (ValueError, KeyError):
        return None


swept_kernels = RecentCache(_fit_sweep)
"""Returns what ``_fit_sweep`` does, at once for the devices that it was asked about before.

Raises:
    InvalidInput: the device is not calibrated, or lacks figures that the laws need.
"""


LAW, NETWORK, SPECS = OpUtilizationKernels.name, NetworkKernels.name, RooflineKernels.name
BLACK_BOX = BlackBoxKernels.name


@dataclass(frozen=True, slots=True)
class _Asked:
    """What an estimator is made for, and what is believed of it: a standard deviation, and sentences on why."""

    device: Device
    graph: OpGraph
    spread: float
    reasons: tuple[str, ...]


def most_accurate_kernels(device: Device, graph: OpGraph) -> KernelModel:
    """Return the estimator that was least off on measured steps of the graph's group, of those that can price it.

    Raises:
        InvalidInput: not even the maker's figures suffice.
    """
    group = find_step_group(graph, device)
    order = _order(device, graph, group)
    refused: list[str] = []
    for place, record in enumerate(order):
        try:
            spread, doubts = record.spread_on(device)
            why = (describe_choice(record, order[place + 1 :]), *doubts, *refused)
            return _BUILDERS[record.estimator](_Asked(device, graph, spread, why))
        except InvalidInput as error:
            refused.append(f"the {record.estimator} would be {record.error:.0%} off, but: {error}")
    why = (f"the range is an assumption: no steps were measured like this job ({group})", *refused)
    return _BUILDERS[SweptKernels.name if device.is_calibrated else SPECS](
        _Asked(device, graph, UNMEASURED_SPREAD, why)
    )


def chosen_kernels(device: Device, graph: OpGraph, choice: EstimatorChoice) -> KernelModel:
    """Return the estimator that the user chose, with what was found of it.

    Raises:
        InvalidInput: it cannot price the graph on this device.
        MissingExtra: it is the network, and onnxruntime is not installed.
    """
    name = _NAMES.get(choice, _kernels_on(device))
    order = _order(device, graph, group := find_step_group(graph, device))
    found = next((one for one in order if one.estimator == name), None)
    if found is None:
        why = (
            f"priced by the {name}, as asked: the range is an assumption, as no steps like this job ({group}) judge it"
        )
        return _BUILDERS[name](_Asked(device, graph, UNMEASURED_SPREAD, (why,)))
    spread, doubts = found.spread_on(device)
    said = describe_choice(found, [one for one in order if one is not found], by_user=True)
    return _BUILDERS[name](_Asked(device, graph, spread, (said, *doubts)))


def _kernels_on(device: Device) -> str:
    return SweptKernels.name if device.is_calibrated else LearnedKernels.name


def _order(device: Device, graph: OpGraph, group: StepGroup) -> list[AccuracyRecord]:
    """Return what was found of each estimator that can be asked here, the least error first.

    Where swept kernels were not asked about a group, what was found of kernels without a sweep counts for them.
    """
    kernels, records = _kernels_on(device), shipped_estimators_card().records
    if not any(one.estimator == kernels and one.group == group for one in records):
        unswept = [one for one in records if one.estimator == LearnedKernels.name and one.group == group]
        records += tuple(replace(one, estimator=kernels, source=f"{one.source}, without a sweep") for one in unswept)
    names = (LAW, kernels, BLACK_BOX, SPECS, *([NETWORK] if find_spec("onnxruntime") else []))
    knows = shipped_op_utilization().has_device(device, training=graph.is_training)
    return rank_estimators(records, group, names, (LAW, BLACK_BOX, NETWORK) if knows else ())


def _law(asked: _Asked) -> KernelModel:
    return OpUtilizationKernels(
        shipped_op_utilization(), asked.device, asked.graph, devices=shipped_device, spread=asked.spread, reasons=asked.reasons,
        tables=_op_tables(),
    )  # fmt: skip


def _kernels(asked: _Asked) -> KernelModel:
    return _told(LearnedKernels, shipped_kernels(), asked)


def _swept(asked: _Asked) -> KernelModel:
    return _told(SweptKernels, swept_kernels(asked.device), asked)


def _told(kind: type[LearnedKernels], fitted: FittedKernels, asked: _Asked) -> KernelModel:
    found = kind(fitted, asked.device, spread=asked.spread, reasons=asked.reasons, tables=_kernel_tables())
    found.step_s(asked.graph)  # refuses a graph in a dtype that the device lacks, before it is chosen
    return found


def _network(asked: _Asked) -> KernelModel:
    setting = _setting(asked)
    return NetworkKernels(_graph_network(), asked.device, setting, spread=asked.spread, reasons=asked.reasons)


def _black_box(asked: _Asked) -> KernelModel:
    setting = _setting(asked)
    return BlackBoxKernels(shipped_black_box(), asked.device, setting, spread=asked.spread, reasons=asked.reasons)


def _setting(asked: _Asked) -> StepSetting:
    """Return the setting of whoever learned from the steps that the law learned from."""
    _law(asked)  # refuses kernels of which no step was learned
    return max(shipped_op_utilization().settings_for(asked.device, asked.graph), key=lambda one: one.release)


def _specs(asked: _Asked) -> KernelModel:
    return RooflineKernels(asked.device, spread=asked.spread, reasons=asked.reasons)


_BUILDERS: dict[str, Callable[[_Asked], KernelModel]] = {
    LAW: _law, LearnedKernels.name: _kernels, SweptKernels.name: _swept, NETWORK: _network, SPECS: _specs,
    BLACK_BOX: _black_box,
}  # fmt: skip

_NAMES = {
    EstimatorChoice.OP_UTILIZATION: LAW, EstimatorChoice.NETWORK: NETWORK, EstimatorChoice.BLACK_BOX: BLACK_BOX,
    EstimatorChoice.SPECS: SPECS,
}  # fmt: skip


@cache
def shipped_device(name: str) -> Device:
    """Return a device that a shipped law was learned on, with the figures that Leadline ships."""
    return TomlCatalog(None).device(name)


@cache
def _op_tables() -> OpTables:
    return RecentCache(index_ops)


@cache
def _kernel_tables() -> KernelTables:
    return kernel_table_factory(shipped_kernels())


@cache
def _graph_network() -> GraphNetwork:
    from leadline.training.shipped_models import shipped_network  # noqa: PLC0415 - onnxruntime loads when it is asked

    return shipped_network()


Shipped = Callable[[Device, TracedJob], KernelModel]
"""Returns the price list of a device that knows of no own steps."""


def adapted_kernels(device: Device, job: TracedJob, folder: Path, shipped: Shipped) -> KernelModel | None:
    """Return the estimator that own steps made for such jobs; ``None`` where there are none.

    Raises:
        InvalidInput: the file of the device cannot be read.
    """
    own = load_adapted_steps(device, folder)
    record = own.card.find(find_step_group(job.step, device), channels_last=is_channels_last(job.step)) if own else None
    if own is None or record is None:
        return None
    why = (_reason(record),)
    if record.by_law and own.laws is not None:
        return ScaledKernels(
            OpUtilizationKernels(own.laws, device, job.step, devices=shipped_device, spread=record.spread),
            1.0,
            reasons=why,
        )
    return ScaledKernels(shipped(device, job), record.factor, record.spread, why)


def load_adapted_steps(device: Device, folder: Path) -> AdaptedSteps | None:
    """Return what was learned of a device; ``None`` where nothing was.

    Raises:
        InvalidInput: the file of the device cannot be read.
    """
    path = adapted_steps_path(folder, device)
    return _read(path, path.stat().st_mtime_ns) if path.is_file() else None


@lru_cache(maxsize=8)
def _read(path: Path, _changed_ns: int) -> AdaptedSteps:
    return read_adapted_steps(path)


def _reason(record: AdaptedRecord) -> str:
    kind = record.group or "all kinds"
    return (
        f"adapted to {record.runs} own steps of {kind} ({record.source}): {record.error:.0%} off on models left out of "
        f"them, {record.before:.0%} before"
    )
