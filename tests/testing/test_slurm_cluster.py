"""A cluster of one's own: what it is planned as, what can be broken in it, and that nothing is left of it."""

import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from leadline.execution.processes import run_process
from tests.support.slurm_cluster import DIE_WITH_PARENT, slurm_cluster, why_no_slurm
from tests.support.slurm_plan import ClusterPlan, cgroups_writable, lay_out, slurm_conf

needs_slurm = pytest.mark.skipif(bool(why_no_slurm()), reason=why_no_slurm())
PLAN = ClusterPlan(name="broken", nodes=1, cores=2, gpus=2, preemptible="REQUEUE", silent_s=10)


def submit(cluster, script, *options):
    words = ["sbatch", "--parsable", "--output=/dev/null", "--mem=100", *options, "--wrap", script]
    said = cluster.run(words)
    assert said.returncode == 0, said.stderr
    return said.stdout.strip()


def state(cluster, number):
    return cluster.run(["sacct", "-nPX", "-j", number, "-o", "State"]).stdout.strip()


def until(cluster, number, *states, most_s=120.0):
    cluster.wait(lambda: state(cluster, number).startswith(states), f"job {number} to be {states}", most_s=most_s)
    return state(cluster, number)


def daemons_of(folder):
    """Return the names of the processes that were started with a cluster's files."""
    found = []
    for process in psutil.process_iter(["name", "cmdline", "environ"]):
        words = [*(process.info["cmdline"] or ()), (process.info["environ"] or {}).get("SLURM_CONF", "")]
        if any(str(folder) in word for word in words):
            found.append(process.info["name"])
    return found


def test_a_plan_is_written_down_as_slurm_takes_it(tmp_path):
    layout = lay_out(PLAN, tmp_path)
    text = slurm_conf(PLAN, layout)
    assert f"NodeName={layout.nodes[0]} " in text
    assert "Gres=gpu:a100:2" in text
    assert "MaxJobCount=20000" in text
    assert "PartitionName=spare Nodes=ALL" in text
    assert Path("/dev/null") == (tmp_path / "dev" / "gpu1").readlink()
    assert "accounting_storage/none" in slurm_conf(replace(PLAN, accounting=False), layout)


@needs_slurm
@pytest.mark.slow
def test_daemons_are_stopped_and_started_and_jobs_outlive_them(tmp_path):
    with slurm_cluster(tmp_path, PLAN) as cluster:
        (node,) = cluster.nodes
        visible = tmp_path / "visible"
        submit(cluster, f"echo $CUDA_VISIBLE_DEVICES > {visible}; sync", "--gres=gpu:2", "--wait")
        assert visible.read_text() == "0,1\n"
        long = submit(cluster, "sleep 20", "--partition=long")
        until(cluster, long, "RUNNING")
        cluster.save()  # what a controller took in its last seconds dies with it
        cluster.stop("slurmctld", sign=signal.SIGKILL)
        cluster.stop("slurmdbd")
        assert not cluster.runs("slurmctld")
        assert cluster.run(["sacct", "-n"]).returncode != 0
        cluster.start("slurmdbd")
        cluster.start("slurmctld")
        assert until(cluster, long, "COMPLETED") == "COMPLETED"
        spare = submit(cluster, "sleep 60", "--partition=spare", "--exclusive")
        until(cluster, spare, "RUNNING")
        submit(cluster, "sleep 3", "--exclusive")
        assert until(cluster, spare, "PENDING", "REQUEUED")
        cluster.run(["scancel", spare])
        cluster.wait(lambda: cluster.idle() == 1, "the node to be idle")
        lost = submit(cluster, "sleep 60", "--no-requeue")
        until(cluster, lost, "RUNNING")
        (daemon,) = cluster._step_daemons()
        (script,) = daemon.children()
        cluster.crash(node)
        assert not daemon.is_running()
        assert not script.is_running()
        assert until(cluster, lost, "NODE_FAIL") == "NODE_FAIL"
    assert daemons_of(tmp_path) == []


@needs_slurm
@pytest.mark.slow
@pytest.mark.skipif(not DIE_WITH_PARENT, reason="there is no setpriv here")
def test_a_cluster_does_not_outlive_the_process_that_started_it(tmp_path):
    code = (
        "import os, sys; from pathlib import Path; from tests.support.slurm_cluster import slurm_cluster\n"
        "from tests.support.slurm_plan import ClusterPlan\n"
        "with slurm_cluster(Path(sys.argv[1]), ClusterPlan(nodes=1, cgroups=False)): os.kill(os.getpid(), 9)"
    )
    died = run_process(
        [sys.executable, "-c", code, str(tmp_path)], env={"PYTHONPATH": ":".join(filter(None, sys.path))}
    )
    assert died.returncode == -signal.SIGKILL, died.stderr
    deadline = time.monotonic() + 20
    while (left := daemons_of(tmp_path)) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert left == []


@needs_slurm
@pytest.mark.slow
@pytest.mark.skipif(not cgroups_writable(), reason="there are no control groups that this user may write")
def test_two_clusters_run_side_by_side_and_memory_is_held_to(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with (
        slurm_cluster(tmp_path / "a", ClusterPlan(name="a", nodes=1)) as first,
        slurm_cluster(tmp_path / "b", ClusterPlan(name="b", nodes=1, accounting=False, cgroups=False)) as second,
    ):
        eats = "python3 -c 'import time; x = bytearray(b\"x\") * (300 << 20); time.sleep(5)'"
        eater = submit(first, eats)
        other = submit(second, "sleep 0.1")
        assert until(first, eater, "OUT_OF_MEMORY", "COMPLETED", "FAILED") == "OUT_OF_MEMORY"
        second.wait(lambda: not second.run(["squeue", "-h"]).stdout, "the other cluster's job to end")
        assert other in second.run(["squeue", "-h", "-t", "all", "-o", "%i"]).stdout.split()
        assert "disabled" in second.run(["sacct"]).stderr
    for kind in ("memory", "freezer"):
        assert not list((Path("/sys/fs/cgroup") / kind).glob(f"slurm_{first.nodes[0]}*"))
