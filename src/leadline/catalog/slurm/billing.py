"""Turn a partition's billing weights into a charge rule, and hold it against Slurm's own sum; pure arithmetic."""

from dataclasses import dataclass, replace
from typing import Any

from leadline.catalog.slurm.text import Record, parse_names, read_tres, read_weights
from leadline.core.systems import Billing, BillingRule
from leadline.core.units import GIB, MIB

AGREES = 0.02
"""Share by which Slurm's own billing of a whole partition may differ: it is cut to whole units."""


@dataclass(frozen=True, slots=True)
class ChargeRule:
    """A charge rule, and what of the weights it leaves out."""

    billing: Billing
    notes: tuple[str, ...] = ()


def partition_charge(
    partition: Record, config: Record, gpu_kind: str | None, memory_bytes_per_core: int | None, factor: float = 1.0
) -> ChargeRule:
    """Return how a partition's jobs on nodes with GPUs of ``gpu_kind`` are charged, in the cluster's billing units.

    Weights of TRES that the cluster does not track weigh nothing (slurm.conf, AccountingStorageTRES); ``factor`` is the
    UsageFactor of the job's QOS.
    """
    name, said = partition["PartitionName"], partition.get("TRESBillingWeights", "")
    weights = read_weights(said) if said else {"cpu": 1.0}
    rule = _rule(config) if said else BillingRule.TRES_SUM
    kept, notes = _billed(weights, parse_names(config.get("AccountingStorageTRES", "").casefold()))
    gpus = [weight for tres, weight in kept.items() if tres in ("gres/gpu", f"gres/gpu:{(gpu_kind or '').casefold()}")]
    rates = {
        "core_hour": kept.get("cpu", 0.0),
        "gib_hour": kept.get("mem", 0.0) * GIB / MIB,
        "gpu_hour": max(gpus, default=0.0) if rule is BillingRule.TRES_MAX else sum(gpus),
        "node_hour": kept.get("node", 0.0),
    }
    billing = Billing(
        rule,
        f"{config.get('ClusterName', 'slurm')} billing units",
        source="TRESBillingWeights" if said else "no TRESBillingWeights are set: Slurm bills the CPUs",
    )
    if any(rates.values()) and factor > 0:
        weighing: dict[str, Any] = {rate: weight for rate, weight in rates.items() if weight}
        default = memory_bytes_per_core if rates["gib_hour"] else None
        billing = replace(billing, memory_bytes_per_core=default, charge_factor=factor, **weighing)
    else:
        billing = replace(billing, free=True)
    return ChargeRule(billing, tuple(f"{name}: {note}" for note in notes))


def disagreement(partition: Record, billing: Billing) -> str:
    """Return the sentence for a rule that does not give Slurm's own billing of the whole partition; empty if it does.

    Slurm prints what a job on all of a partition would be billed in its TRES (``cpu=64,mem=500G,billing=64``).
    """
    whole = read_tres(partition.get("TRES", ""))
    if "billing" not in whole:
        return ""
    parts = [
        whole.get("cpu", 0.0) * (billing.core_hour or 0.0),
        whole.get("mem", 0.0) / GIB * (billing.gib_hour or 0.0),
        whole.get("node", 0.0) * (billing.node_hour or 0.0),
    ]
    gpus = whole.get("gres/gpu", 0.0) * (billing.gpu_hour or 0.0)
    ours = {
        BillingRule.TRES_MAX: max(*parts, gpus),
        BillingRule.TRES_MAX_AND_GPUS: max(parts) + gpus,
    }.get(billing.rule, sum(parts) + gpus)
    if abs(ours - whole["billing"]) <= max(1.0, AGREES * ours):
        return ""
    return (
        f"{partition['PartitionName']}: by its weights all of it would be billed {ours:.0f}, and Slurm says "
        f"{whole['billing']:.0f}: its prices are doubtful"
    )


def _billed(weights: dict[str, float], tracked: frozenset[str] | None) -> tuple[dict[str, float], list[str]]:
    """Return the weights that are billed and can be counted, and what is to be said of the others."""
    kept, notes = {}, []
    for name, weight in weights.items():
        if weight < 0:
            notes.append(f"the weight of {name} is negative, and is left out")
        elif name.startswith("gres/") and tracked is not None and name not in tracked:
            notes.append(f"{name} has a weight but is not tracked, so that Slurm does not bill it")
        elif name in ("cpu", "mem", "node", "gres/gpu") or name.startswith("gres/gpu:"):
            kept[name] = weight
        elif weight:
            notes.append(f"{name} is billed too, which is not counted")
    return kept, notes


def _rule(config: Record) -> BillingRule:
    flags = parse_names(config.get("PriorityFlags", "")) or frozenset()
    if "MAX_TRES" in flags:
        return BillingRule.TRES_MAX
    return BillingRule.TRES_MAX_AND_GPUS if "MAX_TRES_GRES" in flags else BillingRule.TRES_SUM
