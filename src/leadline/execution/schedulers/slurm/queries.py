"""Ask one Slurm cluster about jobs: its queue, its controller and its accounting."""

import re
import secrets
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from leadline.core.errors import SchedulerUnreachable
from leadline.core.jobs import JobState
from leadline.execution.schedulers.port import LivingJob, SchedulerStatus
from leadline.execution.schedulers.slurm.commands import GONE, NO_ACCOUNTING, SlurmCommands, error_text
from leadline.execution.schedulers.slurm.parsing import (
    LIVING_FIELDS,
    NAME_FIELDS,
    SACCT_FIELDS,
    SQUEUE_FORMAT,
    TRACE,
    is_revoked,
    read_accounting,
    read_controller,
    read_living,
    read_names,
    read_outputs,
    read_queue,
    records,
    with_cluster,
)
from leadline.execution.transport.port import NO_PROGRAM
from leadline.files.sqlite import chunks

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
NO_TRACE = re.compile(rf"invalid field.*{TRACE}", re.IGNORECASE)
MARK = "leadline:"
"""Beginning of the comments of Leadline's jobs."""


@dataclass(slots=True)
class ClusterQueries:
    """Questions to one cluster about the jobs of one user. Hidden partitions count everywhere."""

    commands: SlurmCommands
    user: str
    user_id: str
    _output_keys: dict[tuple[str, float | None], str] = field(default_factory=dict)
    """(id, submission) -> key of jobs whose comment is not Leadline's, from their output file."""

    def queue(self, ids: Collection[str], *, ended: bool = False) -> dict[str, SchedulerStatus]:
        """Ask squeue once for all jobs of this user, or also for ended ones.

        A federation may run a job at a sibling cluster. Then the accounting of the federation counts.
        """
        states = ["-t", "all"] if ended else []
        listing = self.commands.listed(["squeue", "-a", "-h", "-r", *states, "-u", self.user, "-o", SQUEUE_FORMAT])
        statuses = read_queue(listing, ids)
        marked = sum(f"|{MARK}" in line for line in listing.splitlines() if line.partition("|")[0] in statuses)
        if marked < len(statuses):
            statuses = self._identified(statuses)
        moved_ids = [job_id for job_id, status in statuses.items() if is_revoked(status.reason)]
        return statuses | (self.accounting(moved_ids) or {} if moved_ids else {})

    def named(self, keys: Collection[str]) -> dict[str, str]:
        """Return key -> id of the user's jobs that the controller or all of the accounting knows."""
        queued = read_names(self._fields(("ArrayJobID", "State", "NodeList", "Comment", "Name", "StdOut")), keys)
        return {**read_names((row for _, *row in self._names()), keys), **queued}

    def named_anywhere(self, keys: Collection[str]) -> dict[str, str]:
        """Return key -> id with its cluster of the user's jobs that the accounting of any cluster knows."""
        rows: dict[str, list[list[str]]] = {}
        for cluster, *row in self._names("--allclusters"):
            rows.setdefault(cluster.strip(), []).append(row)
        named = {cluster: read_names(rows[cluster], keys) for cluster in rows}
        return {key: with_cluster(cluster, ids[key]) for cluster, ids in named.items() for key in ids}

    def living(self) -> list[LivingJob]:
        """Return the user's jobs in the queue that bear a key of Leadline, with each array element on its own."""
        return list(read_living(self._fields(LIVING_FIELDS, "-r")))

    def living_clusters(self, known: Collection[str]) -> set[str]:
        """Return the clusters whose accounting lists a living job of a submission that is not known."""
        rows = self._names("--allclusters", spans=(("now", "now+1day"),))
        jobs = (
            (cluster.strip(), job)
            for cluster, job_id, state, _, *named in rows
            for job in read_living([(job_id, state, "", "", "", *named)])
        )
        return {cluster for cluster, job in jobs if job.batch not in known}

    def account(self, ids: Collection[str]) -> dict[str, SchedulerStatus]:
        """Ask sacct, including steps and earlier runs; without accounting, ask the controller.

        The accounting is slow and seconds late. It knows no more than the controller about a job that completed before
        its first memory sample. So if the jobs are few, the controller comes first.
        """
        statuses = self._completed_soon(ids)
        open_ids = [job_id for job_id in ids if job_id not in statuses]
        accounted = self.accounting(open_ids)
        statuses |= self.remembered(open_ids) if accounted is None else accounted
        return self._with_removed_partitions(self._with_reasons(statuses))

    def accounting(self, ids: Collection[str]) -> dict[str, SchedulerStatus] | None:
        """Ask sacct for elements, then for whole arrays, whose row may represent some of them; None without it."""
        statuses: dict[str, SchedulerStatus] = {}
        for whole in (False, True):
            open_ids = sorted(job_id for job_id in ids if job_id not in statuses and (not whole or "_" in job_id))
            for chunk in chunks(open_ids, AT_ONCE):
                query_ids = {job_id.partition("_")[0] for job_id in chunk} if whole else chunk
                query = ["sacct", "-n", "-P", "--duplicates", "-j", ",".join(sorted(query_ids)), "-o", SACCT_FIELDS]
                listing = self._sacct(query)
                if listing is None:
                    return None
                rows = read_accounting(listing, chunk, owner=self.user_id)
                # The row of this cluster stays REVOKED for ever, or is missing until the sibling ends.
                if any(is_revoked(status.reason) for status in rows.values()):
                    listing = self._sacct([query[0], "--federation", *query[1:]]) or ""
                    rows |= read_accounting(listing, chunk, owner=self.user_id)
                statuses |= rows
        return statuses

    def recorded(self, keys_by_id: Mapping[str, str], ended_only: Collection[str]) -> set[str]:
        """Return the ids under which the controller has a job of that key, or the accounting a run or an end of it.

        Of ``ended_only``, only an end counts. Ids beyond ``MAX_CONTROLLER_QUERIES`` jobs and arrays are not looked up
        and count as recorded.

        Raises:
            SchedulerUnreachable: one of the two gave no clear answer.
        """
        accounted = self.accounting(keys_by_id)
        # Without accounting, the end of a job that ran may be lost.
        recorded = set(ended_only if accounted is None else ()) | {
            job_id
            for job_id, status in (accounted or {}).items()
            if status.bears(keys_by_id[job_id])
            and (status.state.final or (status.started_s is not None and job_id not in ended_only))
        }
        numbers = sorted({job_id.partition("_")[0] for job_id in keys_by_id})[:MAX_CONTROLLER_QUERIES]
        for number in numbers:
            records = self._controller(number, keys_by_id, clear=True)
            recorded |= {job_id for job_id, status in records.items() if status.bears(keys_by_id[job_id])}
        return recorded | {job_id for job_id in keys_by_id if job_id.partition("_")[0] not in numbers}

    def _identified(self, statuses: Mapping[str, SchedulerStatus]) -> dict[str, SchedulerStatus]:
        """Return statuses with the keys of jobs whose comment, and perhaps name, the site rewrites."""
        if any((job_id, status.submitted_s) not in self._output_keys for job_id, status in statuses.items()):
            outputs = read_outputs(self._fields(("JobArrayID", "StdOut"), "-r"))
            self._output_keys = {
                (job_id, status.submitted_s): outputs.get(job_id, "") for job_id, status in statuses.items()
            }
        return {
            job_id: replace(status, name=self._output_keys[job_id, status.submitted_s] or status.name)
            for job_id, status in statuses.items()
        }

    def _fields(self, names: Sequence[str], *options: str) -> Iterator[tuple[str, ...]]:
        """Return these fields of all of the user's jobs that the controller knows."""
        mark = f"<{secrets.token_hex(8)}>"
        layout = ",".join(f"{name}:0{mark}" for name in names)
        command = ["squeue", "-a", "-h", "-t", "all", *options, "-u", self.user, "-O", layout]
        return records(mark + self.commands.listed(command), mark, len(names))

    def _names(self, *options: str, spans: Sequence[tuple[str, str]] = SPANS) -> Iterator[tuple[str, ...]]:
        """Return ``NAME_FIELDS`` of the user's jobs in the accounting."""
        mark, count = f"<{secrets.token_hex(8)}>", NAME_FIELDS.count(",")
        command = ["sacct", *options, "-n", "-P", "-X", "-u", self.user, f"--delimiter={mark}", "-o", NAME_FIELDS]
        lines = (self._sacct(*([*command, "-S", begin, "-E", end] for begin, end in spans)) or "").split("\n")
        # The first line of a record has all of its marks, and names may contain line ends.
        listing = "\n".join(f"{mark}{line}" if line.count(mark) == count else line for line in lines)
        return records(listing, mark, count + 1)

    def _sacct(self, *queries: Sequence[str]) -> str | None:
        """Return the sacct output of the first query whose range is allowed; None without accounting."""
        for query in queries:
            answer = self.commands.ask(query)
            if answer.returncode and NO_TRACE.search(answer.stderr):
                # An older Slurm has no such field. Another one keeps the number of fields.
                answer = self.commands.ask([word.replace(TRACE, "Account") for word in query])
            # Sites may bound the time range, so ever smaller ones are tried.
            if not (answer.returncode and TOO_WIDE.search(answer.stderr)):
                break
        if answer.returncode == NO_PROGRAM or NO_ACCOUNTING.search(answer.stderr):
            return None
        if answer.returncode:
            raise SchedulerUnreachable(
                f"the accounting at {self.commands.transport.where} does not answer ({error_text(answer)})"
            )
        return answer.stdout

    def _completed_soon(self, ids: Collection[str]) -> dict[str, SchedulerStatus]:
        """Return completed short jobs without failed steps, if the query is for few jobs or arrays."""
        arrays = {job_id.partition("_")[0] for job_id in ids}
        if len(arrays) > QUICK_QUERIES:
            return {}
        return {
            job_id: status
            for array in sorted(arrays)
            for job_id, status in self._controller(array, ids).items()
            if status.state is JobState.COMPLETED and (status.elapsed_s or 0.0) < SAMPLED_S and not status.evidence
        }

    def remembered(self, ids: Collection[str]) -> dict[str, SchedulerStatus]:
        """Ask the controller for jobs that it still remembers (``MinJobAge``), ended ones one by one."""
        statuses: dict[str, SchedulerStatus] = {}
        for job_id, status in self.queue(ids, ended=True).items():
            if not status.state.final or len(statuses) >= MAX_CONTROLLER_QUERIES:
                continue
            statuses[job_id] = self._controller(job_id, [job_id]).get(job_id, status)
        return statuses

    def _controller(
        self, job_id: str, wanted_ids: Collection[str], *, clear: bool = False
    ) -> dict[str, SchedulerStatus]:
        """Return the controller's record of a job or of an array's elements; empty once forgotten.

        Raises:
            SchedulerUnreachable: it does not say whether it knows the job, and ``clear`` is set. Some sites keep users
                from ``scontrol``.
        """
        answer = self.commands.ask(["scontrol", "-a", "--oneliner", "--details", "show", "job", job_id])
        if clear and answer.returncode and not GONE.search(answer.stderr + answer.stdout):
            raise SchedulerUnreachable(
                f"Slurm at {self.commands.transport.where} does not report job {job_id} ({error_text(answer)})"
            )
        return read_controller(answer.stdout, wanted_ids) if answer.returncode == 0 else {}

    def _with_reasons(self, statuses: dict[str, SchedulerStatus]) -> dict[str, SchedulerStatus]:
        """Add the controller's reasons to jobs that nobody cancelled but Slurm, such as an unmet dependency."""
        by_slurm = [
            job_id
            for job_id, status in statuses.items()
            if status.state is JobState.CANCELLED and status.by_owner is None and not status.reason
        ]
        return statuses | {
            number: replace(statuses[number], reason=record.reason)
            for job_id in by_slurm[:MAX_CONTROLLER_QUERIES]
            for number, record in self._controller(job_id, [job_id]).items()
        }

    def _with_removed_partitions(self, statuses: dict[str, SchedulerStatus]) -> dict[str, SchedulerStatus]:
        """Add a remark to jobs that Slurm ended as NODE_FAIL because the site removed their partition."""
        lost = {job_id: status for job_id, status in statuses.items() if status.state is JobState.NODE_FAIL}
        if not lost:
            return statuses
        answer = self.commands.ask(["scontrol", "-a", "-o", "show", "partition"])
        names = set(re.findall(r"^PartitionName=(\S+)", answer.stdout, re.MULTILINE))
        removed: dict[str, SchedulerStatus] = {}
        for job_id, status in lost.items():
            # The row has no partition until the accounting has all of it.
            record = status if status.partition else self._controller(job_id, [job_id]).get(job_id, status)
            if record.partition and names and not names & set(record.partition.split(",")):
                remark = f"the site removed partition {record.partition}"
                removed[job_id] = replace(status, evidence=(*status.evidence, remark))
        return statuses | removed
