"""A plane that is killed and starts without its journal: it must find its living jobs again at the scheduler."""

from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.plane.fault_plane import PlaneProcess
from benchmarks.plane.host import SYSTEM
from leadline.core.errors import LeadlineError
from leadline.execution.plane.journal import PlaneJournal
from tests.support.slurm_cluster import SlurmCluster

SUFFIXES = ("", "-wal", "-shm")
"""Ends of the names of an SQLite file's parts."""


@dataclass(slots=True)
class JournalSwap:
    """Moves the journal of a killed plane away, and puts it back once the next plane has looked for its jobs.

    Attributes:
        living: Attempts that were in the queue under an id of the moved journal.
        unfound: A sentence for each of them that the plane without the journal did not find.
    """

    path: Path
    plane: PlaneProcess
    cluster: SlurmCluster
    living: int = 0
    unfound: list[str] = field(default_factory=list)

    def move_away(self) -> None:
        """Kill the plane and start it without its journal."""
        self.plane.kill()
        _rename(self.path, self._moved)
        self.plane.start()

    def put_back(self) -> None:
        """Count the jobs that the plane found, and start it again with its own journal.

        Raises:
            LeadlineError: the plane has not looked for its jobs yet, or the controller does not list them.
        """
        if not self.path.exists():
            raise LeadlineError("the plane without its journal has made no new one")
        with PlaneJournal(self.path) as journal:
            if SYSTEM not in journal.searched_systems():
                raise LeadlineError("the plane without its journal has not looked for its jobs")
            found = {attempt.key for job in journal.newest_jobs() for attempt in job.attempts}
        with PlaneJournal(self._moved) as journal:
            ids = {attempt.scheduler_id: attempt for job in journal.open_jobs() for attempt in job.live_attempts}
        listed = self.cluster.run(["squeue", "-a", "-h", "-r", "-t", "PENDING,RUNNING", "-o", "%i"], timeout_s=10.0)
        if listed.returncode or listed.timed_out:
            raise LeadlineError("the controller does not list the jobs of the moved journal")
        living = [ids[number] for number in listed.stdout.split() if number in ids]
        self.living += len(living)
        self.unfound += [f"{each.job} {each.key} as {each.scheduler_id}" for each in living if each.key not in found]
        self.plane.kill()
        for suffix in SUFFIXES:
            _part(self.path, suffix).unlink(missing_ok=True)
        _rename(self._moved, self.path)
        self.plane.start()

    @property
    def _moved(self) -> Path:
        return self.path.with_name(f"moved-{self.path.name}")


def _rename(source: Path, target: Path) -> None:
    for suffix in SUFFIXES:
        if _part(source, suffix).exists():
            _part(source, suffix).rename(_part(target, suffix))


def _part(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)
