"""Resolve the names after ``--on``: bare devices, and the nodes of the catalog's partitions."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from leadline.core.errors import AmbiguousName, InvalidInput, UnknownName
from leadline.core.estimate import Target
from leadline.core.hardware import Device, DeviceKind
from leadline.core.ports import Catalog
from leadline.core.systems import NodeType, Partition, System
from leadline.estimators.parallelism.fabric import usual_node_gpus

LOCAL = "local"
"""Name of this machine after ``--on``."""
ANY_SLURM = "slurm"
"""Target name of any Slurm cluster that the catalog does not know."""


@dataclass(frozen=True, slots=True)
class ResolvedTarget:
    """A target with its catalog entries: a bare device, or GPUs (or whole CPU nodes) of a partition."""

    target: Target
    device: Device
    system: System | None = None
    partition: Partition | None = None

    @property
    def name(self) -> str:
        """Return the target as it is written after ``--on``."""
        if self.target.system is None:
            return self.device.name
        return f"{self.target.system}:{self.target.partition}"


class UnusableTarget(NamedTuple):
    """A partition that cannot be estimated, the reason, and its class (``device-unknown`` or ``no-gpus``)."""

    system: str
    partition: str
    node: str
    reason: str
    kind: str


@dataclass(frozen=True, slots=True)
class ResolvedTargets:
    """The targets of a request, and those without a usable device."""

    targets: tuple[ResolvedTarget, ...]
    unusable: tuple[UnusableTarget, ...] = ()

    @property
    def left_out(self) -> tuple[str, ...]:
        """Return a sentence for every partition that cannot be estimated."""
        return tuple(f"{row.system}:{row.partition}: {row.reason}" for row in self.unusable)


def resolve_targets(catalog: Catalog, on: Sequence[str], gpus: int, *, need_gpus: bool = False) -> ResolvedTargets:
    """Resolve ``SYSTEM``, ``SYSTEM:PARTITION`` or ``DEVICE`` names; without names, every partition in production.

    With ``need_gpus``, targets without accelerators are unusable.

    Raises:
        UnknownName: no system or device has that name.
        InvalidInput: a named target has no usable device.
    """
    targets: list[ResolvedTarget] = []
    unusable: list[UnusableTarget] = []
    for system in () if on else catalog.systems():
        if not system.status.startswith("decommissioned"):
            _add(catalog, system, system.partitions, gpus, need_gpus, targets, unusable)
    for name in on:
        targets_before, unusable_before = len(targets), len(unusable)
        _add_named(catalog, name, gpus, need_gpus, targets, unusable)
        if len(targets) == targets_before:
            reasons = "; ".join(sorted({row.reason for row in unusable[unusable_before:]}))
            raise InvalidInput(f"cannot estimate {name}: {reasons}")
    return ResolvedTargets(tuple(targets), tuple(unusable))


def local_device(catalog: Catalog) -> Device:
    """Return the record of this machine: its calibrated GPU if there is one, else its calibrated CPU.

    Raises:
        InvalidInput: nothing is calibrated on this machine.
    """
    measured = [device for device in catalog.devices() if device.calibration is not None]
    if not measured:
        raise InvalidInput("this machine is not calibrated: run leadline calibrate")
    return min(measured, key=lambda device: device.kind is DeviceKind.CPU)


def node_device(catalog: Catalog, node: NodeType) -> Device | None:
    """Return the device of a node: one accelerator, or all its CPU sockets as one device; ``None`` if unknown."""
    if node.device is not None:
        device = catalog.device(node.device)
        return device if node.scale_up_gpus is None else replace(device, scale_up_gpus=node.scale_up_gpus)
    if node.processor is None:
        return None
    processor = catalog.device(node.processor)
    return replace(
        processor,
        memory_bytes=node.usable_memory_bytes or node.memory_bytes,
        memory_bytes_per_s=processor.memory_bytes_per_s and processor.memory_bytes_per_s * node.sockets,
        peak_flops_per_s={dtype: peak * node.sockets for dtype, peak in processor.peak_flops_per_s.items()},
        compute_units=node.cores or processor.compute_units,
    )


def _add_named(
    catalog: Catalog, name: str, gpus: int, need_gpus: bool, targets: list[ResolvedTarget],
    unusable: list[UnusableTarget],
) -> None:  # fmt: skip
    """Add the targets of one ``--on`` name: a system (with a partition) first, then a device."""
    if name.casefold() == LOCAL:
        targets.append(_bare_target(local_device(catalog), gpus, need_gpus))
        return
    system_name, _, partition = name.partition(":")
    try:
        system = catalog.system(system_name)
    except UnknownName as not_a_system:
        if partition:
            raise
        try:
            bare = catalog.device(name)
        except AmbiguousName:
            raise
        except UnknownName as not_a_device:
            names = [system.name for system in catalog.systems()] + [device.name for device in catalog.devices()]
            fix = "leadline systems list and leadline devices list show the known ones"
            raise UnknownName("system or device", name, names, fix=fix, hint=not_a_device.hint) from not_a_system
        targets.append(_bare_target(bare, gpus, need_gpus))
        return
    partitions = (system.partition(partition),) if partition else system.partitions
    _add(catalog, system, partitions, gpus, need_gpus, targets, unusable)


def _bare_target(device: Device, gpus: int, need_gpus: bool) -> ResolvedTarget:
    if need_gpus and device.kind is DeviceKind.CPU:
        raise InvalidInput(f"{device.name} is a CPU, and --gpus asks for {gpus}: name a GPU, or leave --gpus out")
    return ResolvedTarget(Target(device.name, gpus=gpus), device)


def _add(
    catalog: Catalog, system: System, partitions: Sequence[Partition], gpus: int, need_gpus: bool,
    targets: list[ResolvedTarget], unusable: list[UnusableTarget],
) -> None:  # fmt: skip
    for partition in partitions:
        node = partition.node
        device = node_device(catalog, node)
        if need_gpus and node.device is None and not node.gpus:
            reason = f"it has no GPUs, and the job asks for {gpus}"
            unusable.append(UnusableTarget(system.name, partition.name, node.name, reason, "no-gpus"))
            continue
        if device is None or (need_gpus and node.device is None):
            reason = f"the catalog has no specs for its processor ({node.cpu_model or 'not named'})"
            reason = "its GPU model is unknown" if node.gpus else reason
            unusable.append(UnusableTarget(system.name, partition.name, node.name, reason, "device-unknown"))
            continue
        per_node = 1 if device.kind is DeviceKind.CPU else node.gpus or usual_node_gpus(device)
        target = Target(device.name, system.name, partition.name, node.name, gpus, math.ceil(gpus / per_node))
        targets.append(ResolvedTarget(target, device, system, partition))
