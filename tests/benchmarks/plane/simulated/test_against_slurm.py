"""The simulated queue beside a real Slurm: the same jobs, and when they started.

They differ for two reasons. Slurm counts the time of its backfill in whole minutes (``bf_resolution``), which keeps it
from every third chance where limits are of one to three minutes: with ``bf_resolution=1`` 80 of the 92 overtakings of
one such run were the same. And it takes a second or two to start a job, to end it, and to look again (``bf_interval``).
"""

import random
import subprocess
import time
from itertools import combinations

import pytest
from drawn_jobs import Given

from benchmarks.plane.simulated.cluster import SimulatedCluster, SimulatedNode
from benchmarks.plane.simulated.replay import replay
from leadline.core.queues import AccountedJob
from leadline.execution.clock import epoch_s

JOBS = 40


def said(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def drawn():
    """Return jobs that come faster than eight cores can run them: (after_s, nodes, cores on each, sleep_s, minutes)."""
    rng = random.Random(7)  # noqa: S311 - not secret
    return [
        (rng.uniform(0, 3), 2 if rng.random() < 0.25 else 1, rng.randint(1, 4), rng.randint(2, 12), rng.randint(1, 3))
        for _ in range(JOBS)
    ]


def run_on_slurm(jobs):
    """Submit jobs, each some seconds after the last, and return what the accounting says once all have ended."""
    ids = []
    for after_s, nodes, cores, sleep_s, minutes in jobs:
        time.sleep(after_s)
        ids.append(
            said("sbatch", "--parsable", f"-N{nodes}", f"--ntasks-per-node={cores}", "--mem-per-cpu=100",
                 f"-t{minutes}", "-o/dev/null", f"--wrap=sleep {sleep_s}").strip()
        )  # fmt: skip
    while said("squeue", "-h", "-t", "PD,R,CG"):
        time.sleep(1)
    time.sleep(3)
    rows = {}
    for line in said("sacct", "-X", "-n", "-P", "-o", "JobID,Submit,Start,End", "-j", ",".join(ids)).split():
        one, *times = line.split("|")
        rows[one] = [epoch_s(each) for each in times]
    return [rows[one] for one in ids]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_simulated_queue_starts_jobs_much_as_slurm_does(slurm):
    asked = drawn()
    real = run_on_slurm(asked)
    jobs = [
        AccountedJob(str(number), submit_s, start_s, max(end_s, start_s + 1), nodes=nodes, cores=nodes * cores,
                     walltime_s=60.0 * minutes)
        for number, ((submit_s, start_s, end_s), (_, nodes, cores, _, minutes)) in enumerate(
            zip(real, asked, strict=True))
    ]  # fmt: skip
    simulated = started_s(jobs)
    told = [job.started_s for job in jobs]
    wait_s = mean_wait_s(jobs, told)

    assert wait_s > 10, "the jobs did not have to wait"
    assert abs(mean_wait_s(jobs, simulated) - wait_s) < 0.4 * wait_s
    assert len(overtaken(told) & overtaken(simulated)) > 0.4 * len(overtaken(told))


def started_s(jobs):
    attempts = replay(jobs, SimulatedCluster((SimulatedNode("one", 4), SimulatedNode("two", 4))), Given())
    return [one.started_s for one in sorted(attempts, key=lambda one: one.job)]


def mean_wait_s(jobs, started):
    return sum(start_s - job.submitted_s for job, start_s in zip(jobs, started, strict=True)) / len(jobs)


def overtaken(started):
    """Return the pairs of jobs of which the later one started earlier, by more than Slurm takes to start one."""
    return {pair for pair in combinations(range(len(started)), 2) if started[pair[1]] < started[pair[0]] - 3}
