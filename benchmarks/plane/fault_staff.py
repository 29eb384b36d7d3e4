"""Faults that a site causes: its staff change jobs, hide a partition, or rewrite what is submitted."""

import math
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from leadline.core.errors import LeadlineError
from leadline.core.jobs import JobState
from leadline.core.plane import Attempt, FailureCause
from leadline.execution.plane.journal import PlaneJournal
from tests.support.slurm_cluster import SlurmCluster

OPERATOR = "nobody"
"""A user with the rights of staff, who owns no jobs."""
AS_OPERATOR = ("setpriv", f"--reuid={OPERATOR}", "--regid=nogroup", "--clear-groups")
"""Prefix of a command that another user than the jobs' owner runs."""
REWRITE = """\
function slurm_job_submit(job, partitions, user)
  local order = io.open("{order}", "r")
  if order then
    order:close()
    job.comment = "rewritten by the site"
    job.name = "site"
  end
  return slurm.SUCCESS
end

function slurm_job_modify(job, record, partitions, user)
  return slurm.SUCCESS
end
"""
IN_VAIN = "Kill job error"
"""What ``scancel -v`` says of a job that has ended or is unknown."""
RELEASE_S = 10.0
"""Between two looks at what is still held."""
PLUGIN_SETTING = "JobSubmitPlugins=lua"


@dataclass(slots=True)
class SiteStaff:
    """Staff of the cluster, who act on jobs whose design expects it.

    Attributes:
        journal: The plane's journal, from which the staff choose jobs.
        kinds: Kind of each job by its key.
        causes: Attempts that the staff ended, with the cause that the plane must find.
        acted_s: When the staff last gave an order, on the monotonic clock.
    """

    cluster: SlurmCluster
    journal: Path
    rng: random.Random
    kinds: Mapping[str, str] = field(default_factory=dict)
    causes: dict[str, FailureCause] = field(default_factory=dict)
    cancelled: set[str] = field(default_factory=set)
    acted_s: float = -math.inf

    @property
    def order(self) -> Path:
        """File that makes the plugin rewrite names and comments."""
        return self.cluster.folder / "rewrite"

    def set_up(self) -> None:
        """Give the operator the rights of staff."""
        self._must(["sacctmgr", "-i", "-Q", "add", "user", OPERATOR, "Account=research", "AdminLevel=Operator"])

    def cancel(self) -> str:
        """Cancel a job that is designed for it."""
        attempt = self._choose(JobState.RUNNING, "cancelled by staff")
        # scancel ends with 0 also for jobs that the controller does not know.
        if attempt is None or not self._does([*AS_OPERATOR, "scancel", "-v", attempt.scheduler_id or ""]):
            return ""
        self.causes[attempt.key] = FailureCause.ADMINISTRATOR
        self.cancelled.add(attempt.job)
        return attempt.job

    def requeue(self) -> str:
        """Put a running job back into the queue."""
        attempt = self._choose(JobState.RUNNING, "well", "follows")
        if attempt is None:
            return ""
        # Leadline submits with --no-requeue, which staff override.
        allow = ["scontrol", "update", f"JobId={attempt.scheduler_id}", "Requeue=1"]
        requeue = ["scontrol", "requeue", attempt.scheduler_id or ""]
        if not all(self._does([*AS_OPERATOR, *command]) for command in (allow, requeue)):
            return ""
        self.causes[attempt.key] = FailureCause.REQUEUE
        return attempt.job

    def hold(self) -> tuple[str, Callable[[], None]]:
        """Hold a waiting job; return its key and what releases it."""
        attempt = self._choose(JobState.PENDING, "well", "fails", "follows", "hungry", "long")
        if attempt is None or not self._does([*AS_OPERATOR, "scontrol", "hold", attempt.scheduler_id or ""]):
            return "", lambda: None
        return attempt.job, lambda: self._release(attempt.scheduler_id or "")

    def shorten(self) -> str:
        """Lower the limit of a running job below its need."""
        attempt = self._choose(JobState.RUNNING, "long")
        update = ["scontrol", "update", f"JobId={attempt.scheduler_id}" if attempt else "", "TimeLimit=1"]
        if attempt is None or not self._does([*AS_OPERATOR, *update]):
            return ""
        self.causes[attempt.key] = FailureCause.WALLTIME
        return attempt.job

    def hide(self, *, hidden: bool) -> None:
        """Hide the default partition from ordinary users, or show it again.

        Raises:
            LeadlineError: the controller is down or refuses.
        """
        self._check_controller()
        self._must(["scontrol", "update", "PartitionName=short", f"Hidden={'YES' if hidden else 'NO'}"])

    def rewrite(self, *, rewrites: bool) -> None:
        """Let the plugin rewrite names and comments of new jobs, or leave them."""
        if rewrites:
            self.order.touch()
        else:
            self.order.unlink(missing_ok=True)

    def _choose(self, state: JobState, *kinds: str) -> Attempt | None:
        """Return a random single attempt in a state that is no one's victim yet; None without one."""
        try:
            with PlaneJournal(self.journal) as journal:
                attempts = [
                    attempt
                    for job in journal.newest_jobs()
                    if job.index is None and self.kinds.get(job.key) in kinds
                    for attempt in job.live_attempts
                    if attempt.state is state and attempt.scheduler_id and attempt.key not in self.causes
                ]
        except LeadlineError:  # its disk is full
            return None
        return self.rng.choice(attempts) if attempts else None

    def _release(self, scheduler_id: str) -> None:
        """Release a held job; one that was cancelled meanwhile needs no release.

        Raises:
            LeadlineError: the controller is down.
        """
        self._check_controller()
        answer = self.cluster.run(["scontrol", "release", scheduler_id])
        self.acted_s = time.monotonic()
        if "Unable to contact" in answer.stderr:
            raise LeadlineError(f"job {scheduler_id} was not released: {answer.stderr.strip()}")

    def release_all(self) -> None:
        """Release the jobs that are still held, because a controller forgot their release."""
        if time.monotonic() < self.acted_s + RELEASE_S:
            return
        listed = self.cluster.run(["squeue", "-a", "-h", "-t", "PENDING", "-o", "%i %r"]).stdout
        for line in listed.splitlines():
            scheduler_id, _, reason = line.partition(" ")
            if reason == "JobHeldAdmin":
                # What fails now is tried again.
                self._does(["scontrol", "release", scheduler_id])
        self.acted_s = time.monotonic()

    def _does(self, command: list[str]) -> bool:
        """Give an order; return False if it was surely not obeyed."""
        if not self.cluster.runs("slurmctld"):
            return False
        answer = self.cluster.run(command, timeout_s=10.0)
        self.acted_s = time.monotonic()
        # A busy controller may obey after the time limit.
        return (answer.returncode == 0 and IN_VAIN not in answer.stderr) or answer.timed_out

    def _check_controller(self) -> None:
        """Refuse a command that would wait for the controller, while faults are due.

        Raises:
            LeadlineError: the controller is down.
        """
        if not self.cluster.runs("slurmctld"):
            raise LeadlineError("the controller is down")

    def _must(self, command: list[str]) -> None:
        answer = self.cluster.run(command)
        if answer.returncode:
            raise LeadlineError(f"{' '.join(command)} failed: {answer.stdout}{answer.stderr}")


def write_plugin(folder: Path) -> None:
    """Write the plugin's script beside slurm.conf."""
    (folder / "job_submit.lua").write_text(REWRITE.format(order=folder / "rewrite"), encoding="utf-8")
