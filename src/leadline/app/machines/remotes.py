"""How systems are reached: with the commands of this machine, or over SSH, as the user's own file says."""

from dataclasses import dataclass, field
from pathlib import Path

from leadline.app import settings
from leadline.core.documents import explain_read_error, from_toml
from leadline.core.errors import InvalidInput

FILE = "reach.toml"


@dataclass(frozen=True, slots=True)
class Remote:
    """The way to one system.

    ``host`` is what ``ssh`` is told (``None``: the scheduler's commands are on this machine), ``folder`` where
    Leadline keeps its files there, and ``python`` an interpreter there that has Leadline, which measures the jobs.
    ``scheduler`` is ``slurm`` or ``pbs`` where the catalog does not know the system.
    """

    host: str | None = None
    folder: str | None = None
    python: str | None = None
    scheduler: str | None = None


@dataclass(frozen=True, slots=True)
class RemotesFile:
    """The file: a table for each system."""

    systems: dict[str, Remote] = field(default_factory=dict)


def find_remote(system: str, path: Path | None = None) -> Remote:
    """Return the way to a system; one that the file does not name is reached from here.

    Raises:
        InvalidInput: the file cannot be read, or says what it may not.
    """
    return next(
        (one for name, one in read_remotes(path).items() if name.casefold() == system.casefold()),
        Remote(),
    )


def read_remotes(path: Path | None = None) -> dict[str, Remote]:
    """Return the ways that the user's file tells, by system; none where there is no file.

    Raises:
        InvalidInput: the file cannot be read, or says what it may not.
    """
    path = path or settings.data_dir() / FILE
    if not path.exists():
        return {}
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path} cannot be read: {explain_read_error(error)}") from error
    return from_toml(text, RemotesFile, label=str(path)).systems
