"""Commands and files of a scheduler's machine: the port, and the adapter for this machine."""

import os
import shlex
import shutil
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Protocol

from leadline.core.errors import InvalidInput, LeadlineError, SchedulerUnreachable
from leadline.core.frozen import Frozen
from leadline.core.processes import CompletedProcess, ProcessRunner
from leadline.core.units import KIB
from leadline.estimators.file_transfer import PathProbe
from leadline.execution.transport.environment import run_without_settings
from leadline.execution.wrapper.outcome import RELEASE_TEXT, release_file_name
from leadline.files.atomic import write_atomically

FILE_S = 60.0
"""Time limit of writing or reading small files."""
PROBE_BYTES = 512 * KIB
"""Size of a probe: enough to fill a path, and moved in a second at 4 Mbit/s."""
COPY_AGAIN = ": copy it again"
"""End of the message about an incomplete copy: its fix."""
NO_PROGRAM = 127
"""Exit code of a missing command, as in shells."""


class ConnectionLost(SchedulerUnreachable):
    """The connection broke while a command ran, which may have been executed."""


class CopyReport(Frozen):
    """Bytes that a copy moved (existing files are not moved again), its seconds, and its path as it started."""

    moved_bytes: int
    elapsed_s: float
    probe: PathProbe | None = None
    competing: int = 0  # other copies on the path


class Transport(Protocol):
    """A machine on which commands run. Each method may raise ``SchedulerUnreachable``."""

    @property
    def where(self) -> str:
        """Name of the place, for messages."""

    def run(
        self, argv: Sequence[str], *, stdin: str | None = None, env: Mapping[str, str | None] = {}, timeout_s: float
    ) -> CompletedProcess:
        """Run a command to its end. With ``timed_out`` set, it may still run there.

        The user's settings of schedulers are removed, then ``env`` is added, where None removes a variable. A missing
        program has exit code 127.

        Raises:
            InvalidInput: no program can get such an argument.
            ConnectionLost: the connection broke meanwhile.
        """

    def write(self, path: PurePosixPath, text: str) -> None:
        """Write a file atomically; its folder is created.

        Raises:
            LeadlineError: the file cannot be written.
        """

    def read_changed(self, folder: PurePosixPath, names: Collection[str], *, since_s: float) -> dict[str, str]:
        """Return name -> text of the files in a folder changed after ``since_s`` (epoch of its clock)."""

    def send(self, source: Path, target: PurePosixPath, *, timeout_s: float) -> CopyReport:
        """Copy a local folder into a folder of the place, which is created; no existing file is removed.

        Raises:
            LeadlineError: the copy is incomplete; copy again.
        """

    def fetch(self, source: PurePosixPath, target: Path, *, timeout_s: float) -> CopyReport:
        """Copy a folder of the place into a local one, as ``send`` does."""


def shell_line(argv: Sequence[str]) -> str:
    """Return the arguments as one line for a POSIX shell.

    Raises:
        InvalidInput: an argument contains a NUL character or invalid Unicode.
    """
    return shlex.join(_checked(argv))


def write_release_file(transport: Transport, folder: PurePosixPath, key: str) -> None:
    """Release a held attempt whose outcome goes to that folder.

    Raises:
        SchedulerUnreachable: the file may be missing; write it again.
    """
    try:
        transport.write(folder / release_file_name(key), RELEASE_TEXT)
    except SchedulerUnreachable:
        raise
    except LeadlineError as error:
        raise SchedulerUnreachable(f"attempt {key} at {transport.where} cannot be released: {error}") from error


def probe_transport(transport: Transport, *, fetches: bool) -> PathProbe | None:
    """Time a small transfer from a place (``fetches``) or to it; None if it does not answer.

    Raises:
        SchedulerUnreachable: the place cannot be reached.
    """
    sends = (["head", "-c", str(PROBE_BYTES), "/dev/zero"], "") if fetches else (["wc", "-c"], "0" * PROBE_BYTES)
    times = []
    for command, stdin in ((["true"], ""), sends):
        began_s = time.monotonic()
        answer = transport.run(command, stdin=stdin, timeout_s=FILE_S)
        if answer.returncode or answer.timed_out:
            return None
        times.append(time.monotonic() - began_s)
    return PathProbe(PROBE_BYTES, elapsed_s=times[1], round_trip_s=times[0])


@dataclass(frozen=True, slots=True)
class LocalTransport:
    """This machine (implements ``Transport``)."""

    processes: ProcessRunner = run_without_settings
    where = "this machine"

    def run(
        self, argv: Sequence[str], *, stdin: str | None = None, env: Mapping[str, str | None] = {}, timeout_s: float
    ) -> CompletedProcess:
        """Run a command to its end, without a shell."""
        words = _checked(argv)
        try:
            return self.processes(words, env=env, stdin=stdin, timeout_s=timeout_s)
        except InvalidInput as error:
            return CompletedProcess(NO_PROGRAM, "", str(error))

    def write(self, path: PurePosixPath, text: str) -> None:
        """Write a file atomically."""
        try:
            write_atomically(Path(path), text, private=True)
        except OSError as error:
            raise LeadlineError(
                f"{path} cannot be written ({error.strerror}): check its permissions and the free space"
            ) from error

    def read_changed(self, folder: PurePosixPath, names: Collection[str], *, since_s: float) -> dict[str, str]:
        """Return name -> text of the files changed after ``since_s``."""
        texts = {}
        for name in names:
            path = Path(folder, name)
            try:
                if path.stat().st_mtime > since_s:
                    texts[name] = path.read_text(encoding="utf-8", errors="replace")
            except FileNotFoundError:  # not written yet
                continue
            except OSError as error:
                raise SchedulerUnreachable(f"{path} cannot be read ({error.strerror}): check {folder}") from error
        return texts

    def send(self, source: Path, target: PurePosixPath, *, timeout_s: float) -> CopyReport:  # noqa: ARG002 - the protocol's
        """Copy a folder into another one."""
        return _copied(source, Path(target))

    def fetch(self, source: PurePosixPath, target: Path, *, timeout_s: float) -> CopyReport:  # noqa: ARG002 - the protocol's
        """Copy a folder into another one."""
        return _copied(Path(source), target)


def _checked(argv: Sequence[str]) -> list[str]:
    """Return the arguments if a program can get them."""
    words = list(argv)
    for word in words:
        if "\0" in word:
            raise InvalidInput(f"{word!r} contains a NUL character: remove it")
        try:
            os.fsencode(word)
        except UnicodeEncodeError as error:
            raise InvalidInput(f"{word!r} is not valid text ({error.reason}): change it") from error
    return words


def _copied(source: Path, target: Path) -> CopyReport:
    began_s, moved_bytes = time.monotonic(), 0

    def copy(source_file: str, target_file: str) -> None:
        nonlocal moved_bytes
        final = Path(target_file)
        arriving = final.with_name(f".{final.name}.arriving")
        shutil.copy2(source_file, arriving)
        moved_bytes += arriving.stat().st_size
        arriving.replace(final)

    try:
        shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True, copy_function=copy)
    except (OSError, shutil.Error) as error:
        raise LeadlineError(f"{source} was not completely copied to {target} ({error}){COPY_AGAIN}") from error
    return CopyReport(moved_bytes, time.monotonic() - began_s)
