"""Resolve the names after ``--on``: bare devices, and the nodes of the catalog's partitions."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from leadline.core.errors import AmbiguousName, InvalidInput, LeadlineError, UnknownName
from leadline.core.estimate import Target
from leadline.core.frozen import Frozen
from leadline.core.hardware import Device, DeviceKind
from leadline.core.ports import Catalog
from leadline.core.recommendation import Rejection
from leadline.core.systems import NodeType, Partition, System
from leadline.core.workload import Workload
from leadline.estimators.parallelism.fabric import usual_server
from leadline.estimators.step_time.power_limit import limit_power

LOCAL = "local"
"""Name of this machine after ``--on``."""
ANY_SLURM = "slurm"
"""Target name of any Slurm cluster that the catalog does not know."""


class ResolvedTarget(Frozen):
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


class ResolvedTargets(Frozen):
    """The targets of a request, and those without a usable device."""

    targets: tuple[ResolvedTarget, ...]
    unusable: tuple[Rejection, ...] = ()

    @property
    def left_out(self) -> tuple[str, ...]:
        """Return a sentence for every partition that cannot be estimated."""
        return tuple(f"{row.system}:{row.partition}: {row.reason}" for row in self.unusable)


def resolve_targets(catalog: Catalog, on: Sequence[str], workload: Workload) -> ResolvedTargets:
    """Resolve ``SYSTEM``, ``SYSTEM:PARTITION`` or ``DEVICE`` names; without names, every partition in production.

    Where the workload needs GPUs, targets without accelerators are unusable. If only its launcher asks for them, a CPU
    that is named by itself runs its processes.

    Raises:
        UnknownName: no system or device has that name.
        InvalidInput: a named target has no usable device.
    """
    if on:
        rows = [row for name in on for row in _named(catalog, name, workload)]
    else:
        systems = [system for system in catalog.systems() if not system.status.startswith("decommissioned")]
        rows = [row for each in systems for row in _placed(catalog, each, each.partitions, workload)]
    return ResolvedTargets(
        tuple(row for row in rows if isinstance(row, ResolvedTarget)),
        tuple(row for row in rows if isinstance(row, Rejection)),
    )


def local_device(catalog: Catalog) -> Device:
    """Return the record of this machine: its calibrated GPU if there is one, else its calibrated CPU.

    Raises:
        InvalidInput: nothing is calibrated on this machine.
    """
    measured = [device for device in catalog.devices() if device.calibration is not None]
    if not measured:
        raise InvalidInput("this machine is not calibrated: run leadline calibrate")
    return min(measured, key=lambda device: device.kind is DeviceKind.CPU)


def node_device(catalog: Catalog, node: NodeType, power_limit_w: float | None = None) -> Device | None:
    """Return the device of a node: one accelerator, or all its CPU sockets as one device; ``None`` if unknown.

    An accelerator is under ``power_limit_w``, else under the limit of the node. ``InvalidInput`` if it accepts no such
    limit.
    """
    if node.device is not None:
        limit_w = node.power_limit_w if power_limit_w is None else power_limit_w
        device = catalog.device(node.device)
        device = device if limit_w is None else limit_power(device, limit_w)
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


def _named(catalog: Catalog, name: str, workload: Workload) -> list[ResolvedTarget | Rejection]:
    """Return the targets of one ``--on`` name: a system (with a partition) first, then a device."""
    if name.casefold() == LOCAL:
        return [_bare_target(local_device(catalog), workload)]
    system_name, _, partition = name.partition(":")
    try:
        system = catalog.system(system_name)
    except UnknownName as not_a_system:
        if partition:
            raise
        try:
            return [_bare_target(catalog.device(name), workload)]
        except AmbiguousName:
            raise
        except UnknownName as not_a_device:
            names = [system.name for system in catalog.systems()] + [device.name for device in catalog.devices()]
            fix = "leadline systems list and leadline devices list show the known ones"
            raise UnknownName("system or device", name, names, fix=fix, hint=not_a_device.hint) from not_a_system
    partitions = (system.partition(partition),) if partition else system.partitions
    rows = list(_placed(catalog, system, partitions, workload))
    reasons = sorted({row.reason for row in rows if isinstance(row, Rejection)})
    if reasons and all(isinstance(row, Rejection) for row in rows):
        raise InvalidInput(f"cannot estimate {name}: {'; '.join(reasons)}")
    return rows


def _bare_target(device: Device, workload: Workload) -> ResolvedTarget:
    gpus, is_launched = workload.gpus, "gpus" in workload.defaulted
    device = device if workload.power_limit_w is None else limit_power(device, workload.power_limit_w)
    if workload.needs_gpus and not is_launched and device.kind is DeviceKind.CPU:
        raise InvalidInput(f"{device.name} is a CPU, and --gpus asks for {gpus}: name a GPU, or leave --gpus out")
    return ResolvedTarget(Target(device.name, gpus=gpus), device)


def _placed(
    catalog: Catalog, system: System, partitions: Sequence[Partition], workload: Workload
) -> Iterator[ResolvedTarget | Rejection]:
    """Yield the target on each partition, or why it is unusable (``no-gpus``, ``device-unknown``, ``power-limit``)."""
    gpus, need_gpus = workload.gpus, workload.needs_gpus
    for partition in partitions:
        node = partition.node
        place = (system.name, partition.name, node.name)
        try:
            device = node_device(catalog, node, workload.power_limit_w)
        except InvalidInput as error:
            yield Rejection(*place, str(error), "power-limit", gpus)
            continue
        if need_gpus and node.device is None and not node.gpus:
            yield Rejection(*place, f"it has no GPUs, and the job asks for {gpus}", "no-gpus", gpus)
        elif device is None or (need_gpus and node.device is None):
            reason = f"the catalog has no specs for its processor ({node.cpu_model or 'not named'})"
            reason = "its GPU model is unknown" if node.gpus else reason
            yield Rejection(*place, reason, "device-unknown", gpus)
        else:
            per_node = 1 if device.kind is DeviceKind.CPU else node.gpus or usual_server(device).gpus
            target = Target(device.name, *place, gpus, math.ceil(gpus / per_node))
            yield ResolvedTarget(target, device, system, partition)


def lookup_partition(system: str | None, partition: str | None, catalog: Catalog) -> Partition | None:
    """Return the rules of a partition; ``None`` if the catalog does not have them."""
    if system is None or system.casefold() in (LOCAL, ANY_SLURM) or partition is None:
        return None
    try:
        return catalog.system(system).partition(partition)
    except LeadlineError:
        return None
