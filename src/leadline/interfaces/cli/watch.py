"""``leadline watch``: follow jobs until they end, and run the plane meanwhile where nobody else does."""

import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Annotated

import typer
from rich.console import Group
from rich.live import Live
from rich.text import Text

from leadline.app.jobs.inline_plane import InlinePlane, Interrupts, describe_runner
from leadline.app.jobs.job_status import JobStatus, fold_arrays, job_statuses, newest_event_number
from leadline.core.documents import to_document, to_json
from leadline.core.errors import JobFailed
from leadline.core.jobs import JobState
from leadline.interfaces.cli.command import CommandApp
from leadline.interfaces.cli.jobs import (
    SCHEMA,
    Names,
    describe_silent_systems,
    format_progress,
    jobs_table,
    no_jobs_message,
    plain_text,
    print_jobs,
)
from leadline.interfaces.cli.output import INTERRUPTED, Json, err, out, print_json, write_text

app = CommandApp()

EXAMPLES = """\
Examples:
  leadline watch                    all that are at work, until they end
  leadline watch 3f2a91             one job, or one array
  leadline watch --once             one look, for scripts"""
STEPS_TOLD = 10
"""A plain line is written for every so many per cent of a job."""

LOOK_S = 5.0
"""How often jobs are read anew where no event was written; why one waits may change without."""
LEAST_WAIT_S = 0.2


@app.command(epilog=EXAMPLES)
def watch(
    names: Names = None,
    *,
    once: Annotated[bool, typer.Option("--once", help="Look once, and end.")] = False,
    each: Annotated[bool, typer.Option("--each", help="Every element of an array in a row of its own.")] = False,
    json: Json = False,
) -> int:
    """Follow jobs until they ended; where nobody runs the plane, this command does as long as it lasts.

    Ctrl-C ends the view and not the jobs. The exit code is 5 if one of them did not complete. With --json each change
    is one document on one line.
    """
    found = job_statuses(names or ())
    if not found:
        if json:
            print_json(to_document({"jobs": found}, SCHEMA))
        err().print(no_jobs_message(all_=False), markup=False, soft_wrap=True)
        return 0
    keys = [one.key for one in found]
    with InlinePlane(lambda said: err().print(said, markup=False, soft_wrap=True)) as turns, Interrupts() as interrupts:
        if once:
            turns.step()
            found = job_statuses(keys)
            if json:
                print_json(to_document({"jobs": found}, SCHEMA))
            else:
                print_jobs(found, each=each)
        else:
            found = _follow(keys, turns, interrupts, each=each, json=json)
        mine = turns.runs_plane
    if interrupts.received:
        err().print(_left(found, mine=mine), markup=False, soft_wrap=True)
        return INTERRUPTED
    _check_ended_well(found)
    return 0


def _follow(
    keys: Sequence[str], turns: InlinePlane, interrupts: Interrupts, *, each: bool, json: bool
) -> tuple[JobStatus, ...]:
    """Step, look and show until all ended or Ctrl-C; return how they stand then."""
    lines = _Lines(json=json)
    with ExitStack() as stack:
        live = None
        if sys.stdout.isatty() and not json:
            live = stack.enter_context(Live(console=out(), auto_refresh=False, transient=False))
        seen, looked_s, found = -1, 0.0, job_statuses(keys)
        while True:
            wait_s = turns.step()
            if (newest := newest_event_number()) != seen or time.monotonic() - looked_s >= LOOK_S:
                seen, looked_s, found = newest, time.monotonic(), job_statuses(keys)
            if live is None:
                lines.tell(found)
            else:
                live.update(_view(found, turns, live.console.width, each=each), refresh=True)
            if interrupts.received or all(one.closed for one in found):
                return found
            interrupts.wait(max(wait_s, LEAST_WAIT_S))


def _view(found: Sequence[JobStatus], turns: InlinePlane, width: int, *, each: bool) -> Group:
    runner = "this command" if turns.runs_plane else describe_runner() or "nobody"
    foot = f"{time.strftime('%H:%M:%S')} · looked after by {runner} · Ctrl-C ends the view alone"
    table = jobs_table(found if each else fold_arrays(found), width)
    return Group(table, *(Text(one, "red") for one in describe_silent_systems(found)), Text(foot, "dim"))


class _Lines:
    """Writes a line for every job of which something changed."""

    def __init__(self, *, json: bool) -> None:
        self._json = json
        self._told: dict[str, object] = {}

    def tell(self, found: Sequence[JobStatus]) -> None:
        """Write the lines of those that changed since."""
        for one in found:
            share = one.shown.share if one.shown else None
            news = (one.state, one.why, one.attempts, one.walltime_s, share and int(share * STEPS_TOLD))
            if self._told.get(one.key) == news:
                continue
            self._told[one.key] = news
            write_text(
                to_json(to_document(one, "leadline.job/1"), indent=0) + "\n" if self._json else f"{_line(one)}\n"
            )


def _line(one: JobStatus) -> str:
    """Return a line such as ``14:05:01 3f2a91b4c0de train RUNNING at Pitzer:gpu, 40 %, 400 of 1000 steps``."""
    parts = [f"{one.state.value} at {one.place}", *(part for part in format_progress(one) if part)]
    parts += [f"attempt {one.attempts}"] if one.attempts > 1 else []
    parts += [plain_text(one.why, 200)] if one.why else []
    index = f"[{one.index}]" if one.index is not None else ""
    return f"{time.strftime('%H:%M:%S')} {one.key} {plain_text(one.name)}{index} {', '.join(parts)}"


def _left(found: Sequence[JobStatus], *, mine: bool) -> str:
    """Say what becomes of the jobs that were watched."""
    left = sum(not one.closed for one in found)
    if not left:
        return "all of them had ended"
    what = "the job goes on" if left == 1 else f"{left} jobs go on"
    if mine:
        return f"{what}, and nobody looks after what waits or fails until leadline watch or leadline plane runs again"
    return f"{what}: leadline watch shows them again"


def _check_ended_well(found: Sequence[JobStatus]) -> None:
    """Raise ``JobFailed`` with the first reason, unless all that ended completed."""
    failed = [one for one in found if one.closed and one.state is not JobState.COMPLETED]
    if not failed:
        return
    first = failed[0]
    why = f" ({plain_text(first.why, 200)})" if first.why else ""
    many = f", and {len(failed) - 1} more did not complete" if len(failed) > 1 else ""
    raise JobFailed(
        f"job {first.key} ended {first.state.value}{why}{many}: leadline explain {first.key} tells its story"
    )
