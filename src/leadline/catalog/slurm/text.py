"""Parsers for the output of scontrol, sinfo and sacctmgr, in forms that hold from Slurm 20.11 to 25.05.

JSON output changes between Slurm versions, so it is not used. ``scontrol -o`` prints unquoted ``Key=value`` pairs on
one line, and ``OS``, ``Reason``, ``Comment`` and ``Extra`` are free text. So a value ends only before a key that Slurm
prints (``slurm_sprint_node_table``, ``slurm_sprint_partition_info``), and the first value of a key counts. Parsing
stops at the first ``Reason``, ``Comment`` or ``Extra``, which come last.
"""

import math
import re
import tomllib
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path

from leadline.core.errors import InvalidInput
from leadline.core.frozen import Frozen
from leadline.core.units import MIB, MINUTE_S, parse_bytes, parse_duration_s

SINFO = "%R|%l|%s|%D|%c|%m|%G|%f|%N"
"""Partition, time limit, job sizes, nodes, CPUs, MiB, GRES, features, names; without widths, which would truncate."""
QOS = (
    "Name", "Flags", "UsageFactor", "Preempt", "MaxWall", "MaxTRES", "MaxTRESPU", "GrpTRES", "MinTRES",
    "MaxSubmitPU",
)  # fmt: skip
ASSOCIATION = (
    "Account", "User", "Partition", "QOS", "DefaultQOS", "MaxWall", "MaxTRES", "GrpTRES", "MaxSubmit",
    "ParentName",
)  # fmt: skip
"""Fields requested from sacctmgr, by the names in its header."""

_FREE = frozenset({"Reason", "Comment", "Extra"})
_KEY = re.compile(r"(?:^|(?<=\s))([A-Za-z_]+)=")
_NOTHING = frozenset({"", "(null)", "N/A", "n/a", "none", "None", "NONE", "UNLIMITED", "INFINITE", "infinite"})
_GRES = re.compile(r"\([^()]*\)")
_UNIT = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50}

Record = dict[str, str]


class Gres(Frozen):
    """Generic resources of one name and type on a node; ``kind`` is ``None`` if the site names no type."""

    name: str
    kind: str | None
    count: int


def read_nodes(listing: str) -> list[Record]:
    """Parse the nodes of ``scontrol -o show node``."""
    return _records(listing, "NodeName", _keys("node"))


def read_partitions(listing: str) -> list[Record]:
    """Parse the partitions of ``scontrol -o show partition``."""
    return _records(listing, "PartitionName", _keys("partition"))


def read_slurm_config(listing: str) -> Record:
    """Parse ``scontrol show config``, lines of ``Name = value``; settings without a value are left out."""
    pairs = (line.partition("=") for line in listing.splitlines())
    return {name.strip(): value.strip() for name, is_pair, value in pairs if is_pair and value.strip() != "(null)"}


def read_rows(listing: str, fields: Iterable[str]) -> list[Record]:
    """Parse rows of ``sacctmgr -n -P`` or sinfo with these fields; rows of another length are ignored."""
    names = tuple(fields)
    rows = (line.split("|") for line in listing.splitlines())
    return [dict(zip(names, row, strict=True)) for row in rows if len(row) == len(names)]


def from_sinfo(listing: str) -> tuple[list[Record], list[Record]]:
    """Return (partitions, nodes) of sinfo in the format ``SINFO``, with scontrol's keys.

    One record covers all nodes of a line, and ``Nodes`` counts them. A number that differs between them ends with ``+``
    and is the minimum.
    """
    partitions: dict[str, Record] = {}
    nodes = []
    fields = ("name", "time", "size", "count", "CPUTot", "RealMemory", "Gres", "ActiveFeatures", "NodeName")
    for row in read_rows(listing, fields):
        least, _, most = row["size"].partition("-")
        partitions.setdefault(row["name"], {
            "PartitionName": row["name"], "MaxTime": row["time"], "MinNodes": least, "MaxNodes": most or least,
        })  # fmt: skip
        nodes.append({
            "NodeName": row["NodeName"], "Partitions": row["name"], "CPUTot": row["CPUTot"].rstrip("+"),
            "RealMemory": row["RealMemory"].rstrip("+"), "Gres": row["Gres"],
            "ActiveFeatures": row["ActiveFeatures"], "Nodes": row["count"],
        })  # fmt: skip
    return list(partitions.values()), nodes


def read_gres(text: str) -> list[Gres]:
    """Parse ``gpu:a100:4(S:0-1),gpu:1g.10gb:7``, ``gpu:4`` or ``gpu:tesla:no_consume:2``; empty for ``(null)``."""
    resources = []
    for part in _GRES.sub("", text).split(","):
        words = [word for word in part.strip().split(":") if word and word != "no_consume"]
        if not words or words[0] in _NOTHING:
            continue
        count = _count(words[-1]) if len(words) > 1 else None
        kinds = words[1:] if count is None else words[1:-1]
        resources.append(Gres(words[0].casefold(), ":".join(kinds) or None, 1 if count is None else count))
    return resources


def read_tres(text: str) -> dict[str, float]:
    """Parse ``cpu=64,mem=100G,gres/gpu:a100=8`` by lower-case name; memory in bytes, counts unchanged."""
    amounts = {}
    for part in text.split(","):
        name, is_pair, value = part.strip().rpartition("=")
        if is_pair and name:
            folded = name.casefold()
            amount = parse_memory(value) if folded == "mem" else parse_number(value)
            if amount is not None:
                amounts[folded] = float(amount)
    return amounts


def read_weights(text: str) -> dict[str, float]:
    """Parse TRESBillingWeights by lower-case name: the weight of one, or of a MiB for memory and burst buffers.

    A suffix gives the weight of a larger unit: ``Mem=0.25G`` is the weight of a GiB (slurm.conf, TRESBillingWeights).
    """
    weights = {}
    for part in text.split(","):
        name, _, value = part.strip().rpartition("=")
        match = re.fullmatch(r"(-?\d{0,18}\.?\d{1,18}(?:[eE][-+]?\d{1,2})?)([KMGTP]?)", value.strip(), re.IGNORECASE)
        if not name or match is None:
            continue
        folded = name.casefold()
        base = _UNIT["M"] if folded == "mem" or folded.startswith("bb/") else 1
        weights[folded] = float(match[1]) / max(1, _UNIT[match[2].upper()] // base)
    return weights


def parse_seconds(text: str) -> float | None:
    """Parse a limit such as ``2-00:00:00``, in minutes without a unit; ``None`` if unlimited or unreadable."""
    with suppress(InvalidInput):
        return None if text in _NOTHING else parse_duration_s(text, bare_s=MINUTE_S)
    return None


def parse_memory(text: str) -> int | None:
    """Parse an amount of memory, in MiB without a unit; ``None`` if unlimited or unreadable."""
    with suppress(InvalidInput):
        return None if text in _NOTHING else parse_bytes(text, bare_bytes=MIB)
    return None


def parse_count(text: str) -> int | None:
    """Parse an integer; ``None`` if unlimited."""
    return None if text in _NOTHING else _count(text)


def parse_number(text: str) -> float | None:
    """Parse a number that may be a fraction; ``None`` if unreadable."""
    try:
        number = float(text)
        return number if math.isfinite(number) else None
    except ValueError:
        whole = _count(text)
        return None if whole is None else float(whole)


def parse_names(text: str) -> frozenset[str] | None:
    """Parse a list such as ``normal,long``; ``None`` for ``ALL`` and for an empty list."""
    return None if text in _NOTHING or text == "ALL" else frozenset(part for part in text.split(",") if part)


@cache
def _keys(kind: str) -> frozenset[str]:
    """Return the keys that Slurm prints of a node or of a partition."""
    return frozenset(tomllib.loads(Path(__file__).with_name("keys.toml").read_text(encoding="utf-8"))[kind])


def _records(listing: str, first: str, keys: frozenset[str]) -> list[Record]:
    """Return the records that begin with ``first=``; any other line continues the previous record."""
    texts: list[str] = []
    for line in listing.splitlines():
        if line.startswith(f"{first}="):
            texts.append(line)
        elif texts:
            texts[-1] += f" {line}"
    return [_record(text, keys) for text in texts]


def _record(text: str, keys: frozenset[str]) -> Record:
    record: Record = {}
    marks = [match for match in _KEY.finditer(text) if match[1] in keys]
    for mark, following in zip(marks, [*marks[1:], None], strict=True):
        if mark[1] in _FREE:
            break
        end = len(text) if following is None else following.start()
        record.setdefault(mark[1], text[mark.end() : end].strip())
    return record


def _count(text: str) -> int | None:
    match = re.fullmatch(r"(\d{1,18})([KMGTP]?)", text.strip(), re.IGNORECASE)
    return None if match is None else int(match[1]) * _UNIT[match[2].upper()]
