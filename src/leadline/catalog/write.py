"""Write systems as the TOML that ``files`` reads, so that what is read again equals what was written."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from leadline.catalog.toml_files import (
    BillingRow,
    NodeRow,
    PartitionRow,
    RulesRow,
    SchedulingRow,
    SystemRow,
    unit_conversion,
)
from leadline.core.systems import Partition, SubmitRules, System

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def format_site(systems: Sequence[System], *, site: str, name: str, heading: Iterable[str] = ()) -> str:
    """Return the file of a site's systems, below comment lines of ``heading``; what is not known is left out."""
    lines = [f"# {line}".rstrip() for line in heading]
    lines += ["", f"site = {_value(site)}", f"name = {_value(name)}"]
    for system in systems:
        lines += ["", "[[systems]]", *_system(system)]
    return "\n".join(lines) + "\n"


def _system(system: System) -> Iterator[str]:
    tables = _Tables()
    rows = [tables.row(partition) for partition in system.partitions]
    confidence = system.partitions[0].confidence if system.partitions else "found"
    values = _filled(SystemRow, system) | {"confidence": str(confidence)}
    yield from (f"{key} = {_value(value)}" for key, value in values.items())
    yield "partitions = ["
    yield from (f"  {_value(_without(row, system, str(confidence)))}," for row in rows)
    yield "]"
    for kind, found in (("nodes", tables.nodes), ("billing", tables.billing), ("rules", tables.rules)):
        for key, table in found.items():
            yield from ("", f"[systems.{kind}.{_key(key)}]")
            yield from (f"{_key(name)} = {_value(value)}" for name, value in table.items())
    if not tables.nodes:
        yield from ("", "[systems.nodes]")
    if system.scheduling is not None:
        yield from ("", "[systems.scheduling]")
        yield from (f"{name} = {_value(value)}" for name, value in _filled(SchedulingRow, system.scheduling).items())


class _Tables:
    """The tables that a system's partitions share, by the name under which the rows name them."""

    def __init__(self) -> None:
        self.nodes: dict[str, dict[str, Any]] = {}
        self.billing: dict[str, dict[str, Any]] = {}
        self.rules: dict[str, dict[str, Any]] = {}

    def row(self, partition: Partition) -> dict[str, Any]:
        """Return a partition's row, and keep the tables that it names."""
        values = _filled(PartitionRow, partition) | _filled(PartitionRow, partition.limits)
        values["node"] = _kept(self.nodes, _filled(NodeRow, partition.node), partition.node.name, partition.name)
        if partition.billing is not None:
            table = _filled(BillingRow, partition.billing)
            values["billing"] = _kept(self.billing, table, "weights", partition.name)
            if partition.billing.charge_factor != 1.0:
                values["charge_factor"] = partition.billing.charge_factor
        rules = partition.rules
        values |= {
            key: value for key, value in (("qos", rules.qos), ("constraint", rules.constraint)) if value is not None
        }
        if replace(rules, qos=None, constraint=None) != SubmitRules():
            values["rules"] = _kept(self.rules, _filled(RulesRow, rules), "usual", partition.name)
        return {name: values[name] for name in PartitionRow.__struct_fields__ if name in values}


def _kept(tables: dict[str, dict[str, Any]], table: dict[str, Any], name: str, partition: str) -> str:
    """Return the key of a table, the one it has already, or a new one by its name and then by the partition's."""
    for key, known in tables.items():
        if known == table:
            return key
    key = next(one for one in _keys(name, partition) if one not in tables)
    tables[key] = table
    return key


def _keys(name: str, partition: str) -> Iterator[str]:
    yield from (name, f"{name}-{partition}")
    number = 2
    while True:
        yield f"{name}-{partition}-{number}"
        number += 1


def _without(row: Mapping[str, Any], system: System, confidence: str) -> dict[str, Any]:
    """Return a row without what it takes over from its system."""
    taken = {"source": system.source, "as_of": system.as_of, "confidence": confidence}
    return {name: value for name, value in row.items() if name not in taken or value != taken[name]}


def _filled(row: type[msgspec.Struct], noun: object) -> dict[str, Any]:
    """Return what a noun says in a row's fields and units, but for what the row has by itself."""
    values: dict[str, Any] = {}
    for field in msgspec.structs.fields(row):
        name, factor = unit_conversion(field.name)
        value = getattr(noun, name, None)
        if field.name in _TABLES or value is None:
            continue
        plain = msgspec.to_builtins(value if factor is None else value / factor)
        if field.required or plain != msgspec.to_builtins(field.default):
            values[field.name] = plain
    return values


_TABLES = frozenset({"partitions", "nodes", "scheduling", "node", "billing", "rules"})


def _value(value: Any) -> str:  # noqa: ANN401 - a plain value of TOML
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(key)} = {_value(one)}" for key, one in value.items()) + " }"
    return "[" + ", ".join(_value(one) for one in value) + "]"


def _string(text: str) -> str:
    """Return a basic string; its escapes are those of JSON, and DEL and lone surrogates cannot stand as they are."""
    whole = text.encode("utf-8", errors="replace").decode("utf-8")
    return json.dumps(whole, ensure_ascii=False).replace("\x7f", "\\u007f")


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _string(name)
