"""Do what is slow beside the plane: a thread waits for it, and whoever asked goes on and looks again later."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Thread
from typing import Generic, TypeVar

from leadline.core.documents import to_json
from leadline.core.errors import LeadlineError
from leadline.core.processes import ProcessRunner
from leadline.execution.processes import run_process

T = TypeVar("T")


@dataclass(slots=True)
class BackgroundTask(Generic[T]):
    """One slow thing at a time; its thread ends with the process, whatever it waits for."""

    _thread: Thread | None = None
    _ended: list[T | Exception] = field(default_factory=list)

    @property
    def busy(self) -> bool:
        """Whether something is at work, or its answer was not fetched."""
        return self._thread is not None

    def start(self, work: Callable[[], T]) -> None:
        """Start something.

        Raises:
            RuntimeError: something else is at work.
        """
        if self.busy:
            raise RuntimeError("one thing at a time")
        self._thread = Thread(target=self._do, args=(work,), daemon=True)
        self._thread.start()

    def fetch(self) -> T | Exception | None:
        """Return what came of it, once; what it raised is returned, and ``None`` while there is no answer."""
        if not self._ended:
            return None
        self._thread = None
        return self._ended.pop()

    def wait(self, timeout_s: float) -> None:
        """Wait until there is an answer, or so long."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _do(self, work: Callable[[], T]) -> None:
        try:
            self._ended.append(work())
        except Exception as error:  # noqa: BLE001 - it is handed to whoever fetches the answer, who tells it
            self._ended.append(error)


def run_in_process(module: str, question: object, *, timeout_s: float, runner: ProcessRunner = run_process) -> str:
    """Return what ``python -m module`` prints of a question that it reads as JSON: its memory goes with its process.

    Raises:
        LeadlineError: it failed, with the last line that it said, or took too long.
    """
    words = [sys.executable, "-P", "-m", module]
    done = runner(words, stdin=to_json(question, indent=0), timeout_s=timeout_s)
    if done.timed_out:
        raise LeadlineError(f"{module} said nothing within {timeout_s:.0f} s")
    if done.returncode:
        said = next(iter(done.stderr.strip().splitlines()[-1:]), f"exit code {done.returncode}")
        raise LeadlineError(said)
    return done.stdout
