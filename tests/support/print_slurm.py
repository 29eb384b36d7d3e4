"""Record what a release of Slurm prints about jobs in every situation, for tests on machines without that release.

Usage, as root: python -m tests.support.print_slurm FOLDER RESULT.json

FOLDER holds the release as ``mmdebstrap --variant=extract`` leaves it, such as that of ``python3 dev test``; its C
library must not be older than the one here.
"""

import json
import os
import platform
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from leadline.execution.schedulers.slurm.parsing import LIVING_FIELDS, OUTPUT, SACCT_FIELDS, SQUEUE_FORMAT
from tests.support.newer_slurm import slurm_version, with_newer_slurm
from tests.support.slurm_cluster import SlurmCluster, slurm_cluster
from tests.support.slurm_plan import ClusterPlan

MARK = "<mark>"
EATS = shlex.join(["python3", "-c", "import time; kept = bytearray(b'x') * (300 << 20); time.sleep(9)"])
SITUATIONS = {
    "completes": ("COMPLETED", "true", "--nodes=2"),
    "fails": ("FAILED", "exit 3"),
    "memory": ("OUT_OF_MEMORY", EATS),
    "limit": ("TIMEOUT", "sleep 300", "--time=1"),
    "array": ("FAILED", "exit $((SLURM_ARRAY_TASK_ID - 1))", "--array=1-2"),
    "cancelled": ("RUNNING", "sleep 300"),
    "preempted": ("RUNNING", "sleep 300", "--partition=spare", "--no-requeue", "--exclusive", "--nodes=1"),
    "requeued": ("RUNNING", "sleep 300", "--requeue"),
    "node": ("RUNNING", "sleep 300", "--no-requeue", "--exclusive", "--nodes=1"),
    "hidden": ("RUNNING", "sleep 300", "--partition=hidden", "--gres=gpu:1g.10gb:1"),
    "shares": ("RUNNING", "sleep 300", "--gres=shard:1"),
    "held": ("PENDING", "true", "--hold"),
    "later": ("PENDING", "true", "--begin=now+1hour"),
    "waits": ("PENDING", "true", "--array=3-5,9%1", "--hold"),
}
"""Name: its state before anything else happens, its script and the options of its submission."""
HIDDEN = "PartitionName=hidden Nodes=ALL Hidden=YES MaxTime=60 PriorityTier=10 PreemptMode=OFF"
PLAN = ClusterPlan("printed", nodes=3, gpus=2, gpu_type="1g.10gb", shards=4, preemptible="CANCEL", settings=(HIDDEN,))


def printed() -> dict[str, object]:
    """Bring jobs into every situation, and return what this machine's Slurm prints about them."""
    with tempfile.TemporaryDirectory() as folder, slurm_cluster(Path(folder), PLAN) as cluster:
        ids = {name: _submit(cluster, name) for name in SITUATIONS}
        for name, (state, *_) in SITUATIONS.items():
            _until(cluster, ids[name], state)
        ids["never"] = _submit(cluster, "never", f"--dependency=afterok:{ids['fails']}", "--kill-on-invalid-dep=yes")
        node, spared = (_said(cluster, "squeue", "-h", "-j", ids[name], "-o", "%N").strip()
                        for name in ("node", "preempted"))  # fmt: skip
        _said(cluster, "scancel", ids["cancelled"])
        _said(cluster, "scontrol", "requeuehold", ids["requeued"])
        _said(cluster, "scontrol", "update", f"nodename={node}", "state=down", "reason=of_the_test")
        first = _submit(cluster, "first", "--exclusive", f"--nodelist={spared}")
        for name, state in (("cancelled", "CANCELLED"), ("node", "NODE_FAIL"), ("never", "CANCELLED")):
            _until(cluster, ids[name], state)
        _until(cluster, ids["preempted"], "PREEMPTED")
        _said(cluster, "scancel", first)
        cluster.wait(lambda: _settled(cluster, ids), "all jobs to be settled and the accounting to have all of them")
        layout = ",".join(f"{field}:0{MARK}" for field in LIVING_FIELDS)
        everyone = {
            "squeue": ["squeue", "-a", "-h", "-r", "-t", "all", "-o", SQUEUE_FORMAT],
            "living": ["squeue", "-a", "-h", "-t", "all", "-r", "-O", layout],
            "sacct": ["sacct", "-n", "-P", "--duplicates", "-j", ",".join(ids.values()), "-o", SACCT_FIELDS],
            "partitions": ["scontrol", "-a", "-o", "show", "partition"],
            "nodes": ["scontrol", "-a", "-o", "show", "node"],
            "config": ["scontrol", "show", "config"],
        }
        texts = {name: _said(cluster, *command) for name, command in everyone.items()}
        texts["living"] = MARK + texts["living"]
        texts["jobs"] = "".join(
            _said(cluster, "scontrol", "-a", "--oneliner", "--details", "show", "job", job_id)
            for job_id in ids.values()
        )
        # What tells of this machine alone is left out.
        places = {folder: "/cluster", str(cluster.layout.spool): "/spool", platform.release(): "6.1.0"}
        for place, name in places.items():
            texts = {kind: text.replace(place, name) for kind, text in texts.items()}
        return {"version": slurm_version(), "ids": ids, **texts}


def key_of(name: str) -> str:
    """Return the key of the job in a situation, as Leadline marks its jobs with one."""
    return name.encode().hex().ljust(12, "0")[:12]


def _submit(cluster: SlurmCluster, name: str, *more: str) -> str:
    _, script, *options = SITUATIONS.get(name, ("", "true"))
    marks = [f"--comment=leadline:{key_of(name)}", f"--job-name={name}-{key_of(name)}", "--output=/dev/null"]
    # Those that have a node of their own find it empty.
    place = [] if {"--exclusive", "--nodes=2"} & {*options, *more} else [f"--nodelist={cluster.nodes[0]}"]
    words = ["sbatch", "--parsable", *marks, "--mem=100", "--time=10", *place, *options, *more, "--wrap", script]
    return _said(cluster, *words).strip()


def _until(cluster: SlurmCluster, job_id: str, *states: str) -> None:
    def reached() -> bool:
        rows = _said(cluster, "sacct", "-nPX", "--duplicates", "-j", job_id, "-o", "State").split("\n")[:-1]
        return bool(rows) and any(row.startswith(states) for row in rows)

    cluster.wait(reached, f"job {job_id} to be {' or '.join(states)}", most_s=180)


def _settled(cluster: SlurmCluster, ids: dict[str, str]) -> bool:
    leaving = _said(cluster, "squeue", "-a", "-h", "-t", "COMPLETING", "-o", "%i")
    rows = _said(cluster, "sacct", "-nPX", "-j", f"{ids['never']},{ids['requeued']}", "-o", "State,Partition").split()
    return not leaving and sum(row.startswith("PENDING") for row in rows) == 1 and all(row[-1] != "|" for row in rows)


def _said(cluster: SlurmCluster, *words: str) -> str:
    settings = {name: value for name, value in OUTPUT.items() if value}
    answer = subprocess.run(
        words, cwd=cluster.folder, env={**os.environ, **cluster.environment, **settings},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if answer.returncode:
        sys.exit(f"{shlex.join(words)} failed: {answer.stderr}")
    return answer.stdout


if __name__ == "__main__":
    if len(sys.argv) == 3:
        folder, result = sys.argv[1:]
        again = [sys.executable, "-m", "tests.support.print_slurm"]
        done = subprocess.run(with_newer_slurm(again, Path(folder)), stdout=subprocess.PIPE, text=True, check=True)
        Path(result).write_text(done.stdout, encoding="utf-8")
    else:
        json.dump(printed(), sys.stdout, indent=1)
        sys.stdout.write("\n")
