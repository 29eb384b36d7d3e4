"""Slurm as a scheduler of the plane, on this machine or over SSH."""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath

from leadline.core.errors import InvalidInput, SchedulerUnreachable
from leadline.core.frozen import Frozen
from leadline.core.jobs import JobSpec, JobState
from leadline.core.systems import Partition
from leadline.core.units import MINUTE_S
from leadline.execution import wrapper
from leadline.execution.schedulers.attempt_files import SiteScheduler
from leadline.execution.schedulers.port import LivingJob, RequestRefused, SchedulerStatus, Submission, SubmissionText
from leadline.execution.schedulers.slurm.commands import COMMAND_S, GONE, SlurmCommands, error_text
from leadline.execution.schedulers.slurm.parsing import by_cluster, read_forecast, with_cluster
from leadline.execution.schedulers.slurm.queries import AT_ONCE, ClusterQueries
from leadline.execution.schedulers.slurm.script import ClusterPython, batch_script, sbatch_arguments, whole_minutes_s
from leadline.execution.transport.environment import WISHES
from leadline.execution.transport.port import Transport
from leadline.files.sqlite import chunks

WRAPPER_FILE = wrapper.__file__
PREPARE = """\
[ -z "$1" ] || (umask 077; mkdir -p -- "$1/runs") || exit 1
[ -z "$1" ] || chmod go= "$1/runs" 2>/dev/null
id -un
id -u
for name in $3; do eval "printf '%s=%s\\n' $name \"\\${$name-}\""; done
python=$(command -v "$2") && "$python" -P -c 'import leadline.execution.wrapper as one; print(one.__file__)' &&
echo "$python"
exit 0"""
"""Makes a private folder, if one is given, and prints the user, its number, the variables named in ``$3``, and, with
Leadline, one of its files and the interpreter."""


@dataclass(eq=False, kw_only=True)
class SlurmScheduler(SiteScheduler):
    """A Slurm at a place (implements ``Scheduler``).

    Attributes:
        partition_of: returns the rules of a job's partition, if known.
        timeout_s: time limit of one command.

    Raises:
        InvalidInput: the folder is not usable.
    """

    partition_of: Callable[[JobSpec], Partition | None] = lambda _: None
    timeout_s: float = COMMAND_S
    _place: "_LoginNode | None" = None
    _cluster_queries: dict[str, ClusterQueries] = field(default_factory=dict)
    _cancelled: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        # The path is written into scripts and Slurm's file patterns.
        if not self.folder.is_absolute() or re.search(r"[\x00-\x1f\\$]", str(self.folder)):
            raise InvalidInput(
                f"{str(self.folder)!r} cannot hold jobs: use an absolute path without control characters, \\ and $"
            )
        self._commands = SlurmCommands(self.transport, self.timeout_s)

    def render(self, submission: Submission) -> SubmissionText:
        """Return the sbatch command and its input."""
        try:
            return self._text(submission, self._place or self._ask_place(""))
        # Only the place knows the path of its interpreter, so the one of this machine stands in.
        except SchedulerUnreachable as error:
            stand_in = _LoginNode("", "", ClusterPython(self.python, WRAPPER_FILE), {})
            return replace(self._text(submission, stand_in), caveat=str(error))

    def submit(self, submission: Submission) -> str:
        """Run sbatch once for a job or an array and return its id."""
        text = self._text(submission, self._prepared())
        return self._commands.submit(text.argv, text.script)

    def find(self, keys: Collection[str]) -> Mapping[str, str]:
        """Find keys in the queue and in all of the accounting, at last in that of other clusters.

        A job that was cancelled before it could start and is forgotten by the controller is not found, because the
        accounting lists it without a name. It never ran.
        """
        ids: dict[str, str] = {}
        for cluster in self._clusters() if keys else ():
            named = self._queries(cluster).named(keys)
            ids |= {key: with_cluster(cluster, job_id) for key, job_id in named.items()}
        # The process that sent the others may have had other wishes.
        missing = set(keys) - ids.keys()
        return ids | (self._queries("").named_anywhere(missing) if missing else {})

    def forgotten(self, keys: Mapping[str, str], ids: Mapping[str, str], killed: Collection[str]) -> Collection[str]:
        """Return the jobs that a killed controller forgot.

        The controller and the accounting have no run or end of them, and no file shows that one began. The nodes kill
        those that did as they register with the new controller. The accounting may list such a job as PENDING or
        RUNNING for ever, also by its name; of two jobs with one id, it names the later one.
        """
        named = self.find(frozenset(keys.values()))
        ordered = sorted(keys, key=lambda key: keys[key] not in named)
        by_id = {ids[key]: key for key in ordered if f"{ids[key]}_".startswith(f"{named.get(keys[key], ids[key])}_")}
        recorded: set[str] = set()
        for cluster, numbers in by_cluster(by_id).items():
            wanted = {number: keys[by_id[with_cluster(cluster, number)]] for number in numbers}
            ended_only = {number for number in numbers if by_id[with_cluster(cluster, number)] in killed}
            found = self._queries(cluster).recorded(wanted, ended_only)
            recorded |= {with_cluster(cluster, number) for number in found}
        unrecorded = [key for job_id, key in by_id.items() if job_id not in recorded]
        began = self.log_tails([key for key in unrecorded if key not in killed], most_bytes=1)
        return [key for key in unrecorded if key not in began]

    def remembered(self, ids: Collection[str]) -> Mapping[str, SchedulerStatus]:
        """Ask squeue and scontrol for ended jobs, whose end the accounting may have lost."""
        return self._at_clusters(ids, lambda queries, numbers: queries.remembered(numbers))

    def query(self, ids: Collection[str]) -> Mapping[str, SchedulerStatus]:
        """Ask squeue once for all jobs of this user."""
        return self._at_clusters(ids, lambda queries, numbers: queries.queue(numbers))

    def account(self, ids: Collection[str]) -> Mapping[str, SchedulerStatus]:
        """Ask the accounting, or without it the controller.

        Slurm removes array elements that were cancelled before their start without a trace. Only elements that this
        process cancelled count, and only if the controller does not name them as started.
        """
        statuses = self._at_clusters(ids, lambda queries, numbers: queries.account(numbers))
        cancelled_ids = [job_id for job_id in ids if job_id in self._cancelled and job_id not in statuses]
        listed = self._at_clusters(cancelled_ids, lambda queries, numbers: queries.queue(numbers, ended=True))
        vanished = SchedulerStatus(JobState.CANCELLED, "cancelled before it started")
        return statuses | {job_id: vanished for job_id in cancelled_ids if job_id not in listed}

    def cancel(self, ids: Collection[str], *, waiting: bool = False) -> None:
        """Cancel jobs with scancel."""
        command = ["scancel", "--state=PENDING"] if waiting else ["scancel"]
        # Slurm 22.05 forgets cancelled elements of a waiting array without a trace.
        self._cancelled.update(job_id for job_id in ids if "_" in job_id)
        for cluster, numbers in by_cluster(ids).items():
            for chunk in chunks(sorted(numbers), AT_ONCE):
                answer = replace(self._commands, cluster=cluster).ask([*command, *chunk])
                lines = [line for line in answer.stderr.splitlines() if line.strip() and not GONE.search(line)]
                if answer.returncode and lines:
                    why = error_text(answer)
                    raise RequestRefused(f"Slurm at {self.transport.where} did not cancel all jobs ({why})")

    def home(self, spec: JobSpec) -> tuple[Transport, PurePosixPath]:
        """Return the transport and a job's folder, by default the scheduler's own."""
        return self.transport, self.folder / (spec.workdir or "")

    def change_walltime(self, scheduler_id: str, walltime_s: float) -> None:
        """Request another limit, in whole minutes."""
        minutes = round(whole_minutes_s(walltime_s) / MINUTE_S)
        ((cluster, (number,)),) = by_cluster([scheduler_id]).items()
        commands = replace(self._commands, cluster=cluster)
        answer = commands.ask(["scontrol", "update", f"JobId={number}", f"TimeLimit={minutes}"])
        if answer.returncode:
            raise RequestRefused(
                f"Slurm at {self.transport.where} refuses the limit of job {scheduler_id} ({error_text(answer)})"
            )

    def living(self) -> Collection[LivingJob]:
        """Ask squeue, also at other clusters where the accounting lists living jobs with a key of Leadline."""
        jobs = [job for cluster in self._clusters() for job in self._living_at(cluster)]
        known = {job.batch for job in jobs}
        others = [job for cluster in self._queries("").living_clusters(known) for job in self._living_at(cluster)]
        # The accounting also names this cluster, and lists its jobs for a while after their end.
        return [*jobs, *(job for job in others if job.batch not in known)]

    def forecast_start_s(self, submission: Submission) -> float | None:
        """Ask ``sbatch --test-only``, which assumes full limits for all jobs and uses up a job id."""
        text = self._text(submission, replace(self._prepared(), python=None))
        answer = self._commands.ask([text.argv[0], "--test-only", *text.argv[1:]], stdin=text.script)
        return read_forecast(answer.stderr)

    def _text(self, submission: Submission, login: "_LoginNode") -> SubmissionText:
        partition = self.partition_of(submission.spec)
        arguments = sbatch_arguments(submission, partition, self.folder, wishes=login.wishes)
        script = batch_script(submission, partition, self.folder, login.python, wishes=login.wishes)
        return SubmissionText(tuple(arguments), script)

    def _living_at(self, cluster: str) -> list[LivingJob]:
        jobs = self._queries(cluster).living()
        return [replace(job, scheduler_id=with_cluster(cluster, job.scheduler_id)) for job in jobs]

    def _clusters(self) -> list[str]:
        """Return the clusters to which the user wishes to submit, by default that of the place."""
        return self._prepared().wishes.get("--clusters", "").split(",")

    def _queries(self, cluster: str) -> ClusterQueries:
        """Return the questions to a cluster, by default to that of the place."""
        if cluster not in self._cluster_queries:
            commands = replace(self._commands, cluster=cluster)
            login = self._prepared()
            self._cluster_queries[cluster] = ClusterQueries(commands, login.user, login.user_id)
        return self._cluster_queries[cluster]

    def _at_clusters(
        self, ids: Collection[str], ask: Callable[[ClusterQueries, list[str]], Mapping[str, SchedulerStatus]]
    ) -> dict[str, SchedulerStatus]:
        """Ask each cluster for its jobs."""
        return {
            with_cluster(cluster, number): status
            for cluster, numbers in by_cluster(ids).items()
            for number, status in ask(self._queries(cluster), numbers).items()
        }

    def _prepared(self) -> "_LoginNode":
        """Make the folder, and ask once for the user's name and wishes and for Leadline."""
        self._place = self._place or self._ask_place(str(self.folder))
        return self._place

    def _ask_place(self, folder: str) -> "_LoginNode":
        command = ["sh", "-c", PREPARE, "sh", folder, self.python, " ".join(WISHES)]
        answer = self._commands.ask(command, env={})
        lines = answer.stdout.split("\n")
        if answer.returncode or not lines[0]:
            raise SchedulerUnreachable(
                f"{self.folder} cannot be used at {self.transport.where} ({error_text(answer)}): use a "
                "folder that can be written there"
            )
        user, user_id, *others = [*lines, ""]
        pairs = [line.partition("=") for line in others[: len(WISHES)]]
        wishes = {WISHES[name]: value for name, _, value in reversed(pairs) if name in WISHES and value}
        others = others[len(WISHES) :]
        return _LoginNode(user, user_id, ClusterPython(others[1], others[0]) if len(others) > 2 else None, wishes)


class _LoginNode(Frozen):
    """The user's name at the place, Leadline's interpreter if it is there, and the options that the user wishes."""

    user: str
    user_id: str
    python: ClusterPython | None
    wishes: Mapping[str, str]
