"""Read what scontrol, sinfo and sacctmgr print: pure text, in forms that hold from Slurm 20.11 to 25.05.

JSON is never asked for: it changes from one Slurm to the next. ``scontrol -o`` prints ``Key=value`` pairs on one line
without quoting, and the values of ``OS``, ``Reason``, ``Comment`` and ``Extra`` are free text. So a value ends where a
key begins that Slurm prints there (``slurm_sprint_node_table``, ``slurm_sprint_partition_info``), the first of a name
counts, and behind the first of ``Reason``, ``Comment`` and ``Extra``, which come last, nothing is read.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from leadline.core.errors import InvalidInput
from leadline.core.units import MIB, parse_bytes, parse_duration_s

SINFO = "%R|%l|%s|%D|%c|%m|%G|%f|%N"
"""Partition, time limit, sizes of jobs, nodes, CPUs, MiB, GRES, features, names; none has a width that would cut it."""
QOS = (
    "Name", "Flags", "UsageFactor", "Preempt", "MaxWall", "MaxTRES", "MaxTRESPU", "GrpTRES", "MinTRES",
    "MaxSubmitPU",
)  # fmt: skip
ASSOCIATION = (
    "Account", "User", "Partition", "QOS", "DefaultQOS", "MaxWall", "MaxTRES", "GrpTRES", "MaxSubmit",
    "ParentName",
)  # fmt: skip
"""Fields that are asked of sacctmgr, by names that are also those of its header."""

_NODE = frozenset({
    "NodeName", "Arch", "CpuBind", "CoresPerSocket", "CPUAlloc", "CPUEfctv", "CPUErr", "CPUTot", "CPULoad",
    "AvailableFeatures", "ActiveFeatures", "Gres", "GresDrain", "GresUsed", "NodeAddr", "NodeHostName",
    "BcastAddr", "Port", "Version", "OS", "RealMemory", "AllocMem", "FreeMem", "Sockets", "Boards",
    "CoreSpecCount", "CPUSpecList", "MemSpecLimit", "RestrictedCoresPerGPU", "State", "ThreadsPerCore", "TmpDisk",
    "Weight", "Owner", "MCS_label", "NextState", "Partitions", "BootTime", "SlurmdStartTime", "LastBusyTime",
    "ResumeAfterTime", "CfgTRES", "AllocTRES", "CapWatts", "CurrentWatts", "AveWatts", "ExtSensorsJoules",
    "ExtSensorsWatts", "ExtSensorsTemp", "Reason", "Comment", "Extra",
})  # fmt: skip
_PARTITION = frozenset({
    "PartitionName", "AllowGroups", "AllowAccounts", "DenyAccounts", "AllowQos", "DenyQos", "AllocNodes",
    "Alternate", "Default", "CpuBind", "QoS", "DefaultTime", "DisableRootJobs", "ExclusiveUser", "ExclusiveTopo",
    "GraceTime", "Hidden", "MaxNodes", "MaxTime", "MinNodes", "LLN", "MaxCPUsPerNode", "MaxCPUsPerSocket",
    "NodeSets", "Nodes", "PriorityJobFactor", "PriorityTier", "RootOnly", "ReqResv", "OverSubscribe",
    "OverTimeLimit", "PreemptMode", "State", "TotalCPUs", "TotalNodes", "SelectTypeParameters", "JobDefaults",
    "DefMemPerCPU", "DefMemPerNode", "MaxMemPerCPU", "MaxMemPerNode", "TRES", "TRESBillingWeights", "Topology",
    "ResumeTimeout", "SuspendTimeout", "SuspendTime", "PowerDownOnIdle",
})  # fmt: skip
_FREE = frozenset({"Reason", "Comment", "Extra"})
_KEY = re.compile(r"(?:^|(?<=\s))([A-Za-z_]+)=")
_NOTHING = frozenset({"", "(null)", "N/A", "n/a", "none", "None", "NONE", "UNLIMITED", "INFINITE", "infinite"})
_GRES = re.compile(r"\([^)]*\)")
_UNIT = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50}

Record = dict[str, str]


@dataclass(frozen=True, slots=True)
class Gres:
    """Generic resources of one name and type on a node; ``kind`` is ``None`` where the site names no type."""

    name: str
    kind: str | None
    count: int


def read_nodes(listing: str) -> list[Record]:
    """Return the nodes of ``scontrol -o show node``."""
    return _records(listing, "NodeName", _NODE)


def read_partitions(listing: str) -> list[Record]:
    """Return the partitions of ``scontrol -o show partition``."""
    return _records(listing, "PartitionName", _PARTITION)


def read_slurm_config(listing: str) -> Record:
    """Return the settings of ``scontrol show config``, lines of ``Name = value``; one without a value is left out."""
    pairs = (line.partition("=") for line in listing.splitlines())
    return {name.strip(): value.strip() for name, is_pair, value in pairs if is_pair and value.strip() != "(null)"}


def read_rows(listing: str, fields: Iterable[str]) -> list[Record]:
    """Return the rows of ``sacctmgr -n -P`` or of sinfo by the fields asked for; rows of another length are no rows."""
    names = tuple(fields)
    rows = (line.split("|") for line in listing.splitlines())
    return [dict(zip(names, row, strict=True)) for row in rows if len(row) == len(names)]


def from_sinfo(listing: str) -> tuple[list[Record], list[Record]]:
    """Return (partitions, nodes) of sinfo in the format ``SINFO``, in the words of scontrol.

    One record stands for all nodes of a line, and ``Nodes`` counts them. A figure that differs between them ends with a
    ``+`` and is its least.
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


def read_gres(said: str) -> list[Gres]:
    """Read ``gpu:a100:4(S:0-1),gpu:1g.10gb:7``, ``gpu:4`` or ``gpu:tesla:no_consume:2``; nothing of ``(null)``."""
    found = []
    for part in _GRES.sub("", said).split(","):
        words = [word for word in part.strip().split(":") if word and word != "no_consume"]
        if not words or words[0] in _NOTHING:
            continue
        count = _count(words[-1]) if len(words) > 1 else None
        kinds = words[1:] if count is None else words[1:-1]
        found.append(Gres(words[0].casefold(), ":".join(kinds) or None, 1 if count is None else count))
    return found


def read_tres(said: str) -> dict[str, float]:
    """Read ``cpu=64,mem=100G,gres/gpu:a100=8`` by names in lower case; memory in bytes, counts as they are."""
    found = {}
    for part in said.split(","):
        name, is_pair, value = part.strip().rpartition("=")
        if is_pair and name:
            folded = name.casefold()
            amount = parse_memory(value) if folded == "mem" else parse_number(value)
            if amount is not None:
                found[folded] = float(amount)
    return found


def read_weights(said: str) -> dict[str, float]:
    """Read TRESBillingWeights by names in lower case: the weight of one, and of a MiB for memory and burst buffers.

    With a suffix it is that of so many, so that ``Mem=0.25G`` weighs a GiB (slurm.conf, TRESBillingWeights).
    """
    found = {}
    for part in said.split(","):
        name, _, value = part.strip().rpartition("=")
        match = re.fullmatch(r"(-?\d*\.?\d+(?:[eE][-+]?\d+)?)([KMGTP]?)", value.strip(), re.IGNORECASE)
        if not name or match is None:
            continue
        folded = name.casefold()
        base = _UNIT["M"] if folded == "mem" or folded.startswith("bb/") else 1
        found[folded] = float(match[1]) / max(1, _UNIT[match[2].upper()] // base)
    return found


def parse_seconds(said: str) -> float | None:
    """Read a limit such as ``2-00:00:00`` or ``30:00``; ``None`` where there is none, or none that can be read."""
    if said in _NOTHING:
        return None
    try:
        return parse_duration_s(said)
    except InvalidInput:
        return None


def parse_memory(said: str) -> int | None:
    """Read an amount of memory, of which Slurm prints MiB where it names no unit; ``None`` where there is no limit."""
    if said in _NOTHING:
        return None
    try:
        return parse_bytes(said) * (MIB if said.strip()[-1:].isdigit() else 1)
    except InvalidInput:
        return None


def parse_count(said: str) -> int | None:
    """Read a number; ``None`` where there is no limit."""
    return None if said in _NOTHING else _count(said)


def parse_number(said: str) -> float | None:
    """Read a figure that may be a fraction; ``None`` where it is none."""
    try:
        return float(said)
    except ValueError:
        whole = _count(said)
        return None if whole is None else float(whole)


def parse_names(said: str) -> frozenset[str] | None:
    """Read a list such as ``normal,long``; ``None`` of ``ALL``, and where nothing is listed."""
    return None if said in _NOTHING or said == "ALL" else frozenset(part for part in said.split(",") if part)


def _records(listing: str, first: str, keys: frozenset[str]) -> list[Record]:
    """Return the records that begin with ``first=``; a line that begins otherwise belongs to the one before it."""
    texts: list[str] = []
    for line in listing.splitlines():
        if line.startswith(f"{first}="):
            texts.append(line)
        elif texts:
            texts[-1] += f" {line}"
    return [_record(text, keys) for text in texts]


def _record(text: str, keys: frozenset[str]) -> Record:
    found: Record = {}
    marks = [match for match in _KEY.finditer(text) if match[1] in keys]
    for mark, following in zip(marks, [*marks[1:], None], strict=True):
        if mark[1] in _FREE:
            break
        end = len(text) if following is None else following.start()
        found.setdefault(mark[1], text[mark.end() : end].strip())
    return found


def _count(said: str) -> int | None:
    match = re.fullmatch(r"(\d+)([KMGTP]?)", said.strip(), re.IGNORECASE)
    return None if match is None else int(match[1]) * _UNIT[match[2].upper()]
