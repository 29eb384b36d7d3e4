"""Tasks that run at once, and those that must wait."""

import asyncio
import threading
from pathlib import Path

import pytest
from starlette.exceptions import HTTPException

from leadline.interfaces.web.settings import WebSettings
from leadline.interfaces.web.tasks import TaskPool


def test_more_tasks_than_are_kept_are_refused_until_one_has_ended():
    may_end = threading.Event()

    async def run():
        pool = TaskPool(WebSettings("", Path(), workers=1, most_tasks=2))
        first = pool.start("jobs", lambda: {"ended": may_end.wait()})
        pool.start("jobs", dict)
        with pytest.raises(HTTPException) as refused:
            pool.start("jobs", dict)
        may_end.set()
        states = [document["state"] async for document in pool.follow(first)]
        pool.start("jobs", dict)
        pool.close()
        return refused.value.status_code, states[-1]

    assert asyncio.run(run()) == (429, "done")
