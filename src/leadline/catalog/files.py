"""The form of the catalog's TOML files, and how its rows become devices and systems."""

from typing import Any

import msgspec

from leadline.core.documents import load_toml
from leadline.core.errors import InvalidInput
from leadline.core.hardware import Calibration, Confidence, Device, DeviceKind
from leadline.core.systems import (
    Billing,
    BillingRule,
    Limits,
    NodeType,
    Partition,
    SubmitRules,
    System,
)
from leadline.core.units import GB, GIB, HOUR_S, MIB


class DeviceRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One ``[[devices]]`` block; units stand in the names."""

    name: str
    vendor: str
    kind: DeviceKind
    confidence: Confidence
    source: str
    aliases: tuple[str, ...] = ()
    architecture: str | None = None
    compute_capability: str | None = None
    form_factor: str | None = None
    memory_gib: float | None = None
    memory_type: str | None = None
    memory_gb_per_s: float | None = None
    tflops: dict[str, float] = msgspec.field(default_factory=dict)
    compute_units: int | None = None
    lanes_per_unit: int | None = None
    boost_mhz: float | None = None
    base_mhz: float | None = None
    l2_mib: float | None = None
    tdp_w: float | None = None
    link_gb_per_s: float | None = None
    pcie_generation: int | None = None
    as_of: str = ""
    note: str = ""
    calibration: Calibration | None = None

    def device(self) -> Device:
        """Return the row as a device, in base units."""
        return Device(
            name=self.name,
            vendor=self.vendor,
            kind=self.kind,
            memory_bytes=_scaled_whole(self.memory_gib, GIB),
            memory_bytes_per_s=_scaled(self.memory_gb_per_s, GB),
            peak_flops_per_s={dtype: rate * 1e12 for dtype, rate in self.tflops.items()},
            architecture=self.architecture,
            compute_capability=self.compute_capability,
            form_factor=self.form_factor,
            memory_type=self.memory_type,
            compute_units=self.compute_units,
            lanes_per_unit=self.lanes_per_unit,
            boost_hz=_scaled(self.boost_mhz or self.base_mhz, 1e6),
            l2_bytes=_scaled_whole(self.l2_mib, MIB),
            tdp_w=self.tdp_w,
            link_bytes_per_s=_scaled(self.link_gb_per_s, GB),
            pcie_generation=self.pcie_generation,
            aliases=self.aliases,
            confidence=self.confidence,
            source=self.source,
            as_of=self.as_of,
            note=self.note,
            calibration=self.calibration,
        )


class DevicesFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of devices."""

    devices: tuple[DeviceRow, ...]


class BillingRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One ``[systems.billing.NAME]`` table."""

    rule: BillingRule
    currency: str
    core_hour: float | None = None
    gpu_hour: float | None = None
    node_hour: float | None = None
    memory_gib_per_core: float | None = None
    memory_gib_per_gpu: float | None = None
    cores_per_gpu: int | None = None
    minimum: float = 0.0
    whole_units: bool = False
    free: bool = False
    source: str = ""
    as_of: str = ""
    note: str = ""


class NodeRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One ``[systems.nodes.NAME]`` table."""

    name: str = ""
    count: int | None = None
    cpu_model: str | None = None
    processor: str | None = None
    sockets: int = 1
    cores: int | None = None
    memory_gib: float | None = None
    usable_memory_gib: float | None = None
    device: str | None = None
    gpus: int = 0
    interconnect: str | None = None
    note: str = ""


class RulesRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One ``[systems.rules.NAME]`` table; without ``gpu_option`` the partition alone gives the GPUs."""

    rejects: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    gpu_option: str | None = None
    whole_nodes: bool = False
    launcher: str = "srun"
    notes: tuple[str, ...] = ()


class PartitionRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One row of ``partitions``; ``node``, ``billing`` and ``rules`` name tables of the same system.

    ``price`` is an instance's price an hour, for the clouds.
    """

    name: str
    node: str
    billing: str | None = None
    rules: str | None = None
    price: float | None = None
    queue: str | None = None
    qos: str | None = None
    constraint: str | None = None
    charge_factor: float = 1.0
    max_walltime_h: float | None = None
    min_nodes: int | None = None
    max_nodes: int | None = None
    min_cores: int | None = None
    max_cores: int | None = None
    max_gpus: int | None = None
    min_memory_gib: float | None = None
    preemptible: bool = False
    restricted: bool = False
    interactive: bool = False
    confidence: Confidence | None = None
    source: str = ""
    as_of: str = ""
    note: str = ""


class SystemRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One ``[[systems]]`` block."""

    name: str
    kind: str
    status: str
    scheduler: str
    confidence: Confidence
    source: str
    partitions: tuple[PartitionRow, ...]
    nodes: dict[str, NodeRow]
    billing: dict[str, BillingRow] = msgspec.field(default_factory=dict)
    rules: dict[str, RulesRow] = msgspec.field(default_factory=dict)
    aliases: tuple[str, ...] = ()
    as_of: str = ""
    note: str = ""

    def system(self, site: str, what: str) -> System:
        """Return the block as a system; ``what`` names the file in errors."""
        return System(
            name=self.name,
            site=site,
            kind=self.kind,
            status=self.status,
            scheduler=self.scheduler,
            partitions=tuple(self._partition(row, what) for row in self.partitions),
            aliases=self.aliases,
            source=self.source,
            as_of=self.as_of,
            note=self.note,
        )

    def _partition(self, row: PartitionRow, what: str) -> Partition:
        where = f"{what}: {self.name}:{row.name}"
        rules = None if row.rules is None else _entry(self.rules, row.rules, where, "rules")
        return Partition(
            name=row.name,
            node=_node(_entry(self.nodes, row.node, where, "nodes"), row.node),
            queue=row.queue,
            limits=Limits(
                max_walltime_s=_scaled(row.max_walltime_h, HOUR_S),
                min_nodes=row.min_nodes,
                max_nodes=row.max_nodes,
                min_cores=row.min_cores,
                max_cores=row.max_cores,
                max_gpus=row.max_gpus,
                min_memory_bytes=_scaled_whole(row.min_memory_gib, GIB),
            ),
            billing=None if row.billing is None else _billing(_entry(self.billing, row.billing, where, "billing"), row),
            rules=_rules(rules, row),
            preemptible=row.preemptible,
            restricted=row.restricted,
            interactive=row.interactive,
            note=row.note,
            confidence=row.confidence or self.confidence,
            source=row.source or self.source,
            as_of=row.as_of or self.as_of,
        )


class SiteFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of one site's systems."""

    site: str
    name: str
    systems: tuple[SystemRow, ...]


def read_devices(text: str, what: str) -> list[Device]:
    """Return the devices of a file; ``what`` names it in errors.

    Raises:
        InvalidInput: broken TOML (with its line), an unknown field, or a value of the wrong type.
    """
    return [row.device() for row in load_toml(text, DevicesFile, what=what).devices]


def read_site(text: str, what: str) -> list[System]:
    """Return the systems of a site's file; errors as in ``read_devices``, and for a table that is not there."""
    site = load_toml(text, SiteFile, what=what)
    return [row.system(site.site, what) for row in site.systems]


def device_row(device: Device) -> dict[str, Any]:
    """Return a device as the plain values of a ``[[devices]]`` block, absent figures left out."""
    row = DeviceRow(
        name=device.name,
        vendor=device.vendor,
        kind=device.kind,
        confidence=device.confidence,
        source=device.source,
        aliases=device.aliases,
        architecture=device.architecture,
        compute_capability=device.compute_capability,
        form_factor=device.form_factor,
        memory_gib=_scaled(device.memory_bytes, 1 / GIB),
        memory_type=device.memory_type,
        memory_gb_per_s=_scaled(device.memory_bytes_per_s, 1 / GB),
        tflops={dtype: rate / 1e12 for dtype, rate in device.peak_flops_per_s.items()},
        compute_units=device.compute_units,
        lanes_per_unit=device.lanes_per_unit,
        boost_mhz=_scaled(device.boost_hz, 1e-6),
        l2_mib=_scaled(device.l2_bytes, 1 / MIB),
        tdp_w=device.tdp_w,
        link_gb_per_s=_scaled(device.link_bytes_per_s, 1 / GB),
        pcie_generation=device.pcie_generation,
        as_of=device.as_of,
        note=device.note,
        calibration=device.calibration,
    )
    return {name: value for name, value in msgspec.to_builtins(row).items() if value not in (None, "", [], {}, ())}


def _entry(table: dict[str, Any], name: str, where: str, kind: str) -> Any:  # noqa: ANN401 - the type is the table's
    if name not in table:
        known = ", ".join(table) or "none"
        raise InvalidInput(f"{where} names the {kind} table {name!r}, which the system does not have (it has {known})")
    return table[name]


def _node(row: NodeRow, name: str) -> NodeType:
    return NodeType(
        name=row.name or name,
        count=row.count,
        cpu_model=row.cpu_model,
        processor=row.processor,
        sockets=row.sockets,
        cores=row.cores,
        memory_bytes=_scaled_whole(row.memory_gib, GIB),
        usable_memory_bytes=_scaled_whole(row.usable_memory_gib, GIB),
        device=row.device,
        gpus=row.gpus,
        interconnect=row.interconnect,
        note=row.note,
    )


def _billing(row: BillingRow, partition: PartitionRow) -> Billing:
    return Billing(
        rule=row.rule,
        currency=row.currency,
        core_hour=row.core_hour,
        gpu_hour=row.gpu_hour,
        node_hour=row.node_hour if partition.price is None else partition.price,
        memory_bytes_per_core=_scaled_whole(row.memory_gib_per_core, GIB),
        memory_bytes_per_gpu=_scaled_whole(row.memory_gib_per_gpu, GIB),
        cores_per_gpu=row.cores_per_gpu,
        charge_factor=partition.charge_factor,
        minimum=row.minimum,
        whole_units=row.whole_units,
        free=row.free,
        source=row.source,
        as_of=row.as_of,
        note=row.note,
    )


def _rules(rules: RulesRow | None, row: PartitionRow) -> SubmitRules:
    """Return the site's rules with the row's own QOS and constraint; without rules, Slurm's usual ones."""
    if rules is None:
        return SubmitRules(constraint=row.constraint, qos=row.qos)
    return SubmitRules(
        rejects=rules.rejects,
        requires=rules.requires,
        gpu_option=rules.gpu_option,
        whole_nodes=rules.whole_nodes,
        constraint=row.constraint,
        qos=row.qos,
        launcher=rules.launcher,
        notes=rules.notes,
    )


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _scaled_whole(value: float | None, factor: float) -> int | None:
    return None if value is None else round(value * factor)
