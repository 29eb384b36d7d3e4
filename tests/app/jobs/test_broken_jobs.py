"""Waiting jobs of the plane that a change of their system broke: found, announced, and told in their story."""

from dataclasses import replace

import pytest

from leadline.app.jobs.broken_jobs import announce_broken_jobs, find_broken_jobs
from leadline.app.jobs.event_log import describe_event
from leadline.app.jobs.journal import open_journal
from leadline.catalog.compare import compare_systems
from leadline.core.jobs import JobSpec, JobState, ResourceSpec
from leadline.core.plane import Attempt, AttemptPlan, EventKind, Job, Place, Policy
from leadline.core.systems import Limits, NodeType, Partition, System
from leadline.core.units import GIB, HOUR_S

NODE = NodeType("n", count=10, cores=64, memory_bytes=256 * GIB)
BEFORE = System("reef", "R", "hpc", "production", "slurm", (
    Partition("batch", NODE, limits=Limits(max_walltime_s=48.0 * HOUR_S)), Partition("free", NODE),
))  # fmt: skip
AFTER = replace(BEFORE, partitions=(replace(BEFORE.partitions[0], limits=Limits(max_walltime_s=24.0 * HOUR_S)),))
CHANGE = compare_systems(BEFORE, AFTER)
BATCH, FREE, OTHER = Place("reef", "batch"), Place("reef", "free"), Place("atoll", "cpu")
WHY_SHORT = "cannot run in batch any more: walltime: asks for 1d 06h, the limit is 1d 00h"


def job(key, *places, hours=30.0, state=JobState.PENDING, waits=True, **more):
    asked = ResourceSpec(walltime_s=hours * HOUR_S)
    attempts = (Attempt(f"{key}-1", key, 1, places[0], asked, state=state, scheduler_id="7"),) if waits else ()
    return Job(key, JobSpec("train", ("true",), asked), Policy(places), attempts=attempts, **more)


def broken(*jobs, at_hand=True):
    return [(job.job, job.attempt) for job in find_broken_jobs(CHANGE, jobs, at_hand=at_hand)]


def test_jobs_that_wait_beyond_the_new_limit_or_in_a_partition_that_is_gone_are_broken():
    assert broken(job("a", BATCH), job("b", BATCH, hours=2.0), job("c", FREE)) == [("a", "a-1"), ("c", "c-1")]


@pytest.mark.parametrize(
    "fine",
    [job("a", BATCH, state=JobState.RUNNING), job("a", OTHER), job("a", BATCH, cancelled=True),
     job("a", BATCH, state=JobState.CANCELLED), replace(job("a", BATCH), state=JobState.FAILED)],
)  # fmt: skip
def test_running_finished_and_unrelated_jobs_are_not_broken(fine):
    assert broken(fine) == []


def test_a_job_that_is_yet_to_be_submitted_is_broken_where_it_is_to_go_if_it_can_go_nowhere_else():
    assert broken(job("a", BATCH, waits=False)) == [("a", "")]
    assert broken(job("a", BATCH, OTHER, waits=False)) == []
    planned = replace(
        job("a", BATCH, OTHER, waits=False), plan=AttemptPlan(BATCH, ResourceSpec(walltime_s=30.0 * HOUR_S))
    )
    assert broken(planned) == [("a", "")]


def test_a_lower_limit_that_was_set_meanwhile_counts():
    waiting = job("a", BATCH)
    assert broken(replace(waiting, attempts=(replace(waiting.attempts[0], walltime_s=2.0 * HOUR_S),))) == []


def test_jobs_of_the_slurm_at_hand_are_its_jobs_whatever_it_is_called():
    assert broken(job("a", Place("slurm", "batch"))) == [("a", "a-1")]
    assert broken(job("a", Place("slurm", "batch")), at_hand=False) == []


def events_of(key):
    with open_journal() as journal:
        return journal.events(job=key)


def test_broken_jobs_are_announced_once_and_logged(monkeypatch, tmp_path):
    monkeypatch.setenv("LEADLINE_DATA_DIR", str(tmp_path))
    assert announce_broken_jobs(CHANGE) == (), "there is no journal"
    waiting = job("a", BATCH)
    with open_journal() as journal:
        journal.add([waiting])
        journal.write(attempts=waiting.attempts)
    (dry,) = announce_broken_jobs(CHANGE, write=False)
    assert dry.sentence == f"job a: train {WHY_SHORT}; run leadline cancel a, and submit it with another request"
    assert [event.kind for event in events_of("a")] == [EventKind.HANDED_OVER]
    assert (dry,) == announce_broken_jobs(CHANGE)
    assert describe_event(events_of("a")[-1])[0] == f"reef changed: train {WHY_SHORT}"
    assert announce_broken_jobs(compare_systems(AFTER, AFTER)) == ()
