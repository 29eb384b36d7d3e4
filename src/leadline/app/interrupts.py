"""Hear Ctrl-C and SIGTERM without being cut off in the middle: what is at work ends its step first."""

import signal
import threading
from contextlib import AbstractContextManager
from types import FrameType, TracebackType
from typing import Self


class Interrupts(AbstractContextManager["Interrupts"]):
    """While it is entered, SIGINT and SIGTERM are only noted; a second one ends the process as usual."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._before: dict[int, object] = {}

    @property
    def told(self) -> bool:
        """Whether one came."""
        return self._event.is_set()

    def wait(self, duration_s: float) -> None:
        """Let time pass, or as much of it as passes until one comes."""
        self._event.wait(duration_s)

    def __enter__(self) -> Self:
        for one in (signal.SIGINT, signal.SIGTERM):
            self._before[one] = signal.signal(one, self._hear)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    def _hear(self, _signal: int, _frame: FrameType | None) -> None:
        self._event.set()
        self._restore()

    def _restore(self) -> None:
        for one, before in self._before.items():
            signal.signal(one, before)  # type: ignore[arg-type]
        self._before = {}
