"""``leadline plane``: run the Intelligence Plane, the process that manages submitted jobs."""

import click

from leadline.app.jobs.event_log import describe_event, format_local_time
from leadline.app.jobs.inline_plane import InlinePlane, describe_runner, interrupts
from leadline.app.jobs.journal import find_jobs, keep_journal_open, plane_dir, retraining_events
from leadline.core.errors import InvalidInput, LeadlineError
from leadline.core.jobs import JobState
from leadline.core.units import pluralize
from leadline.interfaces.cli.command import argument, command, flag, json_option
from leadline.interfaces.cli.output import print_json, print_note

RUN, STATUS = "run", "status"


@command("plane")
@argument("action", "run|status", "Run the plane, or show its status.", RUN, default=RUN)
@flag("--until-idle", "Exit when all jobs have ended.")
@flag("--once", "Do what is due now and exit; for cron.")
@json_option
@keep_journal_open()
def plane(action: str, *, until_idle: bool, once: bool, json: bool) -> None:
    """Manage submitted jobs: submit, watch, resize, move and resubmit them, and retrain on finished ones.

    The plane runs in the foreground as your own process, without root and without a port, one at a time. If it is
    killed, the next one resumes from its journal. SIGTERM or Ctrl-C ends it; the jobs go on.
    """
    if action not in (RUN, STATUS):
        raise InvalidInput(f"unknown action {action!r}: use leadline plane or leadline plane status")
    if action == STATUS:
        _status(json=json)
        return
    if json:
        raise InvalidInput("--json works with leadline plane status only; leadline jobs --json shows the jobs")
    with interrupts() as interrupted, InlinePlane(print_note) as inline_plane:
        wait_s = inline_plane.step()
        if not inline_plane.runs_plane:
            raise LeadlineError(f"the plane is already running ({describe_runner() or 'another process'})")
        if once:
            inline_plane.finish()
        else:
            print_note(f"managing {_count_jobs()}; Ctrl-C ends the plane, not the jobs")
        while not (once or interrupted.is_set() or (until_idle and inline_plane.idle)):
            interrupted.wait(wait_s)
            if not interrupted.is_set():
                wait_s = inline_plane.step()
    if not once:
        print_note(f"the plane ended; {_count_jobs()} active")


def _status(*, json: bool) -> None:
    runner, jobs, events = describe_runner(), find_jobs(), retraining_events()
    counts = {
        state.value: sum(job.current_state is state for job in jobs) for state in (JobState.RUNNING, JobState.PENDING)
    }
    if json:
        # "said" is the key of version 1 of this document.
        learned = [
            {"number": event.number, "at": event.at, "kind": event.kind, "job": event.job, "attempt": event.attempt,
             "said": event.details}
            for event in events
        ]  # fmt: skip
        document = {"run_by": runner, "jobs": counts, "learned": learned, "folder": str(plane_dir())}
        print_json({"schema": "leadline.plane/1", **document})
        return
    summary = ", ".join(f"{count} {state}" for state, count in counts.items() if count) or "no active jobs"
    click.echo(f"runner   {runner or 'none'}")
    click.echo(f"jobs     {summary}")
    click.echo(f"journal  {plane_dir() / 'journal.sqlite'}")
    for event in events:
        click.echo(f"{format_local_time(event.at)}  {describe_event(event)[0]}")
    if runner is None and any(counts.values()):
        print_note("The plane is not running. Run leadline watch or leadline plane to manage these jobs.")


def _count_jobs() -> str:
    count = sum(not job.closed for job in find_jobs())
    return pluralize(count, "job") if count else "no jobs"
