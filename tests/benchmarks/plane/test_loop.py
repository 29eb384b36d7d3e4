"""The closed loop: what rules cost is arithmetic, and the plane brings jobs through on a real Slurm."""

import math
import os
from pathlib import Path, PurePosixPath
from statistics import median

import pytest

from benchmarks.plane.job_trace import metacentrum_jobs
from benchmarks.plane.loop import OwnerSlurm, loop_rows
from benchmarks.plane.loop_jobs import JobCost, MeasuredJob, loop_jobs, oracle_cost, retry_cost, whole_node_cost
from benchmarks.plane.loop_rows import LoopRound, small_request_rows, user_request_rows
from benchmarks.plane.user_requests import MAX_WALLTIME_S, RATIOS, ratio_quantiles, user_ratios, user_request
from leadline.core.jobs import JobSpec, JobState, ResourceSpec
from leadline.core.plane import Attempt, Job, Place, Policy
from leadline.core.units import GIB, MIB
from leadline.execution.schedulers.port import RequestRefused, Submission
from leadline.execution.transport.port import LocalTransport
from tests.support.slurm_cluster import why_no_slurm

GROWS = MeasuredJob(400.0, 2 * GIB, ((100.0, 1 * GIB), (200.0, 2 * GIB), (400.0, 2 * GIB)))
"""Its memory comes in a straight line within the first half."""


def test_memory_runs_out_between_two_looks_in_a_straight_line():
    assert GROWS.runs_out_s(1.5 * GIB) == 150.0
    assert GROWS.runs_out_s(0.25 * GIB) == 25.0
    assert GROWS.runs_out_s(2 * GIB) == math.inf


def test_an_oracle_pays_for_what_a_job_takes_and_a_whole_node_for_all_of_it():
    assert (400.0, pytest.approx(400.0 * 2 / 4)) == (oracle_cost(GROWS).node_s, oracle_cost(GROWS).cost_s)
    assert whole_node_cost(GROWS) == JobCost(400.0, 400.0, 1)


def test_a_request_that_grows_on_failure_pays_for_each_failure():
    asked = GROWS.wrong(0.3, 0.5)
    assert (asked.walltime_s, asked.memory_bytes_per_node) == (120.0, 1 * GIB)
    # 1 GiB runs out at 100 s; then 1.5 GiB, where 120 s end it before 150 s; then 180 s, in which 1.5 GiB run out; then
    # 2.25 GiB, where 180, 300 (of 270) and then 480 s (of 450) are the limits
    assert retry_cost(GROWS, asked).node_s == 100 + 120 + 150 + 180 + 300 + 400


def test_what_resumes_pays_once_for_what_it_did_within_its_limits():
    small = MeasuredJob(400.0, 1 * GIB, ((400.0, 1 * GIB),), resumes=True)
    assert retry_cost(small, small.wrong(0.3, 1.0)).node_s == 400.0


def test_requests_of_users_follow_the_trace_and_stay_as_wrong_as_they_were():
    ratios = user_ratios(40, 1)
    assert (ratios, user_ratios(40, 1)) != (user_ratios(40, 2), user_ratios(40, 2))
    assert ratios == user_ratios(40, 1)
    assert sum(ratio <= 1 for ratio in ratios) in (1, 2)  # 4.7 % of the trace
    assert median(ratios) == pytest.approx(RATIOS[20], rel=0.3)
    asked = user_request(GROWS, 0.98)
    assert asked.walltime_s == 360.0  # whole minutes must not save a job that its user would have lost
    assert asked.memory_bytes_per_node == 2 * GIB  # four of the node's eight cores cover it exactly
    assert user_request(GROWS, 1e6).walltime_s == MAX_WALLTIME_S


def test_the_ratios_are_those_of_the_trace():
    folder = Path(os.environ.get("LEADLINE_DATA") or "-")
    if not (folder / "metacentrum_jobs.parquet").is_file():
        pytest.skip("LEADLINE_DATA names no folder with metacentrum_jobs.parquet")
    pytest.importorskip("pyarrow")
    assert ratio_quantiles(metacentrum_jobs(folder, truncated=False)) == RATIOS


def attempt(number, request, submitted, started, ended, state):
    at = {name: f"2026-01-01T00:{minute:02d}:00Z" for name, minute in
          (("submitted_at", submitted), ("started_at", started), ("ended_at", ended))}  # fmt: skip
    return Attempt(f"job.{number}", "job", number, Place("cluster", "long"), request, state=state, **at)


def test_savings_count_kills_and_waits_and_a_rule_that_needs_no_plane():
    """A job of 400 s is killed once at 240 s, waits a minute twice, and ends after 400 s more."""
    first, later = (
        ResourceSpec(cores_per_task=1, memory_bytes_per_node=2 * GIB, walltime_s=limit_s) for limit_s in (240.0, 480.0)
    )
    attempts = attempt(1, first, 0, 1, 5, JobState.TIMEOUT), attempt(2, later, 5, 6, 13, JobState.COMPLETED)
    policy = Policy((Place("cluster", "long"),))
    job = Job("job", JobSpec("job", ("true",), first), policy, JobState.COMPLETED, attempts=attempts)
    part = LoopRound({"job": GROWS}, {"job": first}, {"job": job})
    assert part.plane == JobCost(660.0, 330.0, 2)
    assert part.retried == JobCost(240.0 + 360.0 + 400.0, 500.0, 3)  # 240, 360 and then 540 s
    assert part.result_s == 780.0
    assert part.slowdown == pytest.approx(420.0 / 400.0)
    assert part.rule_result_s(part.retried) == 1000.0 + 3 * 60.0
    rows = {row.name: row for row in user_request_rows(part, {"job": 0.6})}
    saved = rows["loop, users' requests: cost saved"]
    assert (saved.value, saved.baseline, saved.met) == (pytest.approx(34.0), pytest.approx(60.0), False)
    small = {row.name: row for row in small_request_rows(part)}
    assert small["loop: cost saved against × 1.5 on failure"].value == pytest.approx(34.0)
    aside = small["loop, aside: cost saved against partition's maximum and a full node"]
    assert (aside.target, aside.baseline) == (None, pytest.approx(-25.0))


def test_the_same_seed_draws_the_same_jobs_and_all_programs_are_there():
    assert loop_jobs(20, 3) == loop_jobs(20, 3) != loop_jobs(20, 4)
    assert len({one.command[1] for one in loop_jobs(20, 3)}) == 5


def test_an_owner_may_shorten_the_limit_of_a_job_that_runs_but_not_lengthen_it(slurm, tmp_path):
    asked = ResourceSpec(cores_per_task=1, memory_bytes_per_node=50 * MIB, walltime_s=600.0)
    spec = JobSpec("nap", ("sleep", "60"), asked, partition="short")
    scheduler = OwnerSlurm("cluster", PurePosixPath(tmp_path), LocalTransport())
    own = scheduler.submit(Submission("owners-nap", spec, measured=False))
    slurm.wait(lambda: scheduler.query([own])[own].state is JobState.RUNNING, "the job to run")
    with pytest.raises(RequestRefused, match="lengthen"):
        scheduler.change_walltime(own, 1200.0)
    scheduler.change_walltime(own, 300.0)
    assert scheduler.query([own])[own].walltime_s == 300.0
    scheduler.cancel([own])


@pytest.mark.slow
def test_the_plane_brings_jobs_through_whose_first_requests_are_too_small(tmp_path):
    if reason := why_no_slurm():
        pytest.skip(reason)
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    rows = {row.name: row for row in loop_rows(tmp_path, quick=True, seed=1)}
    completed = rows["loop: jobs that complete without help"]
    assert completed.value == 100.0
    assert "OUT_OF_MEMORY" in completed.how  # further attempts were made
    assert rows["loop: node-time ÷ an oracle's, the plane"].value > 0.0  # a busier oracle was slower than the plane
    assert rows["loop, aside: cost saved against partition's maximum and a full node"].target is None
    assert rows["loop, users' requests: jobs that complete without help"].value == 100.0
    assert rows["loop, users' requests: cost saved"].target == 40.0
