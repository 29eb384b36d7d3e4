"""The faults of the campaign: their kinds, times, injection and healing."""

import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from heapq import heappop, heappush
from itertools import count
from pathlib import Path

from benchmarks.plane.fault_causes import Outage
from benchmarks.plane.fault_disk import Disk
from benchmarks.plane.fault_jobs import Death
from benchmarks.plane.fault_journal import SUFFIXES, JournalSwap
from benchmarks.plane.fault_plane import PlaneProcess
from benchmarks.plane.fault_shims import SACCT_FAULTS, SBATCH_FAULTS, SlurmShims
from benchmarks.plane.fault_staff import SiteStaff
from benchmarks.plane.host import OFFSET
from leadline.core.errors import LeadlineError
from leadline.core.plane import Job
from leadline.core.units import HOUR_S
from leadline.execution.plane.journal import PlaneJournal
from tests.support.slurm_cluster import SlurmCluster
from tests.support.ssh_server import SshServer


class Fault(StrEnum):
    """A kind of fault."""

    PLANE = "plane killed"
    CONTROLLER = "slurmctld down"
    DATABASE = "slurmdbd down"
    NODE = "node lost"
    SLURMD = "slurmd killed"
    SBATCH = "sbatch hangs or dies"
    SACCT = "accounting missing"
    DISK = "disk full"
    CLOCK = "clock jumps"
    SSH = "SSH cut"
    HANG = "host hangs"
    HIDDEN = "partition hidden"
    ENVIRONMENT = "user's variables"
    PLUGIN = "names rewritten"
    CANCEL = "cancelled by staff"
    REQUEUE = "requeued by staff"
    HOLD = "held by staff"
    LIMIT = "limit lowered"
    JOURNAL = "journal lost"


FULL = {
    Fault.PLANE: 26, Fault.CONTROLLER: 8, Fault.DATABASE: 8, Fault.NODE: 8, Fault.SLURMD: 8, Fault.SBATCH: 22,
    Fault.SACCT: 10, Fault.DISK: 8, Fault.CLOCK: 16, Fault.SSH: 8, Fault.HANG: 4, Fault.HIDDEN: 6,
    Fault.ENVIRONMENT: 6, Fault.PLUGIN: 8, Fault.CANCEL: 8, Fault.REQUEUE: 8, Fault.HOLD: 6, Fault.LIMIT: 5,
    Fault.JOURNAL: 8,
}  # fmt: skip
QUICK = dict.fromkeys(Fault, 1) | {
    Fault.PLANE: 3, Fault.SBATCH: 3, Fault.CLOCK: 2, Fault.NODE: 2, Fault.CONTROLLER: 0, Fault.LIMIT: 0,
}  # fmt: skip
"""A killed controller forgets the jobs of its last seconds, and aborts those that started in them. To settle that takes
longer than a quick campaign, so that has none. Slurm ends a job at least a minute after its limit was lowered."""
PARTS = {Fault.SSH: (0.35, 0.7), Fault.HANG: (0.35, 0.7), Fault.LIMIT: (0.05, 0.5)}
"""Parts of the campaign to which faults are limited: those of SSH, and those that take minutes to settle."""
SSH_PART = PARTS[Fault.SSH]
"""The part of the campaign in which the plane connects over SSH."""
OUTAGES = (Fault.CONTROLLER, Fault.NODE, Fault.SLURMD)
"""Faults that can end any job, or any on a node."""
PATIENT = (Fault.CANCEL, Fault.REQUEUE, Fault.HOLD, Fault.LIMIT, Fault.HIDDEN, Fault.ENVIRONMENT, Fault.JOURNAL)
"""Faults that wait for their moment, such as a job of the right kind."""
SILENCES = (Fault.CONTROLLER, Fault.DATABASE, Fault.SACCT)
"""Faults that can hide who cancelled a job."""
USERS_VARIABLES = {
    "SQUEUE_PARTITION": "long", "SQUEUE_STATES": "PENDING", "SQUEUE_USERS": "nobody", "SQUEUE_FORMAT": "%i",
    "SQUEUE_SORT": "-i", "SACCT_FORMAT": "jobid", "SLURM_TIME_FORMAT": "relative", "SBATCH_PARTITION": "long",
    "SBATCH_HOLD": "1", "SBATCH_JOB_NAME": "mine", "SQUEUE_CLUSTERS": "elsewhere", "SACCT_FEDERATION": "1",
}  # fmt: skip
"""Settings that users keep in their shells, and that change what Slurm's commands do and print."""
DOWN_S = (1.0, 20.0)
SLURMD_S = (0.5, 3.0)
"""A slurmd is back before the controller declares its node and jobs lost (SlurmdTimeout 10 s)."""
NODE_S = (2.0, 30.0)
SHORT_S = (2.0, 12.0)
CUT_S = (0.5, 4.0)
HANG_S = (3.0, 12.0)
LONGER_S = (5.0, 20.0)
SAVED_S = 15.0
"""Within this time, a controller has saved its state, also on a busy machine; it does so every 5 s."""
READ_S = 3.0
"""Within this time, the plane has read what was submitted."""
RETRY_S = (1.0, 2.0)
SUPERVISED_S = 1.0


def strike_times(numbers: Mapping[Fault, int], lasts_s: float, rng: random.Random) -> list[tuple[float, Fault]]:
    """Return the times of all faults in seconds from the beginning; some kinds have a part of the campaign."""
    struck = []
    for fault, number in numbers.items():
        low, high = PARTS.get(fault, (0.05, 1.0))
        struck += [(rng.uniform(low, high) * lasts_s, fault) for _ in range(number)]
    return sorted(struck)


@dataclass(slots=True)
class Injector:
    """Inject faults and heal each when its time is over.

    ``struck`` counts the injected ones, ``outages`` are those that can end jobs, and ``silences`` those that can hide
    who cancelled one. ``closed`` are the jobs of lost journals that had ended, which nobody needs again.
    ``submitted_s`` is when the last were submitted.
    """

    cluster: SlurmCluster
    plane: PlaneProcess
    shims: SlurmShims
    disk: Disk
    ssh: SshServer
    staff: SiteStaff
    rng: random.Random
    swap: JournalSwap
    struck: "Counter[Fault]" = field(default_factory=Counter)
    deaths: list[Death] = field(default_factory=list)
    log: list[tuple[float, str]] = field(default_factory=list)
    outages: list[Outage] = field(default_factory=list)
    silences: list[Outage] = field(default_factory=list)
    closed: dict[str, Job] = field(default_factory=dict)
    submitted_s: float = 0.0
    _due: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _numbers: "count[int]" = field(default_factory=count)
    _down: set[str] = field(default_factory=set)
    _looks_s: float = 0.0

    def strike(self, fault: Fault) -> bool:
        """Inject a fault; return False if it is active already, or nothing is there that it could strike."""
        # The others choose a job from the journal, or move that.
        detail = self._inject(fault) if fault not in PATIENT or self.has_own_journal else ""
        if not detail:
            return False
        self.struck[fault] += 1
        self.log.append((time.time(), f"{fault}: {detail}"))
        node = next((name for name in self.cluster.nodes if detail.startswith(f"{name} ")), "")
        if fault in OUTAGES:
            self.outages.append(Outage(time.time(), node))
        if fault in SILENCES:
            self.silences.append(Outage(time.time()))
        return True

    @property
    def has_journal(self) -> bool:
        """Whether the plane has a journal, so that it may be killed."""
        return "journal" not in self._down

    @property
    def has_own_journal(self) -> bool:
        """Whether the plane's journal is in its place, so that jobs may be submitted to it."""
        return "own journal" not in self._down

    def supervise(self) -> None:
        """Restart the plane if it has ended by itself, as a service manager does."""
        if "plane" not in self._down and time.monotonic() > self._looks_s:
            self.plane.start()
            self._looks_s = time.monotonic() + SUPERVISED_S

    def heal(self, *, everything: bool = False) -> None:
        """Heal the faults that are due, or all."""
        while self._due and (everything or self._due[0][0] <= time.monotonic()):
            _, _, healed = heappop(self._due)
            healed()
            if everything and self._due:
                time.sleep(0.1)
        if everything:
            self.shims.withdraw()

    def _inject(self, fault: Fault) -> str:
        """Inject a fault and describe it; return an empty text if it is already active."""
        ways: Mapping[Fault, Callable[[], str]] = {
            Fault.PLANE: self._plane,
            Fault.CONTROLLER: lambda: self._daemon("slurmctld"),
            Fault.DATABASE: lambda: self._daemon("slurmdbd"),
            Fault.NODE: self._node,
            Fault.SLURMD: self._slurmd,
            Fault.SBATCH: self._sbatch,
            Fault.SACCT: self._sacct,
            Fault.DISK: self._disk,
            Fault.CLOCK: self._clock,
            Fault.SSH: self._ssh,
            Fault.HANG: self._hang,
            Fault.HIDDEN: self._hidden,
            Fault.ENVIRONMENT: self._environment,
            Fault.PLUGIN: self._plugin,
            Fault.CANCEL: self.staff.cancel,
            Fault.REQUEUE: self.staff.requeue,
            Fault.HOLD: self._hold,
            Fault.LIMIT: self.staff.shorten,
            Fault.JOURNAL: self._journal,
        }
        return ways[fault]()

    def _later(self, span_s: tuple[float, float], healed: Callable[[], None]) -> float:
        lasts_s = self.rng.uniform(*span_s)
        heappush(self._due, (time.monotonic() + lasts_s, next(self._numbers), healed))
        return lasts_s

    def _lock(self, part: str) -> bool:
        if part in self._down:
            return False
        self._down.add(part)
        return True

    def _plane(self) -> str:
        if not self.has_journal or not self._lock("plane") or not self.plane.kill():
            self._down.discard("plane")
            return ""
        return f"for {self._later((0.0, 3.0), self._again('plane', self.plane.start)):.1f} s"

    def _daemon(self, daemon: str) -> str:
        if not self._lock(daemon):
            return ""
        sign = self.rng.choice([signal.SIGKILL, signal.SIGTERM])
        # A killed controller forgets the orders of its last seconds, and then nobody knows of them.
        if daemon == "slurmctld" and time.monotonic() - self.staff.acted_s < SAVED_S:
            sign = signal.SIGTERM
        self.cluster.stop(daemon, sign=sign)
        lasts_s = self._later(DOWN_S, self._again(daemon, lambda: self.cluster.start(daemon)))
        return f"{sign.name} for {lasts_s:.1f} s"

    def _node(self) -> str:
        node = self.rng.choice(self.cluster.nodes)
        if not self._lock(node):
            return ""
        self.cluster.crash(node)
        self.deaths.append(Death(node, time.time()))
        return f"{node} for {self._later(NODE_S, self._again(node, lambda: self.cluster.start(node))):.1f} s"

    def _slurmd(self) -> str:
        node = self.rng.choice(self.cluster.nodes)
        if not self._lock(node):
            return ""
        self.cluster.stop(node, sign=signal.SIGKILL)
        return f"{node} for {self._later(SLURMD_S, self._again(node, lambda: self.cluster.start(node))):.1f} s"

    def _sbatch(self) -> str:
        fault = self.rng.choice(SBATCH_FAULTS)
        self.shims.order_sbatch(fault)
        return fault

    def _sacct(self) -> str:
        if not self._lock("sacct"):
            return ""
        fault = self.rng.choice(SACCT_FAULTS)
        self.shims.order_sacct(fault)
        healed = self._again("sacct", lambda: self.shims.order_sacct(None))
        return f"{fault} for {self._later(SHORT_S, healed):.1f} s"

    def _disk(self) -> str:
        if not self._lock("disk"):
            return ""
        process = self.plane.pid
        self.disk.fill(process)
        return f"for {self._later(SHORT_S, self._again('disk', lambda: self.disk.free(process))):.1f} s"

    def _clock(self) -> str:
        offset_s = self.rng.choice([0.0, self.rng.uniform(-12.0, 12.0) * HOUR_S, self.rng.uniform(-1.0, 1.0) * HOUR_S])
        file: Path = self.plane.folder / OFFSET
        new = file.with_name(f".{OFFSET}")
        new.write_text(f"{offset_s:.3f}", encoding="ascii")
        new.replace(file)
        return f"to {offset_s / HOUR_S:+.2f} h"

    def _ssh(self) -> str:
        if not self._lock("ssh"):
            return ""
        self.ssh.stop()
        return f"for {self._later(CUT_S, self._again('ssh', self.ssh.start)):.1f} s"

    def _hang(self) -> str:
        if not self._lock("ssh"):
            return ""
        self.ssh.pause()
        return f"for {self._later(HANG_S, self._again('ssh', self.ssh.resume)):.1f} s"

    def _hidden(self) -> str:
        if not self._lock("partition") or not self.cluster.runs("slurmctld"):
            self._down.discard("partition")
            return ""

        def shown() -> None:
            self.staff.hide(hidden=False)
            self.shims.ask_as_ordinary_user(ordinary=False)

        self.staff.hide(hidden=True)
        self.shims.ask_as_ordinary_user(ordinary=True)
        return f"for {self._later(LONGER_S, self._again('partition', shown)):.1f} s"

    def _environment(self) -> str:
        if not self.has_journal or not self._lock("variables"):
            return ""
        self._set_variables(USERS_VARIABLES)
        return f"for {self._later(LONGER_S, self._again('variables', lambda: self._set_variables({}))):.1f} s"

    def _set_variables(self, variables: Mapping[str, str]) -> None:
        """Restart the plane with a user's variables; a killed one has them from its next start on.

        Raises:
            LeadlineError: the plane has no journal yet.
        """
        if not self.has_journal:
            raise LeadlineError("the plane was not restarted, because it has lost its journal")
        self.plane.variables = variables
        if self.plane.kill():
            self.plane.start()

    def _plugin(self) -> str:
        if not self._lock("plugin"):
            return ""
        self.staff.rewrite(rewrites=True)
        self.shims.order_sbatch("dies after")
        return f"for {self._later(LONGER_S, self._again('plugin', lambda: self.staff.rewrite(rewrites=False))):.1f} s"

    def _hold(self) -> str:
        key, release = self.staff.hold()
        return f"{key} for {self._later(SHORT_S, self._again(f'hold {key}', release)):.1f} s" if key else ""

    def _journal(self) -> str:
        """Remove the journal under the running plane, which has the jobs in memory; then let a new plane find them."""
        # A job that was submitted a moment ago may be in the journal alone, and a new plane has not read it yet. While
        # a plane runs without its own journal, a second removal would put its small one over the one that was moved.
        recent = time.monotonic() - self.submitted_s < READ_S
        blocking = {"plane", "disk", "variables", "journal", "own journal"}
        if recent or not self._down.isdisjoint(blocking) or not self.plane.has_jobs():
            return ""
        journal = PlaneJournal(self.staff.journal)
        if not journal.open_jobs():
            journal.close()
            return ""
        for suffix in SUFFIXES:
            self.staff.journal.with_name(self.staff.journal.name + suffix).unlink(missing_ok=True)
        self._lock("journal")
        self._later(RETRY_S, self._again("journal", partial(self._written_again, journal)))
        return "removed"

    def _written_again(self, removed: PlaneJournal) -> None:
        """Let a new plane find the jobs once the first has written them again, and keep those that had ended.

        Raises:
            LeadlineError: it has not yet.
        """
        if not self.staff.journal.exists():
            raise LeadlineError("the journal was not written again")
        with PlaneJournal(self.staff.journal) as journal:
            if not journal.newest_jobs():
                raise LeadlineError("the jobs were not written again")
        # Only now: the plane may have closed some of them while its file was removed.
        self.closed |= {job.key: job for job in removed.newest_jobs() if job.closed}
        removed.close()
        self._lock("own journal")
        self.swap.move_away()
        self._later(RETRY_S, self._again("own journal", self.swap.put_back))

    def _again(self, part: str, heal: Callable[[], None]) -> Callable[[], None]:
        """Return what heals a fault; a daemon that does not start without another one is started again later."""

        def healed() -> None:
            try:
                heal()
            except LeadlineError as error:  # a daemon or the controller that it needs is down
                self.log.append((time.time(), str(error)))
                self._later(RETRY_S, healed)
            else:
                self._down.discard(part)

        return healed
