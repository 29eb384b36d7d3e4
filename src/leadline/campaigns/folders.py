"""Keep a campaign in one folder: its file as it was, its journal, the outcome and the log of every run."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from leadline.core.campaigns import Campaign
from leadline.core.documents import dump, load
from leadline.core.errors import LeadlineError
from leadline.execution.schedulers.job_queue import QueueJournal
from leadline.files.lock import file_lock, lock_holder

JOURNAL = "journal.sqlite"
PARSED = "campaign.json"
COPY = "campaign.toml"
LOCK = "runner.lock"


def keep_campaign(folder: Path, campaign: Campaign, file: Path) -> None:
    """Put a campaign and its file into its folder; budget, limits and runs may change, what is run may not.

    Raises:
        LeadlineError: the folder holds a campaign that runs something else, or cannot be written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / PARSED).exists():
            kept = kept_campaign(folder)
            if (kept.name, kept.command, kept.setup) != (campaign.name, campaign.command, campaign.setup):
                raise LeadlineError(
                    f"{folder} holds a campaign {kept.name!r} that runs another command: give this one another name, "
                    "or another folder with --folder"
                )
        _write(folder / COPY, file.read_text(encoding="utf-8"))
        _write(folder / PARSED, dump(campaign) + "\n")
    except OSError as error:
        raise LeadlineError(
            f"{folder} cannot be written to ({error.strerror}), and the campaign is kept there: make it writable, or "
            "name another with --folder"
        ) from error


def kept_campaign(folder: Path) -> Campaign:
    """Return the campaign that a folder holds.

    Raises:
        LeadlineError: there is none.
    """
    try:
        text = (folder / PARSED).read_bytes()
    except OSError as error:
        raise LeadlineError(f"{folder} holds no campaign ({error.strerror}): check its path") from error
    return load(text, Campaign, what=str(folder / PARSED))


def journal_of(folder: Path) -> QueueJournal:
    """Open the journal of a campaign."""
    return QueueJournal(folder / JOURNAL)


@contextmanager
def only_runner(folder: Path, name: str) -> Iterator[None]:
    """Be the one process that runs the campaign.

    Raises:
        LeadlineError: another process runs it; it is named.
    """
    with file_lock(folder / LOCK) as mine:
        if not mine:
            raise LeadlineError(
                f"campaign {name!r} is being run by {runner_of(folder) or 'another process'}: wait for it, or stop it "
                f"with leadline campaign stop {name}"
            )
        yield


def runner_of(folder: Path) -> str | None:
    """Return who runs the campaign, as ``process 12 on node1 since 14:02``; ``None`` if nobody does."""
    return lock_holder(folder / LOCK)


def _write(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    new = path.with_name(f".{path.name}.{os.getpid()}")
    new.write_text(text, encoding="utf-8")
    new.replace(path)
