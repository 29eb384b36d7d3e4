"""The event log of a job: the plane's journal in sentences with units, for ``leadline explain``."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime

from msgspec import field

from leadline.app import settings
from leadline.app.jobs.job_status import JobStatus, statuses_of
from leadline.app.jobs.journal import find_job, keep_journal_open, open_journal
from leadline.core.errors import UnknownName
from leadline.core.frozen import Frozen
from leadline.core.jobs import ResourceSpec
from leadline.core.plane import Action, Attempt, EventKind, Job, JournalEvent, Policy
from leadline.core.units import HOUR_S, format_bytes, format_duration, pluralize
from leadline.execution.clock import Clock, epoch_s
from leadline.execution.plane.actor import attempt_elapsed_s
from leadline.execution.plane.journal import EventDetails
from leadline.history.sqlite import SqliteHistory

_ACTIONS = {
    Action.KEEP: "kept", Action.SHRINK: "limit lowered", Action.EXTEND: "longer limit requested",
    Action.CHECKPOINT: "checkpointed, to resume in another attempt", Action.RESUBMIT: "resubmitted",
    Action.MOVE: "moved", Action.BEGIN: "started", Action.WITHDRAW: "withdrawn", Action.GIVE_UP: "given up",
    Action.FINISH: "finished",
}  # fmt: skip
_LABELS = {
    "elapsed_s": "elapsed", "limit_s": "limit", "total_s": "expected total", "walltime_s": "limit",
    "late": "probability of hitting the limit", "remaining_wait_s": "expected remaining wait",
    "spent_node_s": "used by all attempts", "spent_cost": "cost of all attempts",
    "memory_bytes_per_node": "memory per node", "lasted_at_least_s": "lasted at least", "needed_s": "limit needed",
    "needed_at_least_bytes": "needs at least", "needed_bytes": "memory needed", "affordable_s": "affordable",
    "here_s": "expected remaining time here", "there_s": "expected remaining time there",
    "avoid_node": "node to avoid", "attempt": "attempts so far", "gpu_memory_bytes": "GPU memory",
    "host_memory_bytes": "memory", "cpu_s": "CPU time",
}  # fmt: skip
_HIDDEN = ("action", "why", "place", "state", "reason", "node")
"""Details that the sentence already has."""
_REPORTED = ("host_memory_bytes", "gpu_memory_bytes", "gpu_utilisation", "cpu_utilisation")
_SHARES = ("late", "risk", "gpu_utilisation", "cpu_utilisation")
_UNITS: tuple[tuple[Callable[[str], bool], Callable[[float], str]], ...] = (
    (lambda name: name.endswith("node_s"), lambda value: f"{value / HOUR_S:.3g} node-hours"),
    (lambda name: name.endswith("_s"), lambda value: format_duration(value) if value > 0 else "0 s"),
    (lambda name: "_bytes" in name, format_bytes),
    (lambda name: name in _SHARES, lambda value: f"{100 * value:.2g} %"),
)
"""(test of a detail's name, formatter) for each unit."""


def describe_event(event: JournalEvent) -> tuple[str, tuple[str, ...]]:
    """Return an event as a sentence, and its details, such as ``ran so far: 40m 00s``."""
    says = _DESCRIPTIONS[event.kind](event.details)
    if event.kind not in (EventKind.DECISION, EventKind.NOTED, EventKind.LEARNED):
        return says, ()
    return says, format_details(event.details)


def format_details(details: EventDetails) -> tuple[str, ...]:
    """Return every detail with its name and unit; bounds are appended to their point."""
    texts = []
    for name, value in details.items():
        if name in _HIDDEN or value is None or name.endswith(("_low_s", "_high_s", "_low_bytes", "_high_bytes")):
            continue
        stem, _, unit = name.rpartition("_")
        low, high = details.get(f"{stem}_low_{unit}"), details.get(f"{stem}_high_{unit}")
        bounds = [(side, bound) for side, bound in ((" from", low), (" to", high)) if bound is not None]
        interval = "".join(f"{side} {format_detail(name, bound)}" for side, bound in bounds)
        texts.append(f"{_LABELS.get(name, _plain_name(name))}: {format_detail(name, value)}{interval}")
    return tuple(texts)


def format_detail(name: str, value: float | str | bool | None) -> str:
    """Return a detail's value, formatted by the unit in its name."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or isinstance(value, str):
        return value or "not known"
    return next((write(value) for holds, write in _UNITS if holds(name)), f"{value:g}")


def describe_request(request: ResourceSpec) -> str:
    """Return a request: ``2 nodes, 8 cores per task, 1 GPU per node, 16.0 GiB per node, at most 2h 00m``."""
    tasks, memory = request.tasks_per_node, request.memory_bytes_per_node
    parts = [pluralize(request.nodes, "node")]
    parts += [f"{tasks} tasks per node"] if tasks > 1 else []
    parts += [f"{pluralize(request.cores_per_task, 'core')} per task"] if request.cores_per_task else []
    parts += [f"{pluralize(request.gpus_per_node, 'GPU')} per node"] if request.gpus_per_node else []
    parts += [f"{format_bytes(memory)} per node"] if memory else []
    parts.append(f"at most {format_duration(request.walltime_s)}" if request.walltime_s else "no time limit")
    return ", ".join(parts)


def describe_policy(policy: Policy) -> str:
    """Return the policy: ``up to 4 attempts; limits at a risk of 5 %``."""
    parts = [f"up to {pluralize(policy.attempts, 'attempt')}"]
    parts += [f"{policy.node_s / HOUR_S:.3g} node-hours in total"] if policy.node_s is not None else []
    parts += [f"a cost of {policy.cost:g} in total"] if policy.cost is not None else []
    parts.append(f"limits at a risk of {policy.risk:.0%}" if policy.resizes else "request never changed")
    parts += ["a prediction may restart it"] if policy.may_restart else []
    parts += ["resumes from its checkpoint"] if policy.resumes else []
    if policy.checkpoint_signal:
        parts.append(f"{policy.checkpoint_signal} {format_duration(policy.checkpoint_s)} before a limit")
    parts += [f"checkpoint folder {policy.checkpoint_folder} moves with it"] if policy.checkpoint_folder else []
    parts += [] if policy.measured else ["not measured"]
    return "; ".join(parts)


def format_local_time(at: str, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    """Return a time in ISO 8601 as local time."""
    return datetime.fromisoformat(at).astimezone().strftime(form)


def _describe_submitted(details: EventDetails) -> str:
    lost = "journal" if details.get("journal") else "scheduler's answer"
    again = f" (found again after the {lost} was lost)" if details.get("found_again") else ""
    return f"accepted by the scheduler as {details.get('id')}{again}"


def _describe_state(details: EventDetails) -> str:
    state, reason, node = details.get("state"), details.get("reason"), details.get("node")
    if limit := details.get("walltime_s"):
        before = details.get("walltime_before_s")
        since = f" by the scheduler from {format_detail('walltime_s', before)}" if before else ""
        return f"limit changed{since} to {format_detail('walltime_s', limit)}"
    if state == "PENDING":
        return f"waiting ({reason})" if reason else "waiting"
    if state == "RUNNING":
        return f"running on {node}" if node else "running"
    return f"ended {state}{_after_colon(reason)}"


def _describe_progress(details: EventDetails) -> str:
    total = details.get("total")
    parts = []
    for name in ("epochs", "steps"):
        if (count := details.get(name)) is not None:
            counts_units = total is not None and (name == "steps" or "steps" not in details)
            unit = name.removesuffix("s") if count == 1 else name
            parts.append(f"{count} of {total} {name}" if counts_units else f"{count} {unit}")
    if "unit_s" in details:
        parts.append(f"{format_detail('unit_s', details['unit_s'])} each")
    more = [name for name in _REPORTED if details.get(name) is not None]
    parts += [f"{_LABELS.get(name, _plain_name(name))} {format_detail(name, details[name])}" for name in more]
    after = f" after {format_detail('elapsed_s', details['elapsed_s'])}" if details.get("elapsed_s") else ""
    return f"progress{after}: {', '.join(parts) or 'none reported'}"


def _describe_decision(details: EventDetails) -> str:
    action = details.get("action")
    text = _ACTIONS[Action(action)] if action in set(Action) else str(action)
    to = f" to {details['place']}" if details.get("place") and action == Action.MOVE else ""
    return f"{text}{to}{_after_colon(details.get('why'))}"


def _describe_fault(details: EventDetails) -> str:
    why = details.get("why") or "no reason given"
    for name, form in (
        ("journal", "the journal was {}"), ("changed", "{} changed"), ("system", "{} does not answer"),
        ("asked", "the scheduler refused to {} the limit"), ("place", "{} refused the job"),
    ):  # fmt: skip
        if details.get(name):
            return f"{form.format(details[name])}: {why}{_describe_repetition(details)}"
    return f"refused: {why}"


def _describe_repetition(details: EventDetails) -> str:
    """Return how often a system did not answer, and when last."""
    times, last_at = details.get("times"), details.get("last_at")
    if not isinstance(times, int) or times < 2 or not isinstance(last_at, str):
        return ""
    return f" ({times} times, last at {format_local_time(last_at, '%H:%M:%S')})"


def _describe_settled(details: EventDetails) -> str:
    why = details.get("why")
    return f"job finished: {details.get('state')}{f' ({why})' if why else ''}"


def _describe_retraining(details: EventDetails) -> str:
    if details.get("failed"):
        return str(details.get("why"))
    return f"retrained: {details.get('why') or 'its run was added to the history'}"


def _describe_staged(details: EventDetails) -> str:
    noun = details.get("noun", "checkpoint")  # a pipeline copies other files
    copied = f"copied from {details.get('from')} to {details.get('to')}"
    if not details.get("moved_bytes"):
        return f"no {noun} to be {copied}"
    took = f" in {format_detail('elapsed_s', details['elapsed_s'])}" if details.get("elapsed_s") else ""
    return f"{noun} {copied}: {format_detail('moved_bytes', details['moved_bytes'])}{took}"


def _after_colon(text: object) -> str:
    return f": {text}" if text else ""


def _plain_name(name: str) -> str:
    for unit in ("_node_s", "_bytes", "_s"):
        name = name.removesuffix(unit)
    return name.replace("_", " ")


_DESCRIPTIONS: dict[EventKind, Callable[[EventDetails], str]] = {
    EventKind.HANDED_OVER: lambda _: "submitted to the plane",
    EventKind.NOTED: lambda details: f"to be submitted to {details.get('place')}{_after_colon(details.get('why'))}",
    EventKind.STAGED: _describe_staged,
    EventKind.SUBMITTED: _describe_submitted,
    EventKind.STATE: _describe_state,
    EventKind.PROGRESS: _describe_progress,
    EventKind.POLL: lambda details: f"{details.get('system')} answers again",
    EventKind.DECISION: _describe_decision,
    EventKind.FAULT: _describe_fault,
    EventKind.CANCEL: lambda _: "cancelled by the user",
    EventKind.APPROVE: lambda _: "the user allowed a prediction to restart it",
    EventKind.SETTLED: _describe_settled,
    EventKind.LEARNED: _describe_retraining,
}


SCHEMA = "leadline.story/1"


class LoggedEvent(Frozen):
    """One event.

    Attributes:
        says: the event in a sentence.
        because: its details, as the evidence.
        said: its details as data.
        times: number of repetitions without news since ``since``; this is the last of them.
    """

    at: str
    kind: str
    attempt: int | None
    says: str
    because: tuple[str, ...] = ()
    said: dict[str, float | int | str | bool | None] = field(default_factory=dict)
    times: int = 1
    since: str = ""


class AttemptUsage(Frozen):
    """Use of one attempt: seconds, and ``measured`` by quantity."""

    attempt: int
    waited_s: float | None
    elapsed_s: float | None
    measured: dict[str, float] = field(default_factory=dict)


class EventLog(Frozen):
    """A job's status, its events, and the use of its attempts."""

    standing: JobStatus
    job: Job
    told: tuple[LoggedEvent, ...]
    used: tuple[AttemptUsage, ...]


@keep_journal_open()
def read_event_log(name: str, *, full: bool = False) -> EventLog:
    """Return the event log of one job; ``full`` includes every progress report and every decision to keep a job.

    Raises:
        UnknownName: there is no such job.
        InvalidInput: the name is that of an array, which has one event log per element.
    """
    job = find_job(name)
    now_s = Clock().now_s()
    with open_journal() as journal:
        events = journal.events(job=job.key)
        outages = [event for event in journal.outage_events() if _affects(event, job, now_s)]
    numbers = {attempt.key: attempt.number for attempt in job.attempts}
    all_events = sorted((*events, *outages), key=lambda event: event.number)
    logged = [
        LoggedEvent(event.at, event.kind.value, numbers.get(event.attempt), *describe_event(event), dict(event.details))
        for event in all_events
    ]
    used = tuple(_attempt_usage(attempt, events, now_s) for attempt in job.attempts)
    return EventLog(statuses_of([job], now_s)[0], job, tuple(logged if full else _shortened(logged)), used)


def _affects(event: JournalEvent, job: Job, now_s: float) -> bool:
    """Return whether an outage of a system overlaps an attempt of the job there."""
    system = event.details.get("system")
    first_s, last_s = epoch_s(event.at), epoch_s(str(event.details.get("last_at") or event.at))
    return any(
        attempt.place.system == system
        and epoch_s(attempt.noted_at) <= last_s
        and first_s <= (epoch_s(attempt.ended_at) if attempt.ended_at else now_s)
        for attempt in job.attempts
    )


def _shortened(logged: Iterable[LoggedEvent]) -> list[LoggedEvent]:
    """Keep only the last of repeated progress reports and keep decisions between two other events."""
    kept: list[LoggedEvent] = []
    repeated: dict[tuple[object, ...], LoggedEvent] = {}
    for event in logged:
        new, key = event, _deduplication_key(event)
        if key is None:
            repeated.clear()
        else:
            if (last := repeated.get(key)) is not None:
                kept.remove(last)
                new = replace(event, times=last.times + 1, since=last.since or last.at)
            repeated[key] = new
        kept.append(new)
    return kept


def _deduplication_key(event: LoggedEvent) -> tuple[object, ...] | None:
    """Return a deduplication key of repetitive events, ignoring numbers; ``None`` if the event is always shown."""
    if event.kind == EventKind.PROGRESS:
        return event.kind, event.attempt
    kept = event.kind == EventKind.DECISION and event.said.get("action") == Action.KEEP
    return (event.kind, event.attempt, re.sub(r"\d[\d.]*", "#", event.says)) if kept else None


def _attempt_usage(attempt: Attempt, events: Sequence[JournalEvent], now_s: float) -> AttemptUsage:
    """Return an attempt's use, from its run in the history, or else from its last report."""
    submitted, began = attempt.submitted_at or attempt.noted_at, attempt.started_at
    until_s = epoch_s(began or attempt.ended_at or "") if began or attempt.ended_at else now_s
    waited_s = max(0.0, until_s - epoch_s(submitted)) if submitted else None
    try:
        run = SqliteHistory(settings.history_path()).get(attempt.key) if attempt.recorded else None
    except UnknownName:
        run = None
    if run is not None:
        measured = {name: value.value for name, value in run.measured.items()}
    else:
        reports = [event for event in events if event.kind is EventKind.PROGRESS and event.attempt == attempt.key]
        last = reports[-1].details if reports else {}
        measured = {name: float(value) for name, value in last.items() if isinstance(value, int | float)}
    return AttemptUsage(attempt.number, waited_s, attempt_elapsed_s(attempt, now_s) if began else None, measured)
