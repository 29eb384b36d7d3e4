"""Queued jobs that a change of the system breaks, and those that can still run."""

from dataclasses import replace

import pytest

from leadline.catalog.compare import compare_systems
from leadline.core.jobs import JobSpec, ResourceSpec
from leadline.core.systems import UNLISTED_NODES, Limits, NodeType, Partition, System
from leadline.core.units import GIB, HOUR_S
from leadline.recommendation.queued_jobs import check_request, explain_unrunnable

THIN = NodeType("thin", 10, cores=48, memory_bytes=192 * GIB, usable_memory_bytes=180 * GIB)
FAT = NodeType("fat", 4, cores=64, memory_bytes=512 * GIB, device="A100 SXM4 80GB", gpus=4)
BATCH = Partition("batch", THIN, limits=Limits(max_walltime_s=48 * HOUR_S, max_nodes=8, max_cores=200))
GPU_FAT = Partition("gpu-fat", FAT, queue="gpu", limits=Limits(max_walltime_s=24 * HOUR_S, max_gpus=8))
GPU_THIN = Partition("gpu-thin", THIN, queue="gpu", limits=Limits(max_walltime_s=24 * HOUR_S))
REEF = System("Reef", "R", "cluster", "production", "slurm", (BATCH, GPU_FAT, GPU_THIN))


def job(partition, *, name="train", system="Reef", **asked):
    return JobSpec(name, ("true",), ResourceSpec(**asked), system=system, partition=partition)


def reasons(after, *jobs):
    change = compare_systems(REEF, after)
    return [why for job in jobs if (why := explain_unrunnable(change, job)) is not None]


def changed(old, new):
    return replace(
        REEF,
        partitions=tuple(
            new if partition is old else partition for partition in REEF.partitions if partition is not new or new
        ),
    )


def without(old):
    return replace(REEF, partitions=tuple(partition for partition in REEF.partitions if partition is not old))


@pytest.mark.parametrize(
    ("limits", "asked", "reason"),
    [
        (
            {"max_walltime_s": 24 * HOUR_S},
            {"walltime_s": 36 * HOUR_S},
            "walltime: asks for 1d 12h, the limit is 1d 00h",
        ),
        ({"max_nodes": 2}, {"nodes": 4}, "takes jobs of at most 2 nodes, not 4"),
        ({"min_nodes": 2}, {"nodes": 1}, "takes jobs of at least 2 nodes, not 1"),
        ({"max_cores": 24}, {"cores_per_task": 48}, "gives at most 24 cores, and the job asks for 48"),
    ],
)
def test_a_lowered_limit_breaks_the_jobs_above_it(limits, asked, reason):
    after = changed(BATCH, replace(BATCH, limits=Limits(**limits)))
    fits = job("batch", name="other", nodes=limits.get("min_nodes", 1), cores_per_task=8, walltime_s=HOUR_S)
    assert reasons(after, job("batch", **asked), fits) == [f"train cannot run in batch any more: {reason}"]


def test_a_job_exactly_at_the_limit_still_runs():
    after = changed(BATCH, replace(BATCH, limits=Limits(max_walltime_s=24 * HOUR_S)))
    assert reasons(after, job("batch", walltime_s=24 * HOUR_S)) == []


@pytest.mark.parametrize(
    ("node", "asked", "reason"),
    [
        ({"usable_memory_bytes": 90 * GIB}, {"memory_bytes_per_node": 100 * GIB},
         "memory: asks for 100 GiB a node, has 90.0 GiB"),
        ({"count": 3}, {"nodes": 4}, "takes jobs of at most 3 nodes, not 4"),
        ({"cores": 32}, {"cores_per_task": 12, "tasks_per_node": 4}, "has 32 cores a node, and the job asks for 48"),
    ],
)  # fmt: skip
def test_smaller_nodes_break_the_jobs_that_filled_them(node, asked, reason):
    after = changed(BATCH, replace(BATCH, node=replace(THIN, **node)))
    assert reasons(after, job("batch", **asked)) == [f"train cannot run in batch any more: {reason}"]


def test_a_removed_partition_breaks_all_its_jobs():
    after = without(BATCH)
    assert reasons(after, job("batch")) == ["train cannot run in batch any more: Reef has no partition batch any more"]


def test_a_removed_node_type_differs_from_a_removed_partition():
    after = without(GPU_FAT)
    expected = "train cannot run in gpu-fat any more: gpu has no nodes of type fat any more"
    assert [expected] == reasons(after, job("gpu-fat", gpus_per_node=1))


def test_a_job_of_a_queue_runs_while_one_of_its_node_types_takes_it():
    large = job("gpu", memory_bytes_per_node=300 * GIB)
    assert reasons(without(GPU_THIN), large) == []
    assert reasons(without(GPU_FAT), large) == [
        "train cannot run in gpu any more: memory: asks for 300 GiB a node, has 180 GiB"
    ]


def test_removed_gpus_break_the_jobs_that_request_them():
    expected = "train cannot run in gpu any more: has no GPUs, and the job asks for 2"
    assert [expected] == reasons(without(GPU_FAT), job("gpu", gpus_per_node=2))


def test_a_job_that_could_not_run_before_is_not_broken_by_the_change():
    after = changed(BATCH, replace(BATCH, limits=Limits(max_walltime_s=24 * HOUR_S)))
    assert reasons(after, job("batch", walltime_s=100 * HOUR_S)) == []


def test_without_an_earlier_state_all_unrunnable_jobs_are_listed():
    change = compare_systems(None, REEF)
    assert explain_unrunnable(change, job("batch", walltime_s=100 * HOUR_S)) is not None
    assert explain_unrunnable(change, job("batch")) is None


def test_jobs_of_other_systems_are_ignored():
    assert reasons(without(BATCH), job("batch", system="Other")) == []


def test_a_job_without_a_partition_breaks_when_no_partition_takes_it():
    anywhere = job(None, memory_bytes_per_node=400 * GIB)
    assert reasons(without(BATCH), anywhere) == []
    assert len(reasons(without(GPU_FAT), anywhere)) == 1


def test_hidden_nodes_break_nothing():
    hidden = Partition("gpu", NodeType(UNLISTED_NODES), limits=Limits(max_walltime_s=24 * HOUR_S))
    after = replace(REEF, partitions=(BATCH, hidden))
    assert reasons(after, job("gpu-fat", gpus_per_node=4, memory_bytes_per_node=300 * GIB)) == []
    assert len(reasons(replace(after, partitions=(BATCH, replace(hidden, limits=Limits(max_walltime_s=60)))),
                            job("gpu-fat", walltime_s=HOUR_S))) == 1  # fmt: skip


def test_unknown_limits_refuse_nothing():
    nothing = Partition("x", NodeType("n"))
    assert check_request(nothing, ResourceSpec(64, 8, 12, 0, 400 * GIB, 1e9)) == ()


def test_every_broken_limit_is_listed():
    asked = ResourceSpec(nodes=9, cores_per_task=64, memory_bytes_per_node=400 * GIB, walltime_s=100 * HOUR_S)
    kinds = [one.kind for one in check_request(BATCH, asked)]
    assert kinds == ["walltime", "too-many-nodes", "too-few-cores", "host-memory"]
