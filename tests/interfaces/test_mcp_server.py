"""The MCP server, tried with the SDK's own client: in process, over standard input and output, and over HTTP."""

import json
import os
import secrets
import subprocess
import sys
import time
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import anyio
import msgspec
import psutil
import pytest

mcp = pytest.importorskip("mcp", reason="needs the [mcp] extra")
httpx2 = pytest.importorskip("httpx2", reason="needs the client of the SDK")

from mcp import StdioServerParameters  # noqa: E402
from mcp.client.client import Client  # noqa: E402
from mcp.client.streamable_http import streamable_http_client  # noqa: E402
from mcp.shared.exceptions import MCPError  # noqa: E402
from mcp_types import ElicitResult  # noqa: E402

from leadline.execution.processes import run_process  # noqa: E402
from leadline.interfaces.tools import tools  # noqa: E402
from leadline.interfaces.web.settings import WebSettings  # noqa: E402
from tests.catalog.test_live import SITE  # noqa: E402
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
    with served(folder, **settings) as (_, address):
        yield connected(address)


@contextmanager
def served(folder, **settings):
    """Start the server, and yield its process and its address."""
    token_file = folder.parent / "token"
    token_file.write_text(TOKEN)
    flags = [f"--{name.replace('_', '-')}" for name in settings]
    words = ["mcp", "--http", "--port", "0", "--token-file", str(token_file), *flags]
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "leadline", *words], cwd=folder, stderr=subprocess.PIPE, text=True
    ) as server:
        address = server.stderr.readline().rpartition(" ")[2].strip()
        try:
            yield server, address
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


@pytest.mark.parametrize("mode", MODES)
def test_over_http_a_call_sees_the_files_as_they_are_now(folder, mode, tmp_path):
    site = tmp_path / "data" / "leadline" / "catalog" / "sites" / "lab.toml"
    model = tmp_path / "data" / "leadline" / "models" / "fresh.npz"

    async def ask(client):
        async def found(name):
            """Look until a changed file must have been noticed."""
            for _ in range(100):
                answer = await client.call_tool("systems", {"name": name})
                if not answer.is_error:
                    break
                await anyio.sleep(0.1)
            return answer

        unknown = await client.call_tool("systems", {"name": "Bench"})
        site.parent.mkdir(parents=True)
        site.write_text(SITE.format(hours=48))
        bench = await found("Bench")
        listed = await client.call_tool("systems", {})
        fit = await client.call_tool("fit", {"workload": "config.json", "on": ["Bench"]})
        site.write_text(SITE.format(hours=2).replace("Bench", "Atoll"))
        atoll = await found("Atoll")
        model.parent.mkdir()
        model.write_bytes(b"no model")
        return unknown, bench, listed, fit, atoll, await client.call_tool("models", {"name": "fresh"})

    with over_http(folder) as server:
        unknown, bench, listed, fit, atoll, damaged = with_client(server, ask, mode=mode)
    assert unknown.is_error
    assert bench.structured_content["partitions"][0]["name"] == "gpu"
    assert "Bench" in [system["name"] for system in listed.structured_content["systems"]]
    assert fit.structured_content["fits"]
    assert atoll.structured_content["partitions"][0]["limits"]["max_walltime_s"] == 7200
    assert "fresh.npz" in damaged.content[0].text


class NoArguments(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Arguments of a tool that takes none."""


def with_a_slow_tool(monkeypatch, answer):
    """Let the server offer a tool ``slow``, beside the real ones."""

    def with_slow(folder, *, scripts):
        offered = tools(folder, scripts=scripts)
        slow = msgspec.structs.replace(offered["devices"], name="slow", arguments=NoArguments, answer=answer)
        return {**offered, "slow": slow}

    monkeypatch.setattr("leadline.interfaces.mcp_server.tools", with_slow)


@pytest.mark.parametrize("mode", MODES)
def test_a_cancelled_call_holds_up_neither_the_next_one_nor_the_end(folder, mode, monkeypatch):
    codes = []
    with_a_slow_tool(monkeypatch, lambda: codes.append(run_process(["sleep", "60"]).returncode))

    async def ask(client):
        with anyio.move_on_after(0.5) as waited:
            await client.call_tool("slow", {})
        return waited.cancelled_caught, await client.call_tool("devices", {"name": "T4"})

    began_s = time.monotonic()
    cancelled, answer = with_client(in_process(folder), ask, mode=mode)
    while not codes:
        assert time.monotonic() - began_s < 20
        time.sleep(0.05)
    assert cancelled
    assert answer.structured_content["name"] == "T4"
    assert codes == [-9]


@pytest.mark.parametrize("mode", MODES)
def test_a_fault_of_the_server_is_an_error_without_its_details(folder, mode, monkeypatch):
    def fail():
        raise RuntimeError("secret detail")

    with_a_slow_tool(monkeypatch, fail)

    async def ask(client):
        return await client.call_tool("slow", {})

    answer = with_client(in_process(folder), ask, mode=mode)
    assert answer.is_error
    assert answer.content[0].text == "a fault of Leadline's own; the server's log has the details"


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("how", ["cancel", "disconnect", "terminate"])
def test_a_script_that_is_traced_ends_with_its_call_and_with_the_server(folder, mode, how, monkeypatch):
    pytest.importorskip("torch", reason="a script is traced with torch")
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    (folder / "train.py").write_text("import time\nwhile True:\n    time.sleep(1)\n")

    with served(folder, allow_scripts=True) as (server, address):
        processes = []

        async def ask(client):
            async with anyio.create_task_group() as group:
                group.start_soon(client.call_tool, "estimate", {"workload": "train.py", "on": ["T4"]})
                while not any("bootstrap.py" in " ".join(child.cmdline()) for child in processes):
                    await anyio.sleep(0.05)
                    processes[:] = psutil.Process(server.pid).children(recursive=True)
                if how == "cancel":
                    group.cancel_scope.cancel()
                elif how == "terminate":
                    server.terminate()
                    with anyio.CancelScope(shield=True):
                        await anyio.to_thread.run_sync(lambda: psutil.wait_procs(processes, timeout=15))
                    group.cancel_scope.cancel()
                else:
                    raise ConnectionError("the client goes")
            _, alive = await anyio.to_thread.run_sync(lambda: psutil.wait_procs(processes, timeout=15))
            assert alive == []
            return await client.call_tool("devices", {"name": "T4"}) if how == "cancel" else None

        try:
            answer = with_client(connected(address), ask, mode=mode)
            assert answer is None or answer.structured_content["name"] == "T4"
        except* (ConnectionError, MCPError):
            assert how != "cancel"
        _, alive = psutil.wait_procs(processes, timeout=15)
        assert alive == []


def test_two_clients_at_once_get_their_own_answers(folder):
    names = ["T4", "V100 SXM2 32GB", "A100 SXM4 80GB"]

    with served(folder) as (_, address):

        async def run():
            answers = {}

            async def ask(mode, name):
                async with Client(connected(address), mode=mode) as client:
                    answers[mode, name] = (await client.call_tool("devices", {"name": name})).structured_content["name"]

            async with anyio.create_task_group() as group:
                for mode in MODES:
                    for name in names:
                        group.start_soon(ask, mode, name)
            return answers

        assert anyio.run(run) == {(mode, name): name for mode in MODES for name in names}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401), ({"Authorization": "Bearer no-such-token-0000"}, 401),
        ({"Authorization": f"Bearer {TOKEN}", "Host": "attacker.example:80"}, 421),
        ({"Cookie": "leadline-token-{port}=" + TOKEN, "Origin": "http://attacker.example"}, 403),
        ({"Authorization": f"Bearer {TOKEN}"}, 200),
    ],
)  # fmt: skip
def test_over_http_strangers_and_rebound_names_are_refused(folder, headers, status):
    call = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"},
    }}  # fmt: skip
    with served(folder) as (_, address):
        port = address.rpartition(":")[2].partition("/")[0]
        sent = {name: value.replace("{port}", port) for name, value in headers.items()}
        accepted = {"Accept": "application/json, text/event-stream", **sent}
        answer = httpx2.post(address, json=call, headers=accepted, timeout=30)
    assert answer.status_code == status
