"""Run slow work in the background: in a thread, and in a process of its own."""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Thread
from typing import Generic, TypeVar

from leadline.core.documents import from_json, to_json
from leadline.core.errors import LeadlineError
from leadline.execution.processes import run_process

T = TypeVar("T")
Q = TypeVar("Q")

NICENESS = 10


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
    # -P keeps the working directory off sys.path: a file there may have the name of a module.
    words = [sys.executable, "-P", "-m", module]
    done = run_process(words, stdin=to_json(question, indent=0), timeout_s=timeout_s)
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
