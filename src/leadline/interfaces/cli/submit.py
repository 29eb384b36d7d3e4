"""``leadline submit``: the batch script for a site, or the job itself on this machine."""

import sys
from typing import Annotated, Any

import typer

from leadline.app.composition import toolbox
from leadline.app.estimate import RISK
from leadline.app.fill_in import fill_in
from leadline.app.history import compare
from leadline.app.places import LOCAL
from leadline.app.submit import (
    Request,
    batch_script,
    check_ended_well,
    find_partition,
    job_spec,
    predict_at,
    refuse_remote,
    run_here,
)
from leadline.core.documents import to_document
from leadline.core.errors import InvalidInput
from leadline.core.jobs import JobSpec
from leadline.core.units import format_bytes, format_duration, parse_bytes, parse_duration_s
from leadline.interfaces.cli.face import Json, err, print_json
from leadline.interfaces.cli.history import show_one
from leadline.interfaces.cli.usage import OWN_COMMAND
from leadline.interfaces.cli.verb import Verb

app = Verb()


EXAMPLES = """\
Examples:
  leadline submit -y -- python train.py --batch-size 64 --epochs 10
  leadline submit job.toml --on Pitzer:gpu --account PAS0000 --dry-run"""

RESOURCES, JOB, RUN = "What to ask for", "The job", "What happens"
PREDICTED = f"what is predicted, at a risk of {RISK:.0%}"


def _open(form: str, what: str, default: str, section: str = RESOURCES) -> Any:  # noqa: ANN401 - an option, for Typer
    """Declare an option that may be left open, with what holds then."""
    return typer.Option(metavar=form, help=what, show_default=default, rich_help_panel=section)


@app.command(epilog=EXAMPLES)
def submit(
    subject: Annotated[
        list[str] | None,
        typer.Argument(
            metavar=f"WORKLOAD.toml | -- {OWN_COMMAND}…",
            help="A workload file with a command, or your command after --.",
            show_default=False,
        ),
    ] = None,
    *,
    on: Annotated[
        str,
        typer.Option(
            metavar="PLACE",
            help="Where: local, SYSTEM:PARTITION, or slurm[:PARTITION] for a cluster that is not in the catalog.",
            rich_help_panel=RUN,
        ),
    ] = LOCAL,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the batch script and run nothing.", rich_help_panel=RUN)
    ] = False,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Do not ask before running.", rich_help_panel=RUN)] = False,
    gpus: Annotated[
        int | None, _open("N", "GPUs of the whole job.", "the workload's; at least 1 on a partition with GPUs")
    ] = None,
    nodes: Annotated[int | None, _open("N", "Nodes of the job.", "as many as its GPUs take; else 1")] = None,
    cores: Annotated[int | None, _open("N", "Cores a node.", "the share of the node that goes with the GPUs")] = None,
    memory: Annotated[
        str | None, _open("SIZE", "Memory a node, such as 16G.", f"on a cluster {PREDICTED}; here no limit")
    ] = None,
    time: Annotated[
        str | None, _open("TIME", "Time limit, such as 2h or 1-12:00:00.", f"on a cluster {PREDICTED}; here no limit")
    ] = None,
    account: Annotated[
        str | None, _open("NAME", "The project to charge.", "none; a site that demands one says so", JOB)
    ] = None,
    name: Annotated[str, _open("NAME", "What the job is called.", "its file's or its script's name", JOB)] = "",
    workdir: Annotated[str | None, _open("FOLDER", "Folder to run in.", "the one it is submitted from", JOB)] = None,
    setup: Annotated[
        list[str] | None,
        _open("LINE", "A line of shell before the command, such as 'module load cuda'; repeat for more.", "none", JOB),
    ] = None,
    json: Json = False,
) -> None:
    """Run a job here, measured and remembered; or, with --dry-run, print the batch script that a site accepts."""
    request = Request(
        account=account,
        nodes=nodes,
        gpus=gpus,
        cores=cores,
        memory_bytes=parse_bytes(memory) if memory else None,
        walltime_s=parse_duration_s(time) if time else None,
        name=name,
        workdir=workdir,
        setup=tuple(setup or ()),
    )
    spec = job_spec(subject or [], on, request)
    if dry_run:
        _print_script(subject or [], on, request, json=json)
    elif spec.system is not None:
        refuse_remote(spec, toolbox().catalog)
    else:
        _run(spec, subject or [], yes=yes, json=json)


def _print_script(subject: list[str], place: str, request: Request, *, json: bool) -> None:
    """Print the script alone on stdout; what was filled in goes to stderr."""
    tools, console = toolbox(), err()
    find_partition(job_spec(subject, place, request), tools.catalog)
    with console.status("predicting what to ask for"):
        filled = fill_in(request, subject, place, tools)
    spec = job_spec(subject, place, filled.request)
    script = batch_script(spec, tools.catalog)
    for note in filled.notes:
        console.print(f"note: {note}", markup=False, soft_wrap=True)
    if json:
        print_json({"schema": "leadline.script/1", "job": spec, "script": script, "notes": filled.notes})
    else:
        sys.stdout.write(script)


def _run(spec: JobSpec, subject: list[str], *, yes: bool, json: bool) -> None:
    """Ask, run, remember, and show prediction beside measurement; a failed job ends the command with its own code."""
    resources = spec.resources
    limits = [f"at most {format_duration(resources.walltime_s)}"] if resources.walltime_s else []
    limits += [f"{format_bytes(resources.memory_bytes_per_node)}"] if resources.memory_bytes_per_node else []
    console = err()
    if not yes:
        if not sys.stdin.isatty():
            raise InvalidInput("nobody can be asked whether to run the job, for there is no terminal: add -y")
        question = f"Run {spec.name!r} on this machine{' (' + ', '.join(limits) + ')' if limits else ''}?"
        typer.confirm(question, default=True, abort=True, err=True)
    predicted, why_not = predict_at(LOCAL, subject, toolbox())
    if predicted is None:
        console.print(f"note: nothing is predicted for this run: {why_not}", markup=False)
    run = run_here(
        spec,
        predicted=predicted,
        on_progress=lambda text: console.print(text, markup=False),
        output=sys.stderr.fileno() if json else None,
    )
    if json:
        print_json({**to_document(run, "leadline.run/1"), "comparison": compare(run)})
    else:
        show_one(run)
    check_ended_well(run)
