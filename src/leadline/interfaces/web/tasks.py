"""Long work: verbs that run as tasks, whose state a client asks for or follows."""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import StrEnum
from http import HTTPStatus
from typing import Any

from starlette.exceptions import HTTPException

from leadline.core.errors import LeadlineError, UnknownName
from leadline.interfaces.web.problems import FAULT
from leadline.interfaces.web.settings import WebSettings

_log = logging.getLogger(__name__)

Document = dict[str, Any]


class TaskState(StrEnum):
    """The state of a task."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


@dataclass(slots=True)
class Task:
    """A verb at work, or its answer; ``changed`` is set whenever its state changes."""

    id: str
    tool: str
    state: TaskState = TaskState.QUEUED
    answer: Document | None = None
    error: str = ""
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def ended(self) -> bool:
        """Tell whether it has its answer or its error."""
        return self.state in (TaskState.DONE, TaskState.FAILED)

    def to_document(self) -> Document:
        """Return the state as a JSON document."""
        shown = {"id": self.id, "tool": self.tool, "state": self.state, "answer": self.answer, "error": self.error}
        return {"schema": "leadline.task/1", **shown}


class TaskPool:
    """Runs verbs in threads, at most ``workers`` at once, and keeps the newest ended tasks."""

    def __init__(self, settings: WebSettings) -> None:
        self._most = settings.most_tasks
        self._threads = ThreadPoolExecutor(settings.workers, "verb")
        self._tasks: dict[str, Task] = {}
        self._running: set[asyncio.Task[None]] = set()

    async def run(self, verb: Callable[[], Document]) -> Document:
        """Return the answer of a verb, which runs in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, verb)

    def start(self, tool: str, verb: Callable[[], Document]) -> Task:
        """Start a verb and return its task at once.

        Raises:
            HTTPException: as many tasks as are kept have not ended.
        """
        if len(self._tasks) >= self._most:
            oldest = next((task for task in self._tasks.values() if task.ended), None)
            if oldest is None:
                raise HTTPException(
                    HTTPStatus.TOO_MANY_REQUESTS, f"{self._most} tasks have not ended: wait for one of them"
                )
            del self._tasks[oldest.id]
        task = Task(secrets.token_hex(8), tool)
        self._tasks[task.id] = task
        running = asyncio.get_running_loop().create_task(self._finish(task, verb))
        self._running.add(running)  # the loop itself holds tasks by weak references only
        running.add_done_callback(self._running.discard)
        return task

    def get(self, task_id: str) -> Task:
        """Return a task; ``UnknownName`` if it is none that is kept."""
        if task_id not in self._tasks:
            raise UnknownName("task", task_id, self._tasks)
        return self._tasks[task_id]

    async def follow(self, task: Task) -> AsyncIterator[Document]:
        """Yield the state of a task whenever it changes, until it ends."""
        while True:
            changed = task.changed
            yield task.to_document()
            if task.ended:
                return
            await changed.wait()

    def close(self) -> None:
        """Start no more verbs; those at work end with the process."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _finish(self, task: Task, verb: Callable[[], Document]) -> None:
        def work() -> Document:
            loop.call_soon_threadsafe(_change, task, TaskState.RUNNING)
            return verb()

        loop = asyncio.get_running_loop()
        try:
            task.answer = await loop.run_in_executor(self._threads, work)
        except LeadlineError as error:
            task.error = str(error)
        except Exception:  # noqa: BLE001 - a bug must end the task
            _log.exception("the task %s failed", task.tool)
            task.error = FAULT
        _change(task, TaskState.FAILED if task.error else TaskState.DONE)


def _change(task: Task, state: TaskState) -> None:
    if not task.ended:
        task.state = state
        task.changed.set()
        task.changed = asyncio.Event()
