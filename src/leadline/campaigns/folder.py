"""The folder of a campaign: its file, its journal, and the lock of its runner."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from leadline.campaigns.journal import LOCAL_SYSTEM, CampaignJournal, CampaignRun
from leadline.core.campaigns import Campaign, PlannedRun
from leadline.core.documents import from_json, to_json
from leadline.core.errors import LeadlineError
from leadline.core.jobs import JobSpec, JobState
from leadline.core.plane import Attempt, Job, Place, Policy
from leadline.core.runs import Measurement
from leadline.execution.clock import now_utc
from leadline.execution.schedulers.local.queue import wrapper_is_alive
from leadline.execution.schedulers.local.submissions import QueueEntry, result_path
from leadline.execution.wrapper.outcome import JobOutcome, read_outcome
from leadline.files.atomic import write_atomically
from leadline.files.lock import file_lock, lock_holder
from leadline.files.sqlite import SqliteFile

JOURNAL = "plane.sqlite"
EARLIER_JOURNAL = "journal.sqlite"
"""The journal of versions that ran campaigns without the plane."""
PARSED = "campaign.json"
COPY = "campaign.toml"
LOCK = "runner.lock"


def store_campaign(folder: Path, campaign: Campaign, file: Path) -> None:
    """Store a campaign and its file in its folder; budget, limits and runs may change, but not the command.

    Raises:
        LeadlineError: the folder belongs to a campaign with another command, or is not writable.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / PARSED).exists():
            stored = read_stored_campaign(folder)
            if (stored.name, stored.command, stored.setup) != (campaign.name, campaign.command, campaign.setup):
                raise LeadlineError(
                    f"{folder} holds a campaign {stored.name!r} that runs another command: give this one another name, "
                    "or another folder with --folder"
                )
        write_atomically(folder / COPY, file.read_text(encoding="utf-8"))
        write_atomically(folder / PARSED, to_json(campaign) + "\n")
    except OSError as error:
        raise LeadlineError(
            f"{folder} cannot be written to ({error.strerror}), and the campaign is kept there: make it writable, or "
            "name another with --folder"
        ) from error


def read_stored_campaign(folder: Path) -> Campaign:
    """Return the campaign in a folder.

    Raises:
        LeadlineError: there is none.
    """
    try:
        text = (folder / PARSED).read_bytes()
    except OSError as error:
        raise LeadlineError(f"{folder} holds no campaign ({error.strerror}): check its path") from error
    return from_json(text, Campaign, label=str(folder / PARSED))


def has_journal(folder: Path) -> bool:
    """Return True if the runs of a campaign are stored in a folder."""
    return (folder / JOURNAL).exists() or (folder / EARLIER_JOURNAL).exists()


def open_journal(folder: Path) -> CampaignJournal:
    """Open the journal of a campaign; one of an earlier version is taken over first.

    Raises:
        LeadlineError: a run that an earlier version started has not ended.
    """
    journal = CampaignJournal(folder / JOURNAL)
    try:
        if (folder / EARLIER_JOURNAL).exists():
            _take_over(folder, journal)
    except BaseException:
        journal.close()
        raise
    return journal


def _take_over(folder: Path, journal: CampaignJournal) -> None:
    """Add the runs and outcomes of an earlier version's journal, and set it aside.

    Repeating this after a crash changes nothing, because every row has the same key again.
    """
    file = folder / EARLIER_JOURNAL
    with SqliteFile(file, tables="", application_id=0x4C51_5545, version=1) as earlier:
        rows = earlier.read(
            "SELECT key, spec, note, attempt, host, pid, state, outcome, lost_s, recorded FROM job ORDER BY position"
        )
    for key, spec_text, note, number, host, pid, state, outcome_text, lost_s, is_stored in rows:
        label = f"run {key} of {file}"
        spec = from_json(spec_text, JobSpec, label=label)
        planned = from_json(note, PlannedRun, label=label)
        entry = QueueEntry(key, spec, attempt=number, host=host, pid=pid)
        outcome = from_json(outcome_text, JobOutcome, label=label) if outcome_text else None
        if state == JobState.RUNNING and outcome is None:
            outcome = _unfinished_outcome(folder, entry)
        journal.plan([(planned, spec)])
        if outcome is None and not lost_s:
            continue
        place = Place(spec.system or LOCAL_SYSTEM, spec.partition)
        now = now_utc()
        final = JobState.CANCELLED if outcome is None else outcome.state
        attempt = Attempt(
            f"{key}-{number}", f"{key}-1", 1, place, spec.resources, state=final, ended_at=now, recorded=True
        )
        lost = replace(attempt, key=f"{key}-0", number=0, state=JobState.NODE_FAIL)
        job = Job(attempt.job, spec, Policy((place,)), final, created_at=now)
        journal.add([job])
        outcomes = {} if outcome is None else {(job.key, attempt.key): outcome}
        if lost_s:
            seconds = {"elapsed_s": Measurement(lost_s, "s", "attempts without a result")}
            outcomes[job.key, lost.key] = JobOutcome(lost.state, now, host or "", spec.command, measured=seconds)
        journal.add_outcomes(outcomes)
        attempts = [*([lost] if lost_s else []), *([attempt] if outcome else [])]
        journal.write(jobs=[replace(job, recorded=True)], attempts=attempts)
        if outcome is None:
            journal.repeat(CampaignRun(planned, spec, (job,)))
        elif is_stored:
            journal.mark_stored(attempt.key)
    journal.write()
    file.rename(file.with_suffix(".earlier"))


def _unfinished_outcome(folder: Path, entry: QueueEntry) -> JobOutcome | None:
    """Return the outcome of a run that an earlier version was running; None if it was lost.

    Raises:
        LeadlineError: it may still run.
    """
    result = result_path(folder, entry)
    outcome = read_outcome(result) if result.exists() else None
    if outcome is not None and outcome.state.final:
        return outcome
    if entry.host != socket.gethostname() or wrapper_is_alive(folder, entry):
        raise LeadlineError(
            f"run {entry.key} in {folder} was started by an earlier version of Leadline and may still run: end it with "
            "leadline campaign stop of that version, or move the folder away to start anew; nothing was changed"
        )
    return None


@contextmanager
def runner_lock(folder: Path, name: str) -> Iterator[None]:
    """Hold the lock of the only process that runs the campaign.

    Raises:
        LeadlineError: another process runs it; the error names that process.
    """
    with file_lock(folder / LOCK) as acquired:
        if not acquired:
            raise LeadlineError(
                f"campaign {name!r} is being run by {find_runner(folder) or 'another process'}: wait for it, or stop "
                f"it with leadline campaign stop {name}"
            )
        yield


def find_runner(folder: Path) -> str | None:
    """Return the process that runs the campaign, as ``process 12 on node1 since 14:02``; ``None`` if none does."""
    return lock_holder(folder / LOCK)
