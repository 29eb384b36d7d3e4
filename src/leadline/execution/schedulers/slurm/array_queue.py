"""Run the jobs of a journal on Slurm as native job arrays, one for each shape of resources."""

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
"""How long a command of Slurm's may take; with its controller down squeue fails after 38 s by itself."""


@dataclass(frozen=True, slots=True)
class ArrayPollIntervals:
    """How often Slurm is asked, and how long it may say nothing of an element before that is given up for lost.

    All in seconds: ``first`` and ``last`` bound the time between questions, which grows; ``silence`` is how long an
    element may be absent everywhere; ``unreachable`` how long no question may be answered.
    """

    first: float = 2.0
    last: float = 20.0
    silence: float = 60.0
    unreachable: float = 1800.0


class SlurmArrayQueue:
    """Runs jobs as arrays (implements ``JobQueue``).

    ``partition_of`` finds the rules of a job's partition, where they are known. ``most`` elements of an array run at
    once. An element that Slurm ended without an outcome of its own is settled by the accounting; one that is nowhere
    any more is put back. The files lie in ``folder``, which the nodes must see.
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
        self.patience = intervals
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
        """The jobs that were submitted and have not ended, by key; they may still wait at the scheduler."""
        return self._running

    def resume(self) -> None:
        """Take up what an earlier process submitted; an array whose submission it did not survive is looked up.

        Raises:
            LeadlineError: jobs of the journal run under another kind of queue.
        """
        for folder in ("runs", "arrays"):
            (self.folder / folder).mkdir(parents=True, exist_ok=True)
        batches = self.journal.batches()
        known: dict[str, str | None] = {}
        for entry in self.journal.entries():
            if entry.state is not JobState.RUNNING:
                continue
            if entry.host is not None or entry.place is None:
                raise LeadlineError(
                    f"job {entry.key} runs on {entry.host or 'this machine'} and not on Slurm: let it end there, or "
                    "stop the campaign first"
                )
            batch, _ = _parts(entry.place)
            if batch not in known:
                known[batch] = batches[batch][0] or self._looked_up(batch, batches[batch][1])
            if known[batch] is None:
                self.journal.requeue(entry.key)
            else:
                self._running[entry.key] = entry
        self._ids = {batch: found for batch, found in known.items() if found is not None}

    def start(self, candidates: Iterable[QueueEntry]) -> int:
        """Submit all candidates, one array for each shape; return how many.

        Raises:
            LeadlineError: Slurm refused an array; it says why.
        """
        entries = {entry.key: entry for entry in candidates}
        if not entries:
            return 0
        for asked, keys in group_by_shape((key, entry.spec) for key, entry in entries.items()):
            self._submit(asked, [entries[key] for key in keys])
        self._due_s, self._interval_s = time.monotonic() + self.patience.first, self.patience.first
        return len(entries)

    def wait(self, timeout_s: float) -> list[QueueEntry]:
        """Return the jobs that ended, after about ``timeout_s``.

        Raises:
            SchedulerUnreachable: Slurm has not answered for as long as its patience lasts.
        """
        if not self._done:
            time.sleep(timeout_s)
        for entry in list(self._running.values()):
            outcome = self._outcome(entry)
            if outcome is not None and outcome.state is not JobState.CANCELLED:
                self._settle(entry, outcome)
        if self._running and time.monotonic() >= self._due_s:
            self._ask()
        done, self._done = self._done, []
        return done

    def end(self) -> None:
        """Cancel every array that has jobs left; each job is put back, and comes out of ``wait`` so."""
        self.ending, self._due_s, self._interval_s = True, 0.0, self.patience.first
        ids = sorted({self._ids[_parts(entry.place)[0]] for entry in self._running.values()})
        if ids:
            self._command(["scancel", *ids])

    def _submit(self, asked: JobSpec, entries: list[QueueEntry]) -> None:
        """Note the array, then submit it: after a crash it is looked up by its key, so it is not submitted twice."""
        if asked.resources.nodes * asked.resources.tasks_per_node > 1:
            raise InvalidInput("an array's jobs have one task each: ask for one node and one task")
        key = uuid.uuid4().hex[:12]
        lookup = self.folder / "arrays" / f"{key}.json"
        next_ones = [replace(entry, attempt=entry.attempt + 1) for entry in entries]
        lookup.write_text(json.dumps([self._element(entry) for entry in next_ones]), encoding="utf-8")
        script = lookup.with_suffix(".sh")
        text = array_script(
            asked, self.partition_of(asked), key=key, count=len(entries), most=self.most, lookup=lookup,
            python=sys.executable,
        )  # fmt: skip
        script.write_text(text, encoding="utf-8")
        self.journal.begin_batch(key, [(entry.key, f"{key}:{at}") for at, entry in enumerate(entries)])
        begun = [self.journal.get(entry.key) for entry in entries]
        answer = self._command(["sbatch", "--parsable", str(script)])
        found = read_job_id(answer.stdout) if answer.returncode == 0 else None
        found = found or self._looked_up(key, _now(), briefly=not answer.timed_out)
        if found is None:
            for entry in begun:
                self.journal.requeue(entry.key)
            raise _refused(answer, script)
        self.journal.set_batch_id(key, found)
        self._ids[key] = found
        self._running.update({entry.key: entry for entry in begun})

    def _element(self, entry: QueueEntry) -> dict[str, object]:
        result = result_path(self.folder, entry)
        return {
            "arguments": wrapper_arguments(entry.spec, result, walltime_s=self.limit_s(entry), at_a_site=True),
            "environment": job_environment(entry.spec),
            "log": str(log_path(self.folder, entry)),
        }

    def _looked_up(self, key: str, made_at: str, *, briefly: bool = False) -> str | None:
        """Find an array by its name in the queue, then in the accounting; a new one appears there a little late."""
        user = getpass.getuser()
        deadline = time.monotonic() + (0.0 if briefly else 2 * self.patience.first)
        while True:
            queued = self._command(["squeue", "-h", "-u", user, "-o", "%F|%j"])
            past = self._command(
                ["sacct", "-n", "-P", "-X", "-u", user, "-S", _local_day(made_at), "-o", "JobID,JobName"]
            )
            for listing in (queued.stdout, past.stdout):
                named = [line.partition("|")[0] for line in listing.splitlines() if line.strip().endswith(f"-{key}")]
                if named:
                    return read_array_id(named[0])
            if queued.returncode != 0:
                raise _unreachable(queued)
            if time.monotonic() >= deadline:
                return None
            time.sleep(self.patience.first / 2)

    def _ask(self) -> None:
        """Ask Slurm once for all elements; settle those that ended, or put them back."""
        answer = self._command(["squeue", "-h", "-r", "-u", getpass.getuser(), "-o", ARRAY_SQUEUE_FORMAT])
        self._interval_s = min(1.5 * self._interval_s, self.patience.last)
        self._due_s = time.monotonic() + self._interval_s
        if answer.returncode != 0:
            if time.monotonic() - self._answered_s > self.patience.unreachable:
                raise _unreachable(answer)
            return
        self._answered_s = time.monotonic()
        queued = read_squeue(answer.stdout)
        gone = [entry for entry in self._running.values() if _ended(queued.get(self._at(entry)))]
        for key in set(self._missing_s) - {entry.key for entry in gone}:
            del self._missing_s[key]
        accounted = self._accounted(gone) if gone else {}
        for entry in gone:
            at = self._at(entry)
            self._settle_gone(entry, accounted.get(at, accounted.get((at[0], WHOLE_ARRAY))), queued.get(at))
        if gone:
            self._interval_s, self._due_s = self.patience.first, time.monotonic() + self.patience.first

    def _accounted(self, entries: list[QueueEntry]) -> dict[ArrayElement, AccountedElement]:
        """Ask the accounting for elements that left the queue; nothing where there is none."""
        if not self._accounting:
            return {}
        ids = sorted({self._at(entry)[0] for entry in entries})
        answer = self._command(["sacct", "-n", "-P", "-j", ",".join(ids), "-o", ARRAY_SACCT_FIELDS])
        if answer.returncode != 0 and "disabled" in answer.stderr:
            self._accounting = False
        return read_sacct(answer.stdout) if answer.returncode == 0 else {}

    def _settle_gone(self, entry: QueueEntry, accounted: AccountedElement | None, queued: QueuedElement | None) -> None:
        """Settle an element that left the queue: by its outcome, by the accounting, else when patience ends."""
        outcome = self._outcome(entry)
        if self.ending and (outcome is None or outcome.state is JobState.CANCELLED):
            self._put_back(entry, lost=False)
            return
        if outcome is not None:  # ended by a signal: Slurm knows why it was sent
            why = accounted.state if accounted and accounted.state.censored else outcome.state
            self._settle(entry, replace(outcome, state=why))
            return
        state = accounted.state if accounted else queued.state if queued else JobState.UNKNOWN
        waited_s = time.monotonic() - self._missing_s.setdefault(entry.key, time.monotonic())
        # A file written on a node may be seen here late; a job that says it completed has one.
        sure = accounted is not None or not self._accounting
        if sure and state.final and state is not JobState.COMPLETED:
            self._settle(entry, _outcome_of(entry, state, accounted))
        elif waited_s > self.patience.silence:
            self._put_back(entry, lost=True)

    def _settle(self, entry: QueueEntry, outcome: JobOutcome) -> None:
        self._forget(entry)
        self._done.append(self.journal.settle(entry.key, outcome))

    def _put_back(self, entry: QueueEntry, *, lost: bool) -> None:
        self._forget(entry)
        if lost and entry.losses + 1 >= MAX_LOSSES:
            said = last_log_line(log_path(self.folder, entry)) or "it wrote no result"
            reason = f"Slurm lost sight of it {MAX_LOSSES} times: {said}"
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
    """Whether an element has left the queue, or stands there only to be looked at."""
    return queued is None or queued.state.final


def _parts(place: str | None) -> tuple[str, int]:
    batch, _, index = (place or ":0").partition(":")
    return batch, int(index)


def _outcome_of(entry: QueueEntry, state: JobState, accounted: AccountedElement | None) -> JobOutcome:
    """Return the outcome of an element that was ended before its wrapper could write one."""
    made = unmeasured_outcome(entry, state, f"Slurm ended it: {state.value}")
    if accounted is None:
        return made
    measured = {}
    if accounted.elapsed_s is not None:
        measured["elapsed_s"] = Measurement(accounted.elapsed_s, "s", "Elapsed of sacct, whole seconds")
    return replace(
        made,
        started_at=_utc(accounted.start) or made.started_at,
        ended_at=_utc(accounted.end) or made.ended_at,
        host=accounted.node or made.host,
        exit_code=None if accounted.signal else accounted.exit_code,
        signal=accounted.signal if 0 < accounted.signal < 65 else None,
        measured=measured,
    )


def _refused(answer: CompletedProcess, script: Path) -> LeadlineError:
    if answer.timed_out:
        return _unreachable(answer)
    said = " ".join(line.removeprefix("sbatch: error: ") for line in answer.stderr.split("\n") if line.strip())
    return LeadlineError(
        f"Slurm refused the array ({said or 'it said nothing'}): its script is {shlex.quote(str(script))}"
    )


def _unreachable(answer: CompletedProcess) -> SchedulerUnreachable:
    said = answer.stderr.strip().splitlines()
    why = "no answer in time" if answer.timed_out else said[-1] if said else f"exit code {answer.returncode}"
    return SchedulerUnreachable(
        f"Slurm cannot be reached ({why}): what was submitted runs on; resume the campaign when it answers again"
    )


def _local_day(at: str) -> str:
    """Return the day before, as sacct takes it: clocks and time zones of two machines may differ."""
    moment = datetime.fromisoformat(at).timestamp() - 86400
    return datetime.fromtimestamp(moment).astimezone().strftime("%Y-%m-%d")


def _utc(local: str | None) -> str | None:
    """Turn Slurm's local time into ours."""
    if local is None:
        return None
    try:
        return datetime.fromisoformat(local).astimezone(UTC).isoformat(timespec="milliseconds")
    except ValueError:
        return None


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
