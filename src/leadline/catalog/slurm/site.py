"""Turn what a live Slurm says of itself into a system of the catalog; pure values, so that any Slurm can be tried."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

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
from leadline.core.hardware import Confidence, Device, Machine
from leadline.core.systems import UNLISTED_NODES, NodeType, Partition, Scheduling, SubmitRules, System
from leadline.core.units import format_bytes


@dataclass(frozen=True, slots=True)
class ClusterRecords:
    """What a cluster said, as records; ``None`` is a question that it did not answer.

    ``groups`` are the user's groups, and ``here`` the machine that asked.
    """

    config: Record
    partitions: Sequence[Record]
    nodes: Sequence[Record] = ()
    qos: Sequence[Record] | None = None
    associations: Sequence[Record] | None = None
    groups: frozenset[str] = frozenset()
    here: Machine | None = None


@dataclass(frozen=True, slots=True)
class ProbedSystem:
    """The system, and a sentence for each thing that is not known of it or that its keeper should look at."""

    system: System
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Site:
    """What holds for all partitions while they are read."""

    said: ClusterRecords
    groups: Sequence[NodeGroup]
    qos: dict[str, LimitPolicy]
    associations: Sequence[Association]
    enforced: bool
    source: str
    as_of: str
    notes: list[str] = field(default_factory=list)


def build_system(said: ClusterRecords, devices: Sequence[Device], *, name: str, site: str, as_of: str) -> ProbedSystem:
    """Return the system of that name, with the partitions in the order in which Slurm lists them."""
    config = said.config
    enforced = bool(ENFORCED & (parse_names(config.get("AccountingStorageEnforce", "")) or frozenset()))
    found = _Site(
        said,
        group_nodes(said.nodes, devices, said.here),
        read_qos(said.qos or ()),
        read_associations(said.associations or ()),
        enforced,
        f"scontrol, sinfo and sacctmgr of Slurm {config.get('SLURM_VERSION', '')} on {config.get('ClusterName', name)}",
        as_of,
    )
    found.notes.extend(note for group in found.groups for note in group.notes)
    partitions = _told_apart([one for record in said.partitions for one in _partitions(found, record)])
    found.notes.extend(_unknown(found))
    system = System(
        name,
        site,
        "cluster",
        "production",
        "slurm",
        partitions=partitions,
        scheduling=replace(
            _scheduling(config),
            accounting_answered=said.qos is not None and said.associations is not None if enforced else None,
        ),
        source=found.source,
        as_of=as_of,
    )
    return ProbedSystem(system, tuple(dict.fromkeys(found.notes)))


def _told_apart(rows: Sequence[Partition]) -> tuple[Partition, ...]:
    """Return the rows under names of their own: what the cluster itself calls a partition keeps its name."""
    taken = {one.name.casefold() for one in rows if one.queue is None}
    found = []
    for one in rows:
        name = one.name
        if one.queue is not None:
            name = next(each for n in range(1, len(rows) + 2) if (each := _numbered(name, n)).casefold() not in taken)
            taken.add(name.casefold())
        found.append(replace(one, name=name))
    return tuple(found)


def _numbered(name: str, number: int) -> str:
    return name if number == 1 else f"{name}-{number}"


def _unknown(site: _Site) -> list[str]:
    """Return what the accounting was not asked for, or did not say."""
    if not site.enforced:
        if any(_limits_something(one) for one in (*site.qos.values(), *(one.policy for one in site.associations))):
            return ["the accounting has limits that the cluster does not enforce (AccountingStorageEnforce)"]
        return []
    notes = []
    if site.said.qos is None:
        notes.append("the limits of QOS are not known, and hold here: those shown are the partitions' own")
    if site.said.associations is None:
        notes.append("the limits of your accounts are not known, and hold here")
    elif not site.associations:
        notes.append("you have no account in the accounting of this cluster, so that it may take no job of yours")
    return notes


def _limits_something(policy: LimitPolicy) -> bool:
    return policy.max_walltime_s is not None or bool(policy.per_job or policy.per_user or policy.per_group)


def _scheduling(config: Record) -> Scheduling:
    enforces = config.get("EnforcePartLimits", "").upper()
    kind, mode = config.get("PreemptType", ""), config.get("PreemptMode", "")
    frequency = dict(
        part.partition("=")[::2] if "=" in part else ("task", part)
        for part in config.get("JobAcctGatherFrequency", "").split(",")
    )
    sampling = frequency.get("task", "").strip()
    return Scheduling(
        config.get("SLURM_VERSION", ""),
        rejects_beyond_limits=enforces != "NO" if enforces else None,
        max_array_size=parse_count(config.get("MaxArraySize", "")),
        sampling_interval_s=float(sampling) if sampling.isdigit() else None,
        preemption=""
        if kind in ("", "preempt/none", "(null)")
        else f"{kind.removeprefix('preempt/')} ({mode.lower()})",
    )


def _partitions(site: _Site, record: Record) -> list[Partition]:
    """Return a partition as rows of one node type each, and of each QOS that lets more through than the usual one."""
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
    found = []
    for group in groups:
        row = name if len(groups) == 1 else f"{name}-{labels[group.node.name]}"
        found += _rows(site, record, group, groups, row)
    return found


def _labels(groups: Sequence[NodeGroup]) -> dict[str, str]:
    """Return a short name of each node type in a partition: its GPU's where no other has it, else the whole name."""
    short = {group.node.name: group.gpus[0].label if group.gpus else "cpu" for group in groups}
    said = list(short.values())
    return {name: label if said.count(label) == 1 else name for name, label in short.items()}


def _rows(site: _Site, record: Record, group: NodeGroup, groups: Sequence[NodeGroup], row: str) -> list[Partition]:
    name, kind = record["PartitionName"], group.gpus[0].kind if group.gpus else None
    associations = [one for one in site.associations if one.partition in ("", name) and _may_charge(one, record)]
    own = site.qos.get(record.get("QoS", "")) if site.enforced else None
    usual = default_qos(associations) if associations else None

    def bound(qos: str | None) -> JobLimits:
        policy = site.qos.get(qos or "") if site.enforced else None
        return job_limits(record, own, policy, associations if site.enforced else (), kind)

    base = bound(usual)
    rows = [_row(site, record, group, groups, row=row, bound=base, usual=usual, qos=None)]
    chosen = sorted({qos for one in associations for qos in one.qos if _allows(record, qos)} - {usual})
    for qos in chosen:
        wider = bound(qos)
        if is_wider(wider.limits, base.limits):
            rows.append(_row(site, record, group, groups, row=f"{row}-{qos}", bound=wider, usual=usual, qos=qos))
    return rows


def _row(
    site: _Site, record: Record, group: NodeGroup, groups: Sequence[NodeGroup], *, row: str, bound: JobLimits,
    usual: str | None, qos: str | None,
) -> Partition:  # fmt: skip
    name, kind = record["PartitionName"], group.gpus[0].kind if group.gpus else None
    per_core = _memory_per_core(record, site.said.config)
    node = _node(record, group, bound)
    policy = site.qos.get(qos or usual or "")
    charge = partition_charge(record, site.said.config, kind, per_core, policy.usage_factor if policy else 1.0)
    site.notes.extend(charge.notes)
    if len(groups) == 1 and not group.gpus[1:]:
        plain = partition_charge(record, site.said.config, kind, per_core).billing
        site.notes.extend(filter(None, [disagreement(record, plain)]))
    notes = _row_notes(record, site, policy, bound)
    rules, said = _rules(site.said.config, record, group, groups)
    return Partition(
        row,
        node,
        queue=name if row != name else None,
        limits=bound.limits,
        billing=charge.billing,
        rules=replace(rules, qos=qos),
        preemptible=_preemptible(site, record, policy),
        restricted=_restricted(site, record),
        default_memory_bytes_per_core=per_core,
        note="; ".join([*notes, *said]),
        confidence=Confidence.FOUND,
        source=site.source,
        as_of=site.as_of,
    )


def _node(record: Record, group: NodeGroup, bound: JobLimits) -> NodeType:
    """Return the node as a job of the partition may use it: no more CPUs and memory than the partition gives."""
    node = group.node
    cores = min((one for one in (node.cores, parse_count(record.get("MaxCPUsPerNode", ""))) if one), default=None)
    most = [node.usable_memory_bytes, parse_memory(record.get("MaxMemPerNode", "")), bound.max_memory_bytes]
    by_core = parse_memory(record.get("MaxMemPerCPU", ""))
    if by_core and cores:
        most.append(by_core * cores)
    usable = min((int(one) for one in most if one), default=None)
    usable = None if usable == node.memory_bytes else usable
    return replace(node, count=group.counts.get(record["PartitionName"]), cores=cores, usable_memory_bytes=usable)


def _memory_per_core(record: Record, config: Record) -> int | None:
    """Return what a job has for each CPU that names no memory: the partition's own, else the cluster's."""
    for source in (record, config):
        if (per_core := parse_memory(source.get("DefMemPerCPU", ""))) is not None:
            return per_core
        if parse_memory(source.get("DefMemPerNode", "")) is not None:
            return None
    return None


def _rules(
    config: Record, record: Record, group: NodeGroup, groups: Sequence[NodeGroup]
) -> tuple[SubmitRules, list[str]]:
    """Return how a job asks for these nodes, and what to say where it cannot ask for them apart from the others."""
    linear = config.get("SelectType", "").endswith("linear")
    whole = linear or record.get("OverSubscribe", "") == "EXCLUSIVE"
    option = (
        "--gpus-per-node={gpus}"
        if config.get("SelectType", "select/cons_tres").endswith("tres")
        else "--gres=gpu:{gpus}"
    )
    kinds = [other.gpus[0].kind for other in groups if other.gpus]
    mixed = len({one.kind for one in group.gpus}) > 1
    kind = group.gpus[0].kind if group.gpus else None
    if kind and (len(set(kinds)) > 1 or mixed):
        option = option.replace("{gpus}", f"{kind}:{{gpus}}")
    constraint, notes = None, []
    others = [other for other in groups if other is not group]
    if others and not (group.gpus and (not kinds[1:] or (kind and kinds.count(kind) == 1))):
        apart = sorted(group.features - frozenset().union(*(other.features for other in others)))
        constraint = apart[0] if apart else None
        if constraint is None:
            notes.append("nothing asks for these nodes apart from the others of the partition")
    return SubmitRules(gpu_option=option, whole_nodes=whole, constraint=constraint), notes


def _row_notes(record: Record, site: _Site, policy: LimitPolicy | None, bound: JobLimits) -> list[str]:
    notes = [] if bound.limits.max_walltime_s is not None else ["no limit of walltime"]
    if (state := record.get("State", "UP")) != "UP":
        what = {"DOWN": "queues jobs and starts none", "DRAIN": "takes no new jobs"}.get(
            state, "neither takes nor starts jobs"
        )
        notes.append(f"is {state}: it {what}")
        site.notes.append(f"{record['PartitionName']} is {state}: it {what}")
    if site.enforced and policy and (least := {k: v for k, v in policy.least.items() if k not in ("cpu", "node")}):
        wanted = ", ".join(f"{format_bytes(v) if k == 'mem' else f'{v:g}'} {k}" for k, v in least.items())
        notes.append(f"jobs of QOS {policy.name} ask for at least {wanted}")
    return notes


def _may_charge(association: Association, record: Record) -> bool:
    allowed, denied = parse_names(record.get("AllowAccounts", "ALL")), parse_names(record.get("DenyAccounts", ""))
    return (allowed is None or association.account in allowed) and association.account not in (denied or ())


def _allows(record: Record, qos: str) -> bool:
    allowed, denied = parse_names(record.get("AllowQos", "ALL")), parse_names(record.get("DenyQos", ""))
    return (allowed is None or qos in allowed) and qos not in (denied or ())


def _restricted(site: _Site, record: Record) -> bool:
    """Whether the user cannot use a partition: for root or in reservations only, or for other groups or accounts."""
    groups = parse_names(record.get("AllowGroups", "ALL"))
    if record.get("RootOnly") == "YES" or record.get("ReqResv") == "YES":
        return True
    if groups is not None and not groups & site.said.groups:
        return True
    return bool(site.associations) and not any(_may_charge(one, record) for one in site.associations)


def _preemptible(site: _Site, record: Record, policy: LimitPolicy | None) -> bool:
    """Whether other jobs may end one here: those of a higher tier's partition on the same nodes, or of another QOS."""
    kind = site.said.config.get("PreemptType", "")
    if kind.endswith("/qos"):
        mine = {one for one in (policy.name if policy else "", record.get("QoS", "")) if one}
        return any(mine & other.preempts for other in site.qos.values())
    if not kind.endswith("/partition_prio") or record.get("PreemptMode", "OFF") == "OFF":
        return False
    tier = parse_count(record.get("PriorityTier", "")) or 1
    shared = {name for group in site.groups if record["PartitionName"] in group.counts for name in group.counts}
    return any(
        other["PartitionName"] in shared and (parse_count(other.get("PriorityTier", "")) or 1) > tier
        for other in site.said.partitions
    )
