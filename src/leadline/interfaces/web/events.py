"""Changes of jobs as server-sent events: one look a second at the journal, whatever the number of readers."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable

from sse_starlette import ServerSentEvent

LOOK_S = 1.0

_log = logging.getLogger(__name__)


class JobEvents:
    """Tells all readers when the journal has new events; looks only while somebody reads.

    Args:
        newest: Returns the number of the newest event, or 0 without a journal; called in a thread.
    """

    def __init__(self, newest: Callable[[], int], look_s: float = LOOK_S) -> None:
        self._newest = newest
        self._look_s = look_s
        self._number = 0
        self._problem = ""
        self._changed = asyncio.Event()
        self._readers = 0
        self._looker: asyncio.Task[None] | None = None
        self._beginning = asyncio.Lock()

    async def newest(self) -> int:
        """Return the number of the newest event, to follow all that come after it."""
        number = await self._read()
        self._keep(number)
        return number

    async def follow(self, seen: int | None) -> AsyncIterator[ServerSentEvent]:
        """Yield an event for each change after the event ``seen``, from now on without it."""
        self._readers += 1
        try:
            async with self._beginning:
                if self._looker is None:
                    self._number = await self._read()
                    self._looker = asyncio.create_task(self._look())
            known = self._number if seen is None else seen
            while True:
                changed = self._changed
                if self._number != known:
                    known = self._number
                    yield ServerSentEvent("{}", event="jobs", id=str(known))
                await changed.wait()
        finally:
            self._readers -= 1
            if not self._readers and self._looker is not None:
                self._looker.cancel()
                self._looker = None

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(self._look_s)
            self._keep(await self._read())

    def _keep(self, number: int) -> None:
        """Keep the number of the newest event, and wake the readers if it is another one."""
        if number != self._number:
            self._number = number
            self._changed.set()
            self._changed = asyncio.Event()

    async def _read(self) -> int:
        """Return the number of the newest event; the last one known while the journal cannot be read."""
        problem, number = "", self._number
        try:
            number = await asyncio.to_thread(self._newest)
        except Exception as error:  # noqa: BLE001 - readers wait for the next look, whatever made this one fail
            problem = str(error)
        if problem != self._problem:
            _log.warning("no events of jobs: %s", problem) if problem else _log.warning("events of jobs are back")
            self._problem = problem
        return number
