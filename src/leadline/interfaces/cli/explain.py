"""``leadline explain``: the whole story of a job, for whoever wonders what became of it and why."""

import shlex
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

import typer
from rich.text import Text

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
from leadline.app.jobs.inline_plane import read_log_tail
from leadline.core.documents import to_document
from leadline.core.jobs import JobState
from leadline.core.plane import Attempt, EventKind, Job
from leadline.core.units import format_bytes, format_duration
from leadline.interfaces.cli.command import CommandApp
from leadline.interfaces.cli.jobs import format_clock_time, format_progress, format_spent, plain_text, wrap_text
from leadline.interfaces.cli.output import Json, out, print_json

app = CommandApp()

EXAMPLES = """\
Examples:
  leadline explain 3f2a91           a job by the beginning of its key
  leadline explain 3f2a91_7         an element of an array
  leadline explain 4711 --all       by its id at the scheduler, every report"""
MOST_TEXT = 500
"""Letters of a sentence that are shown at most: a log's line may be of any length."""


@app.command(epilog=EXAMPLES)
def explain(
    job: Annotated[
        str,
        typer.Argument(
            metavar="JOB", help="Its key or the beginning, its name, or its id at the scheduler.", show_default=False
        ),
    ],
    *,
    whole: Annotated[bool, typer.Option("--all", help="Every report, and every time it was left alone.")] = False,
    json: Json = False,
) -> None:
    """Tell the whole story of a job: what was asked, every decision with its evidence, every attempt, and its log."""
    story = read_event_log(job, full=whole)
    log = _log(story)
    if json:
        print_json({**to_document(story, SCHEMA), "log": log})
        return
    console = out()
    width = console.width
    lines = [*_head(story, width), Text(), *_asked(story.job, width), Text(), Text("What happened", "bold")]
    lines += _happened(story.told, width)
    if story.used:
        tried = zip(story.job.attempts, story.used, strict=True)
        lines += [Text(), Text("Attempts", "bold"), *(line for one in tried for line in _tried(*one))]
    if log:
        lines += [Text(), Text(f"The end of the output of attempt {story.job.attempts[-1].number}", "bold")]
        lines += [Text(f"  {plain_text(line, MOST_TEXT)}") for line in log]
    console.print(Text("\n").join(lines), soft_wrap=True)


def _log(story: EventLog) -> tuple[str, ...]:
    """Return the last lines of what the last attempt wrote, of a job that did not end well."""
    if not story.job.attempts or story.standing.state in (JobState.PENDING, JobState.RUNNING, JobState.COMPLETED):
        return ()
    return read_log_tail(story.job.attempts[-1])


def _head(story: EventLog, width: int) -> list[Text]:
    standing = story.standing
    tries = f"{standing.attempts} attempt{'s' if standing.attempts != 1 else ''} of at most {standing.attempts_most}"
    share, count = format_progress(standing)
    parts = [
        tries,
        " ".join(one for one in (share, f"({count})" if count else "") if one),
        format_spent(standing.spent),
    ]
    if standing.expected_end is not None:
        now = datetime.now().astimezone()
        end = standing.expected_end
        parts.append(
            f"expected to end at {format_clock_time(end.at, now)}, with {end.level:.0%} between {format_clock_time(end.earliest, now)} and "
            f"{format_clock_time(end.latest, now)}"
        )
    head = Text(f"{standing.key}  {plain_text(standing.name)}  {standing.state.value}", "bold")
    said = [plain_text(standing.why, MOST_TEXT), " · ".join(part for part in parts if part)]
    return [head, *(line for text in said if text for line in wrap_text("", text, width, ""))]


def _asked(job: Job, across: int) -> list[Text]:
    """Say what was asked for, and what the plane may do."""
    policy, spec, predicted = job.policy, job.spec, job.predicted
    rows = [
        ("command", shlex.join(spec.command)),
        ("folder", spec.workdir or ""),
        ("asks for", describe_request(spec.resources)),
        (
            "where",
            ", else ".join(map(str, policy.places)) + (f" ({policy.copies} at once)" if policy.copies > 1 else ""),
        ),
        ("after", f"{', '.join(job.after)} ({job.after_kind.value})" if job.after else ""),
        ("charged to", spec.account or ""),
        ("may take", describe_policy(policy)),
        ("result by", format_local_time(policy.deadline_at) if policy.deadline_at else ""),
        ("predicted", ""),
    ]
    if predicted is not None:
        known = []
        if (elapsed := predicted.elapsed_s) is not None:
            known.append(
                f"{format_duration(elapsed.point)} ({format_duration(elapsed.low)} – {format_duration(elapsed.high)})"
            )
        if (memory := predicted.host_memory_bytes) is not None:
            known.append(f"{format_bytes(memory.point)} ({format_bytes(memory.low)} – {format_bytes(memory.high)})")
        rows[-1] = ("predicted", ", ".join(known))
    width = max(len(title) for title, _ in rows)
    said = [wrap_text(f"  {title:<{width}}  ", plain_text(text, MOST_TEXT), across, "") for title, text in rows if text]
    return [Text("Asked", "bold"), *(line for lines in said for line in lines)]


def _happened(told: Sequence[LoggedEvent], width: int) -> list[Text]:
    """Return the events: the day where it changes, the time, and what happened with its evidence below."""
    lines: list[Text] = []
    day = ""
    for one in told:
        if (new := format_local_time(one.at, "%A, %d %B %Y")) != day:
            lines.append(Text(f"  {new}"))
            day = new
        who = f"attempt {one.attempt}: " if one.attempt is not None else ""
        again = f" ({one.times} times since {format_local_time(one.since, '%H:%M:%S')})" if one.times > 1 else ""
        style = (
            "bold"
            if one.kind in (EventKind.DECISION, EventKind.SETTLED)
            else "red"
            if one.kind == EventKind.FAULT
            else ""
        )
        start = f"  {format_local_time(one.at, '%H:%M:%S')}  "
        lines += wrap_text(start, plain_text(f"{who}{one.says}{again}", MOST_TEXT), width, style)
        if one.because:
            lines += wrap_text(" " * (len(start) + 2), plain_text("; ".join(one.because), MOST_TEXT), width, "dim")
    return lines


def _tried(attempt: Attempt, one: AttemptUsage) -> list[Text]:
    """Say where an attempt was and what it used of what it asked for."""
    asked = attempt.resources
    at = " ".join(part for part in (str(attempt.place), f"as {attempt.scheduler_id}" if attempt.scheduler_id else "",
                                    f"on {attempt.node}" if attempt.node else "") if part)  # fmt: skip
    code = f", exit code {attempt.exit_code}" if attempt.exit_code is not None else ""
    withdrawn = ", withdrawn by the plane" if attempt.withdrawn else ""
    used = [f"waited {format_duration(one.waited_s)}" if one.waited_s else ""]
    limit_s = attempt.walltime_s or asked.walltime_s
    if one.elapsed_s is not None:
        used.append(f"ran {format_duration(one.elapsed_s)}" + (f" of {format_duration(limit_s)}" if limit_s else ""))
    for name, label, most in (
        ("host_memory_bytes", "memory", asked.memory_bytes_per_node), ("gpu_memory_bytes", "GPU memory", None),
    ):  # fmt: skip
        if (value := one.measured.get(name)) is not None:
            share = f" of {format_bytes(most)} ({value / most:.0%})" if most else ""
            used.append(f"{label} {format_bytes(value)}{share}")
    if (cpu_s := one.measured.get("cpu_s")) and one.elapsed_s:
        used.append(
            f"{cpu_s / one.elapsed_s:.2g} cores at work"
            + (f" of {asked.cores_per_task}" if asked.cores_per_task else "")
        )
    return [
        Text(f"  {attempt.number}  {at}: {attempt.state.value}{code}{withdrawn}"),
        *([Text(f"     {', '.join(part for part in used if part)}")] if any(used) else []),
    ]
