"""News of jobs for many readers: one look at the journal at a time, and none without readers."""

import asyncio

from leadline.core.errors import InvalidInput
from leadline.interfaces.web.events import JobEvents


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


def test_a_look_that_fails_is_not_the_last():
    numbers = iter([1, InvalidInput("the journal is damaged"), 2])

    def newest():
        number = next(numbers, 2)
        if isinstance(number, Exception):
            raise number
        return number

    async def run():
        reader = JobEvents(newest, look_s=0.01).follow(None)
        event = await asyncio.wait_for(anext(reader), 10)
        await reader.aclose()
        return event.id

    assert asyncio.run(run()) == "2"
