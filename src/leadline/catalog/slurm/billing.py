"""Convert a partition's billing weights to a charge rule, and compare it with Slurm's own total."""

from dataclasses import replace
from typing import Any

from leadline.catalog.billing import combine_tres
from leadline.catalog.slurm.text import Record, parse_names, read_tres, read_weights
from leadline.core.systems import Billing, BillingRule
from leadline.core.units import GIB, MIB

BILLING_TOLERANCE = 0.02
"""Tolerated relative difference from Slurm's billing of a whole partition, which is truncated to whole units."""


def partition_charge(
    partition: Record, config: Record, gpu_kind: str | None, memory_bytes_per_core: int | None, factor: float = 1.0
) -> tuple[Billing, list[str]]:
    """Return the charge rule of a partition's jobs on nodes with GPUs of ``gpu_kind``, in the cluster's billing units.

    The second value has a note on each weight that the rule omits.

    A TRES that the cluster does not track has no weight (slurm.conf, AccountingStorageTRES). ``factor`` is the
    UsageFactor of the job's QOS.
    """
    name, weights_text = partition["PartitionName"], partition.get("TRESBillingWeights", "")
    weights = read_weights(weights_text) if weights_text else {"cpu": 1.0}
    rule = _rule(config) if weights_text else BillingRule.TRES_SUM
    billed, notes = _billed(weights, parse_names(config.get("AccountingStorageTRES", "").casefold()))
    gpus = [
        weight for tres, weight in billed.items() if tres in ("gres/gpu", f"gres/gpu:{(gpu_kind or '').casefold()}")
    ]
    rates = {
        "core_hour": billed.get("cpu", 0.0),
        "gib_hour": billed.get("mem", 0.0) * GIB / MIB,
        "gpu_hour": max(gpus, default=0.0) if rule is BillingRule.TRES_MAX else sum(gpus),
        "node_hour": billed.get("node", 0.0),
    }
    source = "TRESBillingWeights" if weights_text else "no TRESBillingWeights are set: Slurm bills the CPUs"
    billing = Billing(rule, f"{config.get('ClusterName', 'slurm')} billing units", source=source)
    if any(rates.values()) and factor > 0:
        weighing: dict[str, Any] = {rate: weight for rate, weight in rates.items() if weight}
        default = memory_bytes_per_core if rates["gib_hour"] else None
        billing = replace(billing, memory_bytes_per_core=default, charge_factor=factor, **weighing)
    else:
        billing = replace(billing, free=True)
    return billing, [f"{name}: {note}" for note in notes]


def disagreement(partition: Record, billing: Billing) -> str:
    """Return a sentence if a rule contradicts Slurm's own billing of the whole partition, else an empty string.

    Slurm prints the billing of a job on the whole partition in its TRES (``cpu=64,mem=500G,billing=64``).
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
    expected = combine_tres(billing.rule, parts, gpus)
    if abs(expected - whole["billing"]) <= max(1.0, BILLING_TOLERANCE * expected):
        return ""
    return (
        f"{partition['PartitionName']}: by its weights all of it would be billed {expected:.0f}, and Slurm says "
        f"{whole['billing']:.0f}: its prices are doubtful"
    )


def _billed(weights: dict[str, float], tracked: frozenset[str] | None) -> tuple[dict[str, float], list[str]]:
    """Return the weights that can be charged, and notes on the others."""
    billed, notes = {}, []
    for name, weight in weights.items():
        if weight < 0:
            notes.append(f"the weight of {name} is negative, and is left out")
        elif name.startswith("gres/") and tracked is not None and name not in tracked:
            notes.append(f"{name} has a weight but is not tracked, so that Slurm does not bill it")
        elif name in ("cpu", "mem", "node", "gres/gpu") or name.startswith("gres/gpu:"):
            billed[name] = weight
        elif weight:
            notes.append(f"{name} is billed too, which is not counted")
    return billed, notes


def _rule(config: Record) -> BillingRule:
    flags = parse_names(config.get("PriorityFlags", "")) or frozenset()
    if "MAX_TRES" in flags:
        return BillingRule.TRES_MAX
    return BillingRule.TRES_MAX_AND_GPUS if "MAX_TRES_GRES" in flags else BillingRule.TRES_SUM
