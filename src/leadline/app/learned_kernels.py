"""The shipped estimators of a graph on a GPU that nobody calibrated, and the choice among them."""

from collections.abc import Callable
from functools import cache

from leadline.catalog.read import TomlCatalog
from leadline.core.errors import InvalidInput
from leadline.core.graph import OpGraph
from leadline.core.hardware import Device
from leadline.core.ports import KernelModel
from leadline.estimators.learned.kernels import LearnedKernels, tables_of
from leadline.estimators.learned.kernels import Tables as KernelTables
from leadline.estimators.learned.law_kernels import LawKernels
from leadline.estimators.learned.law_kernels import Tables as OpTables
from leadline.estimators.learned.op_table import indexed
from leadline.estimators.learned.remembered import Remembered
from leadline.estimators.learned.selection import group_of, ranked, reason
from leadline.estimators.roofline import SpecsKernels
from leadline.training.shipped_models import shipped_card, shipped_kernels, shipped_laws


def least_off(device: Device, graph: OpGraph) -> KernelModel:
    """Return the estimator that was least off on measured steps of the graph's group, of those that can price it.

    Raises:
        InvalidInput: not even the maker's figures suffice.
    """
    group = group_of(graph, device)
    knows = shipped_laws().knows(device, training=graph.is_training)
    order = ranked(shipped_card().records, group, (LawKernels.name,) if knows else ())
    refused: list[str] = []
    for place, record in enumerate(order):
        try:
            spread, doubts = record.spread_on(device)
            why = (reason(record, order[place + 1 :]), *doubts, *refused)
            return _BUILDERS[record.estimator](device, graph, spread, why)
        except InvalidInput as error:
            refused.append(f"the {record.estimator} would be {record.error:.0%} off, but: {error}")
    assumed = f"the range is an assumption: no steps were measured like this job ({group})"
    return SpecsKernels(device, reasons=(assumed, *refused))


def _law(device: Device, graph: OpGraph, spread: float, why: tuple[str, ...]) -> KernelModel:
    return LawKernels(
        shipped_laws(), device, graph, devices=learned_on, spread=spread, reasons=why, tables=_op_tables()
    )


def _kernels(device: Device, graph: OpGraph, spread: float, why: tuple[str, ...]) -> KernelModel:
    found = LearnedKernels(shipped_kernels(), device, spread=spread, reasons=why, tables=_kernel_tables())
    found.step_s(graph)  # refuses a graph in a dtype that the device lacks, before it is chosen
    return found


def _specs(device: Device, graph: OpGraph, spread: float, why: tuple[str, ...]) -> KernelModel:  # noqa: ARG001
    return SpecsKernels(device, spread=spread, reasons=why)


_BUILDERS: dict[str, Callable[[Device, OpGraph, float, tuple[str, ...]], KernelModel]] = {
    LawKernels.name: _law, LearnedKernels.name: _kernels, SpecsKernels.name: _specs,
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
