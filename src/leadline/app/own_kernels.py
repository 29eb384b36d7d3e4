"""What own measured steps made of a device's estimators, in place of the shipped ones."""

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from leadline.app.learned_kernels import learned_on
from leadline.core.graph import TracedJob
from leadline.core.hardware import Device
from leadline.core.ports import KernelModel
from leadline.estimators.learned.law_kernels import LawKernels, is_channels_last
from leadline.estimators.learned.selection import group_of
from leadline.estimators.scaled import Scaled
from leadline.training.own_steps import OwnRecord, OwnSteps, own_path, read

Shipped = Callable[[Device, TracedJob], KernelModel]
"""Returns the price list of a device that knows of no own steps."""


def adapted(device: Device, job: TracedJob, folder: Path, shipped: Shipped) -> KernelModel | None:
    """Return the estimator that own steps made for such jobs; ``None`` where there are none.

    Raises:
        InvalidInput: the file of the device cannot be read.
    """
    own = own_steps(device, folder)
    record = own.card.find(group_of(job.step, device), channels_last=is_channels_last(job.step)) if own else None
    if own is None or record is None:
        return None
    why = (_reason(record),)
    if record.by_law and own.laws is not None:
        return Scaled(
            LawKernels(own.laws, device, job.step, devices=learned_on, spread=record.spread), 1.0, reasons=why
        )
    return Scaled(shipped(device, job), record.factor, record.spread, why)


def own_steps(device: Device, folder: Path) -> OwnSteps | None:
    """Return what was learned of a device; ``None`` where nothing was.

    Raises:
        InvalidInput: the file of the device cannot be read.
    """
    path = own_path(folder, device)
    return _read(path, path.stat().st_mtime_ns) if path.is_file() else None


@lru_cache(maxsize=8)
def _read(path: Path, _changed_ns: int) -> OwnSteps:
    return read(path)


def _reason(record: OwnRecord) -> str:
    kind = record.group or "all kinds"
    return (
        f"adapted to {record.runs} own steps of {kind} ({record.source}): {record.error:.0%} off on models left out of "
        f"them, {record.before:.0%} before"
    )
