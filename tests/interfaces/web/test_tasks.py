"""Tasks: their states, their end by cancelling, their processes, and what is left of them afterwards."""

import asyncio
import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

pytest.importorskip("starlette", reason="needs the [web] extra")

from starlette.exceptions import HTTPException

from leadline.core.errors import InvalidInput, UnknownName
from leadline.interfaces.tools import tools
from leadline.interfaces.web.settings import WebSettings
from leadline.interfaces.web.tasks import TaskPool

QUESTION = {"workload": "config.json", "steps": 1000}


@asynccontextmanager
async def pool_of(folder, *, busy=False, **settings):
    """Yield a pool, whose only worker is busy if so, and its tools."""
    pool = TaskPool(WebSettings("", Path(folder), workers=1, **settings))
    if busy:
        await pool._slots.acquire()
    try:
        yield pool, tools(Path(folder))
    finally:
        await pool.close()


async def states(pool, task):
    """Return the states that a follower sees, each once."""
    return list(dict.fromkeys([document["state"].value async for document in pool.follow(task)]))


def processes():
    """Return the processes of tasks that run; what another test has left unreaped has no command."""
    return [child for child in psutil.Process().children(recursive=True) if "tool_process" in command_of(child)]


def command_of(process):
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:  # it has ended, as a zombie, too
        return ""


async def begun(pool, task):
    """Wait until the process of a task reports its first step; return the process."""
    async for document in pool.follow(task):
        if document["step"]:
            (process,) = processes()
            return process
    raise AssertionError(f"it ended at once: {document}")


def test_a_task_goes_through_its_states_and_steps_to_its_answer(web_folder):
    async def run():
        async with pool_of(web_folder) as (pool, known):
            task = pool.start(known["recommend"], QUESTION)
            return [document async for document in pool.follow(task)]

    documents = asyncio.run(run())
    assert list(dict.fromkeys(document["state"].value for document in documents)) == ["queued", "running", "done"]
    assert any(document["step"].startswith("estimating ") for document in documents)
    assert bytes(documents[-1]["answer"]).startswith(b'{"schema":"leadline.recommendation/1"')
    assert documents[0]["elapsed_s"] is None
    assert documents[-1]["elapsed_s"] > 0


def test_a_task_that_fails_says_why(web_folder):
    async def run():
        async with pool_of(web_folder) as (pool, known):
            task = pool.start(known["systems"], {"name": "nowhere"})
            assert await states(pool, task) == ["queued", "running", "failed"]
            return task.error

    assert "nowhere" in asyncio.run(run())


def test_wrong_arguments_start_no_task(web_folder):
    async def run():
        async with pool_of(web_folder) as (pool, known):
            pool.start(known["systems"], {"nome": "Pitzer"})

    with pytest.raises(InvalidInput, match="nome"):
        asyncio.run(run())


@pytest.mark.parametrize("signal_", [signal.SIGCONT, signal.SIGSTOP])
def test_cancelling_ends_the_process_even_one_that_does_not_react(web_folder, signal_, monkeypatch):
    monkeypatch.setattr("leadline.app.background.END_S", 1.0)

    async def run():
        async with pool_of(web_folder) as (pool, known):
            task = pool.start(known["recommend"], QUESTION)
            process = await begun(pool, task)
            process.send_signal(signal_)
            pool.cancel(task)
            assert await states(pool, task) == ["cancelling", "cancelled"]
            assert not process.is_running()
            pool.cancel(task)  # again
            return task.to_document()

    document = asyncio.run(run())
    assert document["state"] == "cancelled"
    assert document["answer"] is None


def test_a_task_that_waits_is_cancelled_without_a_process(web_folder):
    async def run():
        async with pool_of(web_folder, busy=True) as (pool, known):
            task = pool.start(known["recommend"], QUESTION)
            pool.cancel(task)
            assert await states(pool, task) == ["cancelling", "cancelled"]
            assert processes() == []

    asyncio.run(run())


def test_a_process_that_is_killed_is_said_to_be(web_folder):
    async def run():
        async with pool_of(web_folder) as (pool, known):
            task = pool.start(known["recommend"], QUESTION)
            (await begun(pool, task)).kill()
            assert (await states(pool, task))[-1] == "failed"
            return task.error

    assert "killed by signal 9" in asyncio.run(run())


def test_a_task_that_changes_jobs_is_not_ended_halfway(web_folder):
    async def run():
        async with pool_of(web_folder) as (pool, known):
            task = pool.start(known["cancel"], {"jobs": ["nosuch"]})
            await asyncio.sleep(0)
            pool.cancel(task)

    with pytest.raises(HTTPException, match="wait for its answer"):
        asyncio.run(run())


def test_closing_ends_all_tasks(web_folder):
    async def run():
        async with pool_of(web_folder) as (pool, known):
            running, waiting = (pool.start(known["recommend"], QUESTION) for _ in range(2))
            await begun(pool, running)
        return running.state, waiting.state

    assert asyncio.run(run()) == ("cancelled", "cancelled")
    assert processes() == []


def test_more_tasks_than_are_kept_are_refused_until_one_has_ended(web_folder):
    async def run():
        async with pool_of(web_folder, busy=True, most_tasks=2) as (pool, known):
            first, _ = (pool.start(known["jobs"], {}) for _ in range(2))
            with pytest.raises(HTTPException) as refused:
                pool.start(known["jobs"], {})
            pool.cancel(first)
            await states(pool, first)
            pool.start(known["jobs"], {})
            with pytest.raises(HTTPException) as gone:
                pool.get(first.id)
            return refused.value.status_code, gone.value.status_code, gone.value.detail

    assert asyncio.run(run())[:2] == (429, 410)
    assert "only the newest 2 tasks are kept" in asyncio.run(run())[2]


def test_the_list_has_the_tasks_that_are_kept_and_no_more(web_folder):
    async def run():
        async with pool_of(web_folder, busy=True, most_tasks=2) as (pool, known):
            for tool, arguments in (("jobs", {}), ("logs", {"job": "train"}), ("recommend", QUESTION)):
                task = pool.start(known[tool], arguments)
                pool.cancel(task)
                await states(pool, task)
            return pool.to_document()["tasks"]

    tasks = asyncio.run(run())
    assert [(task["tool"], task["subject"]) for task in tasks] == [("recommend", "config.json"), ("logs", "train")]


def test_large_answers_are_dropped_for_newer_ones(web_folder):
    async def run():
        async with pool_of(web_folder, most_answer_bytes=1000) as (pool, known):
            first = pool.start(known["devices"], {})
            await states(pool, first)
            pool.start(known["jobs"], {})
            with pytest.raises(HTTPException, match="only the newest"):
                pool.get(first.id)

    asyncio.run(run())


def test_a_task_of_an_earlier_server_is_gone_and_an_unknown_one_is_not_found(web_folder):
    async def run():
        async with pool_of(web_folder, busy=True) as (earlier, known):
            task = earlier.start(known["jobs"], {})
        async with pool_of(web_folder) as (pool, _):
            with pytest.raises(HTTPException) as gone:
                pool.get(task.id)
            for unknown in ("nosuch", "x" * 8 + "-1", f"{pool._run}-1", f"{pool._run}-٣"):
                with pytest.raises(UnknownName):
                    pool.get(unknown)
            return gone.value

    gone = asyncio.run(run())
    assert gone.status_code == 410
    assert "earlier run of this server" in gone.detail


def descendants(process):
    return psutil.Process(process.pid).children(recursive=True)


@pytest.mark.slow
@pytest.mark.parametrize(("path", "how"), [("tasks/estimate", "DELETE"), ("tasks/estimate", signal.SIGINT),
                                          ("tasks/estimate", signal.SIGKILL), ("estimate", signal.SIGINT)])  # fmt: skip
def test_a_script_that_is_traced_ends_with_its_task_and_with_the_server(tmp_path, path, how, monkeypatch):
    """Its sandbox is a session of its own, which no signal to the task's reaches."""
    pytest.importorskip("torch", reason="a script is traced with torch")
    from tests.interfaces.cli.test_web import httpx, started

    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    (tmp_path / "train.py").write_text("import time\nwhile True:\n    time.sleep(1)\n")
    server, address = started(tmp_path, "--allow-scripts", "--no-token")
    try:
        url, question = f"{address}api/v1/{path}", {"workload": "train.py", "on": ["T4"]}
        with ThreadPoolExecutor(1) as asking:
            answer = asking.submit(httpx.post, url, json=question, timeout=60)
            while not (
                sandbox := [child for child in descendants(server) if "bootstrap.py" in " ".join(child.cmdline())]
            ):
                time.sleep(0.05)
            time.sleep(4)  # until the script runs
            assert all(process.is_running() for process in sandbox), answer.result().text
            all_ = descendants(server)
            if how == "DELETE":
                task = f"{address}api/v1/tasks/{answer.result().headers['Location']}"
                assert httpx.delete(task).json()["state"] == "cancelling"
            else:
                server.send_signal(how)
                server.communicate(timeout=15)
            answer.exception()
        _, alive = psutil.wait_procs(all_, timeout=15)
        assert alive == []
    finally:
        server.kill()
        server.communicate()
