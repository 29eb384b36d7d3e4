"""The tools for assistants that speak the Model Context Protocol."""

import logging
import secrets
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CallToolRequestParams,
    CallToolResult,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    InputRequiredResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    ToolAnnotations,
)
from mcp_types import Tool as ToolDescription
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from leadline import __version__
from leadline.app.composition import keep_catalog_live
from leadline.core.documents import parse_json, to_json
from leadline.core.errors import InvalidInput, LeadlineError
from leadline.interfaces.chat.command_line import shown_command
from leadline.interfaces.json_schemas import json_schema
from leadline.interfaces.tools import Tool, tools
from leadline.interfaces.web.problems import FAULT
from leadline.interfaces.web.security import Guard
from leadline.interfaces.web.settings import WebSettings
from leadline.interfaces.web.tasks import TaskPool

INSTRUCTIONS = (
    "Leadline predicts time, memory and cost of AI jobs on HPC systems before they run, recommends systems, and "
    "manages jobs. Quote numbers with their interval and source as the tools give them, and say unknown where they do. "
    "A tool that changes something asks the user itself."
)
FORM = {
    "type": "object",
    "properties": {"agree": {"type": "boolean", "title": "Run this command", "default": False}},
    "required": ["agree"],
}
"""The question to the user, whose answer comes from the assistant's program and not from its model."""
ANSWER = "agree"
MOST_OPEN = 100
"""Questions to the user that wait for an answer; the oldest goes first."""

_log = logging.getLogger(__name__)

Context = ServerRequestContext[TaskPool, Any]


class Consent:
    """Asks the user whether a call may run.

    Up to the protocol of 2025 the server asks while it handles the call. Since 2026 it ends the call with a question,
    and the client calls again with the answer. Each question allows one call with the arguments that it showed.
    """

    def __init__(self) -> None:
        self._open: OrderedDict[str, str] = OrderedDict()

    async def ask(
        self, context: Context, params: CallToolRequestParams, arguments: Mapping[str, Any]
    ) -> InputRequiredResult | None:
        """Return None if the user agreed to a call, or what the client must ask first.

        Raises:
            InvalidInput: the user did not agree, or the assistant cannot ask.
        """
        command = shown_command(params.name, arguments)
        capabilities = context.session.client_capabilities
        can_ask = capabilities.elicitation if capabilities else None
        # A client that names neither form nor url is one of 2025-06, which had forms only.
        if can_ask is None or (can_ask.url is not None and can_ask.form is None):
            raise InvalidInput(f"nothing was done, because this assistant cannot ask the user: they can type {command}")
        question = ElicitRequestFormParams(message=f"An assistant wants to run: {command}", requested_schema=FORM)
        if context.protocol_version in MODERN_PROTOCOL_VERSIONS:
            if self._open.pop(params.request_state or "", None) != command:
                return self._opened(command, question)
            answer = (params.input_responses or {}).get(ANSWER)
        else:
            answer = await _elicit(context, question, command)
        agreed = isinstance(answer, ElicitResult) and answer.action == "accept" and (answer.content or {}).get("agree")
        if agreed is not True:
            raise InvalidInput(f"nothing was done, because the user did not agree to {command}")
        return None

    def _opened(self, command: str, question: ElicitRequestFormParams) -> InputRequiredResult:
        state = secrets.token_urlsafe()
        self._open[state] = command
        while len(self._open) > MOST_OPEN:
            self._open.popitem(last=False)
        return InputRequiredResult(input_requests={ANSWER: ElicitRequest(params=question)}, request_state=state)


async def _elicit(context: Context, question: ElicitRequestFormParams, command: str) -> ElicitResult:
    """Ask while the call waits; ``InvalidInput`` if the client cannot."""
    try:
        return await context.session.elicit_form(question.message, FORM, related_request_id=context.request_id)
    except (MCPError, ValidationError) as error:
        why = f"this assistant could not ask the user ({str(error)[:200]})"
        raise InvalidInput(f"nothing was done, because {why}: they can type {command}") from error


def create_server(settings: WebSettings) -> Server[TaskPool]:
    """Return the server; without ``allow_submit`` it has only tools that change nothing.

    Raises:
        InvalidInput: a file of the user's catalog cannot be read.
    """
    keep_catalog_live(_log.warning)  # the user, a probe or a calibration may change it while an assistant is connected
    offered = {
        tool.name: tool
        for tool in tools(settings.folder, scripts=settings.allow_scripts).values()
        if settings.allow_submit or not tool.acts
    }
    consent = Consent()

    @asynccontextmanager
    async def lifespan(_: Server[TaskPool]) -> AsyncIterator[TaskPool]:
        pool = TaskPool(settings)
        try:
            yield pool
        finally:
            with anyio.CancelScope(shield=True):
                await pool.close()

    async def list_tools(_: Context, __: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(tools=[_described(tool) for tool in offered.values()])

    async def call_tool(context: Context, params: CallToolRequestParams) -> CallToolResult | InputRequiredResult:
        try:
            tool = _find(offered, params.name)
            arguments = tool.check(params.arguments or {})
            if tool.acts and (question := await consent.ask(context, params, arguments)) is not None:
                return question
            text = await _answer(context.lifespan_context, tool, arguments, scripts=settings.allow_scripts)
        except LeadlineError as error:
            return _failed(str(error))
        except Exception:  # noqa: BLE001 - a bug must not show its details to an assistant
            _log.exception("the call of %s failed", params.name[:100])
            return _failed(FAULT)
        return CallToolResult(
            content=[TextContent(type="text", text=text)], structured_content=parse_json(text, label=tool.name)
        )

    return Server("leadline", version=__version__, instructions=INSTRUCTIONS, lifespan=lifespan,
                  on_list_tools=list_tools, on_call_tool=call_tool)  # fmt: skip


def _find(offered: Mapping[str, Tool], name: str) -> Tool:
    if name not in offered:
        raise InvalidInput(f"there is no tool {name[:100]!r}: the tools are {', '.join(offered)}")
    return offered[name]


def _failed(why: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(type="text", text=why)], is_error=True)


async def _answer(pool: TaskPool, tool: Tool, arguments: Mapping[str, Any], *, scripts: bool) -> str:
    """Return a tool's document as JSON; ``LeadlineError`` if the tool has none.

    A client that cancels the call, or leaves, ends the work on a script, which may take minutes. A change is not
    abandoned halfway.
    """
    if not (scripts and "workload" in arguments):
        with anyio.CancelScope(shield=tool.acts):
            return to_json(await pool.run(partial(tool.answer, **arguments)), indent=0)
    try:
        task = pool.start(tool, arguments)
    except HTTPException as error:
        raise LeadlineError(error.detail) from error
    try:
        async for _ in pool.follow(task):
            pass
    finally:
        pool.cancel(task)
    if not task.answer:
        raise LeadlineError(task.error or "the call was cancelled, because the server ends")
    return bytes(task.answer).decode()


def run_on_stdio(settings: WebSettings) -> None:
    """Serve an assistant that started this process, until it closes standard input."""

    async def run() -> None:
        server = create_server(settings)
        async with stdio_server() as (requests, answers):
            await server.run(requests, answers, server.create_initialization_options())

    anyio.run(run)


def http_app(settings: WebSettings) -> ASGIApp:
    """Return the server for streamable HTTP at ``/mcp``, behind the guard of the web server.

    Sessions are kept, because a question to the user belongs to the session of its call.
    """
    # The guard checks host and origin itself.
    unchecked = TransportSecuritySettings(enable_dns_rebinding_protection=False)
    app = create_server(settings).streamable_http_app(transport_security=unchecked)
    return Guard(app, settings)


def _described(tool: Tool) -> ToolDescription:
    output = json_schema(tool.documents[0]) if len(tool.documents) == 1 else None
    return ToolDescription(
        name=tool.name, description=tool.summary, input_schema=tool.schema, output_schema=output,
        annotations=ToolAnnotations(
            read_only_hint=not tool.acts, destructive_hint=tool.acts, open_world_hint=tool.acts
        ),
    )  # fmt: skip
