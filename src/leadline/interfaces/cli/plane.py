"""``leadline plane``: look after the jobs that were handed over, as an ordinary process of the user's."""

from typing import Annotated

import typer

from leadline.app.jobs.event_log import describe_event, format_local_time
from leadline.app.jobs.inline_plane import InlinePlane, Interrupts, describe_runner
from leadline.app.jobs.journal import find_jobs, plane_dir, retraining_events
from leadline.core.errors import InvalidInput, LeadlineError
from leadline.core.jobs import JobState
from leadline.interfaces.cli.command import CommandApp
from leadline.interfaces.cli.output import Json, err, out, print_json

app = CommandApp()

SCHEMA = "leadline.plane/1"
EXAMPLES = """\
Examples:
  leadline plane --until-idle                       until every job has ended
  nohup leadline plane >> plane.log 2>&1 &          after you log out
  tmux new -d -s plane leadline plane               the same, to look at with tmux attach -t plane
  systemd-run --user --unit=leadline leadline plane
  leadline plane status"""
RUN, STATUS = "run", "status"


@app.command(epilog=EXAMPLES)
def plane(
    what: Annotated[
        str, typer.Argument(metavar="run|status", help="Run it, or say who does and what it looks after.")
    ] = RUN,
    *,
    until_idle: Annotated[bool, typer.Option("--until-idle", help="End when no job is left to look after.")] = False,
    once: Annotated[bool, typer.Option("--once", help="Do what is due now, and end; for cron.")] = False,
    json: Json = False,
) -> None:
    """Look after the jobs that were handed over: submit, watch, resize, move, resubmit, and learn from them.

    It runs in the foreground as your own process, without root and without a port, one at a time. Killed at any moment
    it loses nothing: the next one goes on from its journal. SIGTERM or Ctrl-C ends it; the jobs go on.
    """
    if what not in (RUN, STATUS):
        raise InvalidInput(f"{what!r} is nothing the plane can do: write leadline plane, or leadline plane status")
    if what == STATUS:
        _status(json=json)
        return
    if json:
        raise InvalidInput("--json is for leadline plane status: while it runs, leadline jobs --json tells of the jobs")
    console = err()
    with (
        Interrupts() as interrupts,
        InlinePlane(lambda said: console.print(said, markup=False, soft_wrap=True)) as turns,
    ):
        wait_s = turns.step()
        if not turns.runs_plane:
            raise LeadlineError(f"the plane is run already, by {describe_runner() or 'another process'}: one is enough")
        if not once:
            console.print(f"the plane looks after {_counted()}; Ctrl-C ends it and not the jobs", markup=False)
        while not (once or interrupts.received or (until_idle and turns.idle)):
            interrupts.wait(wait_s)
            if not interrupts.received:
                wait_s = turns.step()
    if not once:
        console.print(f"the plane ended; {_counted()} at work", markup=False)


def _status(*, json: bool) -> None:
    who, found, learned = describe_runner(), find_jobs(), retraining_events()
    counts = {
        state.value: sum(one.current_state is state for one in found) for state in (JobState.RUNNING, JobState.PENDING)
    }
    if json:
        print_json({"schema": SCHEMA, "run_by": who, "jobs": counts, "learned": learned, "folder": str(plane_dir())})
        return
    left = ", ".join(f"{count} {state}" for state, count in counts.items() if count) or "no job is at work"
    console = out()
    console.print(f"run by   {who or 'nobody'}", markup=False)
    console.print(f"jobs     {left}", markup=False)
    console.print(f"journal  {plane_dir() / 'journal.sqlite'}", markup=False, soft_wrap=True)
    for event in learned:
        console.print(f"{format_local_time(event.at)}  {describe_event(event)[0]}", markup=False, soft_wrap=True)
    if who is None and any(counts.values()):
        err().print("nobody looks after them: leadline watch, or leadline plane, does", markup=False)


def _counted() -> str:
    left = sum(not one.closed for one in find_jobs())
    return f"{left} job{'' if left == 1 else 's'}" if left else "no job"
