"""The verb ``explain``: the whole story of a job, in sentences with units, from what the plane's journal holds."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from leadline.app import settings
from leadline.app.hand_over import jobs_of, open_journal
from leadline.app.standing import Standing, standings_of
from leadline.app.story_words import sentence
from leadline.core.errors import InvalidInput, UnknownName
from leadline.core.jobs import JobState
from leadline.core.plane import Action, Attempt, Event, Job, Kind
from leadline.core.runs import Run
from leadline.execution.clock import SystemClock, epoch_s
from leadline.execution.plane.acting import elapsed_s
from leadline.history.sqlite import SqliteHistory

SCHEMA = "leadline.story/1"
EXAMPLES = 3
"""So many elements of an array are proposed where one is wanted."""


@dataclass(frozen=True, slots=True)
class Told:
    """Something that happened: ``says`` in a sentence, ``because`` the evidence in others, ``said`` the figures.

    ``times`` counts how often it was said since ``since`` without any news; this is the last of them.
    """

    at: str
    kind: str
    attempt: int | None
    says: str
    because: tuple[str, ...] = ()
    said: dict[str, float | int | str | bool | None] = field(default_factory=dict)
    times: int = 1
    since: str = ""


@dataclass(frozen=True, slots=True)
class Used:
    """What the attempt of that number used: seconds, and ``measured`` by quantity."""

    attempt: int
    waited_s: float | None
    elapsed_s: float | None
    measured: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Story:
    """A job from its hand-over to now; ``used`` is of its attempts in their order."""

    standing: Standing
    job: Job
    told: tuple[Told, ...]
    used: tuple[Used, ...]


def story_of(name: str, *, whole: bool = False) -> Story:
    """Return the story of one job; ``whole`` with every progress report and every time that it was left alone.

    Raises:
        UnknownName: there is no such job.
        InvalidInput: the name is that of an array, which has as many stories as elements.
    """
    job = _one(name)
    now_s = SystemClock().now_s()
    with open_journal() as journal:
        events = journal.events(job=job.key)
        outages = [one for one in journal.silences() if _concerns(one, job, now_s)]
    numbers = {one.key: one.number for one in job.attempts}
    every = sorted((*events, *outages), key=lambda one: one.number)
    told = [_told(one, numbers) for one in every]
    return Story(
        standings_of([job], now_s)[0],
        job,
        tuple(told if whole else _shortened(told)),
        tuple(_used(one, events, now_s) for one in job.attempts),
    )


def _one(name: str) -> Job:
    """Return the one job of a name: of several that are called so, the newest."""
    found = jobs_of([name])
    if len(found) > 1 and found[0].group is not None and {one.group for one in found} == {found[0].group}:
        failed = [one for one in found if one.closed and one.state is not JobState.COMPLETED]
        some = ", ".join(f"{found[0].group}_{one.index}" for one in (failed or found)[:EXAMPLES])
        which = f"of its {len(failed)} that did not complete, " if failed else ""
        raise InvalidInput(f"{name} is an array of {len(found)} jobs: name one of them, {which}such as {some}")
    return found[-1]


def _concerns(event: Event, job: Job, now_s: float) -> bool:
    """Whether a system fell silent, or answered again, while the job was, or was to be, at it."""
    system = event.said.get("system")
    moment_s = epoch_s(event.at)
    return any(
        one.place.system == system
        and epoch_s(one.noted_at) <= moment_s <= (epoch_s(one.ended_at) if one.ended_at else now_s)
        for one in job.attempts
    )


def _told(event: Event, numbers: dict[str, int]) -> Told:
    says, because = sentence(event)
    return Told(event.at, event.kind.value, numbers.get(event.attempt), says, because, dict(event.said))


def _shortened(told: Iterable[Told]) -> list[Told]:
    """Leave out what is no news: between two events, all but the last report and the last time it was left alone."""
    found: list[Told] = []
    same: dict[tuple[object, ...], Told] = {}
    for one in told:
        key = _sameness(one)
        if key is None:
            same.clear()
            found.append(one)
            continue
        new = one
        if (last := same.get(key)) is not None:
            found.remove(last)
            new = replace(one, times=last.times + 1, since=last.since or last.at)
        same[key] = new
        found.append(new)
    return found


def _sameness(one: Told) -> tuple[object, ...] | None:
    """Return what makes a report, or leaving a job alone, the same again: figures apart; ``None`` for news."""
    if one.kind == Kind.PROGRESS:
        return one.kind, one.attempt
    kept = one.kind == Kind.DECISION and one.said.get("action") == Action.KEEP
    return (one.kind, one.attempt, re.sub(r"\d[\d.]*", "#", one.says)) if kept else None


def _used(attempt: Attempt, events: Sequence[Event], now_s: float) -> Used:
    """Return an attempt with what the history, or its last report, says that it used."""
    submitted, began = attempt.submitted_at or attempt.noted_at, attempt.started_at
    until_s = epoch_s(began or attempt.ended_at or "") if began or attempt.ended_at else now_s
    waited_s = max(0.0, until_s - epoch_s(submitted)) if submitted else None
    run = _run_of(attempt)
    if run is not None:
        measured = {name: one.value for name, one in run.measured.items()}
    else:
        reports = [one.said for one in events if one.kind is Kind.PROGRESS and one.attempt == attempt.key]
        last = reports[-1] if reports else {}
        measured = {name: float(value) for name, value in last.items() if isinstance(value, int | float)}
    return Used(attempt.number, waited_s, elapsed_s(attempt, now_s) if began else None, measured)


def _run_of(attempt: Attempt) -> Run | None:
    """Return the run of the history that an attempt became."""
    try:
        return SqliteHistory(settings.history_path()).get(attempt.key) if attempt.recorded else None
    except UnknownName:
        return None
