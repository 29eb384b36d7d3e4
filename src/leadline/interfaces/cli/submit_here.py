"""``leadline submit`` on this machine: the job itself, in the foreground."""

import sys

import typer

from leadline.app.composition import toolbox
from leadline.app.history import compare
from leadline.app.places import LOCAL
from leadline.app.submit import Request, check_ended_well, job_spec, predict_at, run_here
from leadline.core.documents import to_document
from leadline.core.errors import InvalidInput
from leadline.core.units import format_bytes, format_duration
from leadline.interfaces.cli.face import err, print_json
from leadline.interfaces.cli.history import show_one


def run_at_once(subject: list[str], request: Request, *, yes: bool, json: bool) -> None:
    """Ask, run, remember, and show prediction beside measurement; a failed job ends the command with its own code."""
    spec = job_spec(subject, LOCAL, request)
    resources = spec.resources
    limits = [f"at most {format_duration(resources.walltime_s)}"] if resources.walltime_s else []
    limits += [f"{format_bytes(resources.memory_bytes_per_node)}"] if resources.memory_bytes_per_node else []
    console = err()
    if not yes:
        if not sys.stdin.isatty():
            raise InvalidInput("nobody can be asked whether to run the job, for there is no terminal: add -y")
        question = f"Run {spec.name!r} on this machine{' (' + ', '.join(limits) + ')' if limits else ''}?"
        typer.confirm(question, default=True, abort=True, err=True)
    predicted = predict_at(LOCAL, subject, toolbox(), name=request.name)
    if predicted.estimate is None:
        console.print(f"note: nothing is predicted for this run: {predicted.why_not}", markup=False)
    run = run_here(
        spec,
        predicted=predicted.estimate,
        tags=predicted.tags,
        on_progress=lambda text: console.print(text, markup=False),
        output=sys.stderr.fileno() if json else None,
    )
    if json:
        print_json({**to_document(run, "leadline.run/1"), "comparison": compare(run)})
    else:
        show_one(run)
    check_ended_well(run)
