"""Run each system's rounds off the main loop, so that a slow or hung system does not delay the others.

One thread at a time works on the plane's memory and journal. A thread gives this turn up while it calls a scheduler.
The threads only advance while the main loop waits in ``Rounds.wait``.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from threading import Condition, Thread, get_ident
from time import monotonic
from types import SimpleNamespace
from typing import TypeVar, cast

from leadline.execution.schedulers.port import Scheduler

T = TypeVar("T")
R = TypeVar("R")

MAIN = 0
"""Owner of the turn while the main loop works or is between two steps."""


@dataclass(slots=True)
class Turn:
    """The right to use the plane's memory and journal. The main loop has it first."""

    changed: Condition = field(default_factory=Condition)
    owner: int | None = MAIN
    waiting: int = 0

    def take(self) -> None:
        """Wait until the turn is free, and take it."""
        with self.changed:
            self.waiting += 1
            while self.owner is not None:
                self.changed.wait()
            self.waiting -= 1
            self.owner = get_ident()

    def give_up(self) -> None:
        """Free the turn."""
        with self.changed:
            self.owner = None
            self.changed.notify_all()

    @contextmanager
    def away(self) -> Iterator[None]:
        """Give the turn up within this context; in a thread without the turn, do nothing."""
        if self.owner != get_ident():
            yield
            return
        self.give_up()
        try:
            yield
        finally:
            self.take()

    def lend(self, done: Callable[[], bool], timeout_s: float) -> None:
        """Lend the main loop's turn to the threads until ``done()``, at most for ``timeout_s``.

        A thread that has the turn or waits for it goes first, however long that takes.
        """
        with self.changed:
            self.owner = None
            self.changed.notify_all()
            end_s = monotonic() + timeout_s
            while True:
                busy, left_s = self.owner is not None or self.waiting > 0, end_s - monotonic()
                if not busy and (done() or left_s <= 0):
                    break
                self.changed.wait(None if busy else left_s)
            self.owner = MAIN


@dataclass(slots=True)
class Rounds:
    """At most one running round per system, each in a daemon thread, which ends with the process."""

    turn: Turn = field(default_factory=Turn)
    running: dict[str, Thread] = field(default_factory=dict)
    errors: list[BaseException] = field(default_factory=list)

    def start(self, system: str, work: Callable[[], object]) -> None:
        """Start the round of a system, unless its last one still runs."""
        if system in self.running:
            return
        context = copy_context()

        def run() -> None:
            self.turn.take()
            try:
                context.run(work)
            except BaseException as error:  # noqa: BLE001 - wait() raises it in the main loop
                self.errors.append(error)
            finally:
                del self.running[system]
                self.turn.give_up()

        thread = self.running[system] = Thread(target=run, daemon=True, name=f"round {system}")
        thread.start()

    def wait(self, timeout_s: float) -> None:
        """Let the rounds advance until all have ended, at most for ``timeout_s``, and raise the first error."""
        if self.running:
            self.turn.lend(lambda: not self.running, timeout_s)
        if self.errors:
            errors, self.errors = self.errors, []
            raise errors[0]


def in_thread(function: Callable[[], R], *, name: str) -> Future[R]:
    """Call ``function`` in a thread that ends with the process, unlike those of an executor, and return its result."""
    future: Future[R] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:  # noqa: BLE001 - the future raises it
            future.set_exception(error)

    Thread(target=run, daemon=True, name=name).start()
    return future


def map_in_threads(function: Callable[[T], R], values: Sequence[T], limit: int) -> list[R]:
    """Return the results of ``function``, which must not raise, computed in at most ``limit`` threads.

    The threads end with the process, unlike those of an executor: a hung call must not delay its exit.
    """
    results: dict[int, R] = {}
    remaining = iter(enumerate(values))

    def work() -> None:
        for at, value in remaining:
            results[at] = function(value)

    threads = [Thread(target=work, daemon=True) for _ in range(min(limit, len(values)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [results[at] for at in range(len(values))]


def off_loop(scheduler: Scheduler, turn: Turn) -> Scheduler:
    """Return a scheduler whose public methods each give the turn up during the call."""
    unlocked = SimpleNamespace()

    def call(name: str, *values: object, **named: object) -> object:
        with turn.away():
            return getattr(scheduler, name)(*values, **named)

    for name in dir(scheduler):
        if not name.startswith("_"):
            attribute = getattr(scheduler, name)
            setattr(unlocked, name, partial(call, name) if callable(attribute) else attribute)
    return cast("Scheduler", unlocked)
