"""A Slurm of one's own for the length of a test: Debian's daemons, in a folder, on free ports, gone afterwards."""

import os
import pwd
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

DAEMONS = ("munged", "slurmctld", "slurmd", "slurmdbd", "mariadbd", "mariadb-install-db")
PATH = os.pathsep.join(["/usr/sbin", "/sbin", os.environ["PATH"]])
NODES = ("one", "two")

SLURM = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={control_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
MpiDefault=none
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
AccountingStorageType=accounting_storage/{accounting}
AccountingStorageHost=127.0.0.1
AccountingStoragePort={database_port}
AccountingStoragePass={folder}/munge.sock
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=2,sched_min_interval=100000
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
EnforcePartLimits=ALL
MaxArraySize=1001
MinJobAge=300
KillWait=3
ReturnToService=2
SlurmdParameters=config_overrides
{nodes}
PartitionName=short Nodes=ALL Default=YES MaxTime=60 DefaultTime=10 DefMemPerCPU=500
"""
DATABASE = """
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={database_port}
SlurmUser={user}
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser={user}
StorageLoc=slurm
PidFile={folder}/slurmdbd.pid
LogFile={folder}/slurmdbd.log
CommitDelay=1
"""


def missing() -> str:
    """Return why no cluster can be started here; empty if one can."""
    absent = [name for name in DAEMONS if shutil.which(name, path=PATH) is None]
    return f"Slurm is not installed here: there is no {', '.join(absent)}" if absent else ""


@contextmanager
def slurm_cluster(folder: Path) -> Iterator[dict[str, str]]:
    """Yield the variables under which sbatch, squeue and sacct reach a cluster of two nodes with four cores each."""
    folder.chmod(0o755)
    with ExitStack() as stack:
        values = _write_configuration(folder)
        environment = {**os.environ, "PATH": PATH, "SLURM_CONF": str(folder / "slurm.conf"),
                       "MYSQL_UNIX_PORT": str(folder / "mysql.sock")}  # fmt: skip
        _start_munge(stack, folder, environment)
        _start_database(stack, folder, environment, int(values["database_port"]))
        _start_daemon(stack, ["slurmctld", "-D"], environment)
        for node in NODES:
            _start_daemon(stack, ["slurmd", "-D", "-N", node], environment)
        _wait(lambda: _idle(environment) == len(NODES), "the nodes to be idle")
        stack.callback(_cancel_all, environment)
        yield {"SLURM_CONF": environment["SLURM_CONF"], "PATH": PATH}


def _write_configuration(folder: Path) -> dict[str, str]:
    ports = _free_ports(2 + len(NODES))
    nodes = "\n".join(
        f"NodeName={node} NodeAddr=127.0.0.1 NodeHostname={socket.gethostname()} Port={port} CPUs=4 RealMemory=4000"
        for node, port in zip(NODES, ports[2:], strict=True)
    )
    values = {
        "folder": str(folder), "host": socket.gethostname(), "user": pwd.getpwuid(os.getuid()).pw_name,
        "control_port": str(ports[0]), "database_port": str(ports[1]), "nodes": nodes, "accounting": "slurmdbd",
    }  # fmt: skip
    (folder / "state").mkdir()
    for node in NODES:
        (folder / f"spool-{node}").mkdir()
    (folder / "slurm.conf").write_text(SLURM.format(**values))
    (folder / "cgroup.conf").write_text("CgroupAutomount=no\nIgnoreSystemd=yes\n")
    (folder / "slurmdbd.conf").touch(mode=0o600)
    (folder / "slurmdbd.conf").write_text(DATABASE.format(**values))
    return values


def _start_munge(stack: ExitStack, folder: Path, environment: dict[str, str]) -> None:
    key = folder / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(128))
    options = {"key-file": key, "socket": folder / "munge.sock", "pid-file": folder / "munge.pid",
               "log-file": folder / "munge.log", "seed-file": folder / "munge.seed"}  # fmt: skip
    command = ["munged", "--foreground", "--force", *(f"--{name}={path}" for name, path in options.items())]
    _start_daemon(stack, command, environment)
    _wait((folder / "munge.sock").exists, "munge")


def _start_database(stack: ExitStack, folder: Path, environment: dict[str, str], port: int) -> None:
    user, data, quick = pwd.getpwuid(os.getuid()).pw_name, folder / "mysql", (
        "--innodb-flush-method=nosync", "--skip-innodb-doublewrite", "--innodb-log-file-size=16M",
    )  # fmt: skip
    made = ["mariadb-install-db", "--no-defaults", f"--datadir={data}", f"--user={user}", "--skip-test-db",
            "--auth-root-authentication-method=socket", f"--auth-root-socket-user={user}", *quick]  # fmt: skip
    _run(made, environment)
    _start_daemon(
        stack,
        ["mariadbd", "--no-defaults", f"--datadir={data}", f"--user={user}", f"--socket={folder / 'mysql.sock'}",
         "--skip-networking", "--innodb-buffer-pool-size=64M", "--innodb-lock-wait-timeout=900", *quick],
        environment,
    )  # fmt: skip
    sql = ["mariadb", "--no-defaults", f"--socket={folder / 'mysql.sock'}", "-u", "root", "-e"]
    _wait(lambda: _succeeds([*sql, "CREATE DATABASE IF NOT EXISTS slurm"], environment), "the database")
    _start_daemon(stack, ["slurmdbd", "-D"], environment)
    _wait(lambda: _answers(port), "the accounting")
    account = ["sacctmgr", "-i", "-Q", "add"]
    _run([*account, "cluster", "test"], environment)
    _run([*account, "account", "research", "Cluster=test"], environment)
    _run([*account, "user", user, "Account=research", "DefaultAccount=research"], environment)


def _start_daemon(stack: ExitStack, command: list[str], environment: dict[str, str]) -> None:
    process = subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        executable=shutil.which(command[0], path=PATH), start_new_session=True,
    )  # fmt: skip

    def stop() -> None:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    stack.callback(stop)


def _cancel_all(environment: dict[str, str]) -> None:
    """End all jobs and wait for their step daemons, which would outlive the cluster."""
    _run(["scancel", "-u", pwd.getpwuid(os.getuid()).pw_name], environment)
    _wait(lambda: not _said(["squeue", "-h"], environment), "the jobs to end")


def _idle(environment: dict[str, str]) -> int:
    return len(_said(["sinfo", "-h", "-N", "-t", "idle", "-o", "%N"], environment).split())


def _said(command: list[str], environment: dict[str, str]) -> str:
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False).stdout


def _run(command: list[str], environment: dict[str, str]) -> None:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed: {done.stdout}{done.stderr}")


def _succeeds(command: list[str], environment: dict[str, str]) -> bool:
    return subprocess.run(command, env=environment, capture_output=True, check=False).returncode == 0


def _answers(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        found = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in found:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in found]


def _wait(condition, what: str, most_s: float = 60.0) -> None:
    deadline = time.monotonic() + most_s
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"waited {most_s:.0f} s for {what}")
        time.sleep(0.1)
