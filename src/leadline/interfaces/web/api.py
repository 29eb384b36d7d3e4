"""The REST API: each tool as ``POST api/v1/TOOL``, or as a task that a client follows."""

from collections.abc import AsyncIterator
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Header, HTTPException, Request, Response
from sse_starlette import EventSourceResponse, ServerSentEvent

from leadline.app.jobs.job_status import newest_event_number
from leadline.app.jobs.journal import journal_path
from leadline.core.documents import to_json
from leadline.core.errors import InvalidInput
from leadline.core.units import parse_whole
from leadline.interfaces.tools import Tool, tools
from leadline.interfaces.web import openapi
from leadline.interfaces.web.events import JobEvents
from leadline.interfaces.web.openapi import JSON
from leadline.interfaces.web.settings import WebSettings
from leadline.interfaces.web.tasks import TASKS, TaskPool
from leadline.interfaces.web.uploads import UPLOAD, UPLOADS, Uploads

BASE = "/api/v1"
SEND_S = 30.0
"""A reader of events that takes none for so long is gone."""


def tool_routes(settings: WebSettings, pool: TaskPool, uploads: Uploads) -> APIRouter:
    """Return the operations of all tools, tasks, events and uploads."""
    router = APIRouter(prefix=BASE, default_response_class=Response)
    changes = JobEvents(newest_event)
    for tool in tools(settings.folder, scripts=settings.allow_scripts).values():
        _add_tool(router, tool, settings, pool)
    _add_tasks(router, pool)

    @router.get("/events", operation_id="events", tags=["jobs"], responses=openapi.event_streams())
    async def events(last_event_id: Annotated[str, Header()] = "") -> Response:
        """Follow all jobs: an event whenever one changes; ``Last-Event-ID`` resumes."""
        seen = parse_whole(last_event_id)
        # Asked before the answer begins: its reader must hear of every change from then on.
        seen = await changes.newest() if seen is None else seen
        return EventSourceResponse(changes.follow(seen), send_timeout=SEND_S)

    @router.put(UPLOADS.removeprefix(BASE) + "/{name}", operation_id="upload", status_code=HTTPStatus.CREATED,
                tags=["tools"], responses=openapi.upload_answers(),
                openapi_extra=openapi.upload_body(settings.most_upload_bytes))  # fmt: skip
    async def upload(name: str, request: Request) -> Response:
        """Keep a file until the server ends, and return the name that a tool takes as its workload."""
        if _content_type(request).startswith("multipart/"):
            raise HTTPException(
                HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "the body must be the file itself, as curl -T sends it, and no form"
            )
        path = await uploads.keep(name, request.stream())
        return _answer({"schema": UPLOAD, "workload": str(path)}, HTTPStatus.CREATED)

    return router


def _add_tool(router: APIRouter, tool: Tool, settings: WebSettings, pool: TaskPool) -> None:
    """Add a tool's two operations: to answer, and to start a task."""

    async def answer(request: Request) -> Response:
        _check_allowed(tool, settings)
        return _answer(await pool.run(partial(tool.call, await _arguments(request))))

    async def start(request: Request) -> Response:
        _check_allowed(tool, settings)
        task = pool.start(tool, await _arguments(request))
        # Relative to this operation's own address, at whatever path a proxy has put it.
        return _answer(task.to_document(), HTTPStatus.ACCEPTED, {"Location": task.id})

    shared: dict[str, Any] = {
        "methods": ["POST"], "summary": tool.summary, "openapi_extra": openapi.request_body(tool),
    }  # fmt: skip
    router.add_api_route(
        f"/{tool.name}", answer, responses=openapi.answers(tool.documents), operation_id=tool.name, tags=["tools"],
        **shared,
    )  # fmt: skip
    router.add_api_route(
        f"/tasks/{tool.name}", start, status_code=HTTPStatus.ACCEPTED, operation_id=f"start-{tool.name}",
        responses=openapi.task_answers(HTTPStatus.ACCEPTED), tags=["tasks"], **shared,
    )  # fmt: skip


def _add_tasks(router: APIRouter, pool: TaskPool) -> None:
    """Add the operations of tasks that have been started."""

    @router.get("/tasks", operation_id="tasks", tags=["tasks"], responses=openapi.answers([TASKS]))
    async def tasks() -> Response:
        """List the tasks that this server keeps, the newest first."""
        return _answer(pool.to_document())

    @router.get("/tasks/{task_id}", operation_id="task", tags=["tasks"], responses=openapi.task_answers())
    async def task(task_id: str) -> Response:
        """Return the state of a task, and its answer once it is done."""
        return _answer(pool.get(task_id).to_document())

    @router.delete("/tasks/{task_id}", operation_id="cancel-task", tags=["tasks"], responses=openapi.task_answers())
    async def cancel(task_id: str) -> Response:
        """End a task and its processes; one that has ended stays as it is."""
        cancelled = pool.get(task_id)
        pool.cancel(cancelled)
        return _answer(cancelled.to_document())

    @router.get("/tasks/{task_id}/events", operation_id="task-events", tags=["tasks"],
                responses=openapi.event_streams())  # fmt: skip
    async def task_events(task_id: str) -> Response:
        """Follow a task: an event whenever its state or step changes, the last with its answer."""
        followed = pool.get(task_id)

        async def events() -> AsyncIterator[ServerSentEvent]:
            async for document in pool.follow(followed):
                yield ServerSentEvent(to_json(document, indent=0), event=document["state"])

        return EventSourceResponse(events(), send_timeout=SEND_S)


def _check_allowed(tool: Tool, settings: WebSettings) -> None:
    if tool.acts and not settings.allow_submit:
        raise HTTPException(
            HTTPStatus.FORBIDDEN, f"{tool.name} changes jobs, which this server does not: start it with --allow-submit"
        )


async def _arguments(request: Request) -> dict[str, Any]:
    """Return the JSON object in the body.

    Raises:
        HTTPException: the body is not JSON, by its type or in fact.
        InvalidInput: it is not an object.
    """
    kind = _content_type(request)
    if kind != JSON:
        # Pages of other sites may post forms and plain text without asking, but not JSON.
        raise HTTPException(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"the body must be {JSON}, and it is {kind[:60] or 'of no type'}"
        )
    try:
        # Unlike the standard library's, this parser refuses NaN and half of a surrogate pair.
        arguments = msgspec.json.decode(await request.body())
    except (ValueError, RecursionError) as error:
        raise HTTPException(HTTPStatus.BAD_REQUEST, f"the body is not JSON: {str(error)[:200]}") from error
    if not isinstance(arguments, dict):
        raise InvalidInput("the body must be a JSON object of arguments")
    return arguments


def _content_type(request: Request) -> str:
    """Return the media type of the body without its parameters; empty if it has none."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _answer(document: dict[str, Any], status: int = HTTPStatus.OK, headers: dict[str, str] | None = None) -> Response:
    return Response(to_json(document, indent=0), status, headers, JSON)


def newest_event() -> int:
    """Return the number of the newest event of the journal; 0 without one."""
    return newest_event_number() if journal_path().exists() else 0
