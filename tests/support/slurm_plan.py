"""Plan of a private Slurm cluster, and its configuration files."""

import os
import pwd
import secrets
import socket
import string
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

PARTITIONS = ("short", "long")

SLURM = """\
ClusterName={name}
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={control_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock,cred_expire=15
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={spool}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
MpiDefault=none
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
MailProg=/bin/true
{tracking}
JobAcctGatherFrequency=task=1
{accounting}
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=2,sched_min_interval=100000,default_queue_depth=2000,bf_max_job_test=2000
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
{preemption}
EnforcePartLimits=ALL
MaxArraySize={array_most}
MaxJobCount={jobs_most}
MinJobAge={remembered_s}
KillWait=3
SlurmdTimeout={silent_s}
BatchStartTimeout={launch_s}
MessageTimeout=20
ReturnToService=2
SlurmdParameters=config_overrides
{nodes}
{partitions}
"""
ACCOUNTING = """\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={database_port}
AccountingStoragePass={folder}/munge.sock"""
BY_CGROUP = """\
ProctrackType=proctrack/cgroup
TaskPlugin=task/cgroup
JobAcctGatherType=jobacct_gather/cgroup
JobAcctGatherParams=UsePss"""
BY_PROC = """\
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux"""
CGROUP = """\
CgroupMountpoint=/sys/fs/cgroup
CgroupAutomount=no
IgnoreSystemd=yes
ConstrainCores=no
ConstrainDevices=no
ConstrainRAMSpace={constrained}
ConstrainSwapSpace=no
"""
DATABASE = """\
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


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """Properties of a cluster whose nodes are declared, not real, and all run here.

    Attributes:
        short_minutes: limit of the default partition ``short``; partition ``long`` allows a week.
        shards: parts of the GPUs of a node that jobs may share.
        preemptible: ``REQUEUE`` or ``CANCEL`` adds a partition ``spare`` with preemptible jobs.
        accounting: run sacct's database.
        cgroups: limit memory by control groups of version 1, so that jobs end OUT_OF_MEMORY (None: if root can write
            them).
        remembered_s: time for which the controller knows ended jobs.
        silent_s: time after which a silent node is down, with all its jobs. A busy machine can be silent for more
            than ten seconds.
        settings: further lines of slurm.conf.
    """

    name: str = "test"
    nodes: int = 2
    cores: int = 4
    memory_mib: int = 4000
    gpus: int = 0
    gpu_type: str = "a100"
    shards: int = 0
    short_minutes: int = 60
    preemptible: str | None = None
    accounting: bool = True
    cgroups: bool | None = None
    jobs_most: int = 20_000
    array_most: int = 1001
    remembered_s: int = 300
    silent_s: int = 60
    settings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ClusterLayout:
    """Folder, ports and unique node names of a planned cluster.

    ``spool`` is a folder with a short name, because the path of a step daemon's socket in it has at most 107
    characters. With a longer path, Slurm cancels each job at its start.
    """

    folder: Path
    spool: Path
    control_port: int
    database_port: int
    node_ports: dict[str, int]
    cgroups: bool
    user: str = field(default_factory=lambda: pwd.getpwuid(os.getuid()).pw_name)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of the nodes."""
        return tuple(self.node_ports)


def lay_out(plan: ClusterPlan, folder: Path) -> ClusterLayout:
    """Choose ports and names, and write the configuration into the empty ``folder``."""
    # All at once, or the kernel could return one port twice.
    ports = _free_ports(2 + plan.nodes)
    # Control groups are named after nodes, so node names must be unique.
    mark = "".join(secrets.choice(string.ascii_lowercase) for _ in range(4))
    names = [f"{mark}n{number + 1}" for number in range(plan.nodes)]
    cgroups = cgroups_writable() if plan.cgroups is None else plan.cgroups
    spool = Path(tempfile.mkdtemp(prefix="slurm-"))
    spool.chmod(0o755)
    layout = ClusterLayout(folder, spool, ports[0], ports[1], dict(zip(names, ports[2:], strict=True)), cgroups)
    folder.chmod(0o755)
    (folder / "state").mkdir()
    (folder / "dev").mkdir()
    # Two databases created at once would use each other's temporary tables.
    (folder / "tables").mkdir()
    for name in names:
        (layout.spool / name).mkdir()
    for number in range(plan.gpus):
        (folder / "dev" / f"gpu{number}").symlink_to("/dev/null")  # no device file, no CUDA_VISIBLE_DEVICES
    (folder / "slurm.conf").write_text(slurm_conf(plan, layout), encoding="utf-8")
    (folder / "gres.conf").write_text(_gres_conf(plan, layout), encoding="utf-8")
    limits = CGROUP.format(constrained="yes" if cgroups else "no") + ("CgroupPlugin=cgroup/v1\n" if cgroups else "")
    (folder / "cgroup.conf").write_text(limits, encoding="utf-8")
    database = folder / "slurmdbd.conf"
    database.touch(mode=0o600)
    database.write_text(
        DATABASE.format(folder=folder, database_port=layout.database_port, user=layout.user), encoding="utf-8"
    )
    return layout


def slurm_conf(plan: ClusterPlan, layout: ClusterLayout) -> str:
    """Return the text of slurm.conf."""
    text = SLURM.format(
        name=plan.name, host=socket.gethostname(), control_port=layout.control_port, user=layout.user,
        folder=layout.folder, spool=layout.spool, tracking=BY_CGROUP if layout.cgroups else BY_PROC,
        accounting=ACCOUNTING.format(folder=layout.folder, database_port=layout.database_port)
        if plan.accounting else "AccountingStorageType=accounting_storage/none",
        preemption=f"PreemptType=preempt/partition_prio\nPreemptMode={plan.preemptible}" if plan.preemptible else "",
        array_most=plan.array_most, jobs_most=plan.jobs_most, remembered_s=plan.remembered_s,
        silent_s=plan.silent_s, launch_s=2 * plan.silent_s,
        nodes="\n".join(_node(plan, name, port) for name, port in layout.node_ports.items()),
        partitions=_partitions(plan),
    )  # fmt: skip
    return "\n".join(
        [text, *plan.settings, *([f"GresTypes=gpu{',shard' * bool(plan.shards)}"] if plan.gpus else []), ""]
    )


def cgroups_writable() -> bool:
    """True if this process may make control groups of version 1 for memory and freezer."""
    folders = [Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup/freezer")]
    return (folders[0] / "memory.limit_in_bytes").exists() and all(os.access(folder, os.W_OK) for folder in folders)


def _node(plan: ClusterPlan, name: str, port: int) -> str:
    gpus = f" Gres=gpu:{plan.gpu_type}:{plan.gpus}" if plan.gpus else ""
    gpus += f",shard:{plan.shards}" if plan.shards else ""
    return (
        f"NodeName={name} NodeAddr=127.0.0.1 NodeHostname={socket.gethostname()} Port={port} CPUs={plan.cores} "
        f"RealMemory={plan.memory_mib}{gpus}"
    )


def _partitions(plan: ClusterPlan) -> str:
    common = f"Nodes=ALL DefaultTime=10 DefMemPerCPU={plan.memory_mib // plan.cores // 2}"
    kept = " PriorityTier=10 PreemptMode=OFF" if plan.preemptible else ""
    lines = [
        f"PartitionName=short {common} Default=YES MaxTime={plan.short_minutes}{kept}",
        f"PartitionName=long {common} MaxTime=7-0{kept}",
    ]
    if plan.preemptible:
        lines.append(f"PartitionName=spare {common} MaxTime=7-0 PriorityTier=1 PreemptMode={plan.preemptible}")
    return "\n".join(lines)


def _gres_conf(plan: ClusterPlan, layout: ClusterLayout) -> str:
    if not plan.gpus:
        return ""
    files = f"{layout.folder}/dev/gpu[0-{plan.gpus - 1}]" if plan.gpus > 1 else f"{layout.folder}/dev/gpu0"
    rows = [f"NodeName={name} Name=gpu Type={plan.gpu_type} File={files}" for name in layout.nodes]
    rows += [f"NodeName={name} Name=shard Count={plan.shards}" for name in layout.nodes if plan.shards]
    return "\n".join(["AutoDetect=off", *rows, ""])


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for bound in sockets:
            bound.bind(("127.0.0.1", 0))
        return [bound.getsockname()[1] for bound in sockets]
