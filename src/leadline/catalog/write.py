"""Write systems as catalog TOML, such that reading it again gives equal systems."""

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
    """Return a site's file with comment lines of ``heading``; unknown values are left out."""
    lines = [f"# {line}".rstrip() for line in heading]
    lines += ["", f"site = {_value(site)}", f"name = {_value(name)}"]
    for system in systems:
        lines += ["", "[[systems]]", *_system(system)]
    return "\n".join(lines) + "\n"


def _system(system: System) -> Iterator[str]:
    tables = _Tables()
    rows = [tables.row(partition) for partition in system.partitions]
    confidence = system.partitions[0].confidence if system.partitions else "found"
    values = _row_values(SystemRow, system) | {"confidence": str(confidence)}
    yield from (f"{key} = {_value(value)}" for key, value in values.items())
    yield "partitions = ["
    yield from (f"  {_value(_drop_inherited(row, system, str(confidence)))}," for row in rows)
    yield "]"
    for kind, table_group in (("nodes", tables.nodes), ("billing", tables.billing), ("rules", tables.rules)):
        for key, table in table_group.items():
            yield from ("", f"[systems.{kind}.{_key(key)}]")
            yield from (f"{_key(name)} = {_value(value)}" for name, value in table.items())
    if not tables.nodes:
        yield from ("", "[systems.nodes]")
    if system.scheduling is not None:
        yield from ("", "[systems.scheduling]")
        yield from (
            f"{name} = {_value(value)}" for name, value in _row_values(SchedulingRow, system.scheduling).items()
        )


class _Tables:
    """The tables shared by a system's partitions, by key."""

    def __init__(self) -> None:
        self.nodes: dict[str, dict[str, Any]] = {}
        self.billing: dict[str, dict[str, Any]] = {}
        self.rules: dict[str, dict[str, Any]] = {}

    def row(self, partition: Partition) -> dict[str, Any]:
        """Return a partition's row, and store its tables."""
        values = _row_values(PartitionRow, partition) | _row_values(PartitionRow, partition.limits)
        values["node"] = _store(self.nodes, _row_values(NodeRow, partition.node), partition.node.name, partition.name)
        if partition.billing is not None:
            table = _row_values(BillingRow, partition.billing)
            values["billing"] = _store(self.billing, table, "weights", partition.name)
            if partition.billing.charge_factor != 1.0:
                values["charge_factor"] = partition.billing.charge_factor
        rules = partition.rules
        values |= {
            key: value for key, value in (("qos", rules.qos), ("constraint", rules.constraint)) if value is not None
        }
        if replace(rules, qos=None, constraint=None) != SubmitRules():
            values["rules"] = _store(self.rules, _row_values(RulesRow, rules), "usual", partition.name)
        return {name: values[name] for name in PartitionRow.__struct_fields__ if name in values}


def _store(tables: dict[str, dict[str, Any]], table: dict[str, Any], name: str, partition: str) -> str:
    """Return the key of an equal table, or store the table under a new key."""
    for key, stored in tables.items():
        if stored == table:
            return key
    key = next(candidate for candidate in _keys(name, partition) if candidate not in tables)
    tables[key] = table
    return key


def _keys(name: str, partition: str) -> Iterator[str]:
    yield from (name, f"{name}-{partition}")
    number = 2
    while True:
        yield f"{name}-{partition}-{number}"
        number += 1


def _drop_inherited(row: Mapping[str, Any], system: System, confidence: str) -> dict[str, Any]:
    """Return a row without the values inherited from its system."""
    inherited = {"source": system.source, "as_of": system.as_of, "confidence": confidence}
    return {name: value for name, value in row.items() if name not in inherited or value != inherited[name]}


def _row_values(row: type[msgspec.Struct], noun: object) -> dict[str, Any]:
    """Return a noun as the fields and units of a row, without defaults."""
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
        return "{ " + ", ".join(f"{_key(key)} = {_value(item)}" for key, item in value.items()) + " }"
    return "[" + ", ".join(_value(item) for item in value) + "]"


def _string(text: str) -> str:
    """Format a basic string; JSON's escapes apply, but DEL and lone surrogates need replacement."""
    encodable = text.encode("utf-8", errors="replace").decode("utf-8")
    return json.dumps(encodable, ensure_ascii=False).replace("\x7f", "\\u007f")


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _string(name)
