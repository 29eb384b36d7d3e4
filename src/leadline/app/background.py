"""Run slow work in the background: in a thread, and in a process of its own; and report its steps."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from subprocess import PIPE, Popen, TimeoutExpired
from threading import Thread
from typing import IO, Generic, TypeVar, cast

from leadline.core.documents import from_json, to_json
from leadline.core.errors import LeadlineError
from leadline.execution.processes import kill_awaited, run_process, start_process

T = TypeVar("T")
Q = TypeVar("Q")

NICENESS = 10
END_S = 6.0
"""Seconds that a process has to end its own processes."""

_hearer: ContextVar[Callable[[str], None] | None] = ContextVar("hearer", default=None)


def report_step(step: str) -> None:
    """Report the step that a slow verb begins, to the innermost ``hear_steps`` around it."""
    if hear := _hearer.get():
        hear(step)


@contextmanager
def hear_steps(hear: Callable[[str], None]) -> Iterator[None]:
    """Call ``hear`` with each step that a verb begins within this context."""
    token = _hearer.set(hear)
    try:
        yield
    finally:
        _hearer.reset(token)


@dataclass(slots=True)
class BackgroundTask(Generic[T]):
    """Runs one task at a time in a daemon thread, which ends with the process."""

    _thread: Thread | None = None
    _outcomes: list[T | Exception] = field(default_factory=list)

    @property
    def busy(self) -> bool:
        """Return whether a task runs or its result was not fetched yet."""
        return self._thread is not None

    def start(self, work: Callable[[], T]) -> None:
        """Start a task; the one before must have been fetched."""

        def run() -> None:
            try:
                self._outcomes.append(work())
            except Exception as error:  # noqa: BLE001 - fetch() returns it
                self._outcomes.append(error)

        self._thread = Thread(target=run, daemon=True)
        self._thread.start()

    def fetch(self) -> T | Exception | None:
        """Return the result or the exception of the task, once; ``None`` while it runs."""
        if not self._outcomes:
            return None
        self._thread = None
        return self._outcomes.pop()

    def wait(self, timeout_s: float) -> None:
        """Wait for the result, at most ``timeout_s``."""
        if self._thread is not None:
            self._thread.join(timeout_s)


def ask_process(module: str, answer: type[T], question: object, *, timeout_s: float) -> T:
    """Return what ``python -m module`` answers to a question; both travel as JSON.

    Its memory is freed when the process ends.

    Raises:
        LeadlineError: it failed (with the last line of its stderr), or timed out.
    """
    done = run_process(_module_command(module), stdin=to_json(question, indent=0), timeout_s=timeout_s)
    if done.timed_out:
        raise LeadlineError(f"{module} did not answer within {timeout_s:.0f} s")
    if done.returncode:
        message = next(iter(done.stderr.strip().splitlines()[-1:]), f"exit code {done.returncode}")
        raise LeadlineError(message)
    return from_json(done.stdout, answer, label=f"the output of {module}")


def answer_question(kind: type[Q], answer: Callable[[Q], object]) -> int:
    """Answer the question on stdin, at low priority, as ``ask_process`` expects it; return the exit code."""
    # The process must not slow down the jobs that run on this machine.
    os.nice(NICENESS)
    try:
        sys.stdout.write(to_json(answer(from_json(sys.stdin.read(), kind, label="the question")), indent=0))
    except LeadlineError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def end_verbs() -> None:
    """Let the verbs in other threads end soon: kill the processes that they wait for, such as sandboxes of scripts."""
    kill_awaited()


def start_module(module: str) -> "Popen[bytes]":
    """Start ``python -m module`` with pipes, in a session of its own; it must call ``end_with_input``."""
    return start_process(_module_command(module), stdin=PIPE, stdout=PIPE, own_session=True)


def end_module(process: "Popen[bytes]") -> int:
    """End a process of ``start_module`` with all that it started; return its exit code, negative for a signal."""
    with suppress(BrokenPipeError):  # it has not read all
        cast("IO[bytes]", process.stdin).close()
    try:
        process.wait(END_S)
    except TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
    cast("IO[bytes]", process.stdout).close()
    return process.wait()


def end_with_input() -> None:
    """End this process in order once its stdin is closed, which also happens when its parent dies.

    The main thread gets a ``SystemExit``, so that it ends the processes that it has started.
    """

    def watch() -> None:
        while os.read(0, 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    Thread(target=watch, daemon=True).start()


def _module_command(module: str) -> list[str]:
    # -P keeps the working directory off sys.path: a file there may have the name of a module.
    return [sys.executable, "-P", "-m", module]
