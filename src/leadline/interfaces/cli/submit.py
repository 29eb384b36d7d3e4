"""``leadline submit``: the batch script for a site, or the job itself on this machine."""

import sys
from typing import Annotated

import typer

from leadline.app.composition import toolbox
from leadline.app.history import compare
from leadline.app.places import LOCAL
from leadline.app.submit import (
    Request,
    batch_script,
    check_ended_well,
    job_spec,
    predict_here,
    refuse_remote,
    run_here,
)
from leadline.core.documents import to_document
from leadline.core.errors import InvalidInput
from leadline.core.jobs import JobSpec
from leadline.core.units import format_bytes, format_duration, parse_bytes, parse_duration_s
from leadline.interfaces.cli.face import JSON_HELP, err, print_json
from leadline.interfaces.cli.history import show_one

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def submit(
    subject: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="WORKLOAD.toml | -- COMMAND…",
            help="A workload file with a command, or your command after --.",
            show_default=False,
        ),
    ] = None,
    *,
    on: Annotated[
        str, typer.Option(metavar="local|SYSTEM:PARTITION", help="Where; slurm[:PARTITION] is a cluster not listed.")
    ] = LOCAL,
    account: Annotated[str | None, typer.Option(help="The project to charge.", show_default=False)] = None,
    nodes: Annotated[int, typer.Option(help="Nodes of the job.")] = 1,
    gpus: Annotated[int | None, typer.Option(help="GPUs of the whole job.", show_default=False)] = None,
    cores: Annotated[int | None, typer.Option(help="Cores a node.", show_default=False)] = None,
    memory: Annotated[str | None, typer.Option(help="Memory a node, such as 16G.", show_default=False)] = None,
    time: Annotated[str | None, typer.Option(help="Time limit, such as 2h.", show_default=False)] = None,
    name: Annotated[str, typer.Option(help="Name of the job.", show_default=False)] = "",
    workdir: Annotated[str | None, typer.Option(help="Folder to run in.", show_default=False)] = None,
    setup: Annotated[
        list[str] | None, typer.Option(help="A line before the command, such as 'module load cuda'; repeat for more.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the batch script and run nothing.")] = False,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Do not ask before running.")] = False,
    json: Annotated[bool, typer.Option("--json", help=JSON_HELP)] = False,
) -> None:
    """Run a job here, measured and remembered, or print the batch script that a site accepts."""
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
        _print_script(spec, json=json)
    elif spec.system is not None:
        refuse_remote(spec)
    else:
        _run(spec, subject or [], yes=yes, json=json)


def _print_script(spec: JobSpec, *, json: bool) -> None:
    script = batch_script(spec, toolbox().catalog)
    if json:
        print_json({"schema": "leadline.script/1", "job": spec, "script": script})
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
    predicted, why_not = predict_here(subject, toolbox())
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
