"""A plane in a process of its own over a real cluster, for benchmarks that measure and kill it."""

import json
import os
import resource
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path, PurePosixPath

from leadline.core.errors import LeadlineError
from leadline.core.jobs import JobState
from leadline.core.plane import Action, Attempt, AttemptPlan, Decision, Job, Situation
from leadline.execution.clock import Clock
from leadline.execution.plane.advisor import EndedAttempt
from leadline.execution.plane.decide import decide
from leadline.execution.plane.diagnose import Diagnosis, diagnose
from leadline.execution.plane.engine import Plane
from leadline.execution.plane.journal import PlaneJournal
from leadline.execution.plane.poll_interval import PollIntervals
from leadline.execution.schedulers.port import SchedulerStatus
from leadline.execution.schedulers.slurm.scheduler import SlurmScheduler
from leadline.execution.transport.port import LocalTransport, Transport
from leadline.execution.transport.ssh import SshTransport
from leadline.execution.wrapper.outcome import JobOutcome

CANNOT_BEGIN = 75
"""Exit code of a plane that could not begin but may later (``EX_TEMPFAIL`` of sysexits.h)."""
SETTINGS, JOURNAL, OFFSET, ENDS, USAGE = "host.json", "journal.sqlite", "clock-offset", "ends.jsonl", "usage.json"
VERDICTS, READY = "verdicts.jsonl", "ready"
SYSTEM = "cluster"
"""Name of the system in the journal, as in the places of the jobs."""


@dataclass(frozen=True, slots=True)
class HostSettings:
    """The settings of a plane; its files are in its own folder unless set.

    Attributes:
        ssh: A host of ``ssh_config``; None for this machine.
        patience: Poll intervals that differ from the defaults.
        jobs: Folder of the scheduler's files.
        sockets: Folder of SSH's sockets.
        journal: The journal's file.
    """

    ssh: str | None = None
    ssh_config: str | None = None
    timeout_s: float = 60.0
    patience: dict[str, float] = field(default_factory=dict)
    python: str = sys.executable
    retries: bool = True
    jobs: str | None = None
    sockets: str | None = None
    journal: str | None = None


def prepare(folder: Path, settings: HostSettings) -> None:
    """Write the settings of a folder's plane."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / SETTINGS).write_text(json.dumps(asdict(settings)), encoding="utf-8")


@dataclass(slots=True)
class OffsetClock(Clock):
    """This machine's clock with the offset in a file; elapsed time is true."""

    file: Path

    def now_s(self) -> float:
        """Return seconds since the epoch plus the file's offset."""
        try:
            return time.time() + float(self.file.read_text(encoding="ascii"))
        except (FileNotFoundError, ValueError):
            return time.time()


@dataclass(frozen=True, slots=True)
class ReportingPlane:
    """An advisor that sends each job to its policy's first place and writes every end into a file."""

    ends: Path

    def plans(self, job: Job) -> tuple[AttemptPlan, ...]:
        """Return one plan: the first place of the policy."""
        return (AttemptPlan(job.policy.places[0], job.spec.resources),)

    def expect(self, job: Job, attempt: Attempt, outcome: JobOutcome | None, *, now_s: float) -> Situation:  # noqa: ARG002
        """Expect nothing."""
        return Situation(job, attempt, now_s)

    def ended(self, ends: Sequence[EndedAttempt]) -> None:
        """Append a line for each end."""
        with self.ends.open("a", encoding="utf-8") as stream:
            for end in ends:
                stream.write(json.dumps([end.job.key, end.attempt.key, end.attempt.state.value]) + "\n")


@dataclass(frozen=True, slots=True)
class RecordedDiagnosis:
    """Diagnose as the plane does, and append each verdict on an end to a file."""

    file: Path

    def __call__(
        self,
        attempt: Attempt,
        status: SchedulerStatus | None,
        outcome: JobOutcome | None,
        log: str | None,
        *,
        cancelled: bool,
    ) -> Diagnosis:
        """Return the diagnosis of an attempt."""
        verdict = diagnose(attempt, status, outcome, log, cancelled=cancelled)
        if verdict.state.final:
            # The plane's own clock jumps.
            line = [attempt.key, verdict.state.value, verdict.cause or "", "; ".join(verdict.evidence), time.time()]
            with self.file.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(line) + "\n")
        return verdict


def cautious_decision(situation: Situation) -> Decision:
    """Decide as the plane does, but leave healthy jobs alone, as there is no estimate of their time."""
    if situation.attempt.state in (JobState.PENDING, JobState.RUNNING, JobState.UNKNOWN):
        return Decision(Action.KEEP, "no decision is due")
    return decide(situation)


def settings_of(folder: Path) -> HostSettings:
    """Return the settings that ``prepare`` wrote."""
    return HostSettings(**json.loads((folder / SETTINGS).read_text(encoding="utf-8")))


def plane_of(folder: Path) -> Plane:
    """Return the plane of a folder, with the settings that ``prepare`` wrote."""
    settings = settings_of(folder)
    transport: Transport = LocalTransport()
    if settings.ssh is not None:
        config = Path(settings.ssh_config) if settings.ssh_config else None
        transport = SshTransport(settings.ssh, config=config, sockets=Path(settings.sockets or folder))
    scheduler = SlurmScheduler(
        SYSTEM, PurePosixPath(settings.jobs or folder / "jobs"), transport, python=settings.python,
        timeout_s=settings.timeout_s,
    )  # fmt: skip
    clock = OffsetClock(folder / OFFSET)
    journal = PlaneJournal(Path(settings.journal or folder / JOURNAL), clock)
    return Plane(
        journal, lambda _: scheduler, ReportingPlane(folder / ENDS), diagnose=RecordedDiagnosis(folder / VERDICTS),
        decide=cautious_decision, clock=clock, intervals=replace(PollIntervals(), **settings.patience),
        search={SYSTEM} - journal.searched_systems(),
    )  # fmt: skip


def main(arguments: list[str]) -> int:
    """Run the plane of a folder for some seconds or until SIGTERM, and write its resource usage."""
    folder, seconds = Path(arguments[0]), float(arguments[1])
    try:
        plane, until_s = plane_of(folder), time.monotonic() + seconds
    except LeadlineError as error:  # as the command line does; the service manager starts it again
        _log(str(error))
        return CANNOT_BEGIN
    ending: list[int] = []
    ready: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: ending.append(number))

    def ends() -> bool:
        # From here on, the jobs are in memory as well as in the journal.
        if plane.book.jobs and not ready:
            ready.append((folder / READY).write_text(str(os.getpid()), encoding="ascii"))
        return bool(ending) or time.monotonic() > until_s

    plane.run(ends, report=_log)
    usage_self, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    usage = {
        "elapsed_s": seconds - (until_s - time.monotonic()),
        "cpu_s": usage_self.ru_utime + usage_self.ru_stime,
        "children_cpu_s": children.ru_utime + children.ru_stime,
        "resident_bytes": usage_self.ru_maxrss * 1024,
    }
    (folder / USAGE).write_text(json.dumps(usage), encoding="utf-8")
    return 0


def _log(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
