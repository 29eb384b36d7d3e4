"""What releases that no machine of the tests has printed about jobs in every situation, and what is read from it.

``python -m tests.support.print_slurm`` recorded the files of ``printed`` on real clusters.
"""

import json
from pathlib import Path

import pytest

from leadline.catalog.slurm.text import parse_seconds, read_gres, read_nodes, read_partitions, read_slurm_config
from leadline.core.jobs import JobState
from leadline.execution.schedulers.slurm.parsing import (
    read_accounting,
    read_controller,
    read_living,
    read_queue,
    records,
)
from tests.support.print_slurm import MARK, SITUATIONS, key_of
from tests.support.slurm_plan import SLURM

PRINTED = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in
           sorted((Path(__file__).parent / "printed").glob("*.json"))}  # fmt: skip
ENDED = {
    "completes": JobState.COMPLETED, "fails": JobState.FAILED, "memory": JobState.OUT_OF_MEMORY,
    "limit": JobState.TIMEOUT, "cancelled": JobState.CANCELLED, "preempted": JobState.PREEMPTED,
    "node": JobState.NODE_FAIL, "never": JobState.CANCELLED,
}  # fmt: skip
LIVING = {
    "requeued": JobState.PENDING, "hidden": JobState.RUNNING, "shares": JobState.RUNNING, "held": JobState.PENDING,
    "later": JobState.PENDING,
}  # fmt: skip
REASONS = {"held": "JobHeldUser", "later": "BeginTime", "hidden": ""}


@pytest.fixture(params=PRINTED)
def release(request):
    return PRINTED[request.param]


def of(release, *names):
    return [release["ids"][name] for name in names]


def test_there_are_releases_on_both_sides_of_the_one_that_is_tested_live():
    assert min(PRINTED) < "24.11" < max(PRINTED)


def test_the_accounting_tells_every_end(release):
    found = read_accounting(release["sacct"], release["ids"].values(), owner="0")
    assert {name: found[job_id].state for name, job_id in release["ids"].items() if name in ENDED} == ENDED
    fails, memory, cancelled, never = (found[one] for one in of(release, "fails", "memory", "cancelled", "never"))
    assert (fails.exit_code, memory.exit_code, cancelled.by_owner) == (3, None, True)
    assert any("ran out of memory" in one for one in memory.evidence)
    assert never.node is None
    for name in ENDED:
        status = found[release["ids"][name]]
        assert status.bears(key_of(name)), name
        if name != "never":  # the accounting may have its end seconds later
            assert status.submitted_s <= status.started_s <= status.ended_s


def test_elements_of_an_array_are_told_apart(release):
    (array,) = of(release, "array")
    found = read_accounting(release["sacct"], [f"{array}_1", f"{array}_2"])
    assert [(one.state, one.exit_code) for one in found.values()] == [(JobState.COMPLETED, 0), (JobState.FAILED, 1)]


def test_the_queue_and_the_controller_tell_the_same(release):
    ids = release["ids"]
    queue, controller = read_queue(release["squeue"], ids.values()), read_controller(release["jobs"], ids.values())
    for name, state in {**ENDED, **LIVING}.items():
        for found in (queue, controller):
            status = found[ids[name]]
            assert (status.state, status.bears(key_of(name))) == (state, True), name
    for found in (queue, controller):
        assert {name: found[ids[name]].reason for name in REASONS} == REASONS
        assert {found[ids[name]].walltime_s for name in ("held", "hidden")} == {600.0}
    assert queue[ids["later"]].started_s is None
    assert controller[ids["never"]].reason.startswith("Dependency")


def test_living_jobs_are_found_by_their_marks_with_elements_of_their_own(release):
    found = {job.scheduler_id: job for job in read_living(records(release["living"], MARK, 8))}
    waits = {f"{release['ids']['waits']}_{index}" for index in (3, 4, 5, 9)}
    assert {*of(release, *LIVING), *waits} == set(found)
    for name, state in LIVING.items():
        job = found[release["ids"][name]]
        assert (job.batch, job.state, job.spec.name) == (key_of(name), state, name)


def test_partitions_nodes_and_settings_have_their_keys(release):
    partitions = {one["PartitionName"]: one for one in read_partitions(release["partitions"])}
    assert set(partitions) == {"short", "long", "spare", "hidden"}
    assert (parse_seconds(partitions["hidden"]["MaxTime"]), partitions["hidden"]["Hidden"]) == (3600.0, "YES")
    nodes = read_nodes(release["nodes"])
    assert [(node["CPUTot"], node["RealMemory"]) for node in nodes] == [("4", "4000")] * 3
    assert {gres.name: (gres.kind, gres.count) for gres in read_gres(nodes[0]["Gres"])} == {
        "gpu": ("1g.10gb", 2), "shard": ("1g.10gb", 4),
    }  # fmt: skip
    config = read_slurm_config(release["config"])
    assert config["SLURM_VERSION"] == release["version"]
    assert config["EnforcePartLimits"] == "ALL"
    assert "EnforcePartLimits=ALL" in SLURM


def test_every_situation_is_looked_at(release):
    assert set(release["ids"]) == {*ENDED, *LIVING, "array", "waits"}
    assert set(SITUATIONS) <= set(release["ids"])
