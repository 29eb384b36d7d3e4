"""The outcome that the wrapper writes: the end state and all measurements, with the control file next to it."""

from pathlib import Path

from msgspec import field

from leadline.core.documents import from_json, to_document, to_json
from leadline.core.errors import InvalidInput
from leadline.core.frozen import Frozen
from leadline.core.jobs import JobState
from leadline.core.progress import Progress
from leadline.core.runs import Measurement
from leadline.execution.clock import epoch_s
from leadline.files.atomic import write_atomically

SCHEMA = "leadline.outcome/1"
EXIT_NEVER_BEGAN = 125
"""Exit code of a wrapper that started no command, for one of three reasons.

Its starter died before it opened the gate (the outcome's state is PENDING). Another wrapper had started the same
attempt (there is no outcome). Or the copy was never released (``never_released``).
"""
# Scripts of submitted jobs contain this text, and ``failure_patterns`` looks for it: do not change it.
STARTED_BEFORE = "was started before, and nothing tells how it ended: it is not started again"
"""Message about an attempt that a forgetful scheduler starts a second time."""
DONE, SAVED = "done", "saved"
"""Words of the marker file: the work is done, or the state is saved and the work goes on in another attempt."""
MARKER_VARIABLE = "LEADLINE_MARKER"
"""Environment variable with the path of the marker file."""
RELEASE_TEXT = "begin\n"
"""Content of the file that releases a copy of a job."""


class JobOutcome(Frozen):
    """One command under the wrapper.

    Attributes:
        state: RUNNING in an interim outcome, which remains if the wrapper is killed; PENDING if the command never
            began.
        exit_code: the command's own exit code, or None if a signal ended it.
        signal: number of the ending signal, or None.
        node: hardware of the node (``describe_node``).
        progress: the command's own progress.
        warned: a process of the command handled the signal before the limit, upon which it writes a checkpoint.
        marker: DONE or SAVED, as the command wrote to its marker file; empty without one.
    """

    state: JobState
    started_at: str
    host: str
    command: tuple[str, ...]
    pid: int | None = None
    ended_at: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    reason: str = ""
    measured: dict[str, Measurement] = field(default_factory=dict)
    node: dict[str, str] = field(default_factory=dict)
    progress: Progress | None = None
    warned: bool = False
    marker: str = ""
    schema: str = SCHEMA

    def __post_init__(self) -> None:
        """Refuse times that are none; a damaged file would otherwise stop the process that reads it."""
        for moment in (self.started_at, self.ended_at or self.started_at):
            try:
                epoch_s(moment)
            except OverflowError as error:
                raise ValueError(f"{moment} is no time") from error

    @property
    def never_released(self) -> bool:
        """True if this copy of a job was never released."""
        return self.state is JobState.CANCELLED and self.exit_code == EXIT_NEVER_BEGAN and self.pid is None


def release_file_name(key: str) -> str:
    """Return the name of the file, next to its outcome, that releases an attempt."""
    return f"{key}.word"


def write_outcome(outcome: JobOutcome, path: Path) -> None:
    """Write the outcome atomically."""
    write_atomically(path, to_json(to_document(outcome, SCHEMA)) + "\n", private=True)


def read_outcome(path: Path) -> JobOutcome:
    """Read the outcome of a wrapper.

    Raises:
        InvalidInput: the file is missing or is not an outcome.
    """
    try:
        text = path.read_bytes()
    except OSError as error:
        raise InvalidInput(
            f"{path} cannot be read ({error.strerror}): the measuring wrapper wrote no result"
        ) from error
    return from_json(text, JobOutcome, label=str(path))


def control_path(result: Path) -> Path:
    """Return the control file of the command with that outcome file."""
    return result.with_suffix(".control")


def read_marker(marker: Path) -> str:
    """Return the word in a marker file; empty without a file or with another text."""
    try:
        with marker.open("rb") as stream:
            word = stream.read(64).decode(errors="replace").strip().casefold()
    except OSError:
        return ""
    return word if word in (DONE, SAVED) else ""


def set_walltime(result: Path, walltime_s: float) -> None:
    """Change the limit of a running command, counted from its start. Its wrapper polls the control file."""
    write_atomically(control_path(result), to_json({"walltime_s": walltime_s}) + "\n", private=True)


def read_walltime_s(control: Path) -> float | None:
    """Return the changed limit; None without a change or with an invalid file."""
    try:
        return from_json(control.read_bytes(), dict[str, float], label=str(control)).get("walltime_s")
    except (OSError, InvalidInput):
        return None
