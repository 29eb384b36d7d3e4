"""Work out which limits hold for one job in a partition: those of QOS, associations and the partition itself.

The order is Slurm's own (resource_limits.html): the limit that is defined first of the partition's QOS, the job's QOS
and the association holds, and the partition's bounds time and nodes besides. A limit on what a user or a group holds at
once bounds a job too, for one that is larger never starts.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from leadline.catalog.slurm.text import Record, parse_count, parse_names, parse_number, parse_seconds, read_tres
from leadline.core.systems import Limits

ENFORCED = frozenset({"limits", "safe", "all"})
"""Values of AccountingStorageEnforce with which the limits of QOS and associations hold."""

Tres = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class LimitPolicy:
    """What a QOS or an association says of a job; amounts by the name of the TRES, memory in bytes."""

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


@dataclass(frozen=True, slots=True)
class Association:
    """One account that the user may charge, with its limits; ``partition`` is empty where it holds in all of them."""

    account: str
    partition: str
    qos: frozenset[str]
    default_qos: str
    policy: LimitPolicy


@dataclass(frozen=True, slots=True)
class JobLimits:
    """The limits of one job, and the memory that it may have over all its nodes."""

    limits: Limits
    max_memory_bytes: float | None = None


def read_qos(rows: Iterable[Record]) -> dict[str, LimitPolicy]:
    """Return the QOS of rows of the fields ``slurm_text.QOS``, by name."""
    return {
        row["Name"]: LimitPolicy(
            row["Name"],
            flags=parse_names(row["Flags"]) or frozenset(),
            max_walltime_s=parse_seconds(row["MaxWall"]),
            per_job=read_tres(row["MaxTRES"]),
            per_user=read_tres(row["MaxTRESPU"]),
            per_group=read_tres(row["GrpTRES"]),
            least=read_tres(row["MinTRES"]),
            max_submitted_jobs=parse_count(row["MaxSubmitPU"]),
            usage_factor=1.0 if (factor := parse_number(row["UsageFactor"])) is None else factor,
            preempts=parse_names(row["Preempt"]) or frozenset(),
        )
        for row in rows
        if row["Name"]
    }


def read_associations(rows: Iterable[Record]) -> list[Association]:
    """Return the user's associations among rows of the fields ``slurm_text.ASSOCIATION``; the others are accounts'.

    sacctmgr passes an account's limits on to its users, but for those on what the whole group holds: of these the least
    holds of the user's own, the account's and its parents'.
    """
    listed = list(rows)
    accounts = {row["Account"]: (row["ParentName"], read_tres(row["GrpTRES"])) for row in listed if not row["User"]}
    return [
        Association(
            row["Account"],
            row["Partition"],
            parse_names(row["QOS"]) or frozenset(),
            row["DefaultQOS"],
            LimitPolicy(
                row["Account"],
                max_walltime_s=parse_seconds(row["MaxWall"]),
                per_job=read_tres(row["MaxTRES"]),
                per_group=_shared(row["Account"], read_tres(row["GrpTRES"]), accounts),
                max_submitted_jobs=parse_count(row["MaxSubmit"]),
            ),
        )
        for row in listed
        if row["User"]
    ]


def _shared(account: str, own: Tres, accounts: Mapping[str, tuple[str, Tres]]) -> Tres:
    """Return the least of each TRES that an association, its account and the parents of that may hold at once."""
    found, seen = dict(own), {""}
    while account not in seen and account in accounts:
        seen.add(account)
        account, limits = accounts[account]
        found |= {name: min(amount, found.get(name, amount)) for name, amount in limits.items()}
    return found


def job_limits(
    partition: Record,
    own: LimitPolicy | None,
    qos: LimitPolicy | None,
    associations: Sequence[Association],
    gpu_kind: str | None,
) -> JobLimits:
    """Return what bounds one job of the user's in a partition, under a QOS of the job's.

    ``own`` is the partition's QOS. Of several accounts the widest limit counts, for the user may choose the account.
    """
    accounts = [one.policy for one in associations] or [LimitPolicy()]
    return _widest([_bound(partition, own, qos, account, gpu_kind) for account in accounts])


def default_qos(associations: Sequence[Association]) -> str | None:
    """Return the QOS of a job that asks for none, where all accounts agree; ``None`` where that is not known."""
    found = {one.default_qos or ("normal" if "normal" in one.qos else _only(one.qos)) for one in associations}
    return _only(found) or None


def is_wider(one: Limits, other: Limits) -> bool:
    """Whether ``one`` lets a longer or larger job through than ``other``."""
    pairs = [(getattr(one, name), getattr(other, name)) for name in _MOST]
    return any(most is not None and (allowed is None or allowed > most) for allowed, most in pairs)


_MOST = ("max_walltime_s", "max_nodes", "max_cores", "max_gpus")


def _bound(
    partition: Record,
    own: LimitPolicy | None,
    qos: LimitPolicy | None,
    account: LimitPolicy | None,
    gpu_kind: str | None,
) -> JobLimits:
    order = [own, qos, account]
    if qos is not None and "OverPartQOS" in qos.flags:
        order = [qos, own, account]
    policies = [one for one in order if one is not None]
    flags = {flag for one in policies for flag in one.flags}
    walltime_s = _first(one.max_walltime_s for one in policies)
    nodes = _amount(policies, "node")
    if "PartitionTimeLimit" not in flags:
        walltime_s = _least(walltime_s, parse_seconds(partition.get("MaxTime", "")))
    if "PartitionMaxNodes" not in flags:
        nodes = _least(nodes, parse_count(partition.get("MaxNodes", "")))
    gpus = _amount(policies, "gres/gpu")
    if gpu_kind:
        gpus = _least(gpus, _amount(policies, f"gres/gpu:{gpu_kind.casefold()}"))
    least_nodes = max(parse_count(partition.get("MinNodes", "")) or 0, _required(policies, "node") or 0)
    limits = Limits(
        max_walltime_s=walltime_s,
        min_nodes=least_nodes if least_nodes > 1 else None,
        max_nodes=_whole(nodes),
        min_cores=_required(policies, "cpu"),
        max_cores=_whole(_amount(policies, "cpu")),
        max_gpus=_whole(gpus),
        max_submitted_jobs=_whole(_first(one.max_submitted_jobs for one in policies)),
    )
    return JobLimits(limits, _amount(policies, "mem"))


def _amount(policies: Sequence[LimitPolicy], tres: str) -> float | None:
    """Return the most of a TRES that a job may have: the least of what it, its user and its group may."""
    kinds = (
        _first(one.per_job.get(tres) for one in policies),
        _first(one.per_user.get(tres) for one in policies),
        _least(*(one.per_group.get(tres) for one in policies)),
    )
    return _least(*kinds)


def _required(policies: Sequence[LimitPolicy], tres: str) -> int | None:
    return _whole(_first(one.least.get(tres) for one in policies))


def _widest(bounds: Sequence[JobLimits]) -> JobLimits:
    """Return the bound with the widest of each limit."""

    def widest(values: Iterable[float | None]) -> float | None:
        known = list(values)
        return None if None in known else max(one for one in known if one is not None)

    names_of = (*_MOST, "max_submitted_jobs")
    limits: dict[str, Any] = {name: widest(getattr(one.limits, name) for one in bounds) for name in names_of}
    return JobLimits(replace(bounds[0].limits, **limits), widest(one.max_memory_bytes for one in bounds))


def _first(values: Iterable[float | None]) -> float | None:
    return next((one for one in values if one is not None), None)


def _least(*values: float | None) -> float | None:
    return min((one for one in values if one is not None), default=None)


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _only(found: Iterable[str]) -> str:
    """Return the one name there is, or nothing."""
    listed = list(found)
    return listed[0] if len(listed) == 1 else ""
