"""Paths of the output files of attempts, found without a scheduler."""

from dataclasses import dataclass, field
from pathlib import PurePosixPath

from leadline.app.jobs.journal import plane_dir
from leadline.app.machines.remotes import Remote, find_remote, job_folder
from leadline.app.machines.targets import LOCAL
from leadline.core.errors import LeadlineError
from leadline.core.plane import Attempt
from leadline.execution.schedulers.attempt_files import RUNS_FOLDER, log_name


def output_path(attempt: Attempt) -> tuple[Remote, PurePosixPath]:
    """Return the output file of an attempt, and the way to it.

    Raises:
        InvalidInput: ``reach.toml`` cannot be read, or lacks the system's folder.
    """
    system = attempt.place.system
    if system.casefold() == LOCAL:
        return Remote(), PurePosixPath((plane_dir() / LOCAL / RUNS_FOLDER / log_name(attempt.key)).absolute())
    remote = find_remote(system)
    return remote, job_folder(system, remote, plane_dir()) / RUNS_FOLDER / log_name(attempt.key)


@dataclass(slots=True)
class OutputPaths:
    """Finds the output files of attempts; each system is looked up once."""

    _folders: dict[str, PurePosixPath | None] = field(default_factory=dict)

    def of(self, attempt: Attempt) -> str | None:
        """Return the output file of an attempt; ``None`` if the folder of its system is unknown."""
        system = attempt.place.system
        if system not in self._folders:
            try:
                self._folders[system] = output_path(attempt)[1].parent
            except LeadlineError:
                self._folders[system] = None
        folder = self._folders[system]
        return None if folder is None else str(folder / log_name(attempt.key))
