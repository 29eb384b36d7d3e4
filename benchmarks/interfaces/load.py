"""The page under load: many readers with live jobs, a full journal and a long history."""

import asyncio
import os
import random
import re
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import httpx
import psutil

from benchmarks.results import BenchmarkRow, at_most
from leadline.core.jobs import JobSpec, JobState, ResourceSpec
from leadline.core.plane import Attempt, EventKind, Job, Place, Policy
from leadline.core.runs import Measurement, Run
from leadline.execution.clock import iso_utc
from leadline.execution.plane.journal import PlaneJournal, attempt_event
from leadline.history.sqlite import SqliteHistory

READERS, JOBS, RUNS = 200, 10_000, 100_000
JOB = "jobs/job-09999"
PAGES = ("", "jobs", JOB, "systems", "systems/Pitzer", "campaigns", "models", "history", "chat")
LIVE = {"jobs": "jobs/table", JOB: JOB}
"""Page → what it asks for after a change."""
THINKS_S = (4.0, 12.0)
"""How long a reader looks at a page: thirty times less than the two to six minutes of an ordinary reader."""
CHANGES_S = 5.0
"""A job changes so often; each reader of live jobs then asks for them again, as the page does."""
WAITS_S = 2.0
"""Longest time until the page asks, as in ``static/app.js``."""
LASTS_S = 120.0
"""An hour of ordinary readers, thirty times as fast."""
LATEST_MS = 300.0
GROWTH_PERCENT = 10.0
"""Growth of memory between the two halves of the load that still counts as flat."""
PAGE_BYTES = 100_000


@dataclass(slots=True)
class Load:
    """What the readers saw."""

    times_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    events: int = 0
    failures: list[str] = field(default_factory=list)
    memory_bytes: list[int] = field(default_factory=list)


def load_rows(folder: Path, *, quick: bool = False) -> list[BenchmarkRow]:
    """Serve a full store to many readers, and return the times of the pages and the memory of the server."""
    jobs, runs, readers = (JOBS // 20, RUNS // 20, READERS // 10) if quick else (JOBS, RUNS, READERS)
    fill(folder, jobs, runs)
    with serving(folder) as (address, token, server):
        first = asyncio.run(first_paint(address, token))
        load = asyncio.run(read(folder, address, token, server, readers, LASTS_S / 6 if quick else LASTS_S))
    times_s = sorted(time_s for page in load.times_s.values() for time_s in page)
    p95_ms = 1000 * times_s[int(0.95 * len(times_s))]
    half = len(load.memory_bytes) // 2
    before, after = median(load.memory_bytes[: max(half, 1)]), median(load.memory_bytes[half:])
    each = ", ".join(f"/{page} {1000 * sorted(one)[int(0.95 * len(one))]:.0f}" for page, one in load.times_s.items())
    return [
        at_most("page, 95th percentile", p95_ms, LATEST_MS, "ms", n=len(times_s),
                how=f"{readers} readers with an event stream each, {jobs:,} jobs, one of which changes every "
                f"{CHANGES_S:g} s, {runs:,} runs; by page: {each}"),
        at_most("pages that failed under load", len(load.failures), 0, "pages", n=len(times_s),
                how="; ".join(load.failures[:3])),
        at_most("growth of the server's memory", 100 * (after / before - 1), GROWTH_PERCENT, "%",
                n=len(load.memory_bytes), how=f"median of the second half to the first; {after / 2**20:.0f} MiB"),
        BenchmarkRow("events sent to the readers", load.events, "events", n=readers),
        at_most("first paint, the heaviest page", max(first.values()), PAGE_BYTES, "bytes", n=len(first),
                how="page, style sheets and scripts as they are sent, compressed; "
                + ", ".join(f"/{page} {size:,}" for page, size in first.items())),
    ]  # fmt: skip


def fill(folder: Path, jobs: int, runs: int) -> None:
    """Fill the journal and the history of a data folder."""
    rng, now_s = random.Random(1), time.time()  # noqa: S311 - not secret
    place, request = (
        Place("Pitzer", "gpu"),
        ResourceSpec(cores_per_task=4, memory_bytes_per_node=2**34, walltime_s=7200.0),
    )
    path = folder / "leadline" / "plane" / "journal.sqlite"
    path.parent.mkdir(parents=True)
    made, attempts = [], []
    for number in range(jobs):
        ended = number < 0.98 * jobs
        key, at = f"job-{number:05}", iso_utc(now_s - 60.0 * (jobs - number))
        spec = JobSpec(f"train-{rng.randrange(50)}", ("python", "train.py"), request, system="Pitzer", partition="gpu")
        state = JobState.COMPLETED if ended else JobState.PENDING
        made.append(Job(key, spec, Policy((place,)), state=state, created_at=at, recorded=ended))
        attempts.append(Attempt(f"a{number:05}", key, 1, place, request, batch=f"a{number:05}",
                                scheduler_id=str(1000 + number), noted_at=at, submitted_at=at, started_at=at,
                                state=JobState.COMPLETED if ended else JobState.RUNNING,
                                ended_at=at if ended else None))  # fmt: skip
    with PlaneJournal(path) as journal:
        journal.add(made)
        events = [attempt_event(EventKind.STATE, attempt, {"state": attempt.state.value}) for attempt in attempts]
        journal.write(jobs=made, attempts=attempts, events=events)
    SqliteHistory(folder / "leadline" / "history.sqlite").add_all(
        Run(f"r-{number:06}", made[number % jobs].spec, JobState.COMPLETED, iso_utc(now_s - 30.0 * number),
            measured={"elapsed_s": Measurement(rng.uniform(60, 7200), "s", "wrapper")})
        for number in range(runs)
    )  # fmt: skip


@contextmanager
def serving(folder: Path) -> Iterator[tuple[str, str, psutil.Process]]:
    """Run ``leadline web`` on a data folder; yield its address, its token and its process."""
    token_file = folder / "token"
    token_file.write_text("load-" + "x" * 20)
    environment = {**os.environ, **{f"XDG_{kind}_HOME": str(folder) for kind in ("DATA", "CONFIG", "CACHE", "STATE")}}
    command = [sys.executable, "-m", "leadline", "web", "--port", "0", "--token-file", str(token_file)]
    process = psutil.Popen(command, cwd=folder, env=environment, stderr=-1, text=True)
    try:
        for line in process.stderr:
            if match := re.search(r"http://\S+:(\d+)/", line):
                yield f"http://127.0.0.1:{match[1]}/", token_file.read_text(), psutil.Process(process.pid)
                return
        raise RuntimeError("leadline web ended before it served")
    finally:
        process.terminate()
        process.wait(60)


async def first_paint(address: str, token: str) -> dict[str, int]:
    """Return the bytes over the wire of each page with what it links, as a browser gets them the first time."""
    sizes = {}
    async with _client(address, token) as client:
        for page in PAGES:
            size, text = await _sent(client, page)
            for link in sorted(set(re.findall(r'(?:href|src)="(\.{1,2}/static/[^"]+)"', text))):
                size += (await _sent(client, link))[0]
            sizes[page] = size
    return sizes


async def _sent(client: httpx.AsyncClient, path: str) -> tuple[int, str]:
    async with client.stream("GET", path) as answer:
        answer.raise_for_status()
        headers = sum(len(name) + len(value) + 4 for name, value in answer.headers.raw)
        body = b"".join([part async for part in answer.aiter_bytes()])
        return headers + answer.num_bytes_downloaded, body.decode()


async def read(folder: Path, address: str, token: str, server: psutil.Process, readers: int, lasts_s: float) -> Load:
    """Let readers look at pages for a time, each with an event stream, while jobs change."""
    load, until = Load(), time.monotonic() + lasts_s
    people = [Reader(random.Random(number), load, address, token, until) for number in range(readers)]  # noqa: S311

    async def watch() -> None:
        while time.monotonic() < until:
            await asyncio.sleep(lasts_s / 60)
            load.memory_bytes.append(server.memory_info().rss)

    streams = [asyncio.create_task(reader.follow()) for reader in people]
    await asyncio.gather(watch(), change(folder, until), *(reader.look() for reader in people))
    for stream in streams:
        stream.cancel()
    await asyncio.gather(*streams, return_exceptions=True)
    return load


async def change(folder: Path, until: float) -> None:
    """Write a job's state into the journal now and then, as a plane does."""
    with PlaneJournal(folder / "leadline" / "plane" / "journal.sqlite") as journal:
        attempt = journal.open_jobs()[0].attempts[0]
        while time.monotonic() < until:
            await asyncio.sleep(CHANGES_S)
            journal.write(events=[attempt_event(EventKind.STATE, attempt, {"state": attempt.state.value})])


@dataclass(slots=True)
class Reader:
    """A person who looks at one page after the other until a moment of ``time.monotonic``."""

    rng: random.Random
    load: Load
    address: str
    token: str
    until: float
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def follow(self) -> None:
        """Read the stream of events."""
        async with (
            _client(self.address, self.token) as client,
            client.stream("GET", "api/v1/events", timeout=None) as stream,
        ):
            async for line in stream.aiter_lines():
                if line.startswith("event:"):
                    self.load.events += 1
                    self.changed.set()

    async def look(self) -> None:
        """Look at pages; those of jobs ask for their live part again after a change."""
        async with _client(self.address, self.token) as client:
            await asyncio.sleep(self.rng.uniform(0, THINKS_S[1]))
            while time.monotonic() < self.until:
                page = self.rng.choice(PAGES)
                await self._ask(client, page)
                leaves = time.monotonic() + self.rng.uniform(*THINKS_S)
                while await self._hears(leaves):
                    if page in LIVE:
                        await asyncio.sleep(self.rng.uniform(0, WAITS_S))
                        await self._ask(client, LIVE[page])

    async def _hears(self, until: float) -> bool:
        """Wait for a change until a moment; tell whether there was one."""
        self.changed.clear()
        with suppress(TimeoutError):
            await asyncio.wait_for(self.changed.wait(), max(until - time.monotonic(), 0))
        return self.changed.is_set()

    async def _ask(self, client: httpx.AsyncClient, page: str) -> None:
        began = time.monotonic()
        answer = await client.get(page)
        self.load.times_s[page].append(time.monotonic() - began)
        if answer.status_code != 200:
            self.load.failures.append(f"/{page}: {answer.status_code}")


def _client(address: str, token: str) -> httpx.AsyncClient:
    # The server closes a connection that is idle for 5 s. A browser then asks again on another one, httpx does not.
    limits = httpx.Limits(keepalive_expiry=4.0)
    return httpx.AsyncClient(base_url=address, headers={"Authorization": f"Bearer {token}"}, timeout=60, limits=limits)
