"""Long work: calls of tools that run as tasks, which a client follows and may cancel."""

import asyncio
import logging
import re
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from http import HTTPStatus
from typing import IO, Any, cast

import msgspec
from starlette.exceptions import HTTPException

from leadline.app.background import end_module, end_verbs, start_module
from leadline.core.documents import from_json, to_json
from leadline.core.errors import LeadlineError, UnknownName
from leadline.interfaces.tools import Tool
from leadline.interfaces.web.problems import FAULT
from leadline.interfaces.web.settings import WebSettings
from leadline.interfaces.web.tool_process import TaskCall, TaskEvent

TASK, TASKS = "leadline.task/1", "leadline.tasks/1"
SUBJECTS = ("workload", "job", "run", "name")
"""Arguments that tell people which task it is, the first that it has."""
PROCESS = "leadline.interfaces.web.tool_process"
_ID = re.compile(r"[0-9a-f]{8}-[1-9][0-9]{0,8}")
"""The server's run, and the number of the task in it."""

_log = logging.getLogger(__name__)

Document = dict[str, Any]


class TaskState(StrEnum):
    """The state of a task."""

    QUEUED = "queued"
    RUNNING = "running"
    CANCELLING = "cancelling"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


ENDED = (TaskState.DONE, TaskState.FAILED, TaskState.CANCELLED)
_STATUS: Document = {
    "id": {"type": "string"}, "tool": {"type": "string"},
    "subject": {"type": "string", "description": "The workload or job that it is about; empty without one."},
    "state": {"enum": [state.value for state in TaskState]},
    "step": {"type": "string", "description": "The step that began last; empty before the first."},
    "created_at": {"type": "string", "format": "date-time", "description": "When the client started it, in UTC."},
    "elapsed_s": {"type": ["number", "null"], "description": "Seconds of work; null before it began."},
    "error": {"type": "string", "description": "Why it failed; empty if it did not."},
}  # fmt: skip


def _schema(properties: Document) -> Document:
    return {"type": "object", "properties": properties, "required": list(properties)}


TASK_SCHEMA: Document = {"title": TASK} | _schema({
    "schema": {"const": TASK}, **_STATUS,
    "answer": {"type": ["object", "null"], "description": "The tool's document, once the task is done."},
})  # fmt: skip
TASKS_SCHEMA: Document = {"title": TASKS} | _schema({
    "schema": {"const": TASKS},
    "tasks": {"type": "array", "description": "The newest first.", "items": _schema({
        **_STATUS,
        "link": {"type": "string", "format": "uri-reference", "description": "Its address, from that of this list."},
    })},
})  # fmt: skip


@dataclass(slots=True)
class Task:
    """A call of a tool; ``changed`` is set, and replaced, whenever its state, step or answer changes."""

    id: str
    tool: Tool
    subject: str = ""
    created_at: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="milliseconds"))
    state: TaskState = TaskState.QUEUED
    step: str = ""
    answer: msgspec.Raw = field(default_factory=msgspec.Raw)
    error: str = ""
    began_s: float | None = None
    ended_s: float | None = None
    work: "asyncio.Task[None] | None" = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def ended(self) -> bool:
        """Tell whether it changes no more."""
        return self.state in ENDED

    @property
    def elapsed_s(self) -> float | None:
        """Return the seconds of its work so far; None before it began."""
        if self.began_s is None:
            return None
        return round((self.ended_s or time.monotonic()) - self.began_s, 3)

    def begin(self) -> None:
        """Note that its work begins."""
        self.state, self.began_s = TaskState.RUNNING, time.monotonic()
        self.notify()

    def end(self, state: TaskState) -> None:
        """Note how its work has ended."""
        self.state, self.ended_s = state, time.monotonic()
        self.notify()

    def notify(self) -> None:
        """Wake those who follow it."""
        self.changed.set()
        self.changed = asyncio.Event()

    def to_status(self) -> Document:
        """Return the state without the answer."""
        return {
            "id": self.id, "tool": self.tool.name, "subject": self.subject, "state": self.state, "step": self.step,
            "created_at": self.created_at, "elapsed_s": self.elapsed_s, "error": self.error,
        }  # fmt: skip

    def to_document(self) -> Document:
        """Return the state with the answer as a JSON document."""
        return {"schema": TASK, **self.to_status(), "answer": self.answer or None}


class TaskPool:
    """Calls tools: at once in threads, and as tasks in processes of their own; ``workers`` of each at a time."""

    def __init__(self, settings: WebSettings) -> None:
        self._settings = settings
        self._threads = ThreadPoolExecutor(settings.workers, "verb")
        # A task that is being ended needs a second thread while its first still reads.
        self._pipes = ThreadPoolExecutor(2 * settings.workers, "task")
        self._slots = asyncio.Semaphore(settings.workers)
        self._run = secrets.token_hex(4)
        self._number = 0
        self._tasks: dict[str, Task] = {}

    async def run(self, verb: Callable[[], Document]) -> Document:
        """Return the answer of a verb, which runs in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, verb)

    def start(self, tool: Tool, arguments: Mapping[str, Any]) -> Task:
        """Start a call and return its task at once.

        Raises:
            InvalidInput: the tool does not take the arguments.
            HTTPException: as many tasks as are kept have not ended.
        """
        tool.check(arguments)
        self._make_room()
        self._number += 1
        subject = next((text for name in SUBJECTS if isinstance(text := arguments.get(name), str)), "")
        task = Task(f"{self._run}-{self._number}", tool, subject)
        self._tasks[task.id] = task
        call = TaskCall(tool.name, dict(arguments), str(self._settings.folder), self._settings.allow_scripts)
        task.work = asyncio.get_running_loop().create_task(self._work(task, call))
        task.work.add_done_callback(lambda work: task.end(TaskState.CANCELLED) if work.cancelled() else None)
        return task

    def to_document(self) -> Document:
        """Return the tasks that are kept as a JSON document, the newest first."""
        tasks = [{**task.to_status(), "link": f"tasks/{task.id}"} for task in reversed(self._tasks.values())]
        return {"schema": TASKS, "tasks": tasks}

    def get(self, task_id: str) -> Task:
        """Return a task.

        Raises:
            HTTPException: it is gone: dropped for newer ones, or of an earlier run of the server.
            UnknownName: there was never such a task.
        """
        if task_id in self._tasks:
            return self._tasks[task_id]
        run, _, number = task_id.partition("-")
        if not _ID.fullmatch(task_id) or (run == self._run and int(number) > self._number):
            raise UnknownName("task", task_id, self._tasks, fix="start it with POST tasks/TOOL")
        why = "is of an earlier run of this server and ended with it"
        if run == self._run:
            why = f"has ended, and only the newest {self._settings.most_tasks} tasks are kept"
        raise HTTPException(HTTPStatus.GONE, f"task {task_id} {why}: start it again")

    def cancel(self, task: Task) -> None:
        """End a task and its processes; one that has ended stays as it is.

        Raises:
            HTTPException: it is changing jobs, which must not end halfway.
        """
        if task.ended or task.state is TaskState.CANCELLING or task.work is None:
            return
        if task.tool.acts and task.state is TaskState.RUNNING:
            raise HTTPException(
                HTTPStatus.CONFLICT, f"{task.tool.name} is changing jobs: wait for its answer, then cancel the job"
            )
        task.state = TaskState.CANCELLING
        task.notify()
        task.work.cancel()

    async def follow(self, task: Task) -> AsyncIterator[Document]:
        """Yield the state of a task whenever it changes, until it ends."""
        while True:
            changed = task.changed
            yield task.to_document()
            if task.ended:
                return
            await changed.wait()

    async def close(self) -> None:
        """End all tasks and verbs, and start no more."""
        works = [task.work for task in self._tasks.values() if task.work is not None and not task.ended]
        for work in works:
            work.cancel()
        await asyncio.gather(*works, return_exceptions=True)
        self._threads.shutdown(wait=False, cancel_futures=True)
        end_verbs()
        self._pipes.shutdown(wait=False)

    def _make_room(self) -> None:
        """Drop the oldest ended tasks, so that a new one may be kept."""
        ended = [task for task in self._tasks.values() if task.ended]
        kept_bytes = sum(memoryview(task.answer).nbytes for task in ended)
        for task in ended:
            if len(self._tasks) < self._settings.most_tasks and kept_bytes <= self._settings.most_answer_bytes:
                return
            kept_bytes -= memoryview(task.answer).nbytes
            del self._tasks[task.id]
        if len(self._tasks) >= self._settings.most_tasks:
            raise HTTPException(
                HTTPStatus.TOO_MANY_REQUESTS,
                f"{self._settings.most_tasks} tasks have not ended: wait for one of them, or cancel one",
            )

    async def _work(self, task: Task, call: TaskCall) -> None:
        async with self._slots:
            task.begin()
            try:
                await self._ask(task, call)
            except LeadlineError as error:
                task.error = str(error)
            except Exception:  # noqa: BLE001 - a bug must end the task
                _log.exception("the task %s failed", call.tool)
                task.error = FAULT
            task.end(TaskState.FAILED if task.error else TaskState.DONE)

    async def _ask(self, task: Task, call: TaskCall) -> None:
        """Let a process answer a call; cancelled, it ends the process."""
        loop, process = asyncio.get_running_loop(), start_module(PROCESS)
        question, answers = cast("IO[bytes]", process.stdin), cast("IO[bytes]", process.stdout)

        def write() -> None:
            question.write(to_json(call, indent=0).encode() + b"\n")
            question.flush()

        try:
            await loop.run_in_executor(self._pipes, write)
            while line := await loop.run_in_executor(self._pipes, answers.readline):
                event = from_json(line, TaskEvent, label="the answer of a task")
                task.step, task.answer, task.error = event.step or task.step, event.answer, event.error
                task.notify()
        finally:
            code = await loop.run_in_executor(self._pipes, end_module, process)
        if not task.answer and not task.error:
            killed = f"its process was killed by signal {-code}, perhaps for lack of memory: ask for less"
            task.error = killed if code < 0 else FAULT
