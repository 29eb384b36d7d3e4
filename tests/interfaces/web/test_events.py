"""News of jobs for many readers: one look at the journal at a time, and none without readers."""

import asyncio
import contextlib
import gc
import logging
import sqlite3

import httpx
import pytest

uvicorn = pytest.importorskip("uvicorn", reason="needs the [web] extra")

from leadline.app.jobs.journal import open_journal  # noqa: E402
from leadline.core.errors import InvalidInput  # noqa: E402
from leadline.core.jobs import JobSpec, ResourceSpec  # noqa: E402
from leadline.core.plane import Job, Place, Policy  # noqa: E402
from leadline.interfaces.web.app import create_app  # noqa: E402
from leadline.interfaces.web.events import JobEvents  # noqa: E402
from leadline.interfaces.web.settings import WebSettings  # noqa: E402

READERS = 200


def lookers():
    return [task for task in asyncio.all_tasks() if getattr(task.get_coro(), "__name__", "") == "_look"]


async def begun(readers):
    """Start to read with each, and let all wait for news."""
    waiting = [asyncio.ensure_future(anext(reader)) for reader in readers]
    await asyncio.sleep(0.1)
    return waiting


async def end(readers, waiting):
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    for reader in readers:
        await reader.aclose()
    await asyncio.sleep(0.05)


def test_readers_that_begin_at_once_share_a_look_that_ends_with_the_last():
    async def run():
        events = JobEvents(lambda: 7, look_s=0.01)
        readers = [events.follow(None) for _ in range(5)]
        waiting = await begun(readers)
        assert len(lookers()) == 1
        await end(readers, waiting)
        assert lookers() == []

    asyncio.run(run())


def test_a_change_between_the_request_and_the_first_look_is_told():
    numbers = iter([7, 8])

    async def run():
        events = JobEvents(lambda: next(numbers, 8), look_s=0.01)
        reader = events.follow(await events.newest())
        event = await asyncio.wait_for(anext(reader), 10)
        await reader.aclose()
        return event.id

    assert asyncio.run(run()) == "8"


@pytest.mark.parametrize("fault", [InvalidInput("the journal is damaged"), sqlite3.OperationalError("disk I/O error")])
@pytest.mark.parametrize("before", [0, 1])
def test_a_look_that_fails_is_not_the_last_and_is_logged_once(fault, before, caplog):
    numbers = iter([*range(before), *[fault] * 5, 7])

    def newest():
        number = next(numbers, 7)
        if isinstance(number, Exception):
            raise number
        return number

    async def run():
        reader = JobEvents(newest, look_s=0.01).follow(None)
        event = await asyncio.wait_for(anext(reader), 10)
        await reader.aclose()
        return event.id

    with caplog.at_level(logging.WARNING):
        assert asyncio.run(run()) == "7"
    assert [record.message for record in caplog.records] == [f"no events of jobs: {fault}", "events of jobs are back"]


async def read_all(client, journal_job):
    """Open a stream for each reader, add a job, and return how many heard of it."""
    async with contextlib.AsyncExitStack() as streams:
        opened = [await streams.enter_async_context(client.stream("GET", "/api/v1/events")) for _ in range(READERS)]
        lines = [stream.aiter_lines() for stream in opened]
        await asyncio.sleep(0.2)  # all of them follow
        with open_journal() as journal:
            journal.add([journal_job])

        async def heard(stream):
            return await anext(line async for line in stream if line.startswith("event:"))

        return len(await asyncio.wait_for(asyncio.gather(*map(heard, lines)), 60))


@pytest.mark.slow
def test_two_hundred_readers_hear_of_a_change_and_leave_nothing_behind(web_folder):
    settings = WebSettings("", web_folder)
    jobs = [
        Job(f"r{number}", JobSpec("train", ("true",), ResourceSpec()), Policy((Place("local"),))) for number in range(3)
    ]

    async def run():
        server = uvicorn.Server(uvicorn.Config(create_app(settings), port=0, log_level="warning", lifespan="on"))
        serving = asyncio.create_task(server.serve())
        while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0.02)
        base = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        limits, counts = httpx.Limits(max_connections=None), []
        for job in jobs:
            async with httpx.AsyncClient(base_url=base, timeout=60, limits=limits) as client:
                assert await read_all(client, job) == READERS
            for _ in range(100):
                if not server.server_state.connections and not server.server_state.tasks:
                    break
                await asyncio.sleep(0.1)
            await asyncio.sleep(0.5)
            gc.collect()
            counts.append((len(asyncio.all_tasks()), sum(type(each) is asyncio.Event for each in gc.get_objects())))
        server.should_exit = True
        await serving
        return counts

    counts = asyncio.run(run())
    assert counts[2] == counts[1], "tasks and events of readers who have gone are still there"
