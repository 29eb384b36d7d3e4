"""Resolve the names after ``--on``: bare devices, and the nodes of the catalog's partitions."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from leadline.core.errors import AmbiguousName, InvalidInput, UnknownName
from leadline.core.estimate import Target
from leadline.core.hardware import Device, DeviceKind
from leadline.core.ports import Catalog
from leadline.core.systems import NodeType, Partition, System

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


@dataclass(frozen=True, slots=True)
class ResolvedTargets:
    """The targets of a request, and those without a usable device.

    Attributes:
        targets: resolved targets.
        unknown: (system, partition, node, reason) of each partition that cannot be estimated.
    """

    targets: tuple[ResolvedTarget, ...]
    unknown: tuple[tuple[str, str, str, str], ...] = ()

    @property
    def left_out(self) -> tuple[str, ...]:
        """Return a sentence for every partition that cannot be estimated."""
        return tuple(f"{system}:{partition}: {reason}" for system, partition, _, reason in self.unknown)


def resolve_targets(catalog: Catalog, on: Sequence[str], gpus: int) -> ResolvedTargets:
    """Resolve ``SYSTEM``, ``SYSTEM:PARTITION`` or ``DEVICE`` names; without names, every partition in production.

    Raises:
        UnknownName: no system or device has that name.
        InvalidInput: a named target has no usable device.
    """
    targets: list[ResolvedTarget] = []
    unknown: list[tuple[str, str, str, str]] = []
    for system in () if on else catalog.systems():
        if not system.status.startswith("decommissioned"):
            _add(catalog, system, system.partitions, gpus, targets, unknown)
    for name in on:
        targets_before, unknown_before = len(targets), len(unknown)
        _add_named(catalog, name, gpus, targets, unknown)
        if len(targets) == targets_before:
            reasons = "; ".join(sorted({reason for *_, reason in unknown[unknown_before:]}))
            raise InvalidInput(f"cannot estimate {name}: {reasons}")
    return ResolvedTargets(tuple(targets), tuple(unknown))


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
        return catalog.device(node.device)
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
    catalog: Catalog, name: str, gpus: int, targets: list[ResolvedTarget], unknown: list[tuple[str, str, str, str]]
) -> None:
    """Add the targets of one ``--on`` name: a system (with a partition) first, then a device."""
    if name.casefold() == LOCAL:
        device = local_device(catalog)
        targets.append(ResolvedTarget(Target(device.name, gpus=gpus), device))
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
        targets.append(ResolvedTarget(Target(bare.name, gpus=gpus), bare))
        return
    partitions = (system.partition(partition),) if partition else system.partitions
    _add(catalog, system, partitions, gpus, targets, unknown)


def _add(
    catalog: Catalog, system: System, partitions: Sequence[Partition], gpus: int, targets: list[ResolvedTarget],
    unknown: list[tuple[str, str, str, str]],
) -> None:  # fmt: skip
    for partition in partitions:
        node = partition.node
        device = node_device(catalog, node)
        if device is None:
            reason = f"the catalog has no specs for its processor ({node.cpu_model or 'not named'})"
            reason = "its GPU model is unknown" if node.gpus else reason
            unknown.append((system.name, partition.name, node.name, reason))
            continue
        per_node = 1 if device.kind is DeviceKind.CPU else node.gpus or 1
        target = Target(device.name, system.name, partition.name, node.name, gpus, math.ceil(gpus / per_node))
        targets.append(ResolvedTarget(target, device, system, partition))
