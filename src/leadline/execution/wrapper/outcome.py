"""What the wrapper writes down: the state a command ended in, and its figures with method and interval."""

import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from leadline.core.documents import from_json, to_document, to_json
from leadline.core.errors import InvalidInput
from leadline.core.jobs import JobState
from leadline.core.progress import Progress
from leadline.core.runs import Measurement

SCHEMA = "leadline.outcome/1"
EXIT_NEVER_BEGAN = 125
"""Exit code of a wrapper that started no command: its starter died before it said so (the outcome's state is PENDING),
another wrapper had started the same attempt (there is no outcome of this one), or it was a copy of a job that never got
the plane's word (``never_let``)."""
STARTED_BEFORE = "was started before, and nothing tells how it ended: it is not started again"
"""What is said of an attempt that its scheduler starts once more, which it does if it forgot of the first time."""
RELEASE_TEXT = "begin\n"
"""What is in the file that lets a copy of a job begin."""


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """One command under the wrapper; ``state`` RUNNING is an interim result, all that is left if the wrapper is killed.

    ``state`` PENDING says that the command was never begun.
    ``exit_code`` is the command's own, ``signal`` the number of the signal that ended it; one of them is ``None``.
    ``node`` is what the node says of itself (``describe_node``).
    ``progress`` is what the command showed of its own progress. ``warned`` says that a process of it that listens was
    sent the signal before its limit, upon which it writes a checkpoint.
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
    schema: str = SCHEMA

    @property
    def never_released(self) -> bool:
        """Whether it is a copy of a job that was never let begin."""
        return self.state is JobState.CANCELLED and self.exit_code == EXIT_NEVER_BEGAN and self.pid is None


def release_file_name(key: str) -> str:
    """Return the name of the file, beside its outcome, that lets the attempt of that key begin."""
    return f"{key}.word"


def write_outcome(outcome: JobOutcome, path: Path) -> None:
    """Write the outcome whole or not at all, in place of an older one."""
    write_atomically(to_json(to_document(outcome, SCHEMA)) + "\n", path)


def write_atomically(text: str, path: Path) -> None:
    """Write a file whole or not at all, in place of an older one; it is on the disk when this returns."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def read_outcome(path: Path) -> JobOutcome:
    """Read what the wrapper wrote.

    Raises:
        InvalidInput: there is no such file, or it is not an outcome.
    """
    try:
        text = path.read_bytes()
    except OSError as error:
        raise InvalidInput(
            f"{path} cannot be read ({error.strerror}): the measuring wrapper wrote no result"
        ) from error
    return from_json(text, JobOutcome, label=str(path))


def control_path(result: Path) -> Path:
    """Return the control file of the command whose outcome goes to ``result``."""
    return result.with_suffix(".control")


def set_walltime(result: Path, walltime_s: float) -> None:
    """Give a running command another limit, counted from its start."""
    write_atomically(to_json({"walltime_s": walltime_s}) + "\n", control_path(result))


def read_walltime_s(control: Path) -> float | None:
    """Return the limit that was asked for meanwhile; ``None`` if none was, or the file holds something else."""
    try:
        return from_json(control.read_bytes(), dict[str, float], label=str(control)).get("walltime_s")
    except (OSError, InvalidInput):
        return None
