"""Start processes: the only module of Leadline that does."""

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from leadline.core.errors import InvalidInput
from leadline.core.processes import CompletedProcess

GRACE_S = 2.0
"""How long a process group may take to end after SIGTERM before SIGKILL."""


def run_process(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: str | None = None,
    timeout_s: float | None = None,
) -> CompletedProcess:
    """Run ``argv`` without a shell to its end and capture its output (implements ``ProcessRunner``).

    ``env`` is added to the current environment; ``stdin`` is what it reads, nothing if there is none. After
    ``timeout_s`` the whole process group is ended.

    Raises:
        InvalidInput: the program does not exist or may not be executed.
    """
    try:
        process = subprocess.Popen(  # noqa: S603 - the command is the user's own, and there is no shell
            list(argv),
            env={**os.environ, **(env or {})},
            cwd=cwd,
            stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
    except FileNotFoundError as error:
        raise InvalidInput(f"{argv[0]!r} cannot be started: there is no such program; check the command") from error
    except PermissionError as error:
        raise InvalidInput(f"{argv[0]!r} cannot be started: it is not executable; chmod +x it") from error
    try:
        stdout, stderr = process.communicate(stdin, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        stdout, stderr = _end_group(process)
        return CompletedProcess(process.returncode, stdout, stderr, timed_out=True)
    except BaseException:
        _end_group(process)
        raise
    return CompletedProcess(process.returncode, stdout, stderr)


def run_pipe(source: Sequence[str], target: Sequence[str], *, timeout_s: float | None = None) -> CompletedProcess:
    """Run ``source`` with its output going to ``target``, both to their end, and capture what they say on stderr.

    The exit code is the first that is not 0. After ``timeout_s`` both are ended.

    Raises:
        InvalidInput: a program does not exist or may not be executed.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    started: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryFile() as said, Path(os.devnull).open("r+b") as nothing:
        quiet, errors = nothing.fileno(), said.fileno()
        readable, writable = os.pipe()
        try:
            try:
                started.append(start_process(source, stdin=quiet, stdout=writable, stderr=errors, own_group=True))
                started.append(start_process(target, stdin=readable, stdout=quiet, stderr=errors, own_group=True))
            finally:
                os.close(readable)
                os.close(writable)
            codes = [one.wait(None if deadline is None else max(deadline - time.monotonic(), 0.0)) for one in started]
            timed_out = False
        except subprocess.TimeoutExpired:
            codes, timed_out = [-signal.SIGKILL], True
        finally:
            for one in started:
                one.kill()
                one.wait()
        said.seek(0)
        text = said.read().decode(errors="replace")
    return CompletedProcess(next((code for code in codes if code), 0), "", text, timed_out)


def start_process(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: int | None = None,
    stdout: int | None = None,
    stderr: int | None = None,
    own_group: bool = False,
    own_session: bool = False,
    pass_fds: Sequence[int] = (),
) -> "subprocess.Popen[bytes]":
    """Start ``argv`` without a shell on this process's own streams, and return it running.

    ``stdin``, ``stdout`` and ``stderr`` are file descriptors that stand in for them, and ``pass_fds`` are further ones
    that it gets under their numbers. A process of its own group is not
    reached by the terminal's signals; one of its own session also survives the end of this process and of the terminal.

    Raises:
        InvalidInput: the program does not exist or may not be executed, or the folder does not exist.
    """
    if cwd is not None and not cwd.is_dir():
        raise InvalidInput(f"{str(cwd)!r} cannot be worked in: it is no folder; check the path")
    try:
        return subprocess.Popen(  # noqa: S603 - the command is the user's own, and there is no shell
            list(argv),
            env={**os.environ, **(env or {})},
            cwd=cwd,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            process_group=0 if own_group and not own_session else None,
            start_new_session=own_session,
            pass_fds=pass_fds,
        )
    except FileNotFoundError as error:
        raise InvalidInput(f"{argv[0]!r} cannot be started: there is no such program; check the command") from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise InvalidInput(f"{argv[0]!r} cannot be started ({reason}): make it an executable program") from error


def _end_group(process: subprocess.Popen[str]) -> tuple[str, str]:
    """End the process and its children: TERM, then KILL after the grace time; return what it said until then.

    What left the group (a shared connection's master, a daemon) may hold the pipes open; it is not waited for.
    """
    said: tuple[bytes | str | None, bytes | str | None] = (None, None)
    for sign in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, sign)
        try:
            return process.communicate(timeout=GRACE_S)
        except subprocess.TimeoutExpired as error:
            said = error.stdout, error.stderr
        if process.poll() is not None:
            break
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            stream.close()
    process.wait()
    stdout, stderr = (one.decode(errors="replace") if isinstance(one, bytes) else one or "" for one in said)
    return stdout, stderr
