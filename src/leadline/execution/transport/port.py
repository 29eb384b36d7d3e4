"""Where a scheduler's commands run and its files lie: on this machine, or (``ssh.py``) on one that is logged in to."""

import os
import shlex
import shutil
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Protocol

from leadline.core.errors import InvalidInput, LeadlineError, SchedulerUnreachable
from leadline.core.processes import CompletedProcess, ProcessRunner
from leadline.execution.processes import run_process
from leadline.execution.wrapper.outcome import RELEASE_TEXT, release_file_name, write_atomically

NO_PROGRAM = 127
"""The exit code of a command that is not there, as shells have it."""


class ConnectionLost(SchedulerUnreachable):
    """The way to the other machine broke while a command ran: it may have been carried out."""


@dataclass(frozen=True, slots=True)
class CopyReport:
    """What a copy took: the bytes of the files that were moved (those that were there already are not), and seconds."""

    moved_bytes: int
    elapsed_s: float


class Transport(Protocol):
    """A place that commands are run at. Each method may raise ``SchedulerUnreachable``, which says what to do."""

    @property
    def where(self) -> str:
        """The place's name, for messages."""

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout_s: float,
    ) -> CompletedProcess:
        """Run a command to its end; ``timed_out`` is set where that took too long, and it may still run there.

        A program that does not exist has exit code 127.

        Raises:
            InvalidInput: an argument cannot be handed to any program.
            CutOff: the connection broke meanwhile.
        """

    def write(self, path: PurePosixPath, text: str, *, timeout_s: float = 60.0) -> None:
        """Write a file whole or not at all, in place of an older one; its folder is made.

        Raises:
            LeadlineError: it cannot be written there.
        """

    def read_changed(
        self, folder: PurePosixPath, names: Collection[str], *, since_s: float, timeout_s: float = 60.0
    ) -> dict[str, str]:
        """Return name → text of those files of a folder that were changed after ``since_s`` (epoch of its clock)."""

    def send(self, source: Path, target: PurePosixPath, *, timeout_s: float) -> CopyReport:
        """Copy a folder of this machine into one of the place, which is made; nothing of what is there is removed.

        Raises:
            LeadlineError: not all was copied; copy again.
        """

    def fetch(self, source: PurePosixPath, target: Path, *, timeout_s: float) -> CopyReport:
        """Copy a folder of the place into one of this machine, as ``send`` does."""


def shell_line(argv: Sequence[str]) -> str:
    """Return words as one line from which a POSIX shell makes these very words again, and nothing else.

    Raises:
        InvalidInput: a word holds a NUL character or is no Unicode text, and no program can be given it.
    """
    return shlex.join(_checked(argv))


def write_release_file(transport: Transport, folder: PurePosixPath, key: str) -> None:
    """Let a held attempt begin whose outcome goes to that folder.

    Raises:
        SchedulerUnreachable: it is not known whether the word is there; write it again.
    """
    try:
        transport.write(folder / release_file_name(key), RELEASE_TEXT)
    except SchedulerUnreachable:
        raise
    except LeadlineError as error:
        raise SchedulerUnreachable(f"attempt {key} at {transport.where} cannot be let begin: {error}") from error


@dataclass(frozen=True, slots=True)
class LocalTransport:
    """This machine (implements ``Transport``)."""

    processes: ProcessRunner = run_process

    @property
    def where(self) -> str:
        """The place's name, for messages."""
        return "this machine"

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout_s: float,
    ) -> CompletedProcess:
        """Run a command to its end, without a shell."""
        words = _checked(argv)
        try:
            return self.processes(words, env=env, stdin=stdin, timeout_s=timeout_s)
        except InvalidInput as error:
            return CompletedProcess(NO_PROGRAM, "", str(error))

    def write(self, path: PurePosixPath, text: str, *, timeout_s: float = 60.0) -> None:  # noqa: ARG002 - the protocol's
        """Write a file whole or not at all."""
        try:
            Path(path.parent).mkdir(parents=True, exist_ok=True)
            write_atomically(text, Path(path))
        except OSError as error:
            raise LeadlineError(
                f"{path} cannot be written ({error.strerror}): check its permissions and the free space"
            ) from error

    def read_changed(
        self,
        folder: PurePosixPath,
        names: Collection[str],
        *,
        since_s: float,
        timeout_s: float = 60.0,  # noqa: ARG002 - the protocol's
    ) -> dict[str, str]:
        """Return name → text of those files of a folder that were changed after ``since_s``."""
        found = {}
        for name in names:
            path = Path(folder, name)
            try:
                if path.stat().st_mtime > since_s:
                    found[name] = path.read_text(encoding="utf-8", errors="replace")
            except FileNotFoundError:  # not written yet
                continue
            except OSError as error:
                raise SchedulerUnreachable(f"{path} cannot be read ({error.strerror}): check {folder}") from error
        return found

    def send(self, source: Path, target: PurePosixPath, *, timeout_s: float) -> CopyReport:  # noqa: ARG002 - the protocol's
        """Copy a folder into another one."""
        return _copied(source, Path(target))

    def fetch(self, source: PurePosixPath, target: Path, *, timeout_s: float) -> CopyReport:  # noqa: ARG002 - the protocol's
        """Copy a folder into another one."""
        return _copied(Path(source), target)


def _checked(argv: Sequence[str]) -> list[str]:
    """Return words that a program can be given."""
    words = list(argv)
    for word in words:
        if "\0" in word:
            raise InvalidInput(f"{word!r} holds a NUL character, which no program can be given: remove it")
        try:
            os.fsencode(word)
        except UnicodeEncodeError as error:
            raise InvalidInput(
                f"{word!r} is no text that a program can be given ({error.reason}): change it"
            ) from error
    return words


def _copied(source: Path, target: Path) -> CopyReport:
    began_s, moved_bytes = time.monotonic(), 0

    def copy(one: str, other: str) -> None:
        nonlocal moved_bytes
        there = Path(other)
        arriving = there.with_name(f".{there.name}.arriving")
        shutil.copy2(one, arriving)
        moved_bytes += arriving.stat().st_size
        arriving.replace(there)

    try:
        shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True, copy_function=copy)
    except (OSError, shutil.Error) as error:
        raise LeadlineError(f"{source} was not copied whole to {target} ({error}): copy it again") from error
    return CopyReport(moved_bytes, time.monotonic() - began_s)
