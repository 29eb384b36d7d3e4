"""A private Slurm for the length of a test: Debian's daemons in a folder, on free ports, removed afterwards."""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePath

import psutil

from leadline.core.errors import LeadlineError
from leadline.core.processes import CompletedProcess
from leadline.execution.processes import run_process, start_process
from tests.support.slurm_plan import ClusterLayout, ClusterPlan, lay_out

DAEMONS = ("munged", "slurmctld", "slurmd", "slurmdbd", "mariadbd", "mariadb-install-db")
PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
CGROUPS = ("memory", "freezer", "cpuset", "cpu", "cpuacct", "devices")
DIE_WITH_PARENT = ("setpriv", "--pdeathsig", "TERM") if shutil.which("setpriv") else ()
"""Command prefix that ends the process when this one is gone, even after a kill."""
STOP_S = 15.0
"""Seconds from SIGTERM to SIGKILL of a daemon."""


class ClusterNotStarted(LeadlineError):
    """A daemon of the cluster failed; the message contains its output."""


def why_no_slurm() -> str:
    """Return why no cluster can be started here; empty if one can."""
    absent = [name for name in DAEMONS if shutil.which(name, path=PATH) is None]
    return f"Slurm is not installed here: there is no {', '.join(absent)}" if absent else ""


@contextmanager
def slurm_cluster(folder: Path, plan: ClusterPlan | None = None) -> Iterator["SlurmCluster"]:
    """Yield a running cluster, by default of two nodes with four cores each; ``folder`` must be empty.

    Raises:
        ClusterNotStarted: a daemon did not start.
    """
    cluster = SlurmCluster(plan := plan or ClusterPlan(), lay_out(plan, folder))
    try:
        cluster.start_all()
        yield cluster
    finally:
        cluster.end()


@dataclass(slots=True)
class SlurmCluster:
    """A running cluster, with methods to inject faults.

    Its daemons are ``munged``, ``mariadbd``, ``slurmdbd``, ``slurmctld`` and each node by its name.
    """

    plan: ClusterPlan
    layout: ClusterLayout
    _running: "dict[str, subprocess.Popen[bytes]]" = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """Folder of ``slurm.conf``, logs and sockets."""
        return self.layout.folder

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of the nodes."""
        return self.layout.nodes

    @property
    def environment(self) -> dict[str, str]:
        """Variables with which sbatch, squeue and sacct reach the cluster."""
        return {"SLURM_CONF": str(self.folder / "slurm.conf"), "PATH": PATH}

    def run(self, argv: Sequence[str], *, timeout_s: float = 60.0) -> CompletedProcess:
        """Run a command on the cluster to its end."""
        return run_process(argv, env=self.environment, timeout_s=timeout_s)

    def start(self, daemon: str, *, wait_s: float = 60.0) -> None:
        """Start a daemon unless it runs, and wait until it answers."""
        if (process := self._running.get(daemon)) is not None and process.poll() is None:
            return
        command = self._command(daemon)
        with (self.folder / f"{daemon}.out").open("ab") as log, Path(os.devnull).open("rb") as null:
            self._running[daemon] = start_process(
                [*DIE_WITH_PARENT, *command],
                env={**self.environment, "MYSQL_UNIX_PORT": str(self.folder / "mysql.sock")},
                stdin=null.fileno(), stdout=log.fileno(), stderr=log.fileno(), own_session=True,
            )  # fmt: skip
        self.wait(lambda: self._answers(daemon), f"{daemon} to answer", most_s=wait_s)

    def stop(self, daemon: str, *, sign: signal.Signals = signal.SIGTERM) -> None:
        """Stop a daemon, or crash it with ``SIGKILL``; its jobs continue."""
        process = self._running.pop(daemon)
        process.send_signal(sign)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def crash(self, node: str) -> None:
        """Kill a node as a power failure would: slurmd, its step daemons and their processes."""
        if self.runs(node):
            self.stop(node, sign=signal.SIGKILL)
        # A step daemon that has just started does not listen yet, so look again.
        for _ in range(3):
            for daemon in self._step_daemons(node):
                _kill_all(daemon)
            time.sleep(0.1)
        for orphan in _jobs_of(node):
            _kill_all(orphan)

    def runs(self, daemon: str) -> bool:
        """True if a daemon is running."""
        return daemon in self._running and self._running[daemon].poll() is None

    def idle(self) -> int:
        """Return the number of idle nodes."""
        return len(self.run(["sinfo", "-h", "-N", "-p", "long", "-t", "idle", "-o", "%N"]).stdout.split())

    def wait(self, condition: Callable[[], bool], event: str, *, most_s: float = 120.0) -> None:
        """Wait until a condition holds.

        Raises:
            ClusterNotStarted: it does not hold within ``most_s``.
        """
        deadline = time.monotonic() + most_s
        while not condition():
            if time.monotonic() > deadline:
                raise ClusterNotStarted(f"waited {most_s:.0f} s for {event}: see the logs in {self.folder}")
            time.sleep(0.05)

    def save(self) -> None:
        """Wait until the controller has written down its jobs, which it does every few seconds if one has changed."""
        saved = self.folder / "state" / "job_state"
        before_s = saved.stat().st_mtime if saved.exists() else 0.0
        job = self.run(["sbatch", "--parsable", "--hold", "--output=/dev/null", "--wrap", "true"]).stdout.strip()
        self.wait(lambda: saved.exists() and saved.stat().st_mtime != before_s, "the jobs to be saved")
        self.run(["scancel", job])

    def start_all(self) -> None:
        """Start all daemons in the order of their dependencies, and wait for the nodes."""
        key = self.folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(128))
        self.start("munged")
        if self.plan.accounting:
            self._make_database()
        self.start("slurmctld")
        for node in self.nodes:
            self.start(node)
        self.wait(lambda: self.idle() == len(self.nodes), "the nodes to be idle")

    def end(self) -> None:
        """End all jobs and daemons in any state; no process and no control group is left."""
        if self.runs("slurmctld"):
            self._cancel_all()
        # In reverse order, so that each daemon can still reach those that it needs.
        for daemon in reversed(list(self._running)):
            self.stop(daemon)
        for process in self._step_daemons():
            process.kill()
        for kind in CGROUPS if self.layout.cgroups else ():
            for node in self.nodes:
                _remove_cgroup(Path("/sys/fs/cgroup") / kind / f"slurm_{node}")
        shutil.rmtree(self.layout.spool, ignore_errors=True)

    def _command(self, daemon: str) -> list[str]:
        folder, user = self.folder, self.layout.user
        if daemon in self.nodes:
            return ["slurmd", "-D", "-N", daemon]
        if daemon == "munged":
            names = {"key-file": "key", "socket": "sock", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
            return ["munged", "--foreground", "--force", *(f"--{to}={folder}/munge.{at}" for to, at in names.items())]
        if daemon == "mariadbd":
            return ["mariadbd", "--no-defaults", f"--datadir={folder}/mysql", f"--user={user}",
                    f"--socket={folder}/mysql.sock", "--skip-networking", "--innodb-buffer-pool-size=64M",
                    "--innodb-lock-wait-timeout=900", "--performance-schema=OFF", f"--tmpdir={folder}/tables",
                    *_QUICK]  # fmt: skip
        return [daemon, "-D"]

    def _answers(self, daemon: str) -> bool:
        if self._running[daemon].poll() is not None:
            output = (self.folder / f"{daemon}.out").read_text(encoding="utf-8", errors="replace").strip()
            raise ClusterNotStarted(
                f"{daemon} ended at once ({output.splitlines()[-1] if output else 'it output nothing'})"
            )
        if daemon == "munged":
            return (self.folder / "munge.sock").exists()
        if daemon == "mariadbd":
            return self.run(self._sql("CREATE DATABASE IF NOT EXISTS slurm")).returncode == 0
        port = {"slurmctld": self.layout.control_port, "slurmdbd": self.layout.database_port}
        return _listens(port[daemon] if daemon in port else self.layout.node_ports[daemon])

    def _make_database(self) -> None:
        user = self.layout.user
        self._run_checked(["mariadb-install-db", "--no-defaults", f"--datadir={self.folder}/mysql", f"--user={user}",
                    "--skip-test-db", "--auth-root-authentication-method=socket", f"--auth-root-socket-user={user}",
                    f"--tmpdir={self.folder}/tables", *_QUICK])  # fmt: skip
        self.start("mariadbd")
        self.start("slurmdbd")
        account = ["sacctmgr", "-i", "-Q", "add"]
        self._run_checked([*account, "cluster", self.plan.name])
        self._run_checked([*account, "account", "research", f"Cluster={self.plan.name}"])
        self._run_checked([*account, "user", user, "Account=research", "DefaultAccount=research"])

    def _sql(self, statement: str) -> list[str]:
        return ["mariadb", "--no-defaults", f"--socket={self.folder}/mysql.sock", "-u", self.layout.user, "-e",
                statement]  # fmt: skip

    def _run_checked(self, command: list[str]) -> None:
        answer = self.run(command, timeout_s=120.0)
        if answer.returncode:
            raise ClusterNotStarted(f"{command[0]} failed: {answer.stdout}{answer.stderr}")

    def _cancel_all(self) -> None:
        """Cancel all jobs, waiting ones first, and wait for their step daemons."""
        for states in (["--state=PENDING"], []):
            self.run(["scancel", *states, "-u", self.layout.user])
        deadline = time.monotonic() + STOP_S
        while self._step_daemons() and time.monotonic() < deadline:
            time.sleep(0.1)

    def _step_daemons(self, node: str = "*") -> list[psutil.Process]:
        """Return the step daemons of this cluster or of one node, which outlive slurmd by design.

        A step daemon overwrites its environment by its title, so it is recognized by its socket.
        """
        daemons = []
        for process in psutil.process_iter(["name"]):
            if process.info["name"] != "slurmstepd":
                continue
            try:
                sockets = [PurePath(str(path.laddr)) for path in process.net_connections("unix") if path.laddr]
            except psutil.Error:  # it ended meanwhile, or is another user's
                continue
            if any(path.match(f"{self.layout.spool}/{node}/*") for path in sockets):
                daemons.append(process)
        return daemons


_QUICK = ("--innodb-flush-method=nosync", "--skip-innodb-doublewrite", "--innodb-log-file-size=16M",
          "--innodb-flush-log-at-trx-commit=0")  # fmt: skip


def _kill_all(process: psutil.Process) -> None:
    """Kill a process and its descendants, and wait until they are gone."""
    try:
        members = [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for member in members:
        with suppress(psutil.NoSuchProcess):
            member.kill()
    psutil.wait_procs(members, timeout=STOP_S)


def _jobs_of(node: str) -> list[psutil.Process]:
    """Return the processes of jobs that Slurm started on a node; node names are unique to a cluster."""
    processes = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # it ended meanwhile, or is another user's
            if process.environ().get("SLURMD_NODENAME") == node:
                processes.append(process)
    return processes


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _remove_cgroup(folder: Path) -> None:
    """Remove a control group and its children, and kill processes left in them."""
    deadline = time.monotonic() + STOP_S
    while folder.is_dir():
        groups = sorted((path for path in folder.rglob("*") if path.is_dir()), reverse=True)
        for group in (*groups, folder):
            for number in (group / "cgroup.procs").read_text(encoding="ascii").split():
                with suppress(ProcessLookupError):
                    os.kill(int(number), signal.SIGKILL)
            try:
                group.rmdir()
            except OSError as error:
                if time.monotonic() > deadline:
                    raise ClusterNotStarted(
                        f"the control group {group} cannot be removed ({error.strerror})"
                    ) from error
        time.sleep(0.05)
