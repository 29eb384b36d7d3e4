"""Start processes; the only module of Leadline that does."""

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, cast

from leadline.core.errors import InvalidInput
from leadline.core.processes import CompletedProcess

GRACE_S = 2.0
"""Seconds from SIGTERM to SIGKILL of a process group."""

_awaited: "set[subprocess.Popen[str]]" = set()
"""Processes that ``run_process`` waits for, perhaps in several threads."""


def run_process(
    argv: Sequence[str],
    *,
    env: Mapping[str, str | None] | None = None,
    cwd: Path | None = None,
    stdin: str | None = None,
    timeout_s: float | None = None,
) -> CompletedProcess:
    """Run ``argv`` without a shell to its end and capture its output (implements ``ProcessRunner``).

    ``env`` is added to the current environment, where None removes a variable. Without ``stdin`` the input is empty.
    After ``timeout_s`` the whole process group is killed.

    Raises:
        InvalidInput: the program does not exist or is not executable.
    """
    with _starting(argv[0]):
        process = subprocess.Popen(  # noqa: S603 - the command is the user's own, and there is no shell
            list(argv),
            env={name: value for name, value in {**os.environ, **(env or {})}.items() if value is not None},
            cwd=cwd,
            stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
    _awaited.add(process)
    try:
        stdout, stderr = process.communicate(stdin, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        stdout, stderr = _end_group(process)
        return CompletedProcess(process.returncode, stdout, stderr, timed_out=True)
    except BaseException:
        _end_group(process)
        raise
    finally:
        _awaited.discard(process)
    return CompletedProcess(process.returncode, stdout, stderr)


def kill_awaited() -> None:
    """Kill the processes that ``run_process`` waits for in other threads, with their groups, so that it returns."""
    for process in tuple(_awaited):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def run_pipe(source: Sequence[str], target: Sequence[str], *, timeout_s: float) -> CompletedProcess:
    """Run ``source`` with its output piped to ``target``, and capture the errors of both.

    The exit code is the first one that is not 0. After ``timeout_s`` both are killed.

    Raises:
        InvalidInput: a program does not exist or is not executable.
    """
    deadline_s = time.monotonic() + timeout_s
    started: list[subprocess.Popen[bytes]] = []
    null, pipe = subprocess.DEVNULL, subprocess.PIPE
    with tempfile.TemporaryFile() as error_file:
        errors = error_file.fileno()
        try:
            first = start_process(source, stdin=null, stdout=pipe, stderr=errors, own_group=True)
            started.append(first)
            # Closed here afterwards, so that the source sees the end of the target.
            with cast("IO[bytes]", first.stdout) as output:
                started.append(start_process(target, stdin=output.fileno(), stdout=null, stderr=errors, own_group=True))
            codes = [process.wait(max(deadline_s - time.monotonic(), 0.0)) for process in started]
            timed_out = False
        except subprocess.TimeoutExpired:
            codes, timed_out = [-signal.SIGKILL], True
        finally:
            for process in started:
                process.kill()
                process.wait()
        error_file.seek(0)
        text = error_file.read().decode(errors="replace")
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
    """Start ``argv`` without a shell and return the running process.

    ``env`` is added to the current environment. ``stdin``, ``stdout`` and ``stderr`` are descriptors in place of this
    process's own, ``pass_fds`` further ones that it inherits. ``own_group`` keeps the terminal's signals from it, and
    with ``own_session`` it also survives the end of this process and of the terminal.

    Raises:
        InvalidInput: the program or the folder does not exist, or the program is not executable.
    """
    if cwd is not None and not cwd.is_dir():
        raise InvalidInput(f"{str(cwd)!r} is not a folder: check the path")
    with _starting(argv[0]):
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


@contextmanager
def _starting(program: str) -> Iterator[None]:
    """Turn the errors of a start into the user's."""
    try:
        yield
    except FileNotFoundError as error:
        raise InvalidInput(f"{program!r} cannot be started: there is no such program; check the command") from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise InvalidInput(f"{program!r} cannot be started ({reason}): make it an executable program") from error


def _end_group(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Kill the process and its children and return the output until then.

    A process that left the group (a daemon, the master of a shared connection) may keep the pipes open; it is not
    waited for.
    """
    output: tuple[bytes | str | None, bytes | str | None] = (None, None)
    for sign in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            # The whole group, or children would keep the pipes open.
            os.killpg(process.pid, sign)
        try:
            return process.communicate(timeout=GRACE_S)
        except subprocess.TimeoutExpired as error:
            output = error.stdout, error.stderr
        if process.poll() is not None:
            break
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            stream.close()
    process.wait()
    stdout, stderr = (part.decode(errors="replace") if isinstance(part, bytes) else part or "" for part in output)
    return stdout, stderr
