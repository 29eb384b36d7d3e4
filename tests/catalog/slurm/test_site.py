"""The system that a Slurm describes: node types, limits in Slurm's own order, prices, and what it leaves unknown."""

from dataclasses import replace
from datetime import date

import pytest

from leadline.catalog.billing import compute_charge
from leadline.catalog.read import TomlCatalog
from leadline.catalog.slurm.limits import ENFORCED
from leadline.catalog.slurm.site import ClusterRecords, build_system
from leadline.catalog.slurm.text import (
    ASSOCIATION,
    QOS,
    from_sinfo,
    read_nodes,
    read_partitions,
    read_rows,
    read_slurm_config,
)
from leadline.catalog.toml_files import read_site as read_file
from leadline.catalog.validate import validate_catalog
from leadline.catalog.write import format_site
from leadline.core.hardware import Machine
from leadline.core.jobs import ResourceSpec
from leadline.core.systems import UNLISTED_NODES, BillingRule
from leadline.core.units import DAY_S, GIB, HOUR_S, MIB
from tests.catalog.slurm import slurm_outputs as outputs

DEVICES = TomlCatalog(None).devices()
NOBODY = frozenset()


def said(partitions, nodes, version, *, qos=outputs.QOS, associations=outputs.ASSOCIATIONS, here=None, **settings):
    return ClusterRecords(
        read_slurm_config(outputs.config(version, **settings)),
        read_partitions(partitions),
        read_nodes(nodes),
        None if qos is None else read_rows(qos, QOS),
        None if associations is None else read_rows(associations, ASSOCIATION),
        frozenset({"users"}),
        here,
    )


def probe(*arguments, **options):
    return build_system(said(*arguments, **options), DEVICES, name="Reef", site="REEF", as_of="2026-03-02")


OLD = (outputs.V20_11_PARTITIONS, outputs.V20_11_NODES, "20.11.8")
LAB = (outputs.V22_05_PARTITIONS, outputs.V22_05_NODES, "22.05.8")
NEW = (outputs.V23_11_PARTITIONS, outputs.V23_11_NODES, "23.11.3")
LATER = (outputs.V24_05_H100, outputs.V24_05_NODES, "24.05.6")
NEWEST = (outputs.V25_05_PARTITIONS, outputs.V25_05_NODES, "25.05.2")


def test_the_accounting_fixtures_have_the_requested_fields():
    assert (len(read_rows(outputs.QOS, QOS)), len(read_rows(outputs.ASSOCIATIONS, ASSOCIATION))) == (5, 2)


@pytest.mark.parametrize("cluster", [OLD, LAB, NEW, LATER, NEWEST], ids=["20.11", "22.05", "23.11", "24.05", "25.05"])
def test_a_written_system_reads_back_equal_and_valid(cluster):
    system = probe(*cluster).system
    assert read_file(format_site([system], site="REEF", name="Reef"), "reef.toml") == [system]
    assert not validate_catalog(DEVICES, [system], date(2026, 3, 2))


def test_an_old_cluster_is_read_completely():
    batch, gpu = probe(*OLD, enforce="associations").system.partitions
    assert (batch.name, batch.node.count, batch.node.cores, batch.node.memory_bytes) == ("batch", 2, 48, 190000 * MIB)
    assert (batch.limits.max_walltime_s, batch.default_memory_bytes_per_core) == (2 * DAY_S, 3800 * MIB)
    assert (gpu.node.device, gpu.node.gpus, gpu.limits.max_nodes) == ("K80 (one of two dies)", 8, 1)
    assert gpu.rules.whole_nodes
    assert not batch.rules.whole_nodes


def test_a_partition_of_two_node_types_becomes_a_row_of_each():
    system = probe(*LAB, enforce="none").system
    assert [one.name for one in system.partitions] == ["short-cpu", "short-a100", "gpu"]
    assert [one.queue for one in system.partitions] == ["short", "short", None]
    assert [one.node.count for one in system.partitions] == [1, 1, 1]


def test_ambiguous_gpus_stay_unknown_with_a_note():
    found = probe(*LAB, enforce="none")
    assert (found.system.partitions[1].node.device, found.system.partitions[1].node.gpus) == (None, 2)
    assert any("a100 may be" in note for note in found.notes)


def test_reserved_memory_is_not_usable_by_jobs():
    (h100,) = probe(*NEW, enforce="none").system.partitions
    assert (h100.node.cores, h100.node.memory_bytes) == (124, 1547000 * MIB)
    assert h100.node.usable_memory_bytes == 124 * 12000 * MIB, "MaxMemPerCPU gives less than the node has"
    unbounded = outputs.V23_11_PARTITIONS.replace("MaxMemPerCPU=12000", "MaxMemPerNode=UNLIMITED")
    (h100,) = probe(unbounded, *NEW[1:], enforce="none").system.partitions
    assert h100.node.usable_memory_bytes == (1547000 - 16000) * MIB
    assert h100.node.device == "H100 SXM5 80GB"


def test_a_gpu_type_is_requested_by_name_if_a_node_has_several():
    found = probe(*NEWEST, enforce="none")
    (h100,) = found.system.partitions
    assert h100.rules.gpu_option == "--gpus-per-node=nvidia_h100_80gb_hbm3:{gpus}"
    assert any("also has 7 × 1g.10gb" in note for note in found.notes)
    assert any("hardware threads" in note for note in found.notes)


def test_scheduler_settings_are_stored():
    setting = probe(*LAB, array="4001", frequency="task=15,energy=60", part_limits="NO", preempt_type="preempt/qos",
                    preempt_mode="REQUEUE").system.scheduling  # fmt: skip
    assert (
        setting.version, setting.rejects_beyond_limits, setting.max_array_size, setting.sampling_interval_s,
        setting.preemption,
    ) == ("22.05.8", False, 4001, 15.0, "qos (requeue)")  # fmt: skip
    assert probe(*LAB).system.scheduling.sampling_interval_s == 30.0


# Limits


def rows(*cluster, **options):
    return {one.name: one for one in probe(*cluster, **options).system.partitions}


def test_accounting_limits_apply_only_if_enforced():
    found = probe(*OLD, enforce="associations")
    assert found.system.partitions[0].limits.max_walltime_s == 2 * DAY_S
    assert not ENFORCED & {"associations"}
    assert any("does not enforce" in note for note in found.notes)
    assert found.system.scheduling.accounting_answered is None


def test_the_partition_limits_time_and_nodes_of_a_wider_account():
    assert (rows(*OLD)["batch"].limits.max_walltime_s, rows(*OLD)["batch"].limits.max_nodes) == (2 * DAY_S, 2)


def test_the_first_limit_in_slurms_order_applies():
    batch = rows(*OLD)["batch"]
    assert (batch.limits.max_cores, batch.limits.max_submitted_jobs) == (512, 1000), "the QOS before the account's 50"
    assert rows(*OLD)["gpu"].limits.max_gpus == 6, "what the account may hold at once bounds each job"


def test_a_qos_with_wider_limits_has_its_own_row():
    found = rows(*OLD)
    assert "batch-free" in found, "QOS free has no limit of cores"
    assert (found["batch-free"].queue, found["batch-free"].rules.qos) == ("batch", "free")
    assert found["batch-free"].billing.free
    assert found["batch-free"].limits.max_walltime_s == 12 * HOUR_S
    assert "batch-long" not in found, "the partition's two days bound it, and it has fewer cores"


def test_a_row_never_has_the_name_of_another_partition():
    partitions = outputs.V20_11_PARTITIONS.replace("PartitionName=gpu", "PartitionName=batch-free")
    nodes = outputs.V20_11_NODES.replace("Partitions=gpu", "Partitions=batch-free")
    found = rows(partitions, nodes, "20.11.8")
    assert set(found) == {"batch", "batch-free-2", "batch-free", "batch-free-free"}
    assert (found["batch-free-2"].rules.qos, found["batch-free"].rules.qos) == ("free", None)


def test_a_qos_may_lift_the_partitions_own_limit_of_time():
    wide = outputs.ASSOCIATIONS.replace("free,long,normal|normal", "normal,wide|normal")
    assert rows(*OLD, associations=wide)["batch-wide"].limits.max_walltime_s == 30 * DAY_S


def test_a_qos_that_the_partition_does_not_allow_makes_no_row():
    partitions = outputs.V20_11_PARTITIONS.replace("AllowQos=ALL", "AllowQos=normal")
    assert list(rows(partitions, *OLD[1:])) == ["batch", "gpu"]


def test_the_qos_of_a_partition_comes_before_the_jobs():
    partitions = outputs.V20_11_PARTITIONS.replace("QoS=N/A", "QoS=long", 1)
    limits = rows(partitions, *OLD[1:])["batch"].limits
    assert (limits.max_cores, limits.max_submitted_jobs, limits.max_gpus) == (128, 10, 2)


def test_the_widest_of_several_accounts_counts():
    two = outputs.ASSOCIATIONS + "open|ada||normal|normal|||||\n"
    assert rows(*OLD)["gpu"].limits.max_gpus == 6
    assert rows(*OLD, associations=two)["gpu"].limits.max_gpus is None


def test_group_limits_of_a_parent_account_limit_a_job():
    parents = "science|||||||gres/gpu=4,cpu=300||root\nroot|||||||||root\n"
    limits = rows(*OLD, associations=outputs.ASSOCIATIONS + parents)["gpu"].limits
    assert (limits.max_gpus, limits.max_cores) == (4, 300)


def test_requirements_of_a_qos_are_noted():
    standard = "standard|ada||long|long|||||\n"
    partition = rows(*OLD, associations=standard)["batch"]
    assert "jobs of QOS long ask for at least 1 gres/gpu" in partition.note


# Access


def test_a_partition_of_other_groups_accounts_or_of_reservations_is_restricted():
    for old, new in (
        ("AllowGroups=ALL", "AllowGroups=staff"),
        ("AllowAccounts=ALL", "AllowAccounts=other"),
        ("AllowAccounts=ALL", "DenyAccounts=research"),
        ("RootOnly=NO", "RootOnly=YES"),
        ("ReqResv=NO", "ReqResv=YES"),
    ):
        found = rows(outputs.V20_11_PARTITIONS.replace(old, new, 1), *OLD[1:])
        assert (found["batch"].restricted, found["gpu"].restricted) == (True, False), new
    own = outputs.V20_11_PARTITIONS.replace("AllowGroups=ALL", "AllowGroups=staff,users")
    assert not rows(own, *OLD[1:])["batch"].restricted


def test_jobs_of_a_lower_tier_on_shared_nodes_may_be_preempted():
    found = rows(*LAB, enforce="none", preempt_type="preempt/partition_prio", preempt_mode="REQUEUE")
    assert (found["short-a100"].preemptible, found["gpu"].preemptible) == (True, False)
    assert not rows(*LAB, enforce="none")["short-a100"].preemptible


def test_jobs_of_a_qos_that_another_preempts_may_be_preempted():
    found = rows(*OLD, preempt_type="preempt/qos", preempt_mode="REQUEUE")
    assert (found["batch"].preemptible, found["batch-free"].preemptible) == (False, True)


def test_a_partition_that_is_not_up_has_a_note():
    found = probe(outputs.V20_11_PARTITIONS.replace("State=UP", "State=DRAIN", 1), *OLD[1:])
    assert "batch is DRAIN: it takes no new jobs" in found.notes


# Prices


def units(partition, hours=1.0, **asked):
    return compute_charge(partition.billing, ResourceSpec(**asked), hours, partition.node)


def test_the_weights_of_a_partition_are_summed_unless_the_cluster_takes_the_largest():
    """The example of slurm.conf: 1 CPU and 8 GB at CPU=1.0,Mem=0.25G,GRES/gpu=2.0 are 3.0, or 2.0 with MAX_TRES."""
    asked = {"cores_per_task": 1, "memory_bytes_per_node": 8 * GIB}
    assert units(rows(*OLD)["gpu"], **asked) == 3.0
    assert units(rows(*OLD, flags="CALCULATE_RUNNING,MAX_TRES")["gpu"], **asked) == 2.0
    asked["gpus_per_node"] = 1
    assert units(rows(*OLD, flags="MAX_TRES_GRES")["gpu"], **asked) == 2.0 + 2.0


def test_without_weights_slurm_bills_the_cpus():
    batch = rows(*OLD)["batch"]
    assert (units(batch, hours=2.0, cores_per_task=4), batch.billing.currency) == (8.0, "reef billing units")


def test_the_weights_reproduce_slurms_billing_of_whole_partitions():
    """Published: 49504000 MiB at 0.0833 a GiB are the most (4027); CPUs and memory bill 248175 together."""
    assert not [note for note in probe(*NEW, enforce="none", flags="MAX_TRES").notes if "doubtful" in note]
    assert any("billed 8251, and Slurm says 4027" in note for note in probe(*NEW, enforce="none").notes)
    node = outputs.V20_11_NODES.splitlines()[0].replace("Partitions=batch", "Partitions=standard")
    assert not [note for note in probe(outputs.V24_05_STANDARD, node, "24.05.1").notes if "doubtful" in note]
    largest = probe(outputs.V24_05_STANDARD, node, "24.05.1", flags="MAX_TRES").notes
    assert any("doubtful" in note for note in largest)


def test_an_untracked_weight_is_not_billed():
    found = probe(*OLD, tres="cpu,mem,energy,node,billing")
    assert found.system.partitions[-1].billing.gpu_hour is None
    assert any("gres/gpu has a weight but is not tracked" in note for note in found.notes)


def test_a_gpu_type_weight_applies_to_its_nodes_only():
    partitions = outputs.V22_05_PARTITIONS.replace("GRES/gpu=15.0", "GRES/gpu:a100=20,GRES/gpu:t4=5,license/x=3")
    tracked = "cpu,mem,node,billing,gres/gpu,gres/gpu:a100,gres/gpu:t4"
    found = probe(partitions, *LAB[1:], enforce="none", tres=tracked)
    assert found.system.partitions[-1].billing.gpu_hour == 20.0
    assert any("license/x is billed too" in note for note in found.notes)


def test_a_partition_whose_weights_are_zero_is_free():
    partitions = outputs.V20_11_PARTITIONS.replace("CPU=1.0,Mem=0.25G,GRES/gpu=2.0", "CPU=0.0,Mem=0.0G")
    gpu = rows(partitions, *OLD[1:])["gpu"]
    assert (gpu.billing.free, units(gpu, cores_per_task=4)) == (True, 0.0)


def test_the_factor_of_a_qos_multiplies_the_price():
    twice = outputs.ASSOCIATIONS.replace("|normal|3-", "|long|3-")
    assert 2.0 * units(rows(*OLD)["batch"], cores_per_task=4) == units(
        rows(*OLD, associations=twice)["batch"], cores_per_task=4
    )


def test_the_rule_follows_slurms_priority_flags():
    rules = [rows(*OLD, flags=flags)["gpu"].billing.rule for flags in ("", "MAX_TRES", "MAX_TRES_GRES")]
    assert rules == [BillingRule.TRES_SUM, BillingRule.TRES_MAX, BillingRule.TRES_MAX_AND_GPUS]


# What is not said


def test_a_cluster_that_hides_its_nodes_leaves_them_unknown():
    found = probe(outputs.V22_05_PARTITIONS, "", "22.05.8", enforce="none")
    assert [one.node.name for one in found.system.partitions] == [UNLISTED_NODES, UNLISTED_NODES]
    assert [one.node.count for one in found.system.partitions] == [2, 1]
    assert [one.node.cores for one in found.system.partitions] == [None, None]
    assert any("does not show its nodes" in note for note in found.notes)


def test_an_unanswered_accounting_query_is_noted():
    found = probe(*OLD, qos=None, associations=None)
    assert {"the limits of your accounts are not known, and hold here"} <= set(found.notes)
    assert found.system.scheduling.accounting_answered is False
    assert found.system.partitions[0].limits.max_walltime_s == 2 * DAY_S


def test_a_user_without_an_account_gets_a_note():
    assert any("you have no account" in note for note in probe(*OLD, associations="").notes)


def test_sinfo_alone_gives_a_system():
    partitions, nodes = from_sinfo("short|1:00:00|1-infinite|2|4|4000|gpu:l40s:2|l40s|two,three\n")
    told = replace(said(*OLD, enforce="none"), partitions=partitions, nodes=nodes)
    (short,) = build_system(told, DEVICES, name="Reef", site="REEF", as_of="2026").system.partitions
    assert (
        short.limits.max_walltime_s, short.node.count, short.node.cores, short.node.device, short.node.gpus,
    ) == (HOUR_S, 2, 4, "L40S", 2)  # fmt: skip


def test_the_local_machine_identifies_processor_and_gpus_of_similar_nodes():
    here = Machine("c001", "AMD EPYC 7763 64-Core Processor", 48, 190 * GIB)
    assert rows(*OLD, here=here)["batch"].node.processor == "AMD EPYC 7763"
    assert rows(*OLD, here=replace(here, host="login1"))["batch"].node.processor is None
    other = probe(*OLD, here=replace(here, cpus=96))
    assert other.system.partitions[0].node.processor is None
    assert any("Slurm gives c001 48 CPUs, and the machine has 96" in note for note in other.notes)
    mine = Machine("vm", "", 4, GIB, ("NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-40GB"))
    assert rows(*LAB, enforce="none", here=mine)["gpu"].node.device == "A100 SXM4 40GB"


def test_nodes_whose_memory_hardly_differs_are_of_one_type():
    nodes = outputs.V20_11_NODES.replace("RealMemory=190000", "RealMemory=189500", 1)
    assert rows(outputs.V20_11_PARTITIONS, nodes, OLD[2])["batch"].node.memory_bytes == 189500 * MIB
    nodes = outputs.V20_11_NODES.replace("RealMemory=190000", "RealMemory=380000", 1)
    found = rows(outputs.V20_11_PARTITIONS, nodes, OLD[2], enforce="none")
    assert set(found) == {"batch-48c-186g", "batch-48c-371g", "gpu"}
    assert "no option selects these nodes" in found["batch-48c-371g"].note


def test_a_feature_unique_to_a_node_type_selects_it():
    nodes = outputs.V20_11_NODES.replace("RealMemory=190000", "RealMemory=380000", 1).replace(
        "cascade", "cascade,fat", 2
    )
    found = rows(outputs.V20_11_PARTITIONS, nodes, OLD[2], enforce="none")
    assert (found["batch-48c-371g"].rules.constraint, found["batch-48c-186g"].rules.constraint) == ("fat", None)
