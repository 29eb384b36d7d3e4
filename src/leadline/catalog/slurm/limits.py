"""The effective limits of a job in a partition, from the partition, its QOS, the job's QOS and the association.

Slurm applies the first limit defined by the partition's QOS, the job's QOS and the association (resource_limits.html).
The partition also limits time and nodes. Limits on the total of a user or group also bound a job, because a larger one
never starts.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from msgspec import field

from leadline.catalog.slurm.text import Record, parse_count, parse_names, parse_number, parse_seconds, read_tres
from leadline.core.frozen import Frozen
from leadline.core.systems import Limits

ENFORCED = frozenset({"limits", "safe", "all"})
"""Values of AccountingStorageEnforce that enforce the limits of QOS and associations."""

Tres = Mapping[str, float]


class LimitPolicy(Frozen):
    """Limits of a QOS or association; amounts by TRES name, memory in bytes."""

    name: str = ""
    flags: frozenset[str] = frozenset()
    max_walltime_s: float | None = None
    per_job: Tres = field(default_factory=dict)
    per_user: Tres = field(default_factory=dict)
    per_group: Tres = field(default_factory=dict)
    least: Tres = field(default_factory=dict)
    max_submitted_jobs: int | None = None
    usage_factor: float = 1.0
    preempts: frozenset[str] = frozenset()

    @property
    def limits_something(self) -> bool:
        """True if it bounds the time or the amounts of a job."""
        return self.max_walltime_s is not None or bool(self.per_job or self.per_user or self.per_group)


class Association(Frozen):
    """An account that the user may charge, with its limits; an empty ``partition`` means all."""

    account: str
    partition: str
    qos: frozenset[str]
    default_qos: str
    policy: LimitPolicy


class JobLimits(Frozen):
    """The limits of one job, and its maximum memory over all nodes."""

    limits: Limits
    max_memory_bytes: float | None = None


def read_qos(rows: Iterable[Record]) -> dict[str, LimitPolicy]:
    """Return the QOS of rows with the fields ``text.QOS``, by name."""
    return {row["Name"]: _policy(row, row["Name"]) for row in rows if row["Name"]}


def _policy(row: Record, name: str) -> LimitPolicy:
    """Return the limits of a row of a QOS or an association, which has some of the fields."""
    text = defaultdict(str, row)
    factor = parse_number(text["UsageFactor"])
    return LimitPolicy(
        name, flags=parse_names(text["Flags"]) or frozenset(), max_walltime_s=parse_seconds(text["MaxWall"]),
        per_job=read_tres(text["MaxTRES"]), per_user=read_tres(text["MaxTRESPU"]),
        per_group=read_tres(text["GrpTRES"]), least=read_tres(text["MinTRES"]),
        max_submitted_jobs=parse_count(text["MaxSubmitPU"] or text["MaxSubmit"]),
        usage_factor=1.0 if factor is None else factor, preempts=parse_names(text["Preempt"]) or frozenset(),
    )  # fmt: skip


def read_associations(rows: Iterable[Record]) -> list[Association]:
    """Return the user's associations among rows with the fields ``text.ASSOCIATION``.

    sacctmgr passes an account's limits on to its users, except group limits. For these, the minimum of the user, the
    account and its parents applies.
    """
    listed = list(rows)
    accounts = {row["Account"]: (row["ParentName"], read_tres(row["GrpTRES"])) for row in listed if not row["User"]}
    associations = []
    for row in listed:
        if row["User"]:
            policy, qos = _policy(row, row["Account"]), parse_names(row["QOS"]) or frozenset()
            policy = replace(policy, per_group=_group_limits(policy.name, policy.per_group, accounts))
            associations.append(Association(policy.name, row["Partition"], qos, row["DefaultQOS"], policy))
    return associations


def _group_limits(account: str, direct: Tres, accounts: Mapping[str, tuple[str, Tres]]) -> Tres:
    """Return the minimum of each TRES limit of an association, its account and the account's parents."""
    amounts, visited = dict(direct), {""}
    while account not in visited and account in accounts:
        visited.add(account)
        account, limits = accounts[account]
        amounts |= {name: min(amount, amounts.get(name, amount)) for name, amount in limits.items()}
    return amounts


def job_limits(
    partition: Record, partition_qos: LimitPolicy | None, qos: LimitPolicy | None,
    associations: Sequence[Association], gpu_kind: str | None,
) -> JobLimits:  # fmt: skip
    """Return the limits of a user's job in a partition, under one of the job's QOS.

    ``partition_qos`` is the partition's QOS. The widest limit of several accounts counts, because the user can choose
    the account.
    """
    accounts = [association.policy for association in associations] or [LimitPolicy()]
    return _widest([_bound(partition, partition_qos, qos, account, gpu_kind) for account in accounts])


def default_qos(associations: Sequence[Association]) -> str | None:
    """Return the QOS of a job that requests none, if all accounts agree; ``None`` if unknown."""
    candidates = {
        association.default_qos or ("normal" if "normal" in association.qos else _only(association.qos))
        for association in associations
    }
    return _only(candidates) or None


def is_wider(limits: Limits, base: Limits) -> bool:
    """True if ``limits`` allow a longer or larger job than ``base``."""
    pairs = [(getattr(limits, name), getattr(base, name)) for name in _UPPER_LIMITS]
    return any(base_limit is not None and (limit is None or limit > base_limit) for limit, base_limit in pairs)


_UPPER_LIMITS = ("max_walltime_s", "max_nodes", "max_cores", "max_gpus")


def _bound(
    partition: Record, partition_qos: LimitPolicy | None, qos: LimitPolicy | None, account: LimitPolicy,
    gpu_kind: str | None,
) -> JobLimits:  # fmt: skip
    order = [partition_qos, qos, account]
    # OverPartQOS reverses the precedence of the two QOS (sacctmgr, Flags).
    if qos is not None and "OverPartQOS" in qos.flags:
        order = [qos, partition_qos, account]
    policies = [policy for policy in order if policy is not None]
    flags = {flag for policy in policies for flag in policy.flags}
    walltime_s = _first(policy.max_walltime_s for policy in policies)
    nodes = _amount(policies, "node")
    if "PartitionTimeLimit" not in flags:
        walltime_s = _minimum(walltime_s, parse_seconds(partition.get("MaxTime", "")))
    if "PartitionMaxNodes" not in flags:
        nodes = _minimum(nodes, parse_count(partition.get("MaxNodes", "")))
    gpus = _amount(policies, "gres/gpu")
    if gpu_kind:
        gpus = _minimum(gpus, _amount(policies, f"gres/gpu:{gpu_kind.casefold()}"))
    min_nodes = max(parse_count(partition.get("MinNodes", "")) or 0, _required(policies, "node") or 0)
    limits = Limits(
        max_walltime_s=walltime_s, min_nodes=min_nodes if min_nodes > 1 else None, max_nodes=_whole(nodes),
        min_cores=_required(policies, "cpu"), max_cores=_whole(_amount(policies, "cpu")), max_gpus=_whole(gpus),
        max_submitted_jobs=_whole(_first(policy.max_submitted_jobs for policy in policies)),
    )  # fmt: skip
    return JobLimits(limits, _amount(policies, "mem"))


def _amount(policies: Sequence[LimitPolicy], tres: str) -> float | None:
    """Return the maximum of a TRES for a job: the minimum of its own, its user's and its group's limit."""
    per_job = _first(policy.per_job.get(tres) for policy in policies)
    per_user = _first(policy.per_user.get(tres) for policy in policies)
    return _minimum(per_job, per_user, *(policy.per_group.get(tres) for policy in policies))


def _required(policies: Sequence[LimitPolicy], tres: str) -> int | None:
    return _whole(_first(policy.least.get(tres) for policy in policies))


def _widest(bounds: Sequence[JobLimits]) -> JobLimits:
    """Return the widest of each limit."""

    def widest(values: Iterable[float | None]) -> float | None:
        limits = list(values)
        return None if None in limits else max(limit for limit in limits if limit is not None)

    fields = (*_UPPER_LIMITS, "max_submitted_jobs")
    limits: dict[str, Any] = {name: widest(getattr(bound.limits, name) for bound in bounds) for name in fields}
    return JobLimits(replace(bounds[0].limits, **limits), widest(bound.max_memory_bytes for bound in bounds))


def _first(values: Iterable[float | None]) -> float | None:
    return next((value for value in values if value is not None), None)


def _minimum(*values: float | None) -> float | None:
    return min((value for value in values if value is not None), default=None)


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _only(names: Iterable[str]) -> str:
    """Return the single name, or an empty string."""
    listed = list(names)
    return listed[0] if len(listed) == 1 else ""
