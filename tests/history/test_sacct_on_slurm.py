"""The accounting of a real Slurm with jobs that waited."""

import os
import subprocess
import time

import pytest

from leadline.core.jobs import JobState
from leadline.history.sacct import SACCT_ENVIRONMENT, read_sacct, sacct_command

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("slurm")]
NAME = "a 'name'|with \"everything\""
KEPT = NAME.replace('"', "`")
"""As Slurm's own accounting writes it."""


def said(*command, **environment):
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=True)
    return done.stdout


def submit(*options, seconds=3):
    return said("sbatch", "--parsable", "--output=/dev/null", *options, f"--wrap=sleep {seconds}").strip()


def listed():
    return {one.id: one for one in read_sacct(said(*sacct_command(1), **SACCT_ENVIRONMENT))}


def settle(condition, most_s=60):
    deadline = time.monotonic() + most_s
    while not condition(jobs := listed()):
        assert time.monotonic() < deadline, jobs
        time.sleep(0.5)
    return jobs


def test_the_waits_of_jobs_that_had_to_queue_are_read_from_a_real_accounting():
    whole = ("--nodes=2", "--ntasks=8", "--cpus-per-task=1", "--mem-per-cpu=100", "--time=2")
    first = submit(*whole, "--job-name", NAME, seconds=8)
    second = submit(*whole)
    held = submit("--dependency", f"afternotok:{first}", "--ntasks=1", "--mem=100")
    withdrawn = submit(*whole)
    array = submit("--array=0-3", *whole)
    queued = settle(lambda jobs: first in jobs and jobs[first].state is JobState.RUNNING and f"{array}_3" in jobs)
    said("scancel", withdrawn)
    ended = settle(
        lambda jobs: jobs[second].state is JobState.COMPLETED and jobs[withdrawn].state is JobState.CANCELLED
    )
    said("scancel", held, array)
    asked = queued[first]
    assert (asked.name, asked.nodes, asked.cores, asked.walltime_s) == (KEPT, 2, 8, 120.0)
    assert queued[second].wait_s is None
    # sacct tells of no job before it could start
    assert held not in queued
    assert 5 <= ended[second].wait_s <= 60
    assert ended[second].started_s >= ended[first].ended_s
    assert ended[withdrawn].started_s is None
