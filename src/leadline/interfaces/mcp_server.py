"""The tools for assistants that speak the Model Context Protocol."""

from functools import partial
from typing import Any

import anyio
from anyio import to_thread
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.server.transport_security import TransportSecuritySettings
from mcp_types import (
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    ToolAnnotations,
)
from mcp_types import Tool as ToolDescription
from starlette.types import ASGIApp

from leadline import __version__
from leadline.core.documents import to_json
from leadline.core.errors import LeadlineError
from leadline.interfaces.json_schemas import json_schema
from leadline.interfaces.tools import Tool, tools
from leadline.interfaces.web.security import Guard
from leadline.interfaces.web.settings import WebSettings

INSTRUCTIONS = (
    "Leadline predicts time, memory and cost of AI jobs on HPC systems before they run, recommends systems, and "
    "manages jobs. Quote numbers with their interval and source as the tools give them, and say unknown where they do. "
    "Ask the user before you submit or cancel."
)


def create_server(settings: WebSettings) -> Server[Any]:
    """Return the server; without ``allow_submit`` it has only tools that change nothing."""
    offered = {
        tool.name: tool
        for tool in tools(settings.folder, scripts=settings.allow_scripts).values()
        if settings.allow_submit or not tool.acts
    }

    async def list_tools(_: object, __: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(tools=[_described(tool) for tool in offered.values()])

    async def call_tool(_: object, params: CallToolRequestParams) -> CallToolResult:
        tool = offered.get(params.name)
        if tool is None:
            return _refused(f"there is no tool {params.name[:100]!r}: the tools are {', '.join(offered)}")
        try:
            document = await to_thread.run_sync(partial(tool.call, params.arguments or {}))
        except LeadlineError as error:
            return _refused(str(error))
        text = to_json(document, indent=0)
        return CallToolResult(content=[TextContent(type="text", text=text)], structured_content=document)

    return Server("leadline", version=__version__, instructions=INSTRUCTIONS, on_list_tools=list_tools,
                  on_call_tool=call_tool)  # fmt: skip


def run_on_stdio(settings: WebSettings) -> None:
    """Serve an assistant that started this process, until it closes standard input."""

    async def run() -> None:
        server = create_server(settings)
        async with stdio_server() as (requests, answers):
            await server.run(requests, answers, server.create_initialization_options())

    anyio.run(run)


def http_app(settings: WebSettings) -> ASGIApp:
    """Return the server for streamable HTTP at ``/mcp``, behind the guard of the web server."""
    # The guard checks host and origin itself.
    unchecked = TransportSecuritySettings(enable_dns_rebinding_protection=False)
    app = create_server(settings).streamable_http_app(transport_security=unchecked, stateless_http=True)
    return Guard(app, settings)


def _described(tool: Tool) -> ToolDescription:
    output = json_schema(tool.documents[0]) if len(tool.documents) == 1 else None
    return ToolDescription(
        name=tool.name, description=tool.summary, input_schema=tool.schema, output_schema=output,
        annotations=ToolAnnotations(
            read_only_hint=not tool.acts, destructive_hint=tool.acts, open_world_hint=tool.acts
        ),
    )  # fmt: skip


def _refused(why: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(type="text", text=why)], is_error=True)
