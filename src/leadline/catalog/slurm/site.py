"""Convert the records of a live Slurm cluster to a system of the catalog."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from leadline.catalog.slurm.billing import disagreement, partition_charge
from leadline.catalog.slurm.limits import (
    ENFORCED,
    Association,
    JobLimits,
    LimitPolicy,
    default_qos,
    is_wider,
    job_limits,
    read_associations,
    read_qos,
)
from leadline.catalog.slurm.nodes import NodeGroup, group_nodes
from leadline.catalog.slurm.text import Record, parse_count, parse_memory, parse_names
from leadline.core.frozen import Frozen
from leadline.core.hardware import Confidence, Device, Machine
from leadline.core.systems import UNLISTED_NODES, NodeType, Partition, Scheduling, SubmitRules, System
from leadline.core.units import format_bytes, parse_whole


class ClusterRecords(Frozen):
    """Records of a cluster's answers; ``None`` marks a query without an answer.

    ``groups`` are the user's groups, and ``here`` is the local machine.
    """

    config: Record
    partitions: Sequence[Record]
    nodes: Sequence[Record] = ()
    qos: Sequence[Record] | None = None
    associations: Sequence[Record] | None = None
    groups: frozenset[str] = frozenset()
    here: Machine | None = None


class ProbedSystem(Frozen):
    """The system, with a note on each unknown or doubtful part."""

    system: System
    notes: tuple[str, ...] = ()


class _Site(Frozen):
    """Context shared by all partitions during the conversion."""

    records: ClusterRecords
    groups: Sequence[NodeGroup]
    qos: dict[str, LimitPolicy]
    associations: Sequence[Association]
    enforced: bool
    source: str
    as_of: str
    notes: list[str]


def build_system(
    records: ClusterRecords, devices: Sequence[Device], *, name: str, site: str, as_of: str
) -> ProbedSystem:
    """Convert a cluster's records to a system, with the partitions in Slurm's order."""
    config = records.config
    enforced = bool(ENFORCED & (parse_names(config.get("AccountingStorageEnforce", "")) or frozenset()))
    context = _Site(
        records, group_nodes(records.nodes, devices, records.here), read_qos(records.qos or ()),
        read_associations(records.associations or ()), enforced,
        f"scontrol, sinfo and sacctmgr of Slurm {config.get('SLURM_VERSION', '')} on {config.get('ClusterName', name)}",
        as_of, [],
    )  # fmt: skip
    context.notes.extend(note for group in context.groups for note in group.notes)
    partitions = _unique_names([row for record in records.partitions for row in _partitions(context, record)])
    context.notes.extend(_accounting_notes(context))
    answered = records.qos is not None and records.associations is not None
    scheduling = replace(_scheduling(config), accounting_answered=answered if enforced else None)
    system = System(
        name, site, kind="cluster", status="production", scheduler="slurm", partitions=partitions,
        scheduling=scheduling, source=context.source, as_of=as_of,
    )  # fmt: skip
    return ProbedSystem(system, tuple(dict.fromkeys(context.notes)))


def _unique_names(rows: Sequence[Partition]) -> tuple[Partition, ...]:
    """Make the names of rows unique; a partition under the cluster's own name keeps it."""
    names = {row.name.casefold() for row in rows if row.queue is None}
    renamed = []
    for row in rows:
        name, number = row.name, 1
        while row.queue is not None and name.casefold() in names:
            number += 1
            name = f"{row.name}-{number}"
        names.add(name.casefold())
        renamed.append(replace(row, name=name))
    return tuple(renamed)


def _accounting_notes(site: _Site) -> list[str]:
    """Return notes on missing answers of the accounting."""
    if not site.enforced:
        policies = (*site.qos.values(), *(association.policy for association in site.associations))
        if any(policy.limits_something for policy in policies):
            return ["the accounting has limits that the cluster does not enforce (AccountingStorageEnforce)"]
        return []
    notes = []
    if site.records.qos is None:
        notes.append("the limits of QOS are not known, and hold here: those shown are the partitions' own")
    if site.records.associations is None:
        notes.append("the limits of your accounts are not known, and hold here")
    elif not site.associations:
        notes.append("you have no account in the accounting of this cluster, so that it may take no job of yours")
    return notes


def _scheduling(config: Record) -> Scheduling:
    enforces = config.get("EnforcePartLimits", "").upper()
    kind, mode = config.get("PreemptType", ""), config.get("PreemptMode", "")
    preempts = kind not in ("", "preempt/none", "(null)")
    # A frequency without a name is that of the task.
    parts = (part.rpartition("=") for part in config.get("JobAcctGatherFrequency", "").split(","))
    sampling_s = {name or "task": parse_whole(value.strip()) for name, _, value in parts}.get("task")
    return Scheduling(
        config.get("SLURM_VERSION", ""), rejects_beyond_limits=enforces != "NO" if enforces else None,
        max_array_size=parse_count(config.get("MaxArraySize", "")),
        sampling_interval_s=None if sampling_s is None else float(sampling_s),
        preemption=f"{kind.removeprefix('preempt/')} ({mode.lower()})" if preempts else "",
    )  # fmt: skip


def _partitions(site: _Site, record: Record) -> list[Partition]:
    """Convert a partition to one row per node type, and one per QOS with wider limits than the default."""
    name = record["PartitionName"]
    groups = [group for group in site.groups if name in group.counts]
    if not groups:
        total = parse_count(record.get("TotalNodes", ""))
        if total == 0:
            site.notes.append(f"{name} has no nodes, and is left out")
            return []
        site.notes.append(f"{name}: Slurm does not show its nodes, so that their cores, memory and GPUs are not known")
        groups = [NodeGroup(NodeType(UNLISTED_NODES), (), {name: total} if total else {})]
    labels = _labels(groups)
    rows = []
    for group in groups:
        row = name if len(groups) == 1 else f"{name}-{labels[group.node.name]}"
        rows += _rows(site, record, group, groups, row)
    return rows


def _labels(groups: Sequence[NodeGroup]) -> dict[str, str]:
    """Return a short label of each node type: its GPU if unique in the partition, else the whole name."""
    short = {group.node.name: group.gpus[0].label if group.gpus else "cpu" for group in groups}
    labels = list(short.values())
    return {name: label if labels.count(label) == 1 else name for name, label in short.items()}


def _rows(site: _Site, record: Record, group: NodeGroup, groups: Sequence[NodeGroup], row: str) -> list[Partition]:
    name, kind = record["PartitionName"], group.gpus[0].kind if group.gpus else None
    associations = [
        association
        for association in site.associations
        if association.partition in ("", name) and _admits(record, "Accounts", association.account)
    ]
    partition_qos = site.qos.get(record.get("QoS", "")) if site.enforced else None
    usual = default_qos(associations) if associations else None

    def bound(qos: str | None) -> JobLimits:
        policy = site.qos.get(qos or "") if site.enforced else None
        return job_limits(record, partition_qos, policy, associations if site.enforced else (), kind)

    base = bound(usual)
    rows = [_row(site, record, group, groups, row=row, bound=base, usual=usual, qos=None)]
    named = {qos for association in associations for qos in association.qos} - {usual}
    for qos in sorted(qos for qos in named if _admits(record, "Qos", qos)):
        wider = bound(qos)
        if is_wider(wider.limits, base.limits):
            rows.append(_row(site, record, group, groups, row=f"{row}-{qos}", bound=wider, usual=usual, qos=qos))
    return rows


def _row(
    site: _Site, record: Record, group: NodeGroup, groups: Sequence[NodeGroup], *, row: str, bound: JobLimits,
    usual: str | None, qos: str | None,
) -> Partition:  # fmt: skip
    name, kind = record["PartitionName"], group.gpus[0].kind if group.gpus else None
    per_core = _memory_per_core(record, site.records.config)
    node = _node(record, group, bound)
    policy = site.qos.get(qos or usual or "")
    factor = policy.usage_factor if policy else 1.0
    billing, billing_notes = partition_charge(record, site.records.config, kind, per_core, factor)
    site.notes.extend(billing_notes)
    if len(groups) == 1 and not group.gpus[1:]:
        plain, _ = partition_charge(record, site.records.config, kind, per_core)
        site.notes.extend(filter(None, [disagreement(record, plain)]))
    notes = _row_notes(record, site, policy, bound)
    rules, rule_notes = _rules(site.records.config, record, group, groups)
    return Partition(
        row, node, queue=name if row != name else None, limits=bound.limits, billing=billing,
        rules=replace(rules, qos=qos), preemptible=_preemptible(site, record, policy),
        restricted=_restricted(site, record), default_memory_bytes_per_core=per_core,
        note="; ".join([*notes, *rule_notes]), confidence=Confidence.FOUND, source=site.source, as_of=site.as_of,
    )  # fmt: skip


def _node(record: Record, group: NodeGroup, bound: JobLimits) -> NodeType:
    """Return the node within the partition's limits on CPUs and memory."""
    node = group.node
    cores = min((limit for limit in (node.cores, parse_count(record.get("MaxCPUsPerNode", ""))) if limit), default=None)
    most = [node.usable_memory_bytes, parse_memory(record.get("MaxMemPerNode", "")), bound.max_memory_bytes]
    by_core = parse_memory(record.get("MaxMemPerCPU", ""))
    if by_core and cores:
        most.append(by_core * cores)
    usable = min((int(limit) for limit in most if limit), default=None)
    usable = None if usable == node.memory_bytes else usable
    return replace(node, count=group.counts.get(record["PartitionName"]), cores=cores, usable_memory_bytes=usable)


def _memory_per_core(record: Record, config: Record) -> int | None:
    """Return the default memory per CPU, of the partition or else the cluster."""
    for source in (record, config):
        if (per_core := parse_memory(source.get("DefMemPerCPU", ""))) is not None:
            return per_core
        if parse_memory(source.get("DefMemPerNode", "")) is not None:
            return None
    return None


def _rules(
    config: Record, record: Record, group: NodeGroup, groups: Sequence[NodeGroup]
) -> tuple[SubmitRules, list[str]]:
    """Return how a job requests these nodes, with a note if it cannot select them."""
    # select/linear always allocates whole nodes, whatever the job requests.
    linear = config.get("SelectType", "").endswith("linear")
    whole = linear or record.get("OverSubscribe", "") == "EXCLUSIVE"
    by_tres = config.get("SelectType", "select/cons_tres").endswith("tres")
    option = "--gpus-per-node={gpus}" if by_tres else "--gres=gpu:{gpus}"
    kinds = [member.gpus[0].kind for member in groups if member.gpus]
    mixed = len({gpus.kind for gpus in group.gpus}) > 1
    kind = group.gpus[0].kind if group.gpus else None
    if kind and (len(set(kinds)) > 1 or mixed):
        option = option.replace("{gpus}", f"{kind}:{{gpus}}")
    constraint, notes = None, []
    other_groups = [member for member in groups if member is not group]
    if other_groups and not (group.gpus and (not kinds[1:] or (kind and kinds.count(kind) == 1))):
        distinguishing = sorted(group.features - frozenset().union(*(member.features for member in other_groups)))
        constraint = distinguishing[0] if distinguishing else None
        if constraint is None:
            notes.append("no option selects these nodes among those of the partition")
    return SubmitRules(gpu_option=option, whole_nodes=whole, constraint=constraint), notes


def _row_notes(record: Record, site: _Site, policy: LimitPolicy | None, bound: JobLimits) -> list[str]:
    notes = [] if bound.limits.max_walltime_s is not None else ["no limit of walltime"]
    if (state := record.get("State", "UP")) != "UP":
        effects = {"DOWN": "queues jobs and starts none", "DRAIN": "takes no new jobs"}
        notes.append(f"is {state}: it {effects.get(state, 'neither takes nor starts jobs')}")
        site.notes.append(f"{record['PartitionName']} {notes[-1]}")
    if site.enforced and policy and (least := {k: v for k, v in policy.least.items() if k not in ("cpu", "node")}):
        minimum = ", ".join(f"{format_bytes(v) if k == 'mem' else f'{v:g}'} {k}" for k, v in least.items())
        notes.append(f"jobs of QOS {policy.name} ask for at least {minimum}")
    return notes


def _admits(record: Record, kind: Literal["Accounts", "Qos"], name: str) -> bool:
    """True if a partition is open to the account or QOS of that name."""
    allowed, denied = parse_names(record.get(f"Allow{kind}", "ALL")), parse_names(record.get(f"Deny{kind}", ""))
    return (allowed is None or name in allowed) and name not in (denied or ())


def _restricted(site: _Site, record: Record) -> bool:
    """True if the user cannot use a partition: for root, reservations, or other groups or accounts only."""
    groups = parse_names(record.get("AllowGroups", "ALL"))
    if record.get("RootOnly") == "YES" or record.get("ReqResv") == "YES":
        return True
    if groups is not None and not groups & site.records.groups:
        return True
    accounts = [association.account for association in site.associations]
    return bool(accounts) and not any(_admits(record, "Accounts", account) for account in accounts)


def _preemptible(site: _Site, record: Record, policy: LimitPolicy | None) -> bool:
    """True if jobs of a higher-tier partition on the same nodes, or of another QOS, can preempt jobs here."""
    kind = site.records.config.get("PreemptType", "")
    if kind.endswith("/qos"):
        own_qos = {policy.name if policy else "", record.get("QoS", "")} - {""}
        return any(own_qos & preemptor.preempts for preemptor in site.qos.values())
    if not kind.endswith("/partition_prio") or record.get("PreemptMode", "OFF") == "OFF":
        return False
    tier = parse_count(record.get("PriorityTier", "")) or 1
    shared = {name for group in site.groups if record["PartitionName"] in group.counts for name in group.counts}
    return any(
        preemptor["PartitionName"] in shared and (parse_count(preemptor.get("PriorityTier", "")) or 1) > tier
        for preemptor in site.records.partitions
    )
