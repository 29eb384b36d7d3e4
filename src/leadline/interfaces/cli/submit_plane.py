"""``leadline submit`` to the plane: show what will be done, ask, hand over, and say what became of it."""

import sys
from collections.abc import Sequence

import typer
from rich.text import Text

from leadline.app.composition import toolbox
from leadline.app.hand_over import hand_over, jobs_of
from leadline.app.send import Prepared, Terms, check_reached, places_of, prepare
from leadline.app.standing import Standing, standings
from leadline.app.story_words import asked_words, bounds_words, local_time
from leadline.app.submit import Request
from leadline.app.turn import step_until, who_runs_it
from leadline.core.documents import to_document
from leadline.core.errors import InvalidInput, LeadlineError
from leadline.core.jobs import JobState
from leadline.core.plane import Job
from leadline.interfaces.cli.face import err, print_json
from leadline.interfaces.cli.jobs import print_table
from leadline.interfaces.cli.jobs_table import plain

SCHEMA = "leadline.submitted/1"
TAKEN_S = 60.0
"""How long is waited for a scheduler's answer; the job is handed over whether it comes or not."""


def print_scripts(subject: list[str], on: Sequence[str], request: Request, terms: Terms, *, json: bool) -> None:
    """Print the scripts alone on stdout; what was filled in, and what the plane would do, goes to stderr."""
    prepared, console = _prepared(subject, on, request, terms), err()
    first = prepared.scripts[0] if prepared.scripts else None
    for note in (*prepared.notes, *([_what(prepared)] if terms.given or len(on) > 1 or first is None else [])):
        console.print(f"note: {note}", markup=False, soft_wrap=True)
    if json:
        scripts = [{"place": str(place), "job": spec, "script": text} for place, spec, text in prepared.scripts[1:]]
        print_json({
            "schema": "leadline.script/1", "job": prepared.wanted.spec, "script": first[2] if first else None,
            "notes": prepared.notes, "policy": prepared.wanted.policy, "others": scripts,
        })  # fmt: skip
        return
    for place, _, text in prepared.scripts:
        if len(prepared.scripts) > 1:
            console.print(f"note: the script for {place}", markup=False)
        sys.stdout.write(text)
        sys.stdout.flush()


def hand_to_plane(
    subject: list[str], on: Sequence[str], request: Request, terms: Terms, *, yes: bool, json: bool
) -> None:
    """Ask, hand over, and wait until a scheduler has taken the job, or for a minute.

    Raises:
        LeadlineError: no place took it.
    """
    catalog = toolbox().catalog
    places = places_of(on, catalog)
    if not yes and not sys.stdin.isatty():
        raise InvalidInput("nobody can be asked whether to submit the job, for there is no terminal: add -y")
    check_reached(places, catalog)
    prepared, console = _prepared(subject, on, request, terms), err()
    for note in prepared.notes:
        console.print(f"note: {note}", markup=False, soft_wrap=True)
    if not yes:
        console.print(Text(_what(prepared)), soft_wrap=True)
        typer.confirm("Submit it?", default=True, abort=True, err=True)
    jobs = hand_over(prepared.wanted)
    watched = [jobs[0].key, jobs[-1].key]
    with console.status("handing it to the scheduler"):
        step_until(
            lambda: all(map(_settled, jobs_of(watched))), TAKEN_S, lambda said: console.print(said, markup=False)
        )
    found = standings([one.key for one in jobs])
    _tell(found, json=json)


def _prepared(subject: list[str], on: Sequence[str], request: Request, terms: Terms) -> Prepared:
    with err().status("predicting what to ask for"):
        return prepare(subject, on, request, terms, toolbox())


def _what(prepared: Prepared) -> str:
    """Say in a sentence what is handed over, where it may go, and what the plane may do."""
    wanted, policy = prepared.wanted, prepared.wanted.policy
    what = f"array {plain(wanted.spec.name)!r} of {len(wanted.indices)}" if wanted.indices else plain(wanted.spec.name)
    where = ", else ".join(map(str, policy.places)) + (f" ({policy.copies} at once)" if policy.copies > 1 else "")
    after = f"; after {', '.join(wanted.after)}" if wanted.after else ""
    wanted_by = (
        f"; its result is wanted by {local_time(policy.deadline_at, '%d %b %H:%M')}" if policy.deadline_at else ""
    )
    return f"{what} at {where}: {asked_words(wanted.spec.resources)}; {bounds_words(policy)}{after}{wanted_by}"


def _settled(job: Job) -> bool:
    """Whether a job is at a scheduler, ended, or put off."""
    taken = any(one.scheduler_id is not None for one in job.attempts)
    return taken or job.closed or bool(job.after) or job.plan is not None


def _tell(found: Sequence[Standing], *, json: bool) -> None:
    """Print what was handed over, and say how to go on."""
    if json:
        print_json(to_document({"jobs": found}, SCHEMA))
    else:
        print_table(found)
    refused = [one for one in found if one.closed and one.state is not JobState.COMPLETED and not one.elapsed_s]
    if refused:
        first = refused[0]
        raise LeadlineError(f"job {first.key} was not taken: {plain(first.why, 300)}")
    key = found[0].group or found[0].key
    console, who = err(), who_runs_it()
    missing = [one for one in found if not one.scheduler_id and not one.closed]
    if missing and not found[0].why.startswith("after"):
        console.print(f"{len(missing)} not taken by a scheduler yet: noted, and submitted as soon as it can be",
                      markup=False, soft_wrap=True)  # fmt: skip
    then = "" if who else "; nobody runs the plane, so watch it, or run leadline plane, for it to be looked after"
    console.print(f"next: leadline watch {key}{then}", markup=False, soft_wrap=True)
