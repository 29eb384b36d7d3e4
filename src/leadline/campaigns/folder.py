"""The folder of a campaign: its file, its journal, and the lock of its runner."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from leadline.campaigns.journal import CampaignJournal
from leadline.core.campaigns import Campaign
from leadline.core.documents import from_json, to_json
from leadline.core.errors import LeadlineError
from leadline.files.atomic import write_atomically
from leadline.files.lock import file_lock, lock_holder
from leadline.files.read import read_input

JOURNAL = "plane.sqlite"
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
    content = read_input(folder / PARSED, label=f"{folder} holds no campaign: {PARSED}")
    return from_json(content, Campaign, label=str(folder / PARSED))


def has_journal(folder: Path) -> bool:
    """Return True if the runs of a campaign are stored in a folder."""
    return (folder / JOURNAL).exists()


def open_journal(folder: Path) -> CampaignJournal:
    """Open the journal of a campaign."""
    return CampaignJournal(folder / JOURNAL)


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
