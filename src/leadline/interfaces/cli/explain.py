"""``leadline explain``: the event log of a job."""

import shlex
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import click

from leadline.app.jobs.event_log import (
    SCHEMA,
    AttemptUsage,
    EventLog,
    LoggedEvent,
    describe_policy,
    describe_request,
    format_local_time,
    read_event_log,
)
from leadline.app.jobs.journal import keep_journal_open
from leadline.app.jobs.logs import OutputPaths, last_lines
from leadline.core.documents import to_document
from leadline.core.jobs import JobState
from leadline.core.plane import Attempt, EventKind, Job
from leadline.core.units import format_bytes, format_duration, pluralize
from leadline.interfaces.cli.command import argument, command, flag, json_option
from leadline.interfaces.cli.jobs import format_clock_time, format_progress, format_spent, plain_text, wrap_text
from leadline.interfaces.cli.output import print_json, table_width

STYLES: dict[str, dict[str, Any]] = {
    EventKind.DECISION: {"bold": True}, EventKind.SETTLED: {"bold": True}, EventKind.FAULT: {"fg": "red"},
}  # fmt: skip
MOST_TEXT = 500
"""Maximum length of a sentence; a log line may be of any length."""


@command("explain")
@argument("job", "JOB", "Job key or its prefix, job name, or scheduler ID.")
@flag("full --all", "Show all progress reports and all decisions to keep the job.")
@json_option
@keep_journal_open()
def explain(job: str, *, full: bool, json: bool) -> None:
    """Show the event log of a job: the request, every decision with its evidence, and every attempt."""
    log = read_event_log(job, full=full)
    output = _log(log)
    if json:
        print_json({**to_document(log, SCHEMA), "log": output})
        return
    width = table_width()
    lines = [*_heading(log, width), "", *_request_lines(log.job, width), "", _bold("Events")]
    lines += _event_lines(log.told, width)
    if log.used:
        lines += ["", _bold("Attempts")]
        paths = OutputPaths()
        for attempt, usage in zip(log.job.attempts, log.used, strict=True):
            path = paths.of(attempt) if attempt.began else None
            lines += [*_attempt_lines(attempt, usage), *([f"     output {path}"] if path else [])]
    if output:
        lines += ["", _bold(f"End of the output of attempt {log.job.attempts[-1].number}")]
        lines += [f"  {plain_text(line, MOST_TEXT)}" for line in output]
    click.echo("\n".join(lines))


def _log(log: EventLog) -> tuple[str, ...]:
    """Return the last lines of the last attempt's output, if the job failed."""
    if not log.job.attempts or log.standing.state in (JobState.PENDING, JobState.RUNNING, JobState.COMPLETED):
        return ()
    return last_lines(log.job.attempts[-1])


def _bold(text: str) -> str:
    return click.style(text, bold=True)


def _heading(log: EventLog, width: int) -> list[str]:
    standing = log.standing
    share, count = format_progress(standing)
    parts = [
        f"{pluralize(standing.attempts, 'attempt')} of at most {standing.attempts_most}",
        f"{share} ({count})".strip() if count else share, format_spent(standing.spent),
    ]  # fmt: skip
    if (end := standing.expected_end) is not None:
        now = datetime.now().astimezone()
        at, earliest, latest = (format_clock_time(time, now) for time in (end.at, end.earliest, end.latest))
        parts.append(f"expected end {at}, {end.level:.0%} interval {earliest} to {latest}")
    head = _bold(f"{standing.key}  {plain_text(standing.name)}  {standing.state.value}")
    texts = [plain_text(standing.why, MOST_TEXT), " · ".join(part for part in parts if part)]
    return [head, *(line for text in texts if text for line in wrap_text("", text, width))]


def _request_lines(job: Job, columns: int) -> list[str]:
    """Return the request, and the policy of the plane."""
    policy, spec, predictions = job.policy, job.spec, []
    if (predicted := job.predicted) is not None:
        quantities = ((predicted.elapsed_s, format_duration), (predicted.host_memory_bytes, format_bytes))
        predictions = [f"{show(i.point)} ({show(i.low)} – {show(i.high)})" for i, show in quantities if i is not None]
    where = ", else ".join(map(str, policy.places)) + (f" ({policy.copies} at once)" if policy.copies > 1 else "")
    rows = [
        ("command", shlex.join(spec.command)),
        ("folder", spec.workdir or ""),
        ("requests", describe_request(spec.resources)),
        ("where", where),
        ("after", f"{', '.join(job.after)} ({job.after_kind.value})" if job.after else ""),
        ("account", spec.account or ""),
        ("policy", describe_policy(policy)),
        ("deadline", format_local_time(policy.deadline_at) if policy.deadline_at else ""),
        ("predicted", ", ".join(predictions)),
    ]
    width = max(len(title) for title, _ in rows)
    wrapped = [wrap_text(f"  {title:<{width}}  ", plain_text(text, MOST_TEXT), columns) for title, text in rows if text]
    return [_bold("Request"), *(line for lines in wrapped for line in lines)]


def _event_lines(events: Sequence[LoggedEvent], width: int) -> list[str]:
    """Return the events by day: the time, the event, and its evidence below."""
    lines: list[str] = []
    day = ""
    for event in events:
        if (new := format_local_time(event.at, "%A, %d %B %Y")) != day:
            lines.append(f"  {new}")
            day = new
        who = f"attempt {event.attempt}: " if event.attempt is not None else ""
        again = f" ({event.times} times since {format_local_time(event.since, '%H:%M:%S')})" if event.times > 1 else ""
        start = f"  {format_local_time(event.at, '%H:%M:%S')}  "
        text = plain_text(f"{who}{event.says}{again}", MOST_TEXT)
        lines += wrap_text(start, text, width, **STYLES.get(event.kind, {}))
        if event.because:
            lines += wrap_text(" " * (len(start) + 2), plain_text("; ".join(event.because), MOST_TEXT), width, dim=True)
    return lines


def _attempt_lines(attempt: Attempt, usage: AttemptUsage) -> list[str]:
    """Return where an attempt ran, and how much of its request it used."""
    request = attempt.resources
    scheduler_id = f" as {attempt.scheduler_id}" if attempt.scheduler_id else ""
    at = f"{attempt.place}{scheduler_id}{f' on {attempt.node}' if attempt.node else ''}"
    code = f", exit code {attempt.exit_code}" if attempt.exit_code is not None else ""
    withdrawn = ", withdrawn by the plane" if attempt.withdrawn else ""
    used = [f"waited {format_duration(usage.waited_s)}" if usage.waited_s else ""]
    limit_s = attempt.walltime_s or request.walltime_s
    if usage.elapsed_s is not None:
        used.append(f"ran {format_duration(usage.elapsed_s)}" + (f" of {format_duration(limit_s)}" if limit_s else ""))
    for name, label, requested in (
        ("host_memory_bytes", "memory", request.memory_bytes_per_node), ("gpu_memory_bytes", "GPU memory", None),
    ):  # fmt: skip
        if (value := usage.measured.get(name)) is not None:
            share = f" of {format_bytes(requested)} ({value / requested:.0%})" if requested else ""
            used.append(f"{label} {format_bytes(value)}{share}")
    if (cpu_s := usage.measured.get("cpu_s")) and usage.elapsed_s:
        of = f" of {request.cores_per_task}" if request.cores_per_task else ""
        used.append(f"{cpu_s / usage.elapsed_s:.2g} cores busy{of}")
    line = f"  {attempt.number}  {at}: {attempt.state.value}{code}{withdrawn}"
    return [line, f"     {', '.join(filter(None, used))}"] if any(used) else [line]
