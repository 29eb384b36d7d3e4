"""``leadline cancel``: cancel jobs on any system."""

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from leadline.app.jobs.inline_plane import describe_runner, step_until
from leadline.app.jobs.job_status import JobStatus, fold_arrays, job_statuses
from leadline.app.jobs.journal import cancel_jobs, find_jobs, keep_journal_open
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
@keep_journal_open()
def cancel(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="JOB…",
            help="Job key or its prefix, job name, scheduler ID, or array.",
            show_default="none; --all for all active jobs",
        ),
    ] = None,
    *,
    everything: Annotated[bool, typer.Option("--all", help="Cancel all active jobs.")] = False,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Cancel without confirmation.")] = False,
    json: Json = False,
) -> None:
    """Cancel waiting or running jobs; their output files stay."""
    if bool(names) == everything:
        raise InvalidInput("name the jobs to cancel, or use --all for all active jobs, but not both")
    keys = [job.key for job in find_jobs(names or ()) if not job.closed]
    console = err()
    if not keys:
        if json:
            print_json(to_document({"jobs": ()}, SCHEMA))
        console.print("nothing to cancel: these jobs have ended" if names else "no active jobs", markup=False)
        return
    if not yes:
        _ask(job_statuses(keys))
    cancelled = [job.key for job in cancel_jobs(keys)]
    done = step_until(lambda: all(job.closed for job in find_jobs(cancelled)), CARRIED_OUT_S)
    statuses = job_statuses(cancelled)
    if json:
        print_json(to_document({"jobs": statuses}, SCHEMA))
    elif any(status.closed for status in statuses):
        console.print(_describe_ended(statuses), markup=False, soft_wrap=True)
    if not done:
        raise SchedulerUnreachable(_why_not(statuses))


def _ask(statuses: Sequence[JobStatus]) -> None:
    """Show the jobs, and ask for confirmation."""
    if not sys.stdin.isatty():
        raise InvalidInput("cannot ask for confirmation without a terminal: add -y to cancel the jobs")
    console = err()
    console.print(jobs_table(fold_arrays(statuses), console.width), soft_wrap=True)
    noun = "this job" if len(statuses) == 1 else f"these {len(statuses)} jobs"
    typer.confirm(f"Cancel {noun}?", default=False, abort=True, err=True)


def _describe_ended(statuses: Sequence[JobStatus]) -> str:
    ended = [status for status in statuses if status.closed]
    states = ", ".join(sorted({status.state.value for status in ended}))
    return (
        f"job {statuses[0].key} ended: {states}"
        if len(statuses) == 1
        else f"{len(ended)} of {len(statuses)} jobs ended: {states}"
    )


def _why_not(statuses: Sequence[JobStatus]) -> str:
    remaining = sum(not status.closed for status in statuses)
    runner = describe_runner()
    then = (
        f"{runner} carries it out"
        if runner
        else "run leadline plane or leadline watch to carry it out when the scheduler answers"
    )
    return (
        f"{remaining} of {len(statuses)} jobs did not end within {CARRIED_OUT_S:.0f} s; the cancellation is recorded: "
        f"{then}"
    )
