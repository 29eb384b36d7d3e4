"""Slurm as a scheduler of the plane, on this machine or over SSH."""

import re
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath

from leadline.core.errors import InvalidInput, SchedulerUnreachable
from leadline.core.jobs import JobSpec, JobState
from leadline.core.systems import Partition
from leadline.core.units import MINUTE_S
from leadline.execution import wrapper
from leadline.execution.schedulers.attempt_files import (
    RUNS_FOLDER,
    end_name,
    log_name,
    read_log_tails,
    read_outcomes,
)
from leadline.execution.schedulers.port import LivingJob, RequestRefused, SchedulerStatus, Submission, SubmissionText
from leadline.execution.schedulers.slurm.commands import COMMAND_S, NO_ACCOUNTING, SlurmCommands, error_text
from leadline.execution.schedulers.slurm.living_jobs import living_jobs
from leadline.execution.schedulers.slurm.parsing import (
    SACCT_FIELDS,
    SQUEUE_FORMAT,
    read_accounting,
    read_controller,
    read_forecast,
    read_names,
    read_queue,
)
from leadline.execution.schedulers.slurm.script import (
    ClusterPython,
    batch_script,
    result_names,
    sbatch_arguments,
    whole_minutes_s,
)
from leadline.execution.transport.port import NO_PROGRAM, Transport, write_release_file
from leadline.execution.wrapper.outcome import JobOutcome
from leadline.files.sqlite import chunks

WRAPPER_FILE = wrapper.__file__
AT_ONCE = 500
"""Ids on one command line."""
MAX_CONTROLLER_QUERIES = 200
"""Jobs that one call looks up in the controller one by one, if there is no accounting."""
QUICK_QUERIES = 10
"""Jobs and arrays that are looked up in the controller before the accounting."""
SAMPLED_S = 30.0
"""Slurm's default interval of memory samples (``JobAcctGatherFrequency``)."""
SPANS = (
    ("1970-01-01", "2037-01-01"),
    ("now-30days", "now+2days"),
    ("now-7days", "now+1day"),
    ("now-20hours", "now+2hours"),
)
"""Time ranges for accounting queries.

The widest finds jobs whatever the clocks of the machines show. Sites may limit the range (``MaxQueryTimeRange``).
"""
TOO_WIDE = re.compile(r"too wide", re.IGNORECASE)
GONE = re.compile(r"invalid job id|already (completing|completed|finished)|job/step already", re.IGNORECASE)
PREPARE = """\
[ -z "$1" ] || (umask 077; mkdir -p -- "$1/runs") || exit 1
[ -z "$1" ] || chmod go= "$1/runs" 2>/dev/null
id -un
python=$(command -v "$2") && "$python" -P -c 'import leadline.execution.wrapper as one; print(one.__file__)' &&
echo "$python"
exit 0"""
"""Makes a private folder, if one is given. Prints the user and, with Leadline, one of its files and the interpreter."""
ABSENT = """\
cd -- "$1" || exit 1
ls >/dev/null
while IFS= read -r name; do
  if [ ! -e "./$name" ] && [ ! -L "./$name" ]; then printf '%s\\n' "$name"; fi
done"""
"""Prints the names on its input that are no files. Listing the folder first refreshes a network file system."""


class SlurmScheduler:
    """A Slurm at a place (implements ``Scheduler``).

    Args:
        name: the system's name.
        folder: absolute path that the nodes see, for outcomes and outputs.
        transport: connection to the place.
        python: interpreter of the nodes. Jobs are measured if it has Leadline.
        partition_of: returns the rules of a job's partition, if known.
        timeout_s: time limit of one command.

    Raises:
        InvalidInput: the folder is not usable.
    """

    abreast = 4
    submits_once = False

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
        # The path is written into scripts and Slurm's file patterns.
        if not folder.is_absolute() or re.search(r"[\x00-\x1f\\$]", str(folder)):
            raise InvalidInput(
                f"{str(folder)!r} cannot hold jobs: use an absolute path without control characters, \\ and $"
            )
        self.name = name
        self.transport = transport
        self.folder = folder
        self.python = python
        self.partition_of = partition_of
        self._commands = SlurmCommands(transport, timeout_s)
        self._place: tuple[str, ClusterPython | None] | None = None
        self._cancelled: set[str] = set()

    def render(self, submission: Submission) -> SubmissionText:
        """Return the sbatch command and its input."""
        try:
            return self._text(submission, (self._place or self._ask_place(""))[1])
        # Only the place knows the path of its interpreter, so the one of this machine stands in.
        except SchedulerUnreachable as error:
            return replace(self._text(submission, ClusterPython(self.python, WRAPPER_FILE)), caveat=str(error))

    def submit(self, submission: Submission) -> str:
        """Run sbatch once for a job or an array and return its id."""
        text = self._text(submission, self._prepared()[1])
        return self._commands.submit(text.argv, text.script)

    def find(self, keys: Collection[str]) -> Mapping[str, str]:
        """Find keys in the queue and in all of the accounting.

        A job that was cancelled before it could start and is forgotten by the controller is not found, because the
        accounting lists it without a name. It never ran.
        """
        if not keys:
            return {}
        user, _ = self._prepared()
        mark = f"<{secrets.token_hex(8)}>"
        queued = self._queued(keys)
        arguments = ["sacct", "-n", "-P", "-X", "-u", user, f"--delimiter={mark}", "-o",
                 "JobID,State,NodeList,Comment,JobName"]  # fmt: skip
        accounted = self._accounting(*([*arguments, "-S", begin, "-E", end] for begin, end in SPANS))
        ids = read_names(_marked(accounted or "", mark), mark, keys)
        return {**ids, **queued}

    def never_began(self, keys: Mapping[str, str]) -> Collection[str]:
        """Return the jobs that a killed controller forgot: it names none of them, and no file shows that one began.

        The accounting may list such a job as PENDING for ever, or not at all.
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
        """Ask sacct, including steps and earlier runs; without accounting, ask the controller.

        The accounting is slow and seconds late. It knows no more than the controller about a job that completed before
        its first memory sample. So if the jobs are few, the controller comes first.
        """
        statuses = self._completed_soon(ids)
        open_ids = [job_id for job_id in ids if job_id not in statuses]
        accounted = self._accounted(open_ids)
        statuses |= self._remembered(open_ids) if accounted is None else accounted
        return statuses | self._vanished([job_id for job_id in ids if job_id not in statuses])

    def reports(self, keys: Collection[str], *, since_s: float = 0.0) -> Mapping[str, JobOutcome]:
        """Read the outcomes written since; damaged files are skipped."""
        names = {name: key for key in keys for name in (*result_names(key), end_name(key))}
        return read_outcomes(self.transport, self.folder, names, since_s=since_s)

    def log_tails(self, keys: Collection[str], *, most_bytes: int = 8192) -> Mapping[str, str]:
        """Return the ends of the output of these attempts, and of Slurm about them."""
        return read_log_tails(self.transport, self.folder, keys, most_bytes, timeout_s=self._commands.timeout_s)

    def cancel(self, ids: Collection[str]) -> None:
        """Cancel jobs with scancel.

        Raises:
            RequestRefused: one of them belongs to another user.
        """
        for chunk in chunks(sorted(ids), AT_ONCE):
            # Slurm 22.05 forgets cancelled elements of a waiting array without a trace.
            self._cancelled.update(job_id for job_id in chunk if "_" in job_id)
            answer = self._commands.ask(["scancel", *chunk])
            lines = [line for line in answer.stderr.splitlines() if line.strip() and not GONE.search(line)]
            if answer.returncode and lines:
                raise RequestRefused(f"Slurm at {self.transport.where} did not cancel all jobs ({error_text(answer)})")

    def let_begin(self, keys: Collection[str]) -> None:
        """Write the release files of held attempts."""
        for key in keys:
            write_release_file(self.transport, self.folder / RUNS_FOLDER, key)

    def home(self, spec: JobSpec) -> tuple[Transport, PurePosixPath]:
        """Return the transport and a job's folder, by default the scheduler's own."""
        return self.transport, self.folder / (spec.workdir or "")

    def change_walltime(self, scheduler_id: str, walltime_s: float) -> None:
        """Request another limit, in whole minutes."""
        minutes = round(whole_minutes_s(walltime_s) / MINUTE_S)
        answer = self._commands.ask(["scontrol", "update", f"JobId={scheduler_id}", f"TimeLimit={minutes}"])
        if answer.returncode:
            raise RequestRefused(
                f"Slurm at {self.transport.where} refuses the limit of job {scheduler_id} ({error_text(answer)})"
            )

    def living(self) -> Collection[LivingJob]:
        """Ask squeue for this user's jobs that bear a key of Leadline."""
        return living_jobs(self._commands)

    def forecast_start_s(self, submission: Submission) -> float | None:
        """Ask ``sbatch --test-only``, which assumes full limits for all jobs and uses up a job id."""
        text = self._text(submission, None)
        answer = self._commands.ask([text.argv[0], "--test-only", *text.argv[1:]], stdin=text.script)
        return read_forecast(answer.stderr)

    def _text(self, submission: Submission, cluster_python: ClusterPython | None) -> SubmissionText:
        partition = self.partition_of(submission.spec)
        arguments = sbatch_arguments(submission, partition, self.folder)
        return SubmissionText(tuple(arguments), batch_script(submission, partition, self.folder, cluster_python))

    def _accounting(self, *queries: Sequence[str]) -> str | None:
        """Return the sacct output of the first query whose range is allowed; None without accounting."""
        for query in queries:
            answer = self._commands.ask(query)
            # Sites may bound the time range, so ever smaller ones are tried.
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
        """Return key -> id of jobs that the controller knows, including ended ones."""
        user, _ = self._prepared()
        mark = f"<{secrets.token_hex(8)}>"
        layout = "".join(f"{mark}{code}" for code in ("%F", "%T", "%N", "%k", "%j"))
        return read_names(self._commands.listed(["squeue", "-h", "-t", "all", "-u", user, "-o", layout]), mark, keys)

    def _accounted(self, ids: Collection[str]) -> dict[str, SchedulerStatus] | None:
        """Ask sacct for elements, then for whole arrays, whose row may represent some of them."""
        statuses: dict[str, SchedulerStatus] = {}
        for whole in (False, True):
            open_ids = sorted(job_id for job_id in ids if job_id not in statuses and (not whole or "_" in job_id))
            for chunk in chunks(open_ids, AT_ONCE):
                query_ids = {job_id.partition("_")[0] for job_id in chunk} if whole else chunk
                query = ["sacct", "-n", "-P", "--duplicates", "-j", ",".join(sorted(query_ids)), "-o", SACCT_FIELDS]
                listing = self._accounting(query)
                if listing is None:
                    return None
                statuses |= read_accounting(listing, chunk)
        return statuses

    def _completed_soon(self, ids: Collection[str]) -> dict[str, SchedulerStatus]:
        """Return completed short jobs without failed steps, if the query is for few jobs or arrays."""
        arrays = {job_id.partition("_")[0] for job_id in ids}
        if len(arrays) > QUICK_QUERIES:
            return {}
        statuses: dict[str, SchedulerStatus] = {}
        for job_id in sorted(arrays):
            statuses |= self._ask_controller(job_id, ids)
        return {
            job_id: status
            for job_id, status in statuses.items()
            if status.state is JobState.COMPLETED and (status.elapsed_s or 0.0) < SAMPLED_S and not status.evidence
        }

    def _vanished(self, ids: Collection[str]) -> dict[str, SchedulerStatus]:
        """Return elements that were cancelled before their start, which Slurm removes without a trace.

        Only elements that this process cancelled count, and only if the controller does not name them as started.
        """
        cancelled_ids = [job_id for job_id in ids if job_id in self._cancelled]
        if not cancelled_ids:
            return {}
        user, _ = self._prepared()
        listing = self._commands.listed(["squeue", "-h", "-r", "-t", "all", "-u", user, "-o", SQUEUE_FORMAT])
        listed = read_queue(listing, cancelled_ids)
        status = SchedulerStatus(JobState.CANCELLED, "cancelled before it started")
        return {job_id: status for job_id in cancelled_ids if job_id not in listed}

    def _remembered(self, ids: Collection[str]) -> dict[str, SchedulerStatus]:
        """Ask the controller for jobs that it still remembers (``MinJobAge``), ended ones one by one."""
        statuses: dict[str, SchedulerStatus] = {}
        user, _ = self._prepared()
        listing = self._commands.listed(["squeue", "-h", "-r", "-t", "all", "-u", user, "-o", SQUEUE_FORMAT])
        for job_id, status in read_queue(listing, ids).items():
            if not status.state.final or len(statuses) >= MAX_CONTROLLER_QUERIES:
                continue
            statuses[job_id] = self._ask_controller(job_id, [job_id]).get(job_id, status)
        return statuses

    def _ask_controller(self, scheduler_id: str, wanted_ids: Collection[str]) -> dict[str, SchedulerStatus]:
        """Return the controller's record of a job or of an array's elements; empty once forgotten."""
        answer = self._commands.ask(["scontrol", "--oneliner", "--details", "show", "job", scheduler_id])
        return read_controller(answer.stdout, wanted_ids) if answer.returncode == 0 else {}

    def _prepared(self) -> tuple[str, ClusterPython | None]:
        """Make the folder, and ask once for the user name and for Leadline."""
        if self._place is None:
            self._place = self._ask_place(str(self.folder))
        return self._place

    def _ask_place(self, folder: str) -> tuple[str, ClusterPython | None]:
        answer = self._commands.ask(["sh", "-c", PREPARE, "sh", folder, self.python])
        lines = answer.stdout.split("\n")
        if answer.returncode or not lines[0]:
            raise SchedulerUnreachable(
                f"{self.folder} cannot be used at {self.transport.where} ({error_text(answer)}): use a "
                "folder that can be written there"
            )
        return lines[0], ClusterPython(lines[2], lines[1]) if len(lines) > 3 else None


def _marked(listing: str, mark: str) -> str:
    """Put the mark before each sacct record. A record's first line has four marks, and names may contain line ends."""
    return "\n".join(f"{mark}{line}" if line.count(mark) == 4 else line for line in listing.split("\n"))
