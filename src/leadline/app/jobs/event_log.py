"""What an event of the plane's journal says, in a sentence, and its figures in others: pure, units written out."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from leadline.app import settings
from leadline.app.jobs.job_status import JobStatus, statuses_of
from leadline.app.jobs.journal import find_jobs, open_journal
from leadline.core.errors import InvalidInput, UnknownName
from leadline.core.jobs import JobState, ResourceSpec
from leadline.core.plane import Action, Attempt, EventKind, Job, JournalEvent, Policy
from leadline.core.runs import Run
from leadline.core.units import HOUR_S, format_bytes, format_duration
from leadline.execution.clock import SystemClock, epoch_s
from leadline.execution.plane.actor import attempt_elapsed_s
from leadline.history.sqlite import SqliteHistory

EventDetails = Mapping[str, float | int | str | bool | None]

_DONE = {
    Action.KEEP: "left alone",
    Action.SHRINK: "given a lower limit",
    Action.EXTEND: "a longer limit asked for",
    Action.CHECKPOINT: "made to write a checkpoint and to go on in another attempt",
    Action.RESUBMIT: "submitted anew",
    Action.MOVE: "moved",
    Action.BEGIN: "let begin",
    Action.WITHDRAW: "withdrawn",
    Action.GIVE_UP: "given up",
    Action.FINISH: "finished",
}
_LABELS = {
    "elapsed_s": "ran so far",
    "limit_s": "its limit",
    "total_s": "expected to take in all",
    "late": "probability to reach the limit",
    "remaining_wait_s": "expected to wait another",
    "spent_node_s": "all attempts took",
    "spent_cost": "all attempts cost",
    "walltime_s": "limit",
    "memory_bytes_per_node": "memory a node",
    "lasted_at_least_s": "lasted at least",
    "needed_s": "limit it needs",
    "needed_at_least_bytes": "needs at least",
    "needed_bytes": "memory it needs",
    "affordable_s": "can be paid for",
    "here_s": "expected until its end here",
    "there_s": "expected until its end there",
    "avoid_node": "node to be avoided",
    "attempt": "attempts so far",
    "gpu_memory_bytes": "GPU memory",
    "host_memory_bytes": "memory",
    "cpu_s": "CPU time",
}
_HIDDEN = ("action", "why", "place", "state", "reason", "node")
"""Stand in the sentence itself."""


_REPORTED = ("host_memory_bytes", "gpu_memory_bytes", "gpu_utilisation", "cpu_utilisation")
_SHARES = ("late", "risk", "gpu_utilisation", "cpu_utilisation")
_UNITS: tuple[tuple[Callable[[str], bool], Callable[[float], str]], ...] = (
    (lambda name: name.endswith("node_s"), lambda value: f"{value / HOUR_S:.3g} node-hours"),
    (lambda name: name.endswith("_s"), lambda value: format_duration(value) if value > 0 else "0 s"),
    (lambda name: "_bytes" in name, format_bytes),
    (lambda name: name in _SHARES, lambda value: f"{100 * value:.2g} %"),
)
"""Whether a name tells of a unit, and how it is written."""


def describe_event(event: JournalEvent) -> tuple[str, tuple[str, ...]]:
    """Return what an event says, and its evidence, as ``ran so far: 40m 00s``."""
    says = _SAYS[event.kind](event.details)
    if event.kind not in (EventKind.DECISION, EventKind.NOTED, EventKind.LEARNED):
        return says, ()
    return says, format_details(event.details)


def format_details(said: EventDetails) -> tuple[str, ...]:
    """Return every figure with its name and unit; a range stands with its point, the cause of an end first."""
    found = []
    for name, value in said.items():
        if name in _HIDDEN or value is None or name.endswith(("_low_s", "_high_s", "_low_bytes", "_high_bytes")):
            continue
        stem, _, unit = name.rpartition("_")
        low, high = said.get(f"{stem}_low_{unit}"), said.get(f"{stem}_high_{unit}")
        ends = [f"{side} {format_detail(name, one)}" for side, one in (("from", low), ("to", high)) if one is not None]
        shown = " ".join([format_detail(name, value), *ends])
        found.append(f"{_LABELS.get(name, _plain(name))}: {shown}")
    return tuple(found)


def format_detail(name: str, value: float | str | bool | None) -> str:
    """Return a figure as people write it, by the unit in its name."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or isinstance(value, str):
        return value or "not known"
    return next((write(value) for holds, write in _UNITS if holds(name)), f"{value:g}")


def describe_request(asked: ResourceSpec) -> str:
    """Return what is asked for: ``2 nodes, 8 cores, 1 GPU a node, 16.0 GiB a node, at most 2h 00m``."""
    parts = [f"{asked.nodes} node{'s' if asked.nodes > 1 else ''}"]
    if asked.tasks_per_node > 1:
        parts.append(f"{asked.tasks_per_node} tasks a node")
    if asked.cores_per_task:
        parts.append(f"{asked.cores_per_task} core{'s' if asked.cores_per_task > 1 else ''} a task")
    if asked.gpus_per_node:
        parts.append(f"{asked.gpus_per_node} GPU{'s' if asked.gpus_per_node > 1 else ''} a node")
    if asked.memory_bytes_per_node:
        parts.append(f"{format_bytes(asked.memory_bytes_per_node)} a node")
    parts.append(f"at most {format_duration(asked.walltime_s)}" if asked.walltime_s else "no limit of time named")
    return ", ".join(parts)


def describe_policy(policy: Policy) -> str:
    """Return what the plane may do: ``up to 4 attempts; a limit is too low with at most 5 %``."""
    parts = [f"up to {policy.attempts} attempt{'s' if policy.attempts > 1 else ''}"]
    parts += [f"{policy.node_s / HOUR_S:.3g} node-hours in all"] if policy.node_s is not None else []
    parts += [f"a cost of {policy.cost:g} in all"] if policy.cost is not None else []
    parts.append(f"limits at a risk of {policy.risk:.0%}" if policy.resizes else "its request stays as it is")
    parts += ["it goes on from its checkpoint"] if policy.resumes else []
    if policy.checkpoint_signal:
        parts.append(f"{policy.checkpoint_signal} {format_duration(policy.checkpoint_s)} before a limit")
    parts += [f"its folder {policy.checkpoint_folder} goes along"] if policy.checkpoint_folder else []
    parts += [] if policy.measured else ["not measured"]
    return "; ".join(parts)


def format_local_time(at: str, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    """Return a moment in ISO 8601 as the clocks here show it."""
    return datetime.fromisoformat(at).astimezone().strftime(form)


def _handed_over(_: EventDetails) -> str:
    return "handed over"


def _noted(said: EventDetails) -> str:
    why = f": {said['why']}" if said.get("why") else ""
    return f"to be submitted at {said.get('place')}{why}"


def _submitted(said: EventDetails) -> str:
    again = ", found there after its answer had been lost" if said.get("found_again") else ""
    return f"taken by the scheduler as {said.get('id')}{again}"


def _state(said: EventDetails) -> str:
    state, reason, node = said.get("state"), said.get("reason"), said.get("node")
    if limit := said.get("walltime_s"):
        return f"its limit is {format_detail('walltime_s', limit)} now"
    if state == "PENDING":
        return f"waits ({reason})" if reason else "waits"
    if state == "RUNNING":
        return f"runs on {node}" if node else "runs"
    return f"ended as {state}{f': {reason}' if reason else ''}"


def _progress(said: EventDetails) -> str:
    total = said.get("total")
    parts = []
    for name in ("epochs", "steps"):
        if (count := said.get(name)) is not None:
            counts_units = total is not None and (name == "steps" or "steps" not in said)
            unit = name.removesuffix("s") if count == 1 else name
            parts.append(f"{count} of {total} {name}" if counts_units else f"{count} {unit}")
    if "unit_s" in said:
        parts.append(f"{format_detail('unit_s', said['unit_s'])} each")
    more = [name for name in _REPORTED if said.get(name) is not None]
    parts += [f"{_LABELS.get(name, _plain(name))} {format_detail(name, said[name])}" for name in more]
    after = f" after {format_detail('elapsed_s', said['elapsed_s'])}" if said.get("elapsed_s") else ""
    return f"reports{after}: {', '.join(parts) or 'nothing of its progress'}"


def _decision(said: EventDetails) -> str:
    action = said.get("action")
    done = _DONE[Action(action)] if action in set(Action) else str(action)
    to = f" to {said['place']}" if said.get("place") and action == Action.MOVE else ""
    return f"{done}{to}: {said.get('why')}" if said.get("why") else f"{done}{to}"


def _fault(said: EventDetails) -> str:
    why = said.get("why") or "no reason was given"
    if said.get("changed"):
        return f"{said['changed']} was changed: {why}"
    if said.get("system"):
        return f"{said['system']} does not answer: {why}"
    if said.get("asked"):
        return f"the scheduler refused to {said['asked']} its limit: {why}"
    return f"{said['place']} did not take it: {why}" if said.get("place") else f"refused: {why}"


def _poll(said: EventDetails) -> str:
    return f"{said.get('system')} answers again"


def _cancel(_: EventDetails) -> str:
    return "taken back by its user"


def _settled(said: EventDetails) -> str:
    why = said.get("why")
    return f"done with it, {said.get('state')}{f': {why}' if why else ''}"


def _learned(said: EventDetails) -> str:
    if said.get("failed"):
        return str(said.get("why"))
    return f"learned: {said.get('why') or 'its run entered the history'}"


def _staged(said: EventDetails) -> str:
    there = f"brought from {said.get('from')} to {said.get('to')}"
    if not said.get("moved_bytes"):
        return f"no checkpoint had to be {there}"
    took = f" in {format_detail('elapsed_s', said['elapsed_s'])}" if said.get("elapsed_s") else ""
    return f"its checkpoint was {there}: {format_detail('moved_bytes', said['moved_bytes'])}{took}"


def _plain(name: str) -> str:
    for unit in ("_node_s", "_bytes", "_s"):
        name = name.removesuffix(unit)
    return name.replace("_", " ")


_SAYS = {
    EventKind.HANDED_OVER: _handed_over,
    EventKind.NOTED: _noted,
    EventKind.STAGED: _staged,
    EventKind.SUBMITTED: _submitted,
    EventKind.STATE: _state,
    EventKind.PROGRESS: _progress,
    EventKind.POLL: _poll,
    EventKind.DECISION: _decision,
    EventKind.FAULT: _fault,
    EventKind.CANCEL: _cancel,
    EventKind.SETTLED: _settled,
    EventKind.LEARNED: _learned,
}


SCHEMA = "leadline.story/1"
EXAMPLES = 3
"""So many elements of an array are proposed where one is wanted."""


@dataclass(frozen=True, slots=True)
class LoggedEvent:
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
class AttemptUsage:
    """What the attempt of that number used: seconds, and ``measured`` by quantity."""

    attempt: int
    waited_s: float | None
    elapsed_s: float | None
    measured: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EventLog:
    """A job from its hand-over to now; ``used`` is of its attempts in their order."""

    standing: JobStatus
    job: Job
    told: tuple[LoggedEvent, ...]
    used: tuple[AttemptUsage, ...]


def read_event_log(name: str, *, full: bool = False) -> EventLog:
    """Return the story of one job; ``full`` with every progress report and every time that it was left alone.

    Raises:
        UnknownName: there is no such job.
        InvalidInput: the name is that of an array, which has as many stories as elements.
    """
    job = _one(name)
    now_s = SystemClock().now_s()
    with open_journal() as journal:
        events = journal.events(job=job.key)
        outages = [one for one in journal.outage_events() if _concerns(one, job, now_s)]
    numbers = {one.key: one.number for one in job.attempts}
    every = sorted((*events, *outages), key=lambda one: one.number)
    told = [_told(one, numbers) for one in every]
    return EventLog(
        statuses_of([job], now_s)[0],
        job,
        tuple(told if full else _shortened(told)),
        tuple(_used(one, events, now_s) for one in job.attempts),
    )


def _one(name: str) -> Job:
    """Return the one job of a name: of several that are called so, the newest."""
    found = find_jobs([name])
    if len(found) > 1 and found[0].group is not None and {one.group for one in found} == {found[0].group}:
        failed = [one for one in found if one.closed and one.state is not JobState.COMPLETED]
        some = ", ".join(f"{found[0].group}_{one.index}" for one in (failed or found)[:EXAMPLES])
        which = f"of its {len(failed)} that did not complete, " if failed else ""
        raise InvalidInput(f"{name} is an array of {len(found)} jobs: name one of them, {which}such as {some}")
    return found[-1]


def _concerns(event: JournalEvent, job: Job, now_s: float) -> bool:
    """Whether a system fell silent, or answered again, while the job was, or was to be, at it."""
    system = event.details.get("system")
    moment_s = epoch_s(event.at)
    return any(
        one.place.system == system
        and epoch_s(one.noted_at) <= moment_s <= (epoch_s(one.ended_at) if one.ended_at else now_s)
        for one in job.attempts
    )


def _told(event: JournalEvent, numbers: dict[str, int]) -> LoggedEvent:
    says, because = describe_event(event)
    return LoggedEvent(event.at, event.kind.value, numbers.get(event.attempt), says, because, dict(event.details))


def _shortened(told: Iterable[LoggedEvent]) -> list[LoggedEvent]:
    """Leave out what is no news: between two events, all but the last report and the last time it was left alone."""
    found: list[LoggedEvent] = []
    same: dict[tuple[object, ...], LoggedEvent] = {}
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


def _sameness(one: LoggedEvent) -> tuple[object, ...] | None:
    """Return what makes a report, or leaving a job alone, the same again: figures apart; ``None`` for news."""
    if one.kind == EventKind.PROGRESS:
        return one.kind, one.attempt
    kept = one.kind == EventKind.DECISION and one.said.get("action") == Action.KEEP
    return (one.kind, one.attempt, re.sub(r"\d[\d.]*", "#", one.says)) if kept else None


def _used(attempt: Attempt, events: Sequence[JournalEvent], now_s: float) -> AttemptUsage:
    """Return an attempt with what the history, or its last report, says that it used."""
    submitted, began = attempt.submitted_at or attempt.noted_at, attempt.started_at
    until_s = epoch_s(began or attempt.ended_at or "") if began or attempt.ended_at else now_s
    waited_s = max(0.0, until_s - epoch_s(submitted)) if submitted else None
    run = _run_of(attempt)
    if run is not None:
        measured = {name: one.value for name, one in run.measured.items()}
    else:
        reports = [one.details for one in events if one.kind is EventKind.PROGRESS and one.attempt == attempt.key]
        last = reports[-1] if reports else {}
        measured = {name: float(value) for name, value in last.items() if isinstance(value, int | float)}
    return AttemptUsage(attempt.number, waited_s, attempt_elapsed_s(attempt, now_s) if began else None, measured)


def _run_of(attempt: Attempt) -> Run | None:
    """Return the run of the history that an attempt became."""
    try:
        return SqliteHistory(settings.history_path()).get(attempt.key) if attempt.recorded else None
    except UnknownName:
        return None
