"""What differs between two looks at a system is said in sentences, once each."""

from dataclasses import replace

from leadline.catalog.compare import compare_systems
from leadline.core.systems import (
    UNLISTED_NODES,
    Billing,
    BillingRule,
    Limits,
    NodeType,
    Partition,
    Scheduling,
    SubmitRules,
    System,
)
from leadline.core.units import GIB, HOUR_S

THIN = NodeType("48c-186g", 10, cores=48, memory_bytes=186 * GIB)
FAT = NodeType("4x-a100-64c-512g", 4, cores=64, memory_bytes=512 * GIB, gpus=4)
PRICE = Billing(BillingRule.TRES_MAX, "units", core_hour=1.0, gpu_hour=15.0)
BATCH = Partition("batch", THIN, limits=Limits(max_walltime_s=48 * HOUR_S, max_nodes=8), billing=PRICE)
GPU = Partition("gpu", FAT, limits=Limits(max_walltime_s=24 * HOUR_S), billing=PRICE)
REEF = System("Reef", "R", "cluster", "production", "slurm", (BATCH, GPU), scheduling=Scheduling("23.11.3"))


def sentences(*partitions, **changes):
    return [one.sentence for one in compare_systems(REEF, replace(REEF, partitions=partitions, **changes)).changes]


def test_a_first_snapshot_has_no_changes():
    assert (compare_systems(None, REEF).before, compare_systems(None, REEF).changes) == (None, ())


def test_an_unchanged_system_has_no_changes():
    assert sentences(BATCH, GPU) == []
    assert sentences(GPU, BATCH) == [], "the order of partitions is no change"


def test_changed_limits_are_reported_with_both_values():
    shorter = replace(BATCH, limits=Limits(max_walltime_s=24 * HOUR_S))
    assert sentences(shorter, GPU) == [
        "batch: the limit of walltime was 2d 00h, and is 1d 00h",
        "batch: the largest number of nodes was 8, and is none",
    ]


def test_added_and_removed_partitions_are_reported():
    other = replace(GPU, name="gpu2")
    assert sentences(BATCH, other) == ["partition gpu is gone", "partition gpu2 is new"]


def test_a_changed_node_type_is_not_a_changed_partition():
    new = replace(GPU, node=replace(FAT, name="8x-h100-96c-2048g", gpus=8, cores=96, memory_bytes=2048 * GIB))
    assert sentences(BATCH, new) == [
        "gpu has no nodes of type 4x-a100-64c-512g (4 × GPU, 64 cores, 512 GiB) any more",
        "gpu has nodes of type 8x-h100-96c-2048g (8 × GPU, 96 cores, 2.00 TiB) now",
    ]


def test_a_renamed_row_is_not_a_change_of_nodes():
    both = [replace(GPU, name="gpu-a100", queue="gpu"), replace(GPU, name="gpu-cpu", queue="gpu", node=THIN)]
    assert sentences(BATCH, *both) == ["gpu has nodes of type 48c-186g (48 cores, 186 GiB) now"]


def test_changed_counts_prices_and_devices_are_reported():
    more = replace(BATCH, node=replace(THIN, count=12), billing=replace(PRICE, core_hour=2.0))
    known = replace(GPU, node=replace(FAT, device="A100 SXM4 80GB"))
    assert sentences(more, known) == [
        "batch: the number of nodes was 10, and is 12",
        "batch: the price was the most of 1 a core, 15 a GPU (units), and is the most of 2 a core, 15 a GPU (units)",
        "gpu: the GPU was none, and is A100 SXM4 80GB",
    ]


def test_changed_access_is_reported():
    closed = replace(BATCH, restricted=True, rules=SubmitRules(whole_nodes=True))
    assert sentences(closed, GPU) == [
        "batch: closed to you was no, and is yes",
        "batch: whole nodes was no, and is yes",
    ]


def test_added_and_removed_qos_rows_are_reported():
    long = replace(BATCH, name="batch-long", queue="batch", rules=SubmitRules(qos="long"))
    assert sentences(BATCH, GPU, long) == ["batch lets more through with QOS long now"]
    back = compare_systems(replace(REEF, partitions=(BATCH, GPU, long)), REEF).changes
    assert [one.sentence for one in back] == ["batch lets no more through with QOS long"]


def test_hidden_nodes_are_not_reported_as_removed():
    hidden = [replace(one, node=NodeType(UNLISTED_NODES)) for one in (BATCH, GPU)]
    assert sentences(*hidden) == [
        "batch: Slurm does not show its nodes any more",
        "gpu: Slurm does not show its nodes any more",
    ]


def test_limits_are_not_compared_without_accounting():
    wider = replace(BATCH, limits=Limits(max_walltime_s=168 * HOUR_S))
    said = sentences(wider, GPU, scheduling=Scheduling("23.11.3", accounting_answered=False))
    assert said == []


def test_a_new_version_is_reported():
    assert sentences(BATCH, GPU, scheduling=Scheduling("25.05.1")) == ["Slurm's version was 23.11.3, and is 25.05.1"]
