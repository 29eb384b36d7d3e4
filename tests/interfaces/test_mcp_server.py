"""The MCP server, tried with the SDK's own client: in process, over standard input and output, and over HTTP."""

import json
import os
import secrets
import subprocess
import sys
from contextlib import asynccontextmanager, contextmanager

import anyio
import pytest

mcp = pytest.importorskip("mcp", reason="needs the [mcp] extra")
httpx2 = pytest.importorskip("httpx2", reason="needs the client of the SDK")

from mcp import StdioServerParameters  # noqa: E402
from mcp.client.client import Client  # noqa: E402
from mcp.client.streamable_http import streamable_http_client  # noqa: E402
from mcp_types import ElicitResult  # noqa: E402

from leadline.interfaces.web.settings import WebSettings  # noqa: E402
from tests.interfaces.test_tools import LLAMA  # noqa: E402

TOKEN = secrets.token_hex(8)
MODES = ["legacy", "auto"]
"""The protocol up to 2025, in which the server asks, and since 2026, in which it answers with a question."""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for kind in ("DATA", "CONFIG", "CACHE", "STATE"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(tmp_path / kind.lower()))
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    return folder


class User:
    """Answers the questions of the server, and keeps them."""

    def __init__(self, action, agree=None):
        self.result = ElicitResult(action=action, content=None if agree is None else {"agree": agree})
        self.asked = []

    async def __call__(self, context, params):  # noqa: ARG002 - as the client calls it
        self.asked.append(params.message)
        return self.result


def with_client(server, work, **options):
    async def run():
        async with Client(server, **options) as client:
            return await work(client)

    return anyio.run(run)


def in_process(folder, **settings):
    from leadline.interfaces.mcp_server import create_server

    return create_server(WebSettings("", folder, **settings))


@contextmanager
def over_stdio(folder, **settings):
    flags = [f"--{name.replace('_', '-')}" for name in settings]
    yield StdioServerParameters(
        command=sys.executable, args=["-P", "-m", "leadline", "mcp", *flags], cwd=str(folder), env=dict(os.environ)
    )


@contextmanager
def over_http(folder, **settings):
    token_file = folder.parent / "token"
    token_file.write_text(TOKEN)
    flags = [f"--{name.replace('_', '-')}" for name in settings]
    words = ["mcp", "--http", "--port", "0", "--token-file", str(token_file), *flags]
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "leadline", *words], cwd=folder, stderr=subprocess.PIPE, text=True
    ) as server:
        address = server.stderr.readline().rpartition(" ")[2].strip()
        try:
            yield connected(address)
        finally:
            server.terminate()


@asynccontextmanager
async def connected(address):
    async with (
        httpx2.AsyncClient(headers={"Authorization": f"Bearer {TOKEN}"}, timeout=60) as http,
        streamable_http_client(address, http_client=http) as streams,
    ):
        yield streams


@pytest.mark.parametrize("transport", [over_stdio, over_http])
@pytest.mark.parametrize("mode", MODES)
def test_without_the_permission_no_tool_changes_anything(folder, transport, mode):
    async def ask(client):
        names = {tool.name: tool.annotations.read_only_hint for tool in (await client.list_tools()).tools}
        return names, await client.call_tool("submit", {"command": ["true"]})

    with transport(folder) as server:
        names, answer = with_client(server, ask, mode=mode, elicitation_callback=User("accept", agree=True))
    assert "estimate" in names
    assert set(names.values()) == {True}
    assert answer.is_error
    assert "there is no tool 'submit'" in answer.content[0].text


@pytest.mark.parametrize("transport", [over_stdio, over_http])
@pytest.mark.parametrize("mode", MODES)
def test_a_change_runs_after_the_yes_of_the_user(folder, transport, mode):
    async def ask(client):
        acting = {tool.name for tool in (await client.list_tools()).tools if not tool.annotations.read_only_hint}
        return acting, await client.call_tool("submit", {"command": ["touch", "ran"], "name": "yes"})

    user = User("accept", agree=True)
    with transport(folder, allow_submit=True) as server:
        acting, answer = with_client(server, ask, mode=mode, elicitation_callback=user)
    assert acting == {"approve", "cancel", "submit"}
    assert not answer.is_error, answer.content
    assert answer.structured_content["jobs"][0]["name"] == "yes"
    assert user.asked == ["An assistant wants to run: leadline submit --detach --name yes -- touch ran"]


@pytest.mark.parametrize("transport", [over_stdio, over_http])
@pytest.mark.parametrize("mode", MODES)
def test_without_a_way_to_ask_nothing_runs_and_the_command_is_named(folder, transport, mode):
    async def ask(client):
        return await client.call_tool("submit", {"command": ["touch", "ran"]}), await client.call_tool("jobs", {})

    with transport(folder, allow_submit=True) as server:
        answer, jobs = with_client(server, ask, mode=mode)
    assert answer.is_error
    assert answer.content[0].text == (
        "nothing was done, because this assistant cannot ask the user: "
        "they can type leadline submit --detach -- touch ran"
    )
    assert jobs.structured_content["jobs"] == []


@pytest.mark.parametrize(
    "user", [User("accept", agree=False), User("decline"), User("cancel"), User("accept")], ids=["no", "declined",
    "closed", "empty"],
)  # fmt: skip
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("tool", ["submit", "cancel", "approve"])
def test_any_other_answer_of_the_user_changes_nothing(folder, mode, tool, user):
    arguments = {"submit": {"command": ["true"]}, "cancel": {"all": True}, "approve": {"jobs": ["a"]}}[tool]

    async def ask(client):
        return await client.call_tool(tool, arguments)

    server = in_process(folder, allow_submit=True)
    answer = with_client(server, ask, mode=mode, elicitation_callback=user)
    assert answer.is_error
    assert f"nothing was done, because the user did not agree to leadline {tool}" in answer.content[0].text


def test_a_yes_counts_once_and_only_for_the_arguments_that_were_shown(folder):
    yes = {"agree": ElicitResult(action="accept", content={"agree": True})}

    async def ask(client):
        async def call(arguments, **fields):
            return await client.session.call_tool("submit", arguments, allow_input_required=True, **fields)

        shown = {"command": ["touch", "shown"]}
        unasked = await call(shown, input_responses=yes)
        question = await call(shown)
        other = await call({"command": ["touch", "other"]}, input_responses=yes, request_state=question.request_state)
        spent = await call(shown, input_responses=yes, request_state=question.request_state)
        return unasked, question, other, spent, await client.call_tool("jobs", {"all": True})

    server = in_process(folder, allow_submit=True)
    *asked, jobs = with_client(server, ask, elicitation_callback=User("cancel"))
    assert [answer.result_type for answer in asked] == ["input_required"] * 4
    assert len({answer.request_state for answer in asked}) == 4
    assert jobs.structured_content["jobs"] == []


def test_a_call_has_the_document_as_text_and_structured(folder):
    async def ask(client):
        return await client.call_tool("fit", {"workload": "config.json", "on": ["T4"], "batch": 2})

    answer = with_client(in_process(folder), ask)
    assert not answer.is_error
    assert json.loads(answer.content[0].text) == answer.structured_content
    assert answer.structured_content["schema"] == "leadline.fit/1"
    assert answer.structured_content["device"] == "T4"


@pytest.mark.parametrize(
    ("tool", "arguments", "why"),
    [
        ("devices", {"nam": "T4"}, "unknown field"), ("devices", {"name": "no such"}, "unknown device"),
        ("estimate", {"workload": "../../etc/passwd"}, "outside"), ("models", {"name": "../config"}, "name"),
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
