"""``leadline cancel``: cancel jobs on any system."""

import shutil
import sys
from collections.abc import Sequence

import click

from leadline.app.jobs.inline_plane import describe_runner, step_until
from leadline.app.jobs.job_status import JobStatus, fold_arrays, job_statuses
from leadline.app.jobs.journal import cancel_jobs, find_jobs, keep_journal_open
from leadline.core.errors import InvalidInput, SchedulerUnreachable
from leadline.interfaces.cli.command import argument, command, flag, json_option
from leadline.interfaces.cli.jobs import JOBS, jobs_table, print_jobs
from leadline.interfaces.cli.output import print_note

CARRIED_OUT_S = 60.0
"""How long a running job may take to end; Slurm's KillWait is 30 s."""


@command("cancel")
@argument(*JOBS, "none; --all for all active jobs", nargs=-1)
@flag("everything --all", "Cancel all active jobs.")
@flag("-y --yes", "Cancel without confirmation.")
@json_option
@keep_journal_open()
def cancel(names: tuple[str, ...], *, everything: bool, yes: bool, json: bool) -> None:
    """Cancel waiting or running jobs; their output files stay."""
    if bool(names) == everything:
        raise InvalidInput("name the jobs to cancel, or use --all for all active jobs, but not both")
    keys = [job.key for job in find_jobs(names) if not job.closed]
    if not keys:
        if json:
            print_jobs((), json=True)
        print_note("nothing to cancel: these jobs have ended" if names else "no active jobs")
        return
    if not yes:
        _ask(job_statuses(keys))
    cancelled = [job.key for job in cancel_jobs(keys)]
    done = step_until(lambda: all(job.closed for job in find_jobs(cancelled)), CARRIED_OUT_S)
    statuses = job_statuses(cancelled)
    if json:
        print_jobs(statuses, json=True)
    elif any(status.closed for status in statuses):
        print_note(_describe_ended(statuses))
    if not done:
        raise SchedulerUnreachable(_why_not(statuses))


def _ask(statuses: Sequence[JobStatus]) -> None:
    """Show the jobs, and ask for confirmation."""
    if not sys.stdin.isatty():
        raise InvalidInput("cannot ask for confirmation without a terminal: add -y to cancel the jobs")
    for line in jobs_table(fold_arrays(statuses), shutil.get_terminal_size().columns):
        print_note(line)
    noun = "this job" if len(statuses) == 1 else f"these {len(statuses)} jobs"
    click.confirm(f"Cancel {noun}?", default=False, abort=True, err=True)


def _describe_ended(statuses: Sequence[JobStatus]) -> str:
    ended = [status for status in statuses if status.closed]
    jobs = f"job {statuses[0].key}" if len(statuses) == 1 else f"{len(ended)} of {len(statuses)} jobs"
    return f"{jobs} ended: {', '.join(sorted({status.state.value for status in ended}))}"


def _why_not(statuses: Sequence[JobStatus]) -> str:
    remaining = sum(not status.closed for status in statuses)
    runner = describe_runner()
    then = "run leadline plane or leadline watch to carry it out when the scheduler answers"
    return (
        f"{remaining} of {len(statuses)} jobs did not end within {CARRIED_OUT_S:.0f} s; the cancellation is recorded: "
        f"{f'{runner} carries it out' if runner else then}"
    )
