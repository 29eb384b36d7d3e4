"""The MCP server, tried with the SDK's own client: in process, over standard input and output, and over HTTP."""

import json
import sys

import anyio
import pytest

mcp = pytest.importorskip("mcp", reason="needs the [mcp] extra")

from mcp import StdioServerParameters  # noqa: E402
from mcp.client.client import Client  # noqa: E402

from leadline.interfaces.web.settings import WebSettings  # noqa: E402
from tests.interfaces.test_tools import LLAMA  # noqa: E402


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    return tmp_path


def with_client(server, work):
    async def run():
        async with Client(server) as client:
            return await work(client)

    return anyio.run(run)


def in_process(folder, **settings):
    from leadline.interfaces.mcp_server import create_server

    return create_server(WebSettings("", folder, **settings))


def test_it_reads_by_default_and_acts_only_when_allowed(folder):
    async def names(client):
        return {tool.name: tool.annotations.read_only_hint for tool in (await client.list_tools()).tools}

    reading = with_client(in_process(folder), names)
    assert "estimate" in reading
    assert set(reading.values()) == {True}
    acting = with_client(in_process(folder, allow_submit=True), names)
    assert {name for name, reads in acting.items() if not reads} == {"approve", "cancel", "submit"}


def test_a_call_has_the_document_as_text_and_structured(folder):
    async def ask(client):
        return await client.call_tool("fit", {"workload": "config.json", "on": ["T4"], "batch": 2})

    answer = with_client(in_process(folder), ask)
    assert not answer.is_error
    assert json.loads(answer.content[0].text)["schema"] == "leadline.fit/1"
    assert answer.structured_content["device"] == "T4"


@pytest.mark.parametrize(
    ("tool", "arguments", "why"),
    [
        ("devices", {"nam": "T4"}, "unknown field"), ("devices", {"name": "no such"}, "unknown device"),
        ("estimate", {"workload": "../../etc/passwd"}, "outside"), ("submit", {"command": ["x"]}, "there is no tool"),
        ("estimate", {"workload": "config.json", "batch": "many"}, "batch"),
        ("estimate", {"workload": "x.py"}, "sandbox"),
    ],
)  # fmt: skip
def test_a_call_that_cannot_be_answered_is_an_error_that_says_why(folder, tool, arguments, why):
    async def ask(client):
        return await client.call_tool(tool, arguments)

    answer = with_client(in_process(folder), ask)
    assert answer.is_error
    assert why in answer.content[0].text


def test_an_assistant_starts_it_as_a_command(folder):
    server = StdioServerParameters(command=sys.executable, args=["-m", "leadline", "mcp"], cwd=str(folder))

    async def ask(client):
        return await client.call_tool("devices", {"name": "T4"})

    assert with_client(server, ask).structured_content["name"] == "T4"
