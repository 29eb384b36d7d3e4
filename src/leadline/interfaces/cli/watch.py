"""``leadline watch``: follow jobs until they end, and run the plane meanwhile if no other process does."""

import shutil
import sys
import time
from collections.abc import Sequence
from threading import Event

import click

from leadline.app.jobs.inline_plane import InlinePlane, describe_runner, interrupts
from leadline.app.jobs.job_status import JobStatus, fold_arrays, job_statuses, newest_event_number
from leadline.app.jobs.journal import keep_journal_open
from leadline.core.documents import to_document, to_json
from leadline.core.errors import JobFailed
from leadline.core.jobs import JobState
from leadline.interfaces.cli.command import INTERRUPTED, command, flag, json_option
from leadline.interfaces.cli.jobs import (
    describe_silent_systems,
    format_progress,
    jobs_table,
    names_argument,
    no_jobs_message,
    plain_text,
    print_jobs,
)
from leadline.interfaces.cli.output import print_note, table_width

STEPS_TOLD = 10
"""A plain line is written at every 1/``STEPS_TOLD`` of a job."""

LOOK_S = 5.0
"""Maximum age of the view without new events; the reason of a wait may change without one."""
LEAST_WAIT_S = 0.2


@command("watch")
@names_argument
@flag("--once", "Show the status once and exit.")
@flag("--each", "Show every element of an array in its own row.")
@json_option
@keep_journal_open()
def watch(names: tuple[str, ...], *, once: bool, each: bool, json: bool) -> int:
    """Follow jobs until they end; if the plane is not running, this command runs it meanwhile.

    Ctrl-C ends the view, not the jobs. The exit code is 5 if a job failed. With --json, each change is one document on
    one line.
    """
    statuses = job_statuses(names)
    if not statuses:
        if json:
            print_jobs(statuses, json=True)
        print_note(no_jobs_message(all_=False))
        return 0
    keys = [status.key for status in statuses]
    with InlinePlane(print_note) as inline_plane, interrupts() as interrupted:
        if once:
            inline_plane.step()
            inline_plane.finish()
            statuses = job_statuses(keys)
            print_jobs(statuses, each=each, json=json)
        else:
            statuses = _follow(keys, inline_plane, interrupted, each=each, json=json)
        runs_plane = inline_plane.runs_plane
    if interrupted.is_set():
        print_note(_describe_remaining(statuses, runs_plane=runs_plane))
        return INTERRUPTED
    _check_ended_well(statuses)
    return 0


def _follow(
    keys: Sequence[str], inline_plane: InlinePlane, interrupted: Event, *, each: bool, json: bool
) -> tuple[JobStatus, ...]:
    """Step the plane and show the jobs until all have ended or Ctrl-C; return their last status."""
    last_shown: dict[str, object] = {}
    live, rows = sys.stdout.isatty() and not json, 0
    last_event, looked_s, statuses = -1, 0.0, job_statuses(keys)
    while True:
        wait_s = inline_plane.step()
        # Reading the status of all jobs is slow; the number of the last event is one cheap query.
        if (newest := newest_event_number()) != last_event or time.monotonic() - looked_s >= LOOK_S:
            last_event, looked_s, statuses = newest, time.monotonic(), job_statuses(keys)
        if live:
            rows = _redraw(_view(statuses, inline_plane, each=each), rows)
        else:
            _print_changes(statuses, last_shown, json=json)
        if interrupted.is_set() or all(status.closed for status in statuses):
            return statuses
        interrupted.wait(max(wait_s, LEAST_WAIT_S))


def _redraw(view: Sequence[str], rows: int) -> int:
    """Replace the last ``rows`` lines of the terminal by as many as fit, and return their number."""
    shown = view[-(shutil.get_terminal_size().lines - 1) :]
    click.echo((f"\x1b[{rows}A\x1b[J" if rows else "") + "\n".join(shown))
    return len(shown)


def _view(statuses: Sequence[JobStatus], inline_plane: InlinePlane, *, each: bool) -> list[str]:
    runner = "this command" if inline_plane.runs_plane else describe_runner() or "no process"
    foot = f"{time.strftime('%H:%M:%S')} · managed by {runner} · Ctrl-C ends only this view"
    table = jobs_table(statuses if each else fold_arrays(statuses), table_width(), bars=True)
    silent = (click.style(system, fg="red") for system in describe_silent_systems(statuses))
    return [*table, *silent, click.style(foot, dim=True)]


def _print_changes(statuses: Sequence[JobStatus], last_shown: dict[str, object], *, json: bool) -> None:
    """Write a line for every job that changed since it was ``last_shown``."""
    for status in statuses:
        share = status.shown.share if status.shown else None
        news = (status.state, status.why, status.attempts, status.walltime_s, share and int(share * STEPS_TOLD))
        if last_shown.get(status.key) != news:
            last_shown[status.key] = news
            click.echo(to_json(to_document(status, "leadline.job/1"), indent=0) if json else _line(status))


def _line(status: JobStatus) -> str:
    """Return a line such as ``14:05:01 3f2a91b4c0de train RUNNING at Pitzer:gpu, 40 %, 400 of 1000 steps``."""
    parts = [f"{status.state.value} at {status.place}", *(part for part in format_progress(status) if part)]
    parts += [f"attempt {status.attempts}"] if status.attempts > 1 else []
    parts += [plain_text(status.why, 200)] if status.why else []
    index = f"[{status.index}]" if status.index is not None else ""
    return f"{time.strftime('%H:%M:%S')} {status.key} {plain_text(status.name)}{index} {', '.join(parts)}"


def _describe_remaining(statuses: Sequence[JobStatus], *, runs_plane: bool) -> str:
    """Return a sentence on the jobs that go on."""
    remaining = sum(not status.closed for status in statuses)
    if not remaining:
        return "all jobs have ended"
    text = "the job continues" if remaining == 1 else f"{remaining} jobs continue"
    if runs_plane:
        return f"{text}, but the plane is not running: run leadline watch or leadline plane to manage them"
    return f"{text}; leadline watch shows them again"


def _check_ended_well(statuses: Sequence[JobStatus]) -> None:
    """Raise ``JobFailed`` with the first reason, unless all ended jobs completed."""
    failed = [status for status in statuses if status.closed and status.state is not JobState.COMPLETED]
    if not failed:
        return
    first = failed[0]
    why = f" ({plain_text(first.why, 200)})" if first.why else ""
    many = f", and {len(failed) - 1} more failed" if len(failed) > 1 else ""
    raise JobFailed(f"job {first.key} ended {first.state.value}{why}{many}; details: leadline explain {first.key}")
