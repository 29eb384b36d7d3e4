"""``leadline cancel``: take jobs back, wherever they are."""

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from leadline.app.jobs.inline_plane import describe_runner, step_until
from leadline.app.jobs.job_status import JobStatus, fold_arrays, job_statuses
from leadline.app.jobs.journal import cancel_jobs, find_jobs
from leadline.core.documents import to_document
from leadline.core.errors import InvalidInput, SchedulerUnreachable
from leadline.interfaces.cli.command import CommandApp
from leadline.interfaces.cli.jobs import SCHEMA, jobs_table
from leadline.interfaces.cli.output import Json, err, print_json

app = CommandApp()

EXAMPLES = """\
Examples:
  leadline cancel 3f2a91
  leadline cancel 3f2a91_7 4711 -y
  leadline cancel --all"""
CARRIED_OUT_S = 60.0
"""How long a running job may take to end; Slurm's KillWait is 30 s."""


@app.command(epilog=EXAMPLES)
def cancel(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="JOB…",
            help="A job's key or its beginning, its name, its id at the scheduler, or an array.",
            show_default="none; --all names those at work",
        ),
    ] = None,
    *,
    everything: Annotated[bool, typer.Option("--all", help="All that are at work.")] = False,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Do not ask before cancelling.")] = False,
    json: Json = False,
) -> None:
    """Cancel jobs that wait or run; what they wrote stays."""
    if bool(names) == everything:
        raise InvalidInput("name the jobs to cancel, or write --all for all that are at work, and not both")
    keys = [one.key for one in find_jobs(names or ()) if not one.closed]
    console = err()
    if not keys:
        if json:
            print_json(to_document({"jobs": ()}, SCHEMA))
        console.print("nothing is left to cancel: they have all ended" if names else "no job is at work", markup=False)
        return
    if not yes:
        _ask(job_statuses(keys))
    taken = [one.key for one in cancel_jobs(keys)]
    done = step_until(lambda: all(one.closed for one in find_jobs(taken)), CARRIED_OUT_S)
    found = job_statuses(taken)
    if json:
        print_json(to_document({"jobs": found}, SCHEMA))
    elif any(one.closed for one in found):
        console.print(_said(found), markup=False, soft_wrap=True)
    if not done:
        raise SchedulerUnreachable(_why_not(found))


def _ask(found: Sequence[JobStatus]) -> None:
    """Show what will be cancelled, and ask."""
    if not sys.stdin.isatty():
        raise InvalidInput("nobody can be asked whether to cancel them, for there is no terminal: add -y")
    console = err()
    console.print(jobs_table(fold_arrays(found), console.width), soft_wrap=True)
    what = "this job" if len(found) == 1 else f"these {len(found)} jobs"
    typer.confirm(f"Cancel {what}?", default=False, abort=True, err=True)


def _said(found: Sequence[JobStatus]) -> str:
    ended = [one for one in found if one.closed]
    states = ", ".join(sorted({one.state.value for one in ended}))
    return (
        f"job {found[0].key} ended: {states}"
        if len(found) == 1
        else f"{len(ended)} of {len(found)} jobs ended: {states}"
    )


def _why_not(found: Sequence[JobStatus]) -> str:
    left = sum(not one.closed for one in found)
    who = describe_runner()
    then = f"{who} carries it out" if who else "leadline plane, or leadline watch, carries it out when it answers again"
    return f"{left} of {len(found)} could not be ended within {CARRIED_OUT_S:.0f} s, and it is noted: {then}"
