"""A plane in a process of its own over a real cluster, for benches that measure it, and that kill it."""

import json
import resource
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path, PurePosixPath

from leadline.core.errors import LeadlineError
from leadline.core.jobs import JobState
from leadline.core.plane import Action, AttemptPlan, Decision, Job, Situation
from leadline.execution.clock import SystemClock
from leadline.execution.plane.advisor import EndedAttempt, Expectation
from leadline.execution.plane.decide import decide
from leadline.execution.plane.diagnose import diagnose
from leadline.execution.plane.engine import Plane
from leadline.execution.plane.journal import PlaneJournal
from leadline.execution.plane.poll_interval import PollIntervals
from leadline.execution.schedulers.slurm.scheduler import SlurmScheduler
from leadline.execution.transport.port import LocalTransport, Transport
from leadline.execution.transport.ssh import SshTransport
from leadline.execution.wrapper.outcome import JobOutcome

CANNOT_BEGIN = 75
"""The exit code of a plane that could not begin, and would another time (``EX_TEMPFAIL`` of sysexits.h)."""
SETTINGS, JOURNAL, OFFSET, ENDS, USAGE = "host.json", "journal.sqlite", "clock-offset", "ends.jsonl", "usage.json"


@dataclass(frozen=True, slots=True)
class HostSettings:
    """How a plane is run: over ``ssh`` (a host of ``ssh_config``) or here, and with which patience.

    ``jobs`` is the folder that its scheduler keeps, ``sockets`` that of SSH, and ``journal`` the journal's file, where
    these are not in the plane's own.
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
    """Write down how the plane of a folder is run."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / SETTINGS).write_text(json.dumps(asdict(settings)), encoding="utf-8")


@dataclass(slots=True)
class OffsetClock(SystemClock):
    """This machine's clock, set wrong by as many seconds as a file says; the time that passes is the true one."""

    file: Path

    def now_s(self) -> float:
        """Return seconds since the epoch, and the file's offset."""
        try:
            return time.time() + float(self.file.read_text(encoding="ascii"))
        except (FileNotFoundError, ValueError):
            return time.time()


@dataclass(frozen=True, slots=True)
class ReportingPlane:
    """An advisor that sends each job where its policy says, and writes every end into a file."""

    ends: Path

    def plans(self, job: Job) -> tuple[AttemptPlan, ...]:
        """Send it to the first place."""
        return (AttemptPlan(job.policy.places[0], job.spec.resources),)

    def expect(self, job: Job, attempt: object, outcome: JobOutcome | None, *, now_s: float) -> Expectation:  # noqa: ARG002
        """Expect nothing."""
        return Expectation()

    def ended(self, ends: Sequence[EndedAttempt]) -> None:
        """Append a line for each."""
        with self.ends.open("a", encoding="utf-8") as stream:
            for one in ends:
                stream.write(json.dumps([one.job.key, one.attempt.key, one.attempt.state.value]) + "\n")


def cautious_decision(situation: Situation) -> Decision:
    """Decide as the plane does, but never about a job that is well: nothing is known of how long it takes."""
    if situation.attempt.state in (JobState.PENDING, JobState.RUNNING, JobState.UNKNOWN):
        return Decision(Action.KEEP, "nothing is asked of it")
    return decide(situation)


def settings_of(folder: Path) -> HostSettings:
    """Return what ``prepare`` wrote down."""
    return HostSettings(**json.loads((folder / SETTINGS).read_text(encoding="utf-8")))


def plane_of(folder: Path) -> Plane:
    """Return the plane of a folder, as ``prepare`` wrote it down."""
    settings = settings_of(folder)
    transport: Transport = LocalTransport()
    if settings.ssh is not None:
        config = Path(settings.ssh_config) if settings.ssh_config else None
        transport = SshTransport(settings.ssh, config=config, sockets=Path(settings.sockets or folder))
    scheduler = SlurmScheduler(
        "cluster", PurePosixPath(settings.jobs or folder / "jobs"), transport, python=settings.python,
        timeout_s=settings.timeout_s,
    )  # fmt: skip
    clock = OffsetClock(folder / OFFSET)
    return Plane(
        PlaneJournal(Path(settings.journal or folder / JOURNAL), clock), lambda _: scheduler,
        ReportingPlane(folder / ENDS), diagnose=diagnose, decide=cautious_decision,
        clock=clock, intervals=replace(PollIntervals(), **settings.patience),
    )  # fmt: skip


def main(arguments: list[str]) -> int:
    """Run the plane of a folder for some seconds, and write down what that took; SIGTERM ends it, too."""
    folder, seconds = Path(arguments[0]), float(arguments[1])
    try:
        plane, until_s = plane_of(folder), time.monotonic() + seconds
    except LeadlineError as error:  # as the command line does: said, and started again by whoever looks after it
        _say(str(error))
        return CANNOT_BEGIN
    ending: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: ending.append(number))
    plane.run(lambda: bool(ending) or time.monotonic() > until_s, told=_say)
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    usage = {
        "elapsed_s": seconds - (until_s - time.monotonic()),
        "cpu_s": own.ru_utime + own.ru_stime,
        "children_cpu_s": children.ru_utime + children.ru_stime,
        "resident_bytes": own.ru_maxrss * 1024,
    }
    (folder / USAGE).write_text(json.dumps(usage), encoding="utf-8")
    return 0


def _say(said: str) -> None:
    sys.stderr.write(f"{said}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
