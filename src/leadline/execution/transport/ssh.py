"""Another machine over one shared SSH connection."""

import base64
import hashlib
import io
import re
import shlex
import shutil
import socket
import tarfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from threading import Lock

from leadline.core.errors import InvalidInput, LeadlineError, SchedulerUnreachable
from leadline.core.processes import CompletedProcess, ProcessRunner
from leadline.execution.processes import run_pipe, run_process
from leadline.execution.transport.environment import UNSET
from leadline.execution.transport.port import COPY_AGAIN, FILE_S, ConnectionLost, CopyReport, shell_line

FAILED = 255
"""Exit code of ssh itself. A command's own 255 differs in that the connection stays open."""
OPEN_S = 40.0
"""Time limit for opening a connection."""
QUIET_S = 1.0
"""Time after a failure without another try, because several threads may use the connection. The plane waits longer."""
MOST_FILE_BYTES = 2**26
"""Bytes of one file that are read; an outcome has some thousands."""
PERSIST = "4h"
"""Time that an unused connection stays open."""
PARTIAL = ".leadline-partial"
"""Folder of files that were cut off, beside each; rsync removes it with the last of them."""
CHANGED = """\
cd -- "$1" 2>/dev/null || { echo none; exit; }
xargs -0 -r sh -c 'since=$1; shift; exec find "$@" -maxdepth 0 -type f -newermt "@$since" -print0 2>/dev/null' sh "$2" |
tar --null -T - --no-recursion -cf - 2>/dev/null | base64"""
"""Packs the files named on its input that changed since ``$2``."""
WRITE = """\
set -e; umask 077; mkdir -p -- "${1%/*}"
new=$(mktemp "${1%/*}/.leadline.XXXXXX"); trap 'rm -f -- "$new"' EXIT
cat > "$new"; test "$(wc -c < "$new")" -eq "$2"; sync "$new" 2>/dev/null || sync; mv -f -- "$new" "$1"
"""
"""Writes its input to the file ``$1``, which only its owner can read, if it has ``$2`` bytes."""


@dataclass(slots=True)
class SshTransport:
    """A machine that the user can log in to with ``ssh HOST`` (implements ``Transport``).

    It never asks the user for input. If a login needs a second factor, the user opens a connection, which ``ssh -O
    check`` finds. After a refused login only such a connection is looked for. The remote login shell must be a POSIX
    shell (sh, bash, dash, ksh, zsh).

    Attributes:
        host: destination as for ssh, an alias or ``user@host``.
        config: configuration file in place of the user's own.

    Raises:
        InvalidInput: the host is not possible.
    """

    host: str
    config: Path | None = None
    sockets: Path = field(default_factory=lambda: Path.home() / ".ssh")
    processes: ProcessRunner = run_process
    clock: Callable[[], float] = time.monotonic
    _shared: list[str] | None = None
    _failure: str = ""
    _refused: bool = False
    _again_s: float = 0.0
    _rsync: bool | None = None
    _opening: Lock = field(default_factory=Lock)

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_.@:%\[\]-]+", self.host) or self.host.startswith("-"):
            raise InvalidInput(f"{self.host!r} cannot be a host for ssh: use a name such as in ssh HOST")

    @property
    def where(self) -> str:
        """Name of the place, for messages."""
        return self.host

    def run(
        self, argv: Sequence[str], *, stdin: str | None = None, env: Mapping[str, str | None] = {}, timeout_s: float
    ) -> CompletedProcess:
        """Run a command there. Opening the connection may take ``OPEN_S`` more."""
        removed = [word for name, value in env.items() if value is None for word in ("-u", name)]
        added = [f"{name}={value}" for name, value in env.items() if value is not None]
        words = [*(["env", *removed, *added] if env else []), *argv]
        # The shared connection may have been closed since the last command.
        for _ in range(2):
            answer = self.processes(self._command(words, UNSET), stdin=stdin or "", timeout_s=timeout_s)
            if answer.returncode != FAILED or answer.timed_out or self._is_open():
                return answer
            self._shared = None
            # ssh prints this if the master vanished before the command was sent, so a retry is safe.
            if "UNKNOWN port 65535" not in answer.stderr:
                raise ConnectionLost(
                    f"the connection to {self.host} broke ({_why(answer)}): check if the command was executed"
                )
        raise self._unreachable("the connection closes as soon as it is open")

    def write(self, path: PurePosixPath, text: str) -> None:
        """Write a file atomically."""
        size = str(len(text.encode()))
        answer = self.run(["sh", "-c", WRITE, "sh", str(path), size], stdin=text, timeout_s=FILE_S)
        if answer.returncode or answer.timed_out:
            raise LeadlineError(
                f"{path} cannot be written at {self.host} ({_why(answer)}): check its permissions and the free space"
            )

    def read_changed(self, folder: PurePosixPath, names: Collection[str], *, since_s: float) -> dict[str, str]:
        """Return name -> text of the files changed after ``since_s``, with one command."""
        if not names:
            return {}
        listing = "".join(f"./{name}\0" for name in names)
        command = ["sh", "-c", CHANGED, "sh", str(folder), f"{max(since_s, 0.0):.6f}"]
        answer = self.run(command, stdin=listing, timeout_s=FILE_S)
        if answer.stdout.strip() == "none":
            return {}
        try:
            with tarfile.open(fileobj=io.BytesIO(base64.b64decode(answer.stdout)), mode="r:") as archive:
                return {
                    member.name.removeprefix("./"): content.read(MOST_FILE_BYTES).decode(errors="replace")
                    for member in archive
                    if (content := archive.extractfile(member)) is not None
                }
        except (tarfile.TarError, ValueError) as error:
            raise SchedulerUnreachable(f"{folder} at {self.host} cannot be read ({_why(answer)}): check it") from error

    def send(self, source: Path, target: PurePosixPath, *, timeout_s: float) -> CopyReport:
        """Copy a folder there: with rsync, which resumes and moves only differences, or with tar."""
        answer = self.run(["mkdir", "-p", "--", str(target)], timeout_s=OPEN_S)
        if answer.returncode:
            raise LeadlineError(f"{target} cannot be created at {self.host} ({_why(answer)}): check its permissions")
        if self._has_rsync():
            return self._by_rsync(f"{source}/", f"{self.host}:{target}/", timeout_s)
        return _by_tar(_pack(source), self._command(_unpack(target)), f"{source}", source, timeout_s)

    def fetch(self, source: PurePosixPath, target: Path, *, timeout_s: float) -> CopyReport:
        """Copy a folder from there, as ``send`` does."""
        target.mkdir(parents=True, exist_ok=True)
        if self._has_rsync():
            return self._by_rsync(f"{self.host}:{source}/", f"{target}/", timeout_s)
        return _by_tar(self._command(_pack(source)), _unpack(target), f"{self.host}:{source}", target, timeout_s)

    def close(self) -> None:
        """Close the connection if it is Leadline's own."""
        if self._shared == self._own_socket():
            self.processes([*self._ssh(), *self._own_socket(), "-O", "exit", "--", self.host], timeout_s=OPEN_S)
        self._shared = None

    def _ssh(self) -> list[str]:
        return ["ssh", *(["-F", str(self.config)] if self.config else []), "-o", "BatchMode=yes"]

    def _own_socket(self) -> list[str]:
        # A socket path may have 107 characters. Machines share home folders, but not sockets.
        mark = hashlib.sha256(f"{socket.gethostname()}\n{self.config}\n{self.host}".encode()).hexdigest()[:10]
        return ["-S", str(self.sockets / f"leadline-{mark}")]

    def _client(self) -> list[str]:
        """Return the ssh command that uses the shared connection and fails without it."""
        # Of several threads, one opens the connection.
        with self._opening:
            if self._shared is None:
                self._shared = self._open()
            shared = self._shared
        # No second connection and no proxy: a login could ask for a second factor.
        return [*self._ssh(), *shared, "-o", "ControlMaster=no", "-o", "ProxyJump=none", "-o",
                "ProxyCommand=false"]  # fmt: skip

    def _command(self, argv: Sequence[str], first: str = "") -> list[str]:
        return [*self._client(), "--", self.host, f"{first}{shell_line(argv)}"]

    def _open(self) -> list[str]:
        """Return an open connection, Leadline's or the user's own, or open one."""
        for shared in (self._own_socket(), []):
            if self._is_open(shared):
                self._failure, self._refused = "", False
                return shared
        if self._refused or self.clock() < self._again_s:
            raise SchedulerUnreachable(self._failure)
        # Whoever can open a socket can use the connection.
        self.sockets.mkdir(mode=0o700, parents=True, exist_ok=True)
        options = {"ControlPersist": PERSIST, "ConnectTimeout": "20", "ConnectionAttempts": "1",
                   "ServerAliveInterval": "15", "ServerAliveCountMax": "3", "LogLevel": "ERROR"}  # fmt: skip
        settings = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        answer = self.processes(
            [*self._ssh(), *self._own_socket(), *settings, "-M", "-N", "-f", "--", self.host], timeout_s=OPEN_S
        )
        if answer.returncode or answer.timed_out:
            raise self._unreachable(_why(answer))
        self._failure = ""
        return self._own_socket()

    def _is_open(self, shared: list[str] | None = None) -> bool:
        """True if a shared connection is open. This asks only its master process."""
        shared = self._shared if shared is None else shared
        if shared is None:
            return False
        command = [*self._ssh(), *shared, "-O", "check", "--", self.host]
        return self.processes(command, timeout_s=OPEN_S).returncode == 0

    def _unreachable(self, why: str) -> SchedulerUnreachable:
        """Store a failure and return the error."""
        self._again_s = self.clock() + QUIET_S
        # Repeated refused logins would lock the account at some sites.
        self._refused = "Permission denied" in why or "verification failed" in why or "authentication" in why
        config = ["-F", str(self.config)] if self.config else []
        login = ["ssh", *config, "-fNM", *self._own_socket(), "-o", f"ControlPersist={PERSIST}", self.host]
        fix = f": log in once with {shlex.join(login)}" if self._refused else ""
        self._failure = f"{self.host} cannot be reached by ssh ({why}){fix}"
        return SchedulerUnreachable(self._failure)

    def _has_rsync(self) -> bool:
        if self._rsync is None:
            answer = self.run(["sh", "-c", "command -v rsync"], timeout_s=OPEN_S)
            self._rsync = answer.returncode == 0 and shutil.which("rsync") is not None
        return self._rsync

    def _by_rsync(self, source: str, target: str, timeout_s: float) -> CopyReport:
        began_s = time.monotonic()
        client = shlex.join(self._client())
        # If this process is killed, a copy that went on could replace files of a later copy.
        end_with_us = ("setpriv", "--pdeathsig", "TERM") if shutil.which("setpriv") else ()
        # Sizes and times do not show a damaged file, so contents are compared. A file that was cut off waits under
        # another name, and its blocks are not moved again. Appending to it would keep a file that became shorter.
        answer = self.processes(
            [*end_with_us, "rsync", "-a", "--checksum", f"--partial-dir={PARTIAL}", "--protect-args", "--stats",
             "--no-human-readable", "-e", client, source, target],
            # The statistics are parsed, so they must be in English.
            env={"LC_ALL": "C"}, timeout_s=timeout_s,
        )  # fmt: skip
        moved = re.search(r"^Literal data: ([\d,.]+) bytes", answer.stdout, re.MULTILINE)
        # Without the statistics rsync was interrupted, whatever its exit code.
        if answer.returncode or answer.timed_out or moved is None:
            if not self._is_open():
                self._shared = None  # the next copy opens a connection
            raise LeadlineError(
                f"{source} was not completely copied to {target} ({_why_incomplete(answer)}){COPY_AGAIN}"
            )
        return CopyReport(int(re.sub(r"\D", "", moved[1])), time.monotonic() - began_s)


def _pack(folder: Path | PurePosixPath) -> list[str]:
    return ["tar", "-C", str(folder), "-cf", "-", "."]


def _unpack(folder: Path | PurePosixPath) -> list[str]:
    return ["tar", "-C", str(folder), "-xpf", "-"]


def _by_tar(pack: list[str], unpack: list[str], source: str, local: Path, timeout_s: float) -> CopyReport:
    """Pipe one tar into the other; ``local`` is the folder on this machine, whose size is known."""
    began_s = time.monotonic()
    piped = run_pipe(pack, unpack, timeout_s=timeout_s)
    if piped.returncode or piped.timed_out:
        raise LeadlineError(f"{source} was not completely copied ({_why_incomplete(piped)}){COPY_AGAIN}")
    moved_bytes = sum(path.lstat().st_size for path in local.rglob("*") if path.is_file() and not path.is_symlink())
    return CopyReport(moved_bytes, time.monotonic() - began_s)


def _why(answer: CompletedProcess) -> str:
    lines = answer.stderr.strip().splitlines()
    return "no answer in time" if answer.timed_out else lines[-1] if lines else f"exit code {answer.returncode}"


def _why_incomplete(answer: CompletedProcess) -> str:
    """Return the first error of rsync or tar, since the last one names only what followed from it."""
    first = next((line for line in answer.stderr.splitlines() if line.startswith(("rsync: ", "tar: "))), None)
    return _why(answer) if answer.timed_out or first is None else first
