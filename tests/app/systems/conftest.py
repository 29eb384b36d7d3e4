"""A Slurm with GPUs, prices and QOS, whose controller can be stopped; and what older and newer ones print."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "catalog" / "probes"))
from slurm_cluster import missing, slurm_cluster

SETTINGS = """
GresTypes=gpu
AccountingStorageTRES=gres/gpu,gres/gpu:l40s
AccountingStorageEnforce=limits,qos
PriorityType=priority/multifactor
PriorityFlags=MAX_TRES
PartitionName=gpu Nodes=two MaxTime=120 DefMemPerCPU=1000 TRESBillingWeights=CPU=1.0,Mem=0.25G,GRES/gpu=15.0
"""


class Cluster:
    """A running cluster: its variables, its configuration, and its controller."""

    def __init__(self, environment):
        self.variables = environment
        self.environment = {**os.environ, **environment}
        self.configuration = Path(environment["SLURM_CONF"])
        self.folder = self.configuration.parent
        self.environment["MYSQL_UNIX_PORT"] = str(self.folder / "mysql.sock")
        self._daemons = {}

    def say(self, *words):
        """Run a command of Slurm's; it must succeed."""
        done = subprocess.run(words, env=self.environment, capture_output=True, text=True, check=False)
        assert 0 == done.returncode, done.stderr
        return done.stdout

    def configure(self, change):
        """Write the configuration anew as ``change`` makes it, and start the controller with it."""
        self.stop()
        self.configuration.write_text(change(self.configuration.read_text()))
        self.start()

    def stop(self):
        """End the controller and wait until it is gone."""
        self._end("slurmctld")

    def start(self):
        """Start a controller and wait until the nodes have registered with it."""
        self._start("slurmctld", "-D")
        self._wait(self._answers, "the controller")
        self.say("scontrol", "reconfigure")
        self._wait(lambda: "one" in self._idle() and "two" in self._idle(), "the nodes to be idle")

    def restart_node(self, name):
        """Have a node's daemon look at its GPUs anew."""
        self._end(f"slurmd-{name}")
        self._start(f"slurmd-{name}", "-D", "-N", name)

    @contextmanager
    def accounting_down(self):
        """Be without the daemon of the accounting for a while."""
        self._end("slurmdbd")
        try:
            yield
        finally:
            self._start("slurmdbd", "-D")
            self._wait(lambda: 0 == self._try("sacctmgr", "-n", "show", "cluster"), "the accounting")

    def end(self):
        """End what was started here."""
        for process in self._daemons.values():
            process.terminate()
            process.wait(20)

    def _end(self, name):
        pid = int((self.folder / f"{name}.pid").read_text())
        os.kill(pid, signal.SIGTERM)
        started = self._daemons.pop(name, None)
        if started is not None:
            started.wait(20)
        else:
            self._wait(lambda: psutil.Process(pid).status() == "zombie", f"{name} to end")

    def _start(self, name, *options):
        program = name.partition("-")[0]
        self._daemons[name] = subprocess.Popen(
            [program, *options], env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True,
            executable=shutil.which(program, path=self.environment["PATH"]),
        )  # fmt: skip

    def _try(self, *words):
        return subprocess.run(words, env=self.environment, capture_output=True, check=False).returncode

    def _answers(self):
        ask = ["scontrol", "ping"]
        done = subprocess.run(ask, env=self.environment, capture_output=True, text=True, check=False)
        return "UP" in done.stdout

    def _idle(self):
        return self.say("sinfo", "-h", "-N", "-t", "idle", "-o", "%N").split()

    def _wait(self, condition, what):
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline, f"waited a minute for {what}"
            time.sleep(0.2)


def _with_gpus(configuration, folder):
    for number in (0, 1):
        (folder / f"gpu{number}").symlink_to("/dev/null")
    (folder / "gres.conf").write_text(f"NodeName=two Name=gpu Type=l40s File={folder}/gpu[0-1]\n")
    two = "NodeName=two Gres=gpu:l40s:2 Feature=big "
    return configuration.replace("NodeName=two ", two).replace("RealMemory=4000", "RealMemory=64000") + SETTINGS


@pytest.fixture(scope="module")
def gpu_cluster():
    """Start a Slurm of a CPU node and a GPU node, or skip the test with the reason why there can be none."""
    if reason := missing():
        pytest.skip(reason)
    with ExitStack() as stack:
        # What any user may read, and what ends after the cluster, which cancels its jobs while there is a controller.
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="probed-")))
        ended = stack.enter_context(ExitStack())
        made = Cluster(stack.enter_context(slurm_cluster(folder)))
        ended.callback(made.end)
        made.stop()
        made.configuration.write_text(_with_gpus(made.configuration.read_text(), made.folder))
        made.restart_node("two")
        made.start()
        yield made
