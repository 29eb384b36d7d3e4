"""``leadline submit``: a job to the plane, to a site as its script, or run on this machine."""

from typing import Annotated, Any

import typer

from leadline.app.estimate import RISK
from leadline.app.places import LOCAL
from leadline.app.send import Terms
from leadline.app.submit import Request
from leadline.core.errors import InvalidInput
from leadline.core.units import parse_bytes, parse_duration_s
from leadline.interfaces.cli.face import Json
from leadline.interfaces.cli.submit_here import run_at_once
from leadline.interfaces.cli.submit_plane import hand_to_plane, print_scripts
from leadline.interfaces.cli.usage import OWN_COMMAND
from leadline.interfaces.cli.verb import Verb

app = Verb()


EXAMPLES = """\
Examples:
  leadline submit -y -- python train.py --batch-size 64 --epochs 10
  leadline submit --on local --detach -- python train.py
  leadline submit job.toml --on Pitzer:gpu --on Owens:gpu --copies 2 --account PAS0000
  leadline submit job.toml --on slurm:gpu --array 0-99 --attempts 3 --resumes
  leadline submit job.toml --on Pitzer:gpu --account PAS0000 --dry-run"""

RESOURCES, JOB, RUN, PLANE = "What to ask for", "The job", "What happens", "What the plane may do"
PREDICTED = f"what is predicted, at a risk of {RISK:.0%}"


def _open(form: str, what: str, default: str, section: str = RESOURCES) -> Any:  # noqa: ANN401 - an option, for Typer
    """Declare an option that may be left open, with what holds then."""
    return typer.Option(metavar=form, help=what, show_default=default, rich_help_panel=section)


def _flag(names: str, what: str, section: str = RUN) -> Any:  # noqa: ANN401 - an option, for Typer
    return typer.Option(*names.split(), help=what, rich_help_panel=section)


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
        list[str] | None,
        _open(
            "PLACE",
            "Where: local, SYSTEM:PARTITION, or slurm[:PARTITION] for a cluster that is not in the catalog; "
            "repeat for more places, the preferred one first.",
            LOCAL,
            RUN,
        ),
    ] = None,
    detach: Annotated[bool, _flag("--detach", "On local: hand it to the plane, and do not wait.")] = False,
    dry_run: Annotated[bool, _flag("--dry-run", "Print the batch script and run nothing.")] = False,
    yes: Annotated[bool, _flag("-y --yes", "Do not ask before running.")] = False,
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
    time_min: Annotated[
        str | None,
        _open("TIME", "A shorter limit that Slurm may give it to start it sooner.", f"{PREDICTED}, if below --time"),
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
    array: Annotated[
        str | None,
        _open("INDICES", "An array: 0-99, 1,5,7 or 0-100:10; the command reads SLURM_ARRAY_TASK_ID.", "one job", JOB),
    ] = None,
    after: Annotated[list[str] | None, _open("JOB", "Start after that one completed; repeat.", "none", JOB)] = None,
    after_any: Annotated[list[str] | None, _open("JOB", "Start after that one ended; repeat.", "none", JOB)] = None,
    copies: Annotated[
        int,
        typer.Option(
            metavar="N", help="Places where it may wait at once, until it starts at one.", rich_help_panel=PLANE
        ),
    ] = 1,
    attempts: Annotated[int | None, _open("N", "How often it is submitted at most.", "4", PLANE)] = None,
    most_cost: Annotated[
        float | None, _open("AMOUNT", "What all attempts may cost, in the unit of the first place.", "no bound", PLANE)
    ] = None,
    most_node_hours: Annotated[
        float | None, _open("HOURS", "Nodes times hours of all attempts.", "no bound", PLANE)
    ] = None,
    resumes: Annotated[
        bool, _flag("--resumes", "The command goes on from its own checkpoint when it is started again.", PLANE)
    ] = False,
    checkpoint_signal: Annotated[
        str | None, _open("NAME", "Sent before a limit, so that it writes a checkpoint: USR1.", "none", PLANE)
    ] = None,
    checkpoint_folder: Annotated[
        str | None,
        _open("FOLDER", "Where its checkpoints lie in its folder; it goes along to another system.", "none", PLANE),
    ] = None,
    checkpoint_before: Annotated[str | None, _open("TIME", "How long before a limit.", "2m", PLANE)] = None,
    deadline: Annotated[
        str | None, _open("WHEN", "When the result is wanted: 6h from now, or 2026-11-23T08:00.", "none", PLANE)
    ] = None,
    risk: Annotated[
        float, typer.Option(metavar="P", help="Accepted probability that a limit is too low.", rich_help_panel=PLANE)
    ] = RISK,
    no_resize: Annotated[bool, _flag("--no-resize", "Never change what is asked for.", PLANE)] = False,
    no_measure: Annotated[bool, _flag("--no-measure", "Run the command without the measuring wrapper.", PLANE)] = False,
    json: Json = False,
) -> None:
    """Run a job here, measured and remembered; or hand it to the plane, for a cluster or to run detached.

    The plane submits it, watches it, corrects its request, and submits it again where that helps. With --dry-run the
    batch script is printed that the site accepts, and nothing else happens.
    """
    request = Request(
        account=account,
        nodes=nodes,
        gpus=gpus,
        cores=cores,
        memory_bytes=parse_bytes(memory) if memory else None,
        walltime_s=parse_duration_s(time) if time else None,
        least_walltime_s=parse_duration_s(time_min) if time_min else None,
        name=name,
        workdir=workdir,
        setup=tuple(setup or ()),
    )
    terms = Terms(
        copies, array, tuple(after or ()), tuple(after_any or ()), attempts, most_cost, most_node_hours, resumes,
        checkpoint_signal, checkpoint_before, deadline, risk, not no_resize, not no_measure,
        checkpoint_folder,
    )  # fmt: skip
    places = on or [LOCAL]
    here = [one.casefold() for one in places] == [LOCAL] and not detach
    if here and terms.given and not dry_run:
        raise InvalidInput(
            "what the plane may do holds for jobs that are handed to it: add --detach, or name a cluster"
        )
    if here and not dry_run:
        run_at_once(subject or [], request, yes=yes, json=json)
    elif dry_run:
        print_scripts(subject or [], places, request, terms, json=json)
    else:
        hand_to_plane(subject or [], places, request, terms, yes=yes, json=json)
