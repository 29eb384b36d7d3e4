"""Read ``reach.toml``: how to reach the systems whose scheduler is not on this machine."""

from pathlib import Path, PurePosixPath

from msgspec import field

from leadline.app import settings
from leadline.core.documents import MOST_TOML_BYTES, from_toml
from leadline.core.errors import InvalidInput
from leadline.core.frozen import Frozen
from leadline.files.read import read_input_text

FILE = "reach.toml"


class Remote(Frozen):
    """The way to one system.

    Attributes:
        host: SSH destination; ``None`` if the scheduler's commands are on this machine.
        folder: where Leadline keeps its files on that system.
        python: interpreter on that system that has Leadline; it measures the jobs.
        scheduler: ``slurm`` or ``pbs`` for a system that the catalog does not know.
    """

    host: str | None = None
    folder: str | None = None
    python: str | None = None
    scheduler: str | None = None


class RemotesFile(Frozen):
    """The file ``reach.toml``: one table per system."""

    systems: dict[str, Remote] = field(default_factory=dict)


def find_remote(system: str) -> Remote:
    """Return the way to a system; a system that the file does not name is reached from this machine.

    Raises:
        InvalidInput: the file cannot be read, or has an invalid entry.
    """
    return next((remote for name, remote in read_remotes().items() if name.casefold() == system.casefold()), Remote())


def read_remotes(path: Path | None = None) -> dict[str, Remote]:
    """Return the ways in the user's file, by system; empty without a file.

    Raises:
        InvalidInput: the file cannot be read, or has an invalid entry.
    """
    path = path or settings.data_dir() / FILE
    if not path.exists():
        return {}
    return from_toml(read_input_text(path, most=MOST_TOML_BYTES), RemotesFile, label=str(path)).systems


def job_folder(system: str, remote: Remote, folder: Path) -> PurePosixPath:
    """Return the folder of job files on the system.

    Raises:
        InvalidInput: ``reach.toml`` lacks it.
    """
    if remote.folder is not None:
        return PurePosixPath(remote.folder)
    if remote.host is not None:
        raise InvalidInput(
            f'no folder for {system}: add folder = "/path/that/its/nodes/see" to [systems.{system}] of reach.toml'
        )
    return PurePosixPath((folder / "systems" / system.casefold()).absolute())
