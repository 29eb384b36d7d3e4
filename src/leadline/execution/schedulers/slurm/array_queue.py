"""Run the jobs of a journal on Slurm as native job arrays, one for each resource shape."""

import getpass
import json
import shlex
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from leadline.core.errors import InvalidInput, LeadlineError, SchedulerUnreachable
from leadline.core.jobs import JobSpec, JobState
from leadline.core.processes import CompletedProcess, ProcessRunner
from leadline.core.runs import Measurement
from leadline.core.systems import Partition
from leadline.core.units import DAY_S
from leadline.execution.clock import epoch_s, now_utc
from leadline.execution.launch import job_environment, wrapper_arguments
from leadline.execution.schedulers.job_queue import (
    MAX_LOSSES,
    QueueEntry,
    QueueJournal,
    last_log_line,
    log_path,
    result_path,
    unmeasured_outcome,
)
from leadline.execution.schedulers.slurm.array_text import (
    ARRAY_SACCT_FIELDS,
    ARRAY_SQUEUE_FORMAT,
    WHOLE_ARRAY,
    AccountedElement,
    ArrayElement,
    QueuedElement,
    array_script,
    group_by_shape,
    read_array_id,
    read_sacct,
    read_squeue,
)
from leadline.execution.schedulers.slurm.parsing import read_job_id
from leadline.execution.wrapper.outcome import JobOutcome, read_outcome

COMMAND_S = 60.0
"""Time limit of one command. With the controller down, squeue fails after 38 s by itself."""


@dataclass(frozen=True, slots=True)
class ArrayPollIntervals:
    """Times of the array queue, in seconds.

    Attributes:
        first: shortest pause between polls; it grows while nothing changes.
        last: longest pause between polls.
        silence: an element that Slurm does not report for this time counts as lost.
        unreachable: longest time without any answer.
    """

    first: float = 2.0
    last: float = 20.0
    silence: float = 60.0
    unreachable: float = 1800.0


class SlurmArrayQueue:
    """Runs jobs as arrays (implements ``JobQueue``).

    The accounting settles elements that Slurm ended without an outcome; vanished elements are requeued. The nodes must
    see ``folder``.
    """

    def __init__(
        self,
        journal: QueueJournal,
        folder: Path,
        run: ProcessRunner,
        *,
        partition_of: Callable[[JobSpec], Partition | None] = lambda _: None,
        max_running: int | None = None,
        limit_s: Callable[[QueueEntry], float | None] = lambda _: None,
        intervals: ArrayPollIntervals = ArrayPollIntervals(),
    ) -> None:
        self.journal = journal
        self.folder = folder
        self.run = run
        self.partition_of = partition_of
        self.most = max_running
        self.limit_s = limit_s
        self.intervals = intervals
        self.ending = False
        self._running: dict[str, QueueEntry] = {}
        self._done: list[QueueEntry] = []
        self._missing_s: dict[str, float] = {}
        self._interval_s = intervals.first
        self._due_s = 0.0
        self._answered_s = time.monotonic()
        self._accounting = True
        self._ids: dict[str, str] = {}

    @property
    def running(self) -> Mapping[str, QueueEntry]:
        """The submitted jobs that have not ended, by key; they may still wait at the scheduler."""
        return self._running

    def resume(self) -> None:
        """Continue the work of an earlier process; an array whose submission was cut off is looked up.

        Raises:
            LeadlineError: jobs of the journal run under another kind of queue.
        """
        for folder in ("runs", "arrays"):
            (self.folder / folder).mkdir(parents=True, exist_ok=True)
        batches = self.journal.batches()
        batch_ids: dict[str, str | None] = {}
        for entry in self.journal.entries():
            if entry.state is not JobState.RUNNING:
                continue
            if entry.host is not None or entry.place is None:
                raise LeadlineError(
                    f"job {entry.key} runs on {entry.host or 'this machine'} and not on Slurm: let it end there or "
                    "stop the campaign first"
                )
            batch, _ = _parts(entry.place)
            if batch not in batch_ids:
                batch_ids[batch] = batches[batch][0] or self._look_up(batch, batches[batch][1])
            if batch_ids[batch] is None:
                self.journal.requeue(entry.key)
            else:
                self._running[entry.key] = entry
        self._ids = {batch: scheduler_id for batch, scheduler_id in batch_ids.items() if scheduler_id is not None}

    def start(self, candidates: Iterable[QueueEntry]) -> int:
        """Submit all candidates, one array for each shape; return their number.

        Raises:
            LeadlineError: Slurm refused an array.
        """
        entries = {entry.key: entry for entry in candidates}
        if not entries:
            return 0
        for job_shape, keys in group_by_shape((key, entry.spec) for key, entry in entries.items()):
            self._submit(job_shape, [entries[key] for key in keys])
        self._due_s, self._interval_s = time.monotonic() + self.intervals.first, self.intervals.first
        return len(entries)

    def wait(self, timeout_s: float) -> list[QueueEntry]:
        """Return the jobs that ended, after about ``timeout_s``.

        Raises:
            SchedulerUnreachable: Slurm has not answered for too long.
        """
        if not self._done:
            time.sleep(timeout_s)
        for entry in list(self._running.values()):
            outcome = self._outcome(entry)
            if outcome is not None and outcome.state is not JobState.CANCELLED:
                self._settle(entry, outcome)
        if self._running and time.monotonic() >= self._due_s:
            self._poll()
        done, self._done = self._done, []
        return done

    def end(self) -> None:
        """Cancel every array with open jobs. Each job is requeued, and ``wait`` returns it so."""
        self.ending, self._due_s, self._interval_s = True, 0.0, self.intervals.first
        ids = sorted({self._ids[_parts(entry.place)[0]] for entry in self._running.values()})
        if ids:
            self._command(["scancel", *ids])

    def _submit(self, job_shape: JobSpec, entries: list[QueueEntry]) -> None:
        """Store the array, then submit it. After a crash, its key shows whether Slurm has it."""
        if job_shape.resources.nodes * job_shape.resources.tasks_per_node > 1:
            raise InvalidInput("jobs of an array have one task each: request one node and one task")
        key = uuid.uuid4().hex[:12]
        lookup = self.folder / "arrays" / f"{key}.json"
        next_entries = [replace(entry, attempt=entry.attempt + 1) for entry in entries]
        # One file for all elements: thousands of small files strain a shared file system.
        lookup.write_text(json.dumps([self._element(entry) for entry in next_entries]), encoding="utf-8")
        script = lookup.with_suffix(".sh")
        text = array_script(
            job_shape, self.partition_of(job_shape), key=key, count=len(entries), most=self.most, lookup=lookup,
            python=sys.executable,
        )  # fmt: skip
        # The script stays on disk, so that a refused array can be inspected.
        script.write_text(text, encoding="utf-8")
        # Before sbatch: a crash in between leaves a key to look up.
        self.journal.begin_batch(key, [(entry.key, f"{key}:{index}") for index, entry in enumerate(entries)])
        started = [self.journal.get(entry.key) for entry in entries]
        answer = self._command(["sbatch", "--parsable", str(script)])
        scheduler_id = read_job_id(answer.stdout) if answer.returncode == 0 else None
        scheduler_id = scheduler_id or self._look_up(key, now_utc(), briefly=not answer.timed_out)
        if scheduler_id is None:
            for entry in started:
                self.journal.requeue(entry.key)
            raise _refused(answer, script)
        self.journal.set_batch_id(key, scheduler_id)
        self._ids[key] = scheduler_id
        self._running.update({entry.key: entry for entry in started})

    def _element(self, entry: QueueEntry) -> dict[str, object]:
        result = result_path(self.folder, entry)
        return {
            "arguments": wrapper_arguments(entry.spec, result, walltime_s=self.limit_s(entry), at_a_site=True),
            "environment": job_environment(entry.spec),
            "log": str(log_path(self.folder, entry)),
        }

    def _look_up(self, key: str, made_at: str, *, briefly: bool = False) -> str | None:
        """Find an array by its name in the queue, then in the accounting, where new ones appear a little late."""
        user = getpass.getuser()
        deadline = time.monotonic() + (0.0 if briefly else 2 * self.intervals.first)
        while True:
            queued = self._command(["squeue", "-h", "-u", user, "-o", "%F|%j"])
            past = self._command(
                ["sacct", "-n", "-P", "-X", "-u", user, "-S", _local_day(made_at), "-o", "JobID,JobName"]
            )
            for listing in (queued.stdout, past.stdout):
                ids = [line.partition("|")[0] for line in listing.splitlines() if line.strip().endswith(f"-{key}")]
                if ids:
                    return read_array_id(ids[0])
            # An empty answer of a failed squeue does not prove that the array is missing.
            if queued.returncode != 0:
                raise _unreachable(queued)
            if time.monotonic() >= deadline:
                return None
            time.sleep(self.intervals.first / 2)

    def _poll(self) -> None:
        """Ask Slurm once for all elements, and settle or requeue those that ended."""
        answer = self._command(["squeue", "-h", "-r", "-u", getpass.getuser(), "-o", ARRAY_SQUEUE_FORMAT])
        self._interval_s = min(1.5 * self._interval_s, self.intervals.last)
        self._due_s = time.monotonic() + self._interval_s
        if answer.returncode != 0:
            if time.monotonic() - self._answered_s > self.intervals.unreachable:
                raise _unreachable(answer)
            return
        self._answered_s = time.monotonic()
        queued = read_squeue(answer.stdout)
        gone = [entry for entry in self._running.values() if _ended(queued.get(self._at(entry)))]
        for key in set(self._missing_s) - {entry.key for entry in gone}:
            # Slurm lists the element again, so it was not lost.
            del self._missing_s[key]
        accounted = self._accounted(gone) if gone else {}
        for entry in gone:
            element = self._at(entry)
            self._settle_gone(
                entry, accounted.get(element, accounted.get((element[0], WHOLE_ARRAY))), queued.get(element)
            )
        if gone:
            self._interval_s, self._due_s = self.intervals.first, time.monotonic() + self.intervals.first

    def _accounted(self, entries: list[QueueEntry]) -> dict[ArrayElement, AccountedElement]:
        """Ask the accounting for elements that left the queue; empty without accounting."""
        if not self._accounting:
            return {}
        ids = sorted({self._at(entry)[0] for entry in entries})
        answer = self._command(["sacct", "-n", "-P", "-j", ",".join(ids), "-o", ARRAY_SACCT_FIELDS])
        # A site without accounting never gets one while this runs.
        if answer.returncode != 0 and "disabled" in answer.stderr:
            self._accounting = False
        return read_sacct(answer.stdout) if answer.returncode == 0 else {}

    def _settle_gone(self, entry: QueueEntry, accounted: AccountedElement | None, queued: QueuedElement | None) -> None:
        """Settle an element that left the queue: by its outcome, the accounting, or after a timeout."""
        outcome = self._outcome(entry)
        if self.ending and (outcome is None or outcome.state is JobState.CANCELLED):
            self._requeue(entry, lost=False)
            return
        if outcome is not None:
            # Slurm knows why it sent a signal.
            state_of_end = accounted.state if accounted and accounted.state.censored else outcome.state
            self._settle(entry, replace(outcome, state=state_of_end))
            return
        state = accounted.state if accounted else queued.state if queued else JobState.UNKNOWN
        waited_s = time.monotonic() - self._missing_s.setdefault(entry.key, time.monotonic())
        # Shared file systems show a node's new file late, so wait for a completed job's outcome.
        is_known = accounted is not None or not self._accounting
        if is_known and state.final and state is not JobState.COMPLETED:
            self._settle(entry, _outcome_of(entry, state, accounted))
        elif waited_s > self.intervals.silence:
            self._requeue(entry, lost=True)

    def _settle(self, entry: QueueEntry, outcome: JobOutcome) -> None:
        self._forget(entry)
        self._done.append(self.journal.settle(entry.key, outcome))

    def _requeue(self, entry: QueueEntry, *, lost: bool) -> None:
        self._forget(entry)
        if lost and entry.losses + 1 >= MAX_LOSSES:
            last_words = last_log_line(log_path(self.folder, entry)) or "it wrote no result"
            reason = f"Slurm lost it {MAX_LOSSES} times: {last_words}"
            self._done.append(self.journal.settle(entry.key, unmeasured_outcome(entry, JobState.FAILED, reason)))
            return
        result = result_path(self.folder, entry)
        spent = read_outcome(result).measured.get("elapsed_s") if result.exists() else None
        self._done.append(self.journal.requeue(entry.key, lost_s=spent.value if spent else 0.0, lost=lost))

    def _forget(self, entry: QueueEntry) -> None:
        del self._running[entry.key]
        self._missing_s.pop(entry.key, None)

    def _outcome(self, entry: QueueEntry) -> JobOutcome | None:
        result = result_path(self.folder, entry)
        outcome = read_outcome(result) if result.exists() else None
        return outcome if outcome is not None and outcome.state.final else None

    def _at(self, entry: QueueEntry) -> ArrayElement:
        batch, index = _parts(entry.place)
        return self._ids[batch], index

    def _command(self, words: list[str]) -> CompletedProcess:
        return self.run(words, timeout_s=COMMAND_S)


def _ended(queued: QueuedElement | None) -> bool:
    """True if an element left the queue or has a final state there."""
    return queued is None or queued.state.final


def _parts(place: str | None) -> tuple[str, int]:
    batch, _, index = (place or ":0").partition(":")
    return batch, int(index)


def _outcome_of(entry: QueueEntry, state: JobState, accounted: AccountedElement | None) -> JobOutcome:
    """Return the outcome of an element that was ended before its wrapper could write one."""
    outcome = unmeasured_outcome(entry, state, f"Slurm ended it: {state.value}")
    if accounted is None:
        return outcome
    measured = {}
    if accounted.elapsed_s is not None:
        measured["elapsed_s"] = Measurement(accounted.elapsed_s, "s", "Elapsed of sacct, whole seconds")
    return replace(
        outcome,
        started_at=_utc(accounted.start) or outcome.started_at,
        ended_at=_utc(accounted.end) or outcome.ended_at,
        host=accounted.node or outcome.host,
        exit_code=None if accounted.signal else accounted.exit_code,
        signal=accounted.signal if 0 < accounted.signal < 65 else None,
        measured=measured,
    )


def _refused(answer: CompletedProcess, script: Path) -> LeadlineError:
    if answer.timed_out:
        return _unreachable(answer)
    text = " ".join(line.removeprefix("sbatch: error: ") for line in answer.stderr.split("\n") if line.strip())
    return LeadlineError(
        f"Slurm refused the array ({text or 'it text nothing'}): its script is {shlex.quote(str(script))}"
    )


def _unreachable(answer: CompletedProcess) -> SchedulerUnreachable:
    lines = answer.stderr.strip().splitlines()
    why = "no answer in time" if answer.timed_out else lines[-1] if lines else f"exit code {answer.returncode}"
    return SchedulerUnreachable(
        f"Slurm cannot be reached ({why}): submitted jobs continue; resume the campaign when it answers again"
    )


def _local_day(at: str) -> str:
    """Return the day before a time in sacct's form, a margin for clocks and time zones."""
    moment = epoch_s(at) - DAY_S
    return datetime.fromtimestamp(moment).astimezone().strftime("%Y-%m-%d")


def _utc(local: str | None) -> str | None:
    """Convert Slurm's local time to UTC."""
    if local is None:
        return None
    try:
        return datetime.fromisoformat(local).astimezone(UTC).isoformat(timespec="milliseconds")
    except ValueError:
        return None
