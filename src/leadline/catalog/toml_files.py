"""The TOML files of the catalog, and their conversion to devices and systems.

A row class describes a table of a file. Its fields have the names of the noun's fields, or the same name with a
practical unit (``memory_gib`` for ``memory_bytes``). Conversion matches them by name.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from typing import Any, TypeVar

import msgspec

from leadline.catalog.networks import parse_network
from leadline.core.document_errors import Fault, InvalidFile, suggest
from leadline.core.documents import convert_toml, from_toml, parse_toml
from leadline.core.hardware import Calibration, Confidence, Device, DeviceKind
from leadline.core.systems import Billing, BillingRule, Limits, NodeType, Partition, Scheduling, SubmitRules, System
from leadline.core.units import GB, GBIT_BYTES, GIB, HOUR_S, MIB


def merge_tables(file: Mapping[str, Any], additions: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``file`` with the values of ``additions`` in place of its own.

    Tables merge key by key. Lists of named tables (systems, partitions) merge by name, with new entries at the end.
    """
    merged = dict(file)
    for key, value in additions.items():
        merged[key] = _merge_values(merged[key], value) if key in merged else value
    return merged


def _merge_values(old: Any, new: Any) -> Any:  # noqa: ANN401 - plain values of TOML
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return merge_tables(old, new)
    if _are_named_tables(old) and _are_named_tables(new):
        rows = {row["name"]: row for row in old}
        for row in new:
            rows[row["name"]] = merge_tables(rows.get(row["name"], {}), row)
        return list(rows.values())
    return new


def _are_named_tables(value: Any) -> bool:  # noqa: ANN401 - plain values of TOML
    return isinstance(value, list) and all(
        isinstance(row, Mapping) and isinstance(row.get("name"), str) for row in value
    )


Row = TypeVar("Row", bound=msgspec.Struct)
_parsed_network = cache(parse_network)
"""Many nodes have the same network."""
Noun = TypeVar("Noun", Device, System, Partition, NodeType, Limits, Billing, SubmitRules, Scheduling)

UNITS: dict[str, tuple[str, float]] = {
    "_gb_per_s": ("_bytes_per_s", GB),
    "_gbit_per_s": ("_bytes_per_s", GBIT_BYTES),
    "_gib": ("_bytes", GIB),
    "_mib": ("_bytes", MIB),
    "_mhz": ("_hz", 1e6),
    "_walltime_h": ("_walltime_s", HOUR_S),
}
"""Unit in the name of a row's field → base unit in the noun's name, and the factor between them."""


class DeviceRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One ``[[devices]]`` block; the names hold the units."""

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
    scale_up_gpus: int | None = None
    host_link_gb_per_s: float | None = None
    pcie_generation: int | None = None
    as_of: str = ""
    note: str = ""
    calibration: Calibration | None = None

    def device(self) -> Device:
        """Convert the row to a device in base units."""
        peaks = {dtype: rate * 1e12 for dtype, rate in self.tflops.items()}
        clock_mhz = self.boost_mhz or self.base_mhz
        return _convert(Device, self, peak_flops_per_s=peaks, boost_hz=clock_mhz and clock_mhz * 1e6)


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
    network_technology: str | None = None
    network_gbit_per_s: float | None = None
    nics: int | None = None
    scale_up_gpus: int | None = None
    power_limit_w: float | None = None
    note: str = ""

    def node_type(self, key: str) -> NodeType:
        """Convert the table ``key``; its texts and ``nics`` give the numbers of the network that it does not state."""
        words = [self.interconnect or self.network_technology, self.nics and f"{self.nics} NICs"]
        text = _parsed_network(", ".join(word for word in words if word), self.gpus)
        inferred: dict[str, object] = {
            "network_technology": self.network_technology or text.technology,
            "nics": text.nics if self.nics is None else self.nics,
        }
        if self.network_gbit_per_s is None:
            inferred["network_bytes_per_s"] = text.node_bytes_per_s
        return _convert(NodeType, self, name=self.name or key, **inferred)


class RulesRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One ``[systems.rules.NAME]`` table; without ``gpu_option`` the partition alone assigns the GPUs."""

    rejects: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    gpu_option: str | None = None
    whole_nodes: bool = False
    launcher: str = "srun"
    notes: tuple[str, ...] = ()


class PartitionRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One row of ``partitions``; ``node``, ``billing`` and ``rules`` name tables of the same system.

    ``price`` is the hourly price of a cloud instance.
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


class SchedulingRow(Scheduling, frozen=True, forbid_unknown_fields=True):
    """The ``[systems.scheduling]`` table of a probed system."""


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

    def missing_tables(self) -> Iterator[Fault]:
        """Yield a fault for each table that a partition names and the system does not have."""
        for row in self.partitions:
            named: dict[str, tuple[str | None, Mapping[str, object]]] = {
                "nodes": (row.node, self.nodes),
                "billing": (row.billing, self.billing),
                "rules": (row.rules, self.rules),
            }
            for kind, (name, tables) in named.items():
                if name is not None and name not in tables:
                    problem = f"{self.name}:{row.name} names the {kind} table {name!r}, which the system does not have"
                    yield Fault(problem, suggest(name, list(tables)) if tables else "add it")

    def system(self, site: str) -> System:
        """Convert the block to a system."""
        partitions = tuple(self._partition(row) for row in self.partitions)
        scheduling = None if self.scheduling is None else _convert(Scheduling, self.scheduling)
        return _convert(System, self, site=site, partitions=partitions, scheduling=scheduling)

    def _partition(self, row: PartitionRow) -> Partition:
        """Convert a row of ``partitions`` with its tables; the system supplies missing provenance.

        The price of an instance is its node rate. Without a table of rules, Slurm's usual ones hold.
        """
        billing, rules = None, SubmitRules(constraint=row.constraint, qos=row.qos)
        if row.billing is not None:
            table = self.billing[row.billing]
            node_hour = table.node_hour if row.price is None else row.price
            billing = _convert(Billing, table, node_hour=node_hour, charge_factor=row.charge_factor)
        if row.rules is not None:
            rules = _convert(SubmitRules, self.rules[row.rules], constraint=row.constraint, qos=row.qos)
        return _convert(
            Partition, row, node=self.nodes[row.node].node_type(row.node), limits=_convert(Limits, row),
            billing=billing, rules=rules, confidence=row.confidence or self.confidence,
            source=row.source or self.source, as_of=row.as_of or self.as_of,
        )  # fmt: skip


class SiteFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of one site's systems."""

    site: str
    name: str
    systems: tuple[SystemRow, ...]


def read_devices(text: str, label: str) -> list[Device]:
    """Parse the devices of a file; ``label`` names it in errors.

    Raises:
        InvalidInput: broken TOML, with its line.
        InvalidFile: unknown or missing keys, or values of a wrong type; it lists all of them.
    """
    return [row.device() for row in from_toml(text, DevicesFile, label=label, finite=True).devices]


def read_site(text: str, label: str, additions: tuple[str, str] | None = None) -> list[System]:
    """Parse the systems of a site's file; ``label`` names it in errors.

    ``additions`` are the text and name of a second file that overrides any keys. Its incomplete partitions that the
    first file lacks are ignored.

    Raises:
        InvalidInput: as in ``read_devices``, or a partition names a missing table.
    """
    site = from_toml(text, SiteFile, label=label, finite=True)
    if additions is not None:
        added_text, label = additions
        merged = merge_tables(parse_toml(text, label=label), parse_toml(added_text, label=label))
        _drop_incomplete_partitions(merged)
        site = convert_toml(merged, SiteFile, text=added_text, label=label, finite=True)
    if faults := [fault for row in site.systems for fault in row.missing_tables()]:
        raise InvalidFile(label, faults)
    return [row.system(site.site) for row in site.systems]


def read_valid_entries(text: str, label: str) -> tuple[list[Device], list[System]]:
    """Parse those devices and systems of a file that have no fault; ``InvalidInput`` if it is not TOML."""
    document = parse_toml(text, label=label)
    devices = [row.device() for row in _valid_rows(document.get("devices"), DeviceRow, label)]
    systems = [row for row in _valid_rows(document.get("systems"), SystemRow, label) if not any(row.missing_tables())]
    return devices, [row.system(str(document.get("site", ""))) for row in systems]


def _valid_rows(entries: object, kind: type[Row], label: str) -> Iterator[Row]:
    for entry in entries if isinstance(entries, list) else ():
        with suppress(InvalidFile):
            yield convert_toml(entry, kind, text="", label=label, finite=True)


def _drop_incomplete_partitions(document: dict[str, Any]) -> None:
    """Drop partitions without a node type: a later probe may have dropped one that the user annotated."""
    systems = document.get("systems", [])
    for system in systems if _are_named_tables(systems) else ():
        rows = system.get("partitions", [])
        if _are_named_tables(rows):
            system["partitions"] = [row for row in rows if "node" in row]


def _convert(noun: type[Noun], row: msgspec.Struct, **overrides: object) -> Noun:
    """Convert a row to a noun by shared fields, in base units; ``overrides`` win."""
    shared: dict[str, Any] = {}
    for name, noun_name, factor in _shared_fields(type(row), noun):
        value = getattr(row, name)
        shared[noun_name] = value if factor is None or value is None else _to_base_unit(value, factor, noun_name)
    return noun(**{**shared, **overrides})


@cache
def _shared_fields(row: type[msgspec.Struct], noun: type[msgspec.Struct]) -> list[tuple[str, str, float | None]]:
    """Return (row field, noun field, factor to base units) for each field that both have."""
    conversions = [(name, *unit_conversion(name)) for name in row.__struct_fields__]
    return [(name, noun_name, factor) for name, noun_name, factor in conversions if noun_name in noun.__struct_fields__]


def unit_conversion(name: str) -> tuple[str, float | None]:
    """Return the noun field for a row field, and the factor to base units; ``None`` if the unit is the same."""
    # The first match wins: _gb_per_s comes before its parts.
    for unit, (base, factor) in UNITS.items():
        if unit in name:
            return name.replace(unit, base), factor
    return name, None


def _to_base_unit(value: float, factor: float, noun_name: str) -> float:
    """Convert a value to base units; bytes are integers, and walltimes in hours keep whole minutes."""
    # 0.0833 h is meant as 5 minutes; rounding removes the noise of the binary fraction.
    if noun_name.endswith("_walltime_s"):
        return round(value * factor, 6)
    return value * factor if noun_name.endswith(("_per_s", "_s", "_hz")) else round(value * factor)
