"""Find the places a workload can run: bare devices, and the nodes of the catalog's partitions."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from leadline.core.errors import InvalidInput, UnknownName
from leadline.core.estimate import Target
from leadline.core.hardware import Device, DeviceKind
from leadline.core.ports import Catalog
from leadline.core.systems import NodeType, Partition, System

LOCAL = "local"
"""The name of the machine at hand, after ``--on``."""


@dataclass(frozen=True, slots=True)
class ResolvedTarget:
    """Somewhere a workload can run: a bare device, or GPUs (or whole CPU nodes) of a partition."""

    target: Target
    device: Device
    system: System | None = None
    partition: Partition | None = None

    @property
    def name(self) -> str:
        """How the user would write this place after ``--on``."""
        if self.target.system is None:
            return self.device.name
        return f"{self.target.system}:{self.target.partition}"


@dataclass(frozen=True, slots=True)
class ResolvedTargets:
    """The places found; and (system, partition, node, reason) of those of which nothing can be said."""

    targets: tuple[ResolvedTarget, ...]
    unknown: tuple[tuple[str, str, str, str], ...] = ()

    @property
    def left_out(self) -> tuple[str, ...]:
        """Return a sentence for every place of which nothing can be said."""
        return tuple(f"{system}:{partition}: {reason}" for system, partition, _, reason in self.unknown)


def resolve_targets(catalog: Catalog, on: Sequence[str], gpus: int) -> ResolvedTargets:
    """Resolve ``SYSTEM``, ``SYSTEM:PARTITION`` or ``DEVICE`` names; without names, every partition in production.

    Raises:
        UnknownName: nothing of that name.
        InvalidInput: a named place has no usable device.
    """
    found: list[ResolvedTarget] = []
    unknown: list[tuple[str, str, str, str]] = []
    for system in () if on else catalog.systems():
        if not system.status.startswith("decommissioned"):
            _add(catalog, system, system.partitions, gpus, found, unknown)
    for name in on:
        had, said = len(found), len(unknown)
        _add_named(catalog, name, gpus, found, unknown)
        if len(found) == had:
            reasons = "; ".join(sorted({reason for *_, reason in unknown[said:]}))
            raise InvalidInput(f"nothing can be said about {name}: {reasons}")
    return ResolvedTargets(tuple(found), tuple(unknown))


def local_device(catalog: Catalog) -> Device:
    """Return the record of the machine at hand: its calibrated GPU if there is one, else its calibrated CPU.

    Raises:
        InvalidInput: nothing was calibrated here.
    """
    measured = [device for device in catalog.devices() if device.calibration is not None]
    if not measured:
        raise InvalidInput("this machine is not calibrated, so nothing can be said about it: run leadline calibrate")
    return min(measured, key=lambda device: device.kind is DeviceKind.CPU)


def node_device(catalog: Catalog, node: NodeType) -> Device | None:
    """Return what computes in a node: one accelerator, or all its processor sockets as one device; ``None`` unknown."""
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
    catalog: Catalog, name: str, gpus: int, found: list[ResolvedTarget], unknown: list[tuple[str, str, str, str]]
) -> None:
    """Add the places of one ``--on`` value: a system (with a partition) first, then a device."""
    if name.casefold() == LOCAL:
        device = local_device(catalog)
        found.append(ResolvedTarget(Target(device.name, gpus=gpus), device))
        return
    system_name, _, partition = name.partition(":")
    try:
        system = catalog.system(system_name)
    except UnknownName as not_a_system:
        if partition:
            raise
        try:
            bare = catalog.device(name)
        except UnknownName:
            known = [one.name for one in catalog.systems()] + [one.name for one in catalog.devices()]
            fix = "leadline systems list and leadline devices list show the known ones"
            raise UnknownName("system or device", name, known, fix=fix) from not_a_system
        found.append(ResolvedTarget(Target(bare.name, gpus=gpus), bare))
        return
    partitions = (system.partition(partition),) if partition else system.partitions
    _add(catalog, system, partitions, gpus, found, unknown)


def _add(
    catalog: Catalog,
    system: System,
    partitions: Sequence[Partition],
    gpus: int,
    found: list[ResolvedTarget],
    unknown: list[tuple[str, str, str, str]],
) -> None:
    for partition in partitions:
        node = partition.node
        device = node_device(catalog, node)
        if device is None:
            reason = f"the catalog has no figures for its processor ({node.cpu_model or 'not named'})"
            reason = "the model of its GPUs is not known" if node.gpus else reason
            unknown.append((system.name, partition.name, node.name, reason))
            continue
        per_node = 1 if device.kind is DeviceKind.CPU else node.gpus or 1
        target = Target(device.name, system.name, partition.name, node.name, gpus, math.ceil(gpus / per_node))
        found.append(ResolvedTarget(target, device, system, partition))
