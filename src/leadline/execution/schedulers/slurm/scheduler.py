"""A Slurm, here or over SSH, as the plane's scheduler: jobs and arrays under a key, one question for all of them."""

import re
import secrets
from base64 import b64decode
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import PurePosixPath

from leadline.core.errors import InvalidInput, SchedulerUnreachable
from leadline.core.jobs import JobSpec, JobState
from leadline.core.systems import Partition
from leadline.core.units import MINUTE_S
from leadline.execution.schedulers.attempt_files import RUNS_FOLDER, end_name, log_name, read_outcomes
from leadline.execution.schedulers.port import RequestRefused, SchedulerStatus, Submission
from leadline.execution.schedulers.slurm.commands import COMMAND_S, NO_ACCOUNTING, SlurmCommands, error_text
from leadline.execution.schedulers.slurm.parsing import (
    SACCT_FIELDS,
    SQUEUE_FORMAT,
    read_accounting,
    read_controller,
    read_forecast,
    read_names,
    read_queue,
)
from leadline.execution.schedulers.slurm.script import whole_minutes_s
from leadline.execution.schedulers.slurm.submission import ClusterPython, batch_script, result_names, sbatch_arguments
from leadline.execution.transport.port import NO_PROGRAM, Transport, write_release_file
from leadline.execution.wrapper.outcome import JobOutcome

AT_ONCE = 500
"""Ids on one command line."""
SPOKEN_OF = 200
"""Jobs that the controller is asked about one by one, in one call, where there is no accounting."""
SPOKEN_AT_ONCE = 10
"""Jobs and arrays that it is asked about before the accounting is."""
SAMPLED_S = 30.0
"""How often the memory of a job is sampled where nobody changed it (``JobAcctGatherFrequency``)."""
SPANS = (
    ("1970-01-01", "2037-01-01"),
    ("now-30days", "now+2days"),
    ("now-7days", "now+1day"),
    ("now-20hours", "now+2hours"),
)
"""From when to when the accounting is asked: jobs are found whatever the clocks of the machines showed or show, unless
the site bounds what a user may ask for (``MaxQueryTimeRange``)."""
TOO_WIDE = re.compile(r"too wide", re.IGNORECASE)
GONE = re.compile(r"invalid job id|already (completing|completed|finished)|job/step already", re.IGNORECASE)
PREPARE = """\
mkdir -p -- "$1/runs" || exit 1
id -un
python=$(command -v "$2") && "$python" -P -c 'import leadline.execution.wrapper as one; print(one.__file__)' &&
echo "$python"
exit 0"""
"""Makes the folder, and prints who one is there and, where Leadline is, a file of it and the interpreter."""
TAILS = """\
cd -- "$1" 2>/dev/null || exit 0
while IFS= read -r name; do
  if [ -s "./$name" ]; then printf '%s ' "$name"; tail -c "$2" -- "./$name" | base64 | tr -d '\\n'; echo; fi
done"""
"""Prints the last ``$2`` bytes of the files that are named on its input, a line each."""
ABSENT = """\
cd -- "$1" || exit 1
ls >/dev/null
while IFS= read -r name; do
  if [ ! -e "./$name" ] && [ ! -L "./$name" ]; then printf '%s\\n' "$name"; fi
done"""
"""Prints those of the names on its input that are no files; the folder is read first, that a network shows it anew."""


class SlurmScheduler:
    """A Slurm at a place (implements ``Scheduler``).

    ``folder`` is a whole path at the place that its nodes see; outcomes and outputs lie in it. ``python`` is an
    interpreter of its nodes: where it has Leadline jobs are measured, elsewhere they run unmeasured. ``partition_of``
    finds the rules of a job's partition, where they are known.

    Raises:
        InvalidInput: the folder cannot be one.
    """

    def __init__(
        self,
        name: str,
        folder: PurePosixPath,
        transport: Transport,
        *,
        python: str = "python3",
        partition_of: Callable[[JobSpec], Partition | None] = lambda _: None,
        timeout_s: float = COMMAND_S,
    ) -> None:
        if not folder.is_absolute() or re.search(r"[\x00-\x1f\\$]", str(folder)):
            raise InvalidInput(f"{str(folder)!r} cannot hold jobs: name a whole path without control signs, \\ and $")
        self._name = name
        self.transport = transport
        self.folder = folder
        self.python = python
        self.partition_of = partition_of
        self._commands = SlurmCommands(transport, timeout_s)
        self._place: tuple[str, ClusterPython | None] | None = None
        self._cancelled: set[str] = set()

    @property
    def name(self) -> str:
        """The system's name."""
        return self._name

    @property
    def abreast(self) -> int:
        """How many submissions it may be handed at once."""
        return 4

    def submit(self, submission: Submission) -> str:
        """Hand a job or an array to sbatch, once, and return its id."""
        partition = self.partition_of(submission.spec)
        words = sbatch_arguments(submission, partition, self.folder)
        _, measurer = self._prepared()
        return self._commands.submit(words, batch_script(submission, partition, self.folder, measurer))

    def find(self, keys: Collection[str]) -> Mapping[str, str]:
        """Look keys up in the queue and in all of the accounting.

        A job that was cancelled before it could have started, and that the controller has forgotten, is not found: the
        accounting lists such a job by its id alone. It never ran.
        """
        if not keys:
            return {}
        user, _ = self._prepared()
        mark = f"<{secrets.token_hex(8)}>"
        queued = self._queued(keys)
        words = ["sacct", "-n", "-P", "-X", "-u", user, f"--delimiter={mark}", "-o",
                 "JobID,State,NodeList,Comment,JobName"]  # fmt: skip
        past = self._accounting(*([*words, "-S", first, "-E", last] for first, last in SPANS))
        found = read_names(_marked(past or "", mark), mark, keys)
        return {**found, **queued}

    def never_began(self, keys: Mapping[str, str]) -> Collection[str]:
        """Tell what a killed controller forgot: it names none of them, and no file shows that one began.

        The accounting may call such a job PENDING for ever, or may never have heard of it.
        """
        queued = self._queued(frozenset(keys.values()))
        names = {log_name(key): key for key, batch in keys.items() if batch not in queued}
        if not names:
            return ()
        answer = self._commands.ask(
            ["sh", "-c", ABSENT, "sh", str(self.folder / RUNS_FOLDER)], stdin="".join(f"{name}\n" for name in names)
        )
        if answer.returncode:
            raise SchedulerUnreachable(f"{self.folder} cannot be read at {self.transport.where} ({error_text(answer)})")
        return [names[name] for name in answer.stdout.splitlines() if name in names]

    def query(self, ids: Collection[str]) -> Mapping[str, SchedulerStatus]:
        """Ask squeue once for all jobs of this user."""
        if not ids:
            return {}
        user, _ = self._prepared()
        return read_queue(self._commands.listed(["squeue", "-h", "-r", "-u", user, "-o", SQUEUE_FORMAT]), ids)

    def account(self, ids: Collection[str]) -> Mapping[str, SchedulerStatus]:
        """Ask sacct, steps and earlier incarnations included; the controller's memory where there is no accounting.

        The accounting is seconds late, and slow. Of jobs that completed too soon for their memory to be sampled it has
        nothing to add to the controller's word, so that this is taken where few are to be asked about.
        """
        found = self._completed(ids)
        left = [one for one in ids if one not in found]
        accounted = self._accounted(left)
        found |= self._remembered(left) if accounted is None else accounted
        return found | self._vanished([one for one in ids if one not in found])

    def reports(self, keys: Collection[str], *, since_s: float = 0.0) -> Mapping[str, JobOutcome]:
        """Read the outcomes that were written since; one that is damaged says nothing."""
        names = {name: key for key in keys for name in (*result_names(key), end_name(key))}
        return read_outcomes(self.transport, self.folder, names, since_s=since_s)

    def log_tails(self, keys: Collection[str], *, most_bytes: int = 8192) -> Mapping[str, str]:
        """Return the last of what these attempts, and Slurm of them, wrote to their streams."""
        if not keys:
            return {}
        names = {log_name(key): key for key in keys}
        answer = self.transport.run(
            ["sh", "-c", TAILS, "sh", str(self.folder / RUNS_FOLDER), str(most_bytes)],
            stdin="".join(f"{name}\n" for name in names), timeout_s=self._commands.timeout_s,
        )  # fmt: skip
        if answer.returncode or answer.timed_out:
            raise SchedulerUnreachable(f"logs cannot be read at {self.transport.where} ({error_text(answer)})")
        rows = (line.partition(" ") for line in answer.stdout.splitlines())
        return {names[name]: b64decode(text).decode(errors="replace") for name, _, text in rows if name in names}

    def cancel(self, ids: Collection[str]) -> None:
        """End jobs with scancel.

        Raises:
            Refused: one of them is not this user's.
        """
        for some in _chunks(sorted(ids)):
            self._cancelled.update(one for one in some if "_" in one)
            answer = self._commands.ask(["scancel", *some])
            lines = [line for line in answer.stderr.splitlines() if line.strip() and not GONE.search(line)]
            if answer.returncode and lines:
                raise RequestRefused(f"Slurm at {self.transport.where} did not cancel all jobs ({error_text(answer)})")

    def let_begin(self, keys: Collection[str]) -> None:
        """Write the word beside the outcomes of held attempts."""
        for key in keys:
            write_release_file(self.transport, self.folder / RUNS_FOLDER, key)

    def home(self, spec: JobSpec) -> tuple[Transport, PurePosixPath]:
        """Return how a job's files are reached, and its folder; without one of its own it runs in the scheduler's."""
        return self.transport, self.folder / (spec.workdir or "")

    def change_walltime(self, scheduler_id: str, walltime_s: float) -> None:
        """Ask for another limit, in whole minutes."""
        minutes = round(whole_minutes_s(walltime_s) / MINUTE_S)
        answer = self._commands.ask(["scontrol", "update", f"JobId={scheduler_id}", f"TimeLimit={minutes}"])
        if answer.returncode:
            raise RequestRefused(
                f"Slurm at {self.transport.where} keeps the limit of job {scheduler_id} ({error_text(answer)})"
            )

    def forecast_start_s(self, submission: Submission) -> float | None:
        """Ask ``sbatch --test-only``, which assumes that all jobs use up their limits, and uses up a job id."""
        partition = self.partition_of(submission.spec)
        words = sbatch_arguments(submission, partition, self.folder)
        script = batch_script(submission, partition, self.folder, None)
        answer = self._commands.ask([words[0], "--test-only", *words[1:]], stdin=script)
        return read_forecast(answer.stderr)

    def _accounting(self, *questions: Sequence[str]) -> str | None:
        """Return what sacct lists at the first question that is not too wide for it; ``None`` without accounting."""
        for words in questions:
            answer = self._commands.ask(words)
            if not (answer.returncode and TOO_WIDE.search(answer.stderr)):
                break
        if answer.returncode == NO_PROGRAM or NO_ACCOUNTING.search(answer.stderr):
            return None
        if answer.returncode:
            raise SchedulerUnreachable(
                f"the accounting at {self.transport.where} does not answer ({error_text(answer)})"
            )
        return answer.stdout

    def _queued(self, keys: Collection[str]) -> dict[str, str]:
        """Return key → id of what the controller knows, ended jobs that it remembers included."""
        user, _ = self._prepared()
        mark = f"<{secrets.token_hex(8)}>"
        layout = "".join(f"{mark}{code}" for code in ("%F", "%T", "%N", "%k", "%j"))
        return read_names(self._commands.listed(["squeue", "-h", "-t", "all", "-u", user, "-o", layout]), mark, keys)

    def _accounted(self, ids: Collection[str]) -> dict[str, SchedulerStatus] | None:
        """Return what sacct says: asked for elements, then for whole arrays, whose row may stand for some of them."""
        found: dict[str, SchedulerStatus] = {}
        for whole in (False, True):
            left = sorted(one for one in ids if one not in found and (not whole or "_" in one))
            for some in _chunks(left):
                asked = {one.partition("_")[0] for one in some} if whole else some
                words = ["sacct", "-n", "-P", "--duplicates", "-j", ",".join(sorted(asked)), "-o", SACCT_FIELDS]
                listing = self._accounting(words)
                if listing is None:
                    return None
                found |= read_accounting(listing, some)
        return found

    def _completed(self, ids: Collection[str]) -> dict[str, SchedulerStatus]:
        """Tell what few jobs, or elements of few arrays, completed soon after they began, each of their steps too."""
        arrays = {one.partition("_")[0] for one in ids}
        if len(arrays) > SPOKEN_AT_ONCE:
            return {}
        found: dict[str, SchedulerStatus] = {}
        for one in sorted(arrays):
            found |= self._spoken_of(one, ids)
        return {
            one: status
            for one, status in found.items()
            if status.state is JobState.COMPLETED and (status.elapsed_s or 0.0) < SAMPLED_S and not status.evidence
        }

    def _vanished(self, ids: Collection[str]) -> dict[str, SchedulerStatus]:
        """Tell of elements that were cancelled before they started: Slurm strikes them out of the array, and is silent.

        Only those that this process cancelled are taken for such, and only if the controller, which remembers those
        that started, names them neither.
        """
        struck = [one for one in ids if one in self._cancelled]
        if not struck:
            return {}
        user, _ = self._prepared()
        listing = self._commands.listed(["squeue", "-h", "-r", "-t", "all", "-u", user, "-o", SQUEUE_FORMAT])
        named = read_queue(listing, struck)
        gone = SchedulerStatus(JobState.CANCELLED, "cancelled before it started")
        return {one: gone for one in struck if one not in named}

    def _remembered(self, ids: Collection[str]) -> dict[str, SchedulerStatus]:
        """Ask the controller for jobs that it still remembers (``MinJobAge``), those that ended one by one."""
        found: dict[str, SchedulerStatus] = {}
        user, _ = self._prepared()
        listing = self._commands.listed(["squeue", "-h", "-r", "-t", "all", "-u", user, "-o", SQUEUE_FORMAT])
        for one, status in read_queue(listing, ids).items():
            if not status.state.final or len(found) >= SPOKEN_OF:
                continue
            found[one] = self._spoken_of(one, [one]).get(one, status)
        return found

    def _spoken_of(self, scheduler_id: str, wanted: Collection[str]) -> dict[str, SchedulerStatus]:
        """Return what the controller knows of a job, or of an array's elements; nothing once it has forgotten them."""
        answer = self._commands.ask(["scontrol", "--oneliner", "--details", "show", "job", scheduler_id])
        return read_controller(answer.stdout, wanted) if answer.returncode == 0 else {}

    def _prepared(self) -> tuple[str, ClusterPython | None]:
        """Make the folder, and learn who this is there and whether jobs can be measured; asked once."""
        if self._place is None:
            answer = self._commands.ask(["sh", "-c", PREPARE, "sh", str(self.folder), self.python])
            lines = answer.stdout.split("\n")
            if answer.returncode or not lines[0]:
                raise SchedulerUnreachable(
                    f"{self.folder} cannot be used at {self.transport.where} ({error_text(answer)}): name a folder that can "
                    "be written there"
                )
            self._place = lines[0], ClusterPython(lines[2], lines[1]) if len(lines) > 3 else None
        return self._place


def _marked(listing: str, mark: str) -> str:
    """Put the mark before each record of sacct: its first line has four of them, and names may hold line ends."""
    return "\n".join(f"{mark}{line}" if line.count(mark) == 4 else line for line in listing.split("\n"))


def _chunks(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    for at in range(0, len(ids), AT_ONCE):
        yield ids[at : at + AT_ONCE]
