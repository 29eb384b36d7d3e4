"""The REST API: each tool as ``POST api/v1/TOOL``, or as a task that a client follows."""

import json
from collections.abc import AsyncIterator
from functools import partial
from http import HTTPStatus
from typing import Any

from fastapi import APIRouter, HTTPException, Request, Response
from sse_starlette import EventSourceResponse, ServerSentEvent

from leadline.app.jobs.job_status import newest_event_number
from leadline.app.jobs.journal import journal_path
from leadline.core.documents import to_json
from leadline.core.errors import InvalidInput
from leadline.core.units import parse_whole
from leadline.interfaces.tools import Tool, tools
from leadline.interfaces.web import openapi
from leadline.interfaces.web.events import JobEvents
from leadline.interfaces.web.settings import WebSettings
from leadline.interfaces.web.tasks import TaskPool
from leadline.interfaces.web.uploads import keep_upload

BASE = "/api/v1"
JSON = "application/json"
UPLOAD = {"requestBody": {"required": True, "content": {"application/octet-stream": {"schema": {"type": "string"}}}}}


def tool_routes(settings: WebSettings, pool: TaskPool) -> APIRouter:
    """Return the operations of all tools and of tasks."""
    router = APIRouter(prefix=BASE)
    changes = JobEvents(newest_event)
    for tool in tools(settings.folder, scripts=settings.allow_scripts).values():
        _add_tool(router, tool, settings, pool)

    @router.get("/tasks/{task_id}", tags=["tasks"], responses=openapi.refusals())
    async def task(task_id: str) -> Response:
        """Return the state of a task, and its answer once it has ended."""
        return _answer(pool.get(task_id).to_document())

    @router.get("/tasks/{task_id}/events", tags=["tasks"], responses=openapi.refusals())
    async def task_events(task_id: str) -> Response:
        """Follow a task: an event whenever its state changes, the last with its answer."""
        followed = pool.get(task_id)

        async def events() -> AsyncIterator[ServerSentEvent]:
            async for document in pool.follow(followed):
                yield ServerSentEvent(to_json(document, indent=0), event=document["state"])

        return EventSourceResponse(events())

    @router.get("/events", tags=["jobs"], responses=openapi.refusals())
    async def events(request: Request) -> Response:
        """Follow all jobs: an event whenever one changes; ``Last-Event-ID`` resumes."""
        seen = parse_whole(request.headers.get("last-event-id", ""))
        return EventSourceResponse(changes.follow(seen))

    @router.put("/uploads/{name}", status_code=HTTPStatus.CREATED, tags=["tools"], responses=openapi.refusals(),
                openapi_extra=UPLOAD)  # fmt: skip
    async def upload(name: str, request: Request) -> Response:
        """Keep a file for a day, and return the name that a tool takes as its workload."""
        path = keep_upload(name, await request.body(), scripts=settings.allow_scripts)
        return _answer({"schema": "leadline.upload/1", "workload": str(path)}, HTTPStatus.CREATED)

    return router


def _add_tool(router: APIRouter, tool: Tool, settings: WebSettings, pool: TaskPool) -> None:
    """Add a tool's two operations: to answer, and to start a task."""
    body = {"requestBody": {"required": True, "content": {JSON: {"schema": tool.schema}}}}

    async def answer(request: Request) -> Response:
        _check_allowed(tool, settings)
        arguments = await _arguments(request)
        return _answer(await pool.run(partial(tool.call, arguments)))

    async def start(request: Request) -> Response:
        _check_allowed(tool, settings)
        task = pool.start(tool.name, partial(tool.call, await _arguments(request)))
        location = str(request.url_for("task", task_id=task.id).path)
        return _answer(task.to_document(), HTTPStatus.ACCEPTED, {"Location": location})

    shared: dict[str, Any] = {"methods": ["POST"], "summary": tool.summary, "openapi_extra": body}
    router.add_api_route(
        f"/{tool.name}", answer, responses=openapi.answers(tool), operation_id=tool.name, tags=["tools"], **shared
    )
    router.add_api_route(
        f"/tasks/{tool.name}", start, status_code=HTTPStatus.ACCEPTED, responses=openapi.refusals(),
        operation_id=f"start-{tool.name}", tags=["tasks"], **shared,
    )  # fmt: skip


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
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != JSON:
        # Pages of other sites may post forms and plain text without asking, but not JSON.
        raise HTTPException(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"the body must be {JSON}, and it is {kind[:60] or 'of no type'}"
        )
    try:
        arguments = json.loads(await request.body())
    except (ValueError, RecursionError) as error:
        raise HTTPException(HTTPStatus.BAD_REQUEST, f"the body is not JSON: {str(error)[:200]}") from error
    if not isinstance(arguments, dict):
        raise InvalidInput("the body must be a JSON object of arguments")
    return arguments


def _answer(document: dict[str, Any], status: int = HTTPStatus.OK, headers: dict[str, str] | None = None) -> Response:
    return Response(to_json(document, indent=0), status, headers, JSON)


def newest_event() -> int:
    """Return the number of the newest event of the journal; 0 without one."""
    return newest_event_number() if journal_path().exists() else 0
