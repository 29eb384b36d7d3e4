"""The place at which a campaign's runs are started, with its schedulers."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from leadline.campaigns.journal import LOCAL_SYSTEM
from leadline.core.errors import InvalidInput
from leadline.core.jobs import JobSpec, ResourceSpec
from leadline.core.plane import AttemptPlan, Job, Place, Policy
from leadline.core.systems import Partition
from leadline.execution.clock import now_utc
from leadline.execution.plane.poll_interval import PollIntervals
from leadline.execution.schedulers.local.capacity import Slots
from leadline.execution.schedulers.local.scheduler import LocalScheduler
from leadline.execution.schedulers.port import Scheduler
from leadline.execution.schedulers.slurm.scheduler import SlurmScheduler
from leadline.execution.schedulers.slurm.script import directives
from leadline.execution.transport.port import LocalTransport

INTERVALS = PollIntervals(first=2.0, last=20.0, reports=float("inf"), decide=float("inf"), lost=600.0)
"""Requests of runs never change, so no report is read before the end of a run, and no decision made."""


@dataclass
class RunPlace:
    """The place of a campaign's runs: this machine within ``slots``, or its Slurm as ``system``.

    Runs that were started elsewhere before are managed, too. All files are in ``folder``. This machine and the nodes of
    Slurm must see it.
    """

    folder: Path
    slots: Slots
    system: str = LOCAL_SYSTEM
    partition: str | None = None
    partition_of: Callable[[JobSpec], Partition | None] = lambda _: None
    max_running: int | None = None
    forget_other_hosts: bool = False
    _local: LocalScheduler | None = field(default=None, init=False)

    @property
    def arrays(self) -> bool:
        """True if runs are submitted together, as arrays."""
        return self.system != LOCAL_SYSTEM

    def close(self) -> None:
        """Release what this machine's scheduler holds open; its runs go on."""
        if self._local is not None:
            self._local.close()

    def place(self, spec: JobSpec) -> JobSpec:
        """Return the job of a run as it is at this place; a partition of the run itself stays."""
        if not self.arrays:
            return replace(spec, system=None)
        return replace(spec, system=self.system, partition=spec.partition or self.partition)

    def check(self, spec: JobSpec) -> None:
        """Refuse a job that this machine can never run, or that the site would refuse."""
        if self.arrays:
            placed = self.place(spec)
            directives(placed, self.partition_of(placed))
        elif never := self.slots.rejection_reason(spec.resources):
            raise InvalidInput(
                f"this machine cannot run {spec.name!r}: {never}; change [resources] of the campaign, or "
                "run it elsewhere with --on"
            )

    def job(self, key: str, spec: JobSpec, limit_s: float | None) -> Job:
        """Return the job that starts a run. The wrapper enforces the shorter of its limit and ``limit_s``."""
        limits = [limit for limit in (spec.resources.walltime_s, limit_s) if limit is not None]
        limited = replace(spec, resources=replace(spec.resources, walltime_s=min(limits, default=None)))
        place = Place(self.system, spec.partition if self.arrays else None)
        policy = Policy((place,), resizes=False, max_running=self.max_running, own_commands=self.arrays)
        # Slurm counts whole minutes, and runs with different limits would be no array.
        plan = AttemptPlan(place, spec.resources if self.arrays else limited.resources)
        return Job(key, limited, policy, created_at=now_utc(), plan=plan)

    def has_room(self, resources: ResourceSpec) -> bool:
        """True if such a run would start at once; Slurm takes any number."""
        return self.arrays or self._local is None or self._local.has_room(resources)

    def wait(self, timeout_s: float) -> bool:
        """Wait; return True before ``timeout_s`` if a run on this machine has ended."""
        return self._local is not None and self._local.wait(timeout_s)

    def scheduler(self, system: str) -> Scheduler:
        """Return the scheduler of a system."""
        if system == LOCAL_SYSTEM:
            if self._local is None:
                self._local = LocalScheduler(self.folder, self.slots, forget_other_hosts=self.forget_other_hosts)
            return self._local
        return SlurmScheduler(
            system, PurePosixPath(self.folder), LocalTransport(), python=sys.executable, partition_of=self.partition_of
        )
