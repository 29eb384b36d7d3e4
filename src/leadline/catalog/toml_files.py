"""Lay what a user writes of a site over the file that describes it, so that either can be renewed by itself."""

from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from typing import Any, TypeVar

import msgspec

from leadline.core.documents import convert_toml, from_toml, parse_toml
from leadline.core.errors import InvalidInput
from leadline.core.hardware import Calibration, Confidence, Device, DeviceKind
from leadline.core.systems import (
    Billing,
    BillingRule,
    Limits,
    NodeType,
    Partition,
    Scheduling,
    SubmitRules,
    System,
)
from leadline.core.units import GB, GIB, HOUR_S, MIB


def merge_tables(file: Mapping[str, Any], additions: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``file`` with the values of ``additions`` in place of its own.

    Tables are laid over key by key, and lists of tables that have names (systems, partitions) by these names; what is
    new is added at the end.
    """
    merged = dict(file)
    for key, value in additions.items():
        merged[key] = _laid_over(merged[key], value) if key in merged else value
    return merged


def _laid_over(old: Any, new: Any) -> Any:  # noqa: ANN401 - plain values of TOML
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return merge_tables(old, new)
    if _are_named(old) and _are_named(new):
        rows = {row["name"]: row for row in old}
        for row in new:
            rows[row["name"]] = merge_tables(rows.get(row["name"], {}), row)
        return list(rows.values())
    return new


def _are_named(value: Any) -> bool:  # noqa: ANN401 - plain values of TOML
    return isinstance(value, list) and all(isinstance(row, Mapping) and "name" in row for row in value)


Noun = TypeVar("Noun", Device, System, Partition, NodeType, Limits, Billing, SubmitRules, Scheduling)

UNITS: dict[str, tuple[str, float]] = {
    "_gb_per_s": ("_bytes_per_s", GB),
    "_gib": ("_bytes", GIB),
    "_mib": ("_bytes", MIB),
    "_mhz": ("_hz", 1e6),
    "_walltime_h": ("_walltime_s", HOUR_S),
}
"""A unit in the name of a row's field → the base unit in the noun's name, and how many of it one is."""


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
        peaks = {dtype: rate * 1e12 for dtype, rate in self.tflops.items()}
        clock_mhz = self.boost_mhz or self.base_mhz
        return _made(Device, self, peak_flops_per_s=peaks, boost_hz=clock_mhz and clock_mhz * 1e6)


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
    gib_hour: float | None = None
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
    max_submitted_jobs: int | None = None
    default_memory_gib_per_core: float | None = None
    preemptible: bool = False
    restricted: bool = False
    interactive: bool = False
    confidence: Confidence | None = None
    source: str = ""
    as_of: str = ""
    note: str = ""


class SchedulingRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The ``[systems.scheduling]`` table, of a system whose scheduler was asked."""

    version: str = ""
    rejects_beyond_limits: bool | None = None
    max_array_size: int | None = None
    sampling_interval_s: float | None = None
    preemption: str = ""
    accounting_answered: bool | None = None


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
    scheduling: SchedulingRow | None = None
    as_of: str = ""
    note: str = ""

    def system(self, site: str, what: str) -> System:
        """Return the block as a system; ``what`` names the file in errors."""
        partitions = tuple(self._partition(row, what) for row in self.partitions)
        scheduling = None if self.scheduling is None else _made(Scheduling, self.scheduling)
        return _made(System, self, site=site, partitions=partitions, scheduling=scheduling)

    def _partition(self, row: PartitionRow, what: str) -> Partition:
        """Return a row of ``partitions`` with the tables that it names; what it leaves open is the system's."""
        where = f"{what}: {self.name}:{row.name}"
        node = _entry(self.nodes, row.node, where, "nodes")
        billing = None if row.billing is None else _entry(self.billing, row.billing, where, "billing")
        rules = None if row.rules is None else _entry(self.rules, row.rules, where, "rules")
        return _made(
            Partition,
            row,
            node=_made(NodeType, node, name=node.name or row.node),
            limits=_made(Limits, row),
            billing=None if billing is None else _billing(billing, row),
            rules=_rules(rules, row),
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
    return [row.device() for row in from_toml(text, DevicesFile, label=what).devices]


def read_site(text: str, what: str, additions: tuple[str, str] | None = None) -> list[System]:
    """Return the systems of a site's file; errors as in ``read_devices``, and for a table that is not there.

    ``additions`` are the text and the name of a file of any of its keys, which is laid over it; what it says of a
    partition that the file does not have, and that it does not describe whole, is passed over.
    """
    site = from_toml(text, SiteFile, label=what)
    if additions is not None:
        added, what = additions
        merged = merge_tables(parse_toml(text, label=what), parse_toml(added, label=what))
        for system in merged["systems"]:
            system["partitions"] = [row for row in system.get("partitions", ()) if "node" in row]
        site = convert_toml(merged, SiteFile, text=added, label=what)
    return [row.system(site.site, what) for row in site.systems]


def device_row(device: Device) -> dict[str, Any]:
    """Return a device as the plain values of a ``[[devices]]`` block, absent figures left out."""
    values = {"tflops": {dtype: rate / 1e12 for dtype, rate in device.peak_flops_per_s.items()}}
    for name in DeviceRow.__struct_fields__:
        noun_name, factor = unit_conversion(name)
        value = getattr(device, noun_name, None)
        if value is not None:
            values[name] = value if factor is None else value / factor
    return {name: value for name, value in msgspec.to_builtins(values).items() if value not in (None, "", [], {}, ())}


def _entry(table: dict[str, Any], name: str, where: str, kind: str) -> Any:  # noqa: ANN401 - the type is the table's
    if name not in table:
        known = ", ".join(table) or "none"
        raise InvalidInput(f"{where} names the {kind} table {name!r}, which the system does not have (it has {known})")
    return table[name]


def _billing(row: BillingRow, partition: PartitionRow) -> Billing:
    """Return the charge of one partition: an instance's own price is its node's."""
    node_hour = row.node_hour if partition.price is None else partition.price
    return _made(Billing, row, node_hour=node_hour, charge_factor=partition.charge_factor)


def _rules(rules: RulesRow | None, row: PartitionRow) -> SubmitRules:
    """Return the site's rules with the row's own QOS and constraint; without rules, Slurm's usual ones."""
    if rules is None:
        return SubmitRules(constraint=row.constraint, qos=row.qos)
    return _made(SubmitRules, rules, constraint=row.constraint, qos=row.qos)


def _made(noun: type[Noun], row: msgspec.Struct, **given: object) -> Noun:
    """Return the noun with the fields that a row shares with it, in base units; those ``given`` win."""
    shared: dict[str, Any] = {}
    kind: Any = noun  # for mypy, to which a dataclass's type is not hashable
    for name, noun_name, factor in _shared(type(row), kind):
        value = getattr(row, name)
        shared[noun_name] = value if factor is None or value is None else _scaled(value, factor, noun_name)
    return noun(**{**shared, **given})


@cache
def _shared(row: type[msgspec.Struct], noun: type[Any]) -> list[tuple[str, str, float | None]]:
    """Return (the row's name, the noun's name, base units in one of the row's) for each field that both have."""
    names = {field.name for field in fields(noun)}
    both = [(name, *unit_conversion(name)) for name in row.__struct_fields__]
    return [(name, noun_name, factor) for name, noun_name, factor in both if noun_name in names]


def unit_conversion(name: str) -> tuple[str, float | None]:
    """Return a noun's name for a row's field, and what one of the row's units is in base units; ``None`` as it is."""
    for unit, (base, factor) in UNITS.items():
        if unit in name:
            return name.replace(unit, base), factor
    return name, None


def _scaled(value: float, factor: float, noun_name: str) -> float:
    """Return a value in base units; bytes are whole, and a limit of whole minutes stays one though written in hours."""
    if noun_name.endswith("_walltime_s"):
        return round(value * factor, 6)
    return value * factor if noun_name.endswith(("_per_s", "_s", "_hz")) else round(value * factor)
