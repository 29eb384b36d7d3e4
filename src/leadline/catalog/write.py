"""Write systems as catalog TOML, such that reading it again gives equal systems."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, count
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
    tables: Tables = {"nodes": {}, "billing": {}, "rules": {}}
    rows = [_row(partition, tables) for partition in system.partitions]
    confidence = system.partitions[0].confidence if system.partitions else "found"
    values = _row_values(SystemRow, system) | {"confidence": str(confidence)}
    yield from (f"{key} = {_value(value)}" for key, value in values.items())
    yield "partitions = ["
    yield from (f"  {_value(_drop_inherited(row, system, str(confidence)))}," for row in rows)
    yield "]"
    for kind, table_group in tables.items():
        for key, table in table_group.items():
            yield from ("", f"[systems.{kind}.{_key(key)}]")
            yield from (f"{_key(name)} = {_value(value)}" for name, value in table.items())
    if not tables["nodes"]:
        yield from ("", "[systems.nodes]")
    if system.scheduling is not None:
        yield from ("", "[systems.scheduling]")
        yield from (
            f"{name} = {_value(value)}" for name, value in _row_values(SchedulingRow, system.scheduling).items()
        )


Tables = dict[str, dict[str, dict[str, Any]]]
"""The tables that the partitions of a system share: kind → key → values."""


def _row(partition: Partition, tables: Tables) -> dict[str, Any]:
    """Return a partition's row, and store its tables."""
    rules, billing, name = partition.rules, partition.billing, partition.name
    values: dict[str, Any] = {}
    for noun in (partition, partition.limits, rules):
        values |= _row_values(PartitionRow, noun)
    values["node"] = _store(tables["nodes"], _row_values(NodeRow, partition.node), partition.node.name, name)
    if billing is not None:
        values["billing"] = _store(tables["billing"], _row_values(BillingRow, billing), "weights", name)
        if billing.charge_factor != 1.0:
            values["charge_factor"] = billing.charge_factor
    if replace(rules, qos=None, constraint=None) != SubmitRules():
        values["rules"] = _store(tables["rules"], _row_values(RulesRow, rules), "usual", name)
    return {key: values[key] for key in PartitionRow.__struct_fields__ if key in values}


def _store(tables: dict[str, dict[str, Any]], table: dict[str, Any], name: str, partition: str) -> str:
    """Return the key of an equal table, or store the table under a new key."""
    for key, stored in tables.items():
        if stored == table:
            return key
    candidates = chain((name, f"{name}-{partition}"), (f"{name}-{partition}-{number}" for number in count(2)))
    key = next(candidate for candidate in candidates if candidate not in tables)
    tables[key] = table
    return key


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
