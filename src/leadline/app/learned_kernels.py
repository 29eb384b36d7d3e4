"""The shipped estimators of a graph on a GPU, and the choice among them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec

from leadline.app.swept_kernels import swept_kernels
from leadline.catalog.read import TomlCatalog
from leadline.core.errors import InvalidInput
from leadline.core.estimate import EstimatorChoice
from leadline.core.graph import OpGraph
from leadline.core.hardware import Device
from leadline.core.ports import KernelModel
from leadline.estimators.learned.fitted_kernels import FittedKernels
from leadline.estimators.learned.gnn import GraphNetwork
from leadline.estimators.learned.kernels import LearnedKernels, tables_of
from leadline.estimators.learned.kernels import Tables as KernelTables
from leadline.estimators.learned.law_kernels import LawKernels, StepSetting
from leadline.estimators.learned.law_kernels import Tables as OpTables
from leadline.estimators.learned.op_table import indexed
from leadline.estimators.learned.remembered import Remembered
from leadline.estimators.learned.selection import Group, Record, group_of, ranked, reason
from leadline.estimators.learned.step_kernels import BlackBoxKernels, NetworkKernels
from leadline.estimators.learned.swept import SweptKernels
from leadline.estimators.roofline import SPREAD, SpecsKernels
from leadline.training.shipped_models import shipped_black_box, shipped_card, shipped_kernels, shipped_laws

LAW, NETWORK, SPECS = LawKernels.name, NetworkKernels.name, SpecsKernels.name
BLACK_BOX = BlackBoxKernels.name


@dataclass(frozen=True, slots=True)
class _Asked:
    """What an estimator is made for, and what is believed of it: a standard deviation, and sentences on why."""

    device: Device
    graph: OpGraph
    spread: float
    reasons: tuple[str, ...]


def least_off(device: Device, graph: OpGraph) -> KernelModel:
    """Return the estimator that was least off on measured steps of the graph's group, of those that can price it.

    Raises:
        InvalidInput: not even the maker's figures suffice.
    """
    group = group_of(graph, device)
    order = _order(device, graph, group)
    refused: list[str] = []
    for place, record in enumerate(order):
        try:
            spread, doubts = record.spread_on(device)
            why = (reason(record, order[place + 1 :]), *doubts, *refused)
            return _BUILDERS[record.estimator](_Asked(device, graph, spread, why))
        except InvalidInput as error:
            refused.append(f"the {record.estimator} would be {record.error:.0%} off, but: {error}")
    why = (f"the range is an assumption: no steps were measured like this job ({group})", *refused)
    return _BUILDERS[SweptKernels.name if device.is_calibrated else SPECS](_Asked(device, graph, SPREAD, why))


def chosen(device: Device, graph: OpGraph, choice: EstimatorChoice) -> KernelModel:
    """Return the estimator that the user chose, with what was found of it.

    Raises:
        InvalidInput: it cannot price the graph on this device.
        MissingExtra: it is the network, and onnxruntime is not installed.
    """
    name = _NAMES.get(choice, _kernels_on(device))
    order = _order(device, graph, group := group_of(graph, device))
    found = next((one for one in order if one.estimator == name), None)
    if found is None:
        why = (
            f"priced by the {name}, as asked: the range is an assumption, as no steps like this job ({group}) judge it"
        )
        return _BUILDERS[name](_Asked(device, graph, SPREAD, (why,)))
    spread, doubts = found.spread_on(device)
    said = reason(found, [one for one in order if one is not found], asked=True)
    return _BUILDERS[name](_Asked(device, graph, spread, (said, *doubts)))


def _kernels_on(device: Device) -> str:
    return SweptKernels.name if device.is_calibrated else LearnedKernels.name


def _order(device: Device, graph: OpGraph, group: Group) -> list[Record]:
    """Return what was found of each estimator that can be asked here, the least error first.

    Where swept kernels were not asked about a group, what was found of kernels without a sweep counts for them.
    """
    kernels, records = _kernels_on(device), shipped_card().records
    if not any(one.estimator == kernels and one.group == group for one in records):
        unswept = [one for one in records if one.estimator == LearnedKernels.name and one.group == group]
        records += tuple(replace(one, estimator=kernels, source=f"{one.source}, without a sweep") for one in unswept)
    names = (LAW, kernels, BLACK_BOX, SPECS, *([NETWORK] if find_spec("onnxruntime") else []))
    knows = shipped_laws().knows(device, training=graph.is_training)
    return ranked(records, group, names, (LAW, BLACK_BOX, NETWORK) if knows else ())


def _law(asked: _Asked) -> KernelModel:
    return LawKernels(
        shipped_laws(), asked.device, asked.graph, devices=learned_on, spread=asked.spread, reasons=asked.reasons,
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
    return max(shipped_laws().of(asked.device, asked.graph), key=lambda one: one.release)


def _specs(asked: _Asked) -> KernelModel:
    return SpecsKernels(asked.device, spread=asked.spread, reasons=asked.reasons)


_BUILDERS: dict[str, Callable[[_Asked], KernelModel]] = {
    LAW: _law, LearnedKernels.name: _kernels, SweptKernels.name: _swept, NETWORK: _network, SPECS: _specs,
    BLACK_BOX: _black_box,
}  # fmt: skip

_NAMES = {
    EstimatorChoice.LAW: LAW, EstimatorChoice.NETWORK: NETWORK, EstimatorChoice.BLACK_BOX: BLACK_BOX,
    EstimatorChoice.SPECS: SPECS,
}  # fmt: skip


@cache
def learned_on(name: str) -> Device:
    """Return a device that a shipped law was learned on, with the figures that Leadline ships."""
    return TomlCatalog(None).device(name)


@cache
def _op_tables() -> OpTables:
    return Remembered(indexed)


@cache
def _kernel_tables() -> KernelTables:
    return tables_of(shipped_kernels())


@cache
def _graph_network() -> GraphNetwork:
    from leadline.training.graph_network import shipped_network  # noqa: PLC0415 - onnxruntime loads when it is asked

    return shipped_network()
