"""A Slurm of a CPU node and a GPU node, with prices and limits; and what older and newer ones print."""

import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "catalog" / "slurm"))

SETTINGS = (
    "AccountingStorageTRES=gres/gpu,gres/gpu:l40s",
    "AccountingStorageEnforce=limits,qos",
    "PriorityType=priority/multifactor",
    "PriorityFlags=MAX_TRES",
)
GPU = (
    "PartitionName=gpu Nodes={node} MaxTime=120 DefMemPerCPU=1000 TRESBillingWeights=CPU=1.0,Mem=0.25G,GRES/gpu=15.0\n"
)


class Probed:
    """A running cluster whose second node alone has GPUs, and what its keeper may do to it."""

    def __init__(self, cluster):
        self.cluster = cluster
        first, second = cluster.nodes
        for file in (cluster.folder / "slurm.conf", cluster.folder / "gres.conf"):
            lines = file.read_text().splitlines()
            lines = [line.replace(" Gres=gpu:l40s:2", "") if f"={first} " in line else line for line in lines]
            file.write_text(
                "\n".join(line for line in lines if not line.startswith(f"NodeName={first} Name=gpu")) + "\n"
            )
        cluster.stop(first)
        cluster.start(first)
        self.configure(lambda text: text + GPU.format(node=second))

    def say(self, *words):
        """Run a command of Slurm's; it must succeed."""
        done = self.cluster.run(words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def configure(self, change):
        """Write the configuration anew as ``change`` makes it, and start the controller with it."""
        file = self.cluster.folder / "slurm.conf"
        with self.without("slurmctld"):
            file.write_text(change(file.read_text()))

    @contextmanager
    def without(self, daemon):
        """Be without a daemon for a while."""
        self.cluster.stop(daemon)
        try:
            yield
        finally:
            self.cluster.start(daemon)
            if daemon == "slurmctld":
                self.say("scontrol", "reconfigure")
                self.cluster.wait(lambda: self.cluster.idle() == 2, "the nodes to be idle")
            self.cluster.wait(lambda: self.cluster.run(["sacctmgr", "-n", "show", "qos"]).returncode == 0, "sacctmgr")


@pytest.fixture(scope="module")
def gpu_cluster():
    """Start the cluster in a folder that any user may read, or skip the test with the reason why there can be none."""
    from tests.support.slurm_cluster import slurm_cluster, why_no_slurm
    from tests.support.slurm_plan import ClusterPlan

    if reason := why_no_slurm():
        pytest.skip(reason)
    plan = ClusterPlan(memory_mib=64000, gpus=2, gpu_type="l40s", cgroups=False, settings=SETTINGS)
    with tempfile.TemporaryDirectory(prefix="probed-") as folder, slurm_cluster(Path(folder), plan) as cluster:
        yield Probed(cluster)
