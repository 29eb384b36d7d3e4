"""``leadline submit`` on this machine: the job itself, in the foreground."""

import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.text import Text

from leadline.app.composition import toolbox
from leadline.app.estimate.estimate import DEFAULT_RISK
from leadline.app.jobs.event_log import describe_policy, describe_request, format_local_time
from leadline.app.jobs.history import compare_run
from leadline.app.jobs.inline_plane import describe_runner, step_until
from leadline.app.jobs.job_request import JobRequest, build_job_spec, predict_job, raise_if_failed, run_locally
from leadline.app.jobs.job_status import JobStatus, job_statuses
from leadline.app.jobs.journal import find_jobs, submit_jobs
from leadline.app.jobs.submit import PlaneOptions, PreparedSubmission, check_reachable, parse_places, prepare_submission
from leadline.app.machines.targets import LOCAL
from leadline.core.documents import to_document
from leadline.core.errors import InvalidInput, LeadlineError
from leadline.core.jobs import JobState
from leadline.core.plane import Job
from leadline.core.units import format_bytes, format_duration, parse_bytes, parse_duration_s
from leadline.interfaces.cli.command import CommandApp
from leadline.interfaces.cli.history import show_run_comparison
from leadline.interfaces.cli.jobs import plain_text, print_jobs
from leadline.interfaces.cli.output import Json, err, print_json
from leadline.interfaces.cli.usage_errors import COMMAND_PLACEHOLDER


def run_now(subject: list[str], request: JobRequest, *, yes: bool, json: bool) -> None:
    """Ask, run, remember, and show prediction beside measurement; a failed job ends the command with its own code."""
    spec = build_job_spec(subject, LOCAL, request)
    resources = spec.resources
    limits = [f"at most {format_duration(resources.walltime_s)}"] if resources.walltime_s else []
    limits += [f"{format_bytes(resources.memory_bytes_per_node)}"] if resources.memory_bytes_per_node else []
    console = err()
    if not yes:
        if not sys.stdin.isatty():
            raise InvalidInput("nobody can be asked whether to run the job, for there is no terminal: add -y")
        question = f"Run {spec.name!r} on this machine{' (' + ', '.join(limits) + ')' if limits else ''}?"
        typer.confirm(question, default=True, abort=True, err=True)
    predicted = predict_job(LOCAL, subject, toolbox(), name=request.name)
    if predicted.estimate is None:
        console.print(f"note: nothing is predicted for this run: {predicted.reason}", markup=False)
    run = run_locally(
        spec,
        predicted=predicted.estimate,
        tags=predicted.tags,
        on_progress=lambda text: console.print(text, markup=False),
        output=sys.stderr.fileno() if json else None,
    )
    if json:
        print_json({**to_document(run, "leadline.run/1"), "comparison": compare_run(run)})
    else:
        show_run_comparison(run)
    raise_if_failed(run)


SCHEMA = "leadline.submitted/1"
ACCEPTANCE_TIMEOUT_S = 60.0
"""How long is waited for a scheduler's answer; the job is handed over whether it comes or not."""


def print_scripts(
    subject: list[str], on: Sequence[str], request: JobRequest, terms: PlaneOptions, *, json: bool
) -> None:
    """Print the scripts alone on stdout; what was filled in, and what the plane would do, goes to stderr."""
    prepared, console = _prepared(subject, on, request, terms), err()
    first = prepared.scripts[0] if prepared.scripts else None
    for note in (*prepared.notes, *([_what(prepared)] if terms.needs_plane or len(on) > 1 or first is None else [])):
        console.print(f"note: {note}", markup=False, soft_wrap=True)
    if json:
        scripts = [{"place": str(place), "job": spec, "script": text} for place, spec, text in prepared.scripts[1:]]
        print_json({
            "schema": "leadline.script/1", "job": prepared.submission.spec, "script": first[2] if first else None,
            "notes": prepared.notes, "policy": prepared.submission.policy, "others": scripts,
        })  # fmt: skip
        return
    for place, _, text in prepared.scripts:
        if len(prepared.scripts) > 1:
            console.print(f"note: the script for {place}", markup=False)
        sys.stdout.write(text)
        sys.stdout.flush()


def submit_to_plane(
    subject: list[str], on: Sequence[str], request: JobRequest, terms: PlaneOptions, *, yes: bool, json: bool
) -> None:
    """Ask, hand over, and wait until a scheduler has taken the job, or for a minute.

    Raises:
        LeadlineError: no place took it.
    """
    catalog = toolbox().catalog
    places = parse_places(on, catalog)
    if not yes and not sys.stdin.isatty():
        raise InvalidInput("nobody can be asked whether to submit the job, for there is no terminal: add -y")
    check_reachable(places, catalog)
    prepared, console = _prepared(subject, on, request, terms), err()
    for note in prepared.notes:
        console.print(f"note: {note}", markup=False, soft_wrap=True)
    if not yes:
        console.print(Text(_what(prepared)), soft_wrap=True)
        typer.confirm("Submit it?", default=True, abort=True, err=True)
    jobs = submit_jobs(prepared.submission)
    watched = [jobs[0].key, jobs[-1].key]
    with console.status("handing it to the scheduler"):
        step_until(
            lambda: all(map(_settled, find_jobs(watched))),
            ACCEPTANCE_TIMEOUT_S,
            lambda said: console.print(said, markup=False),
        )
    found = job_statuses([one.key for one in jobs])
    _tell(found, json=json)


def _prepared(subject: list[str], on: Sequence[str], request: JobRequest, terms: PlaneOptions) -> PreparedSubmission:
    with err().status("predicting what to ask for"):
        return prepare_submission(subject, on, request, terms, toolbox())


def _what(prepared: PreparedSubmission) -> str:
    """Say in a sentence what is handed over, where it may go, and what the plane may do."""
    wanted, policy = prepared.submission, prepared.submission.policy
    what = (
        f"array {plain_text(wanted.spec.name)!r} of {len(wanted.indices)}"
        if wanted.indices
        else plain_text(wanted.spec.name)
    )
    where = ", else ".join(map(str, policy.places)) + (f" ({policy.copies} at once)" if policy.copies > 1 else "")
    after = f"; after {', '.join(wanted.after)}" if wanted.after else ""
    wanted_by = (
        f"; its result is wanted by {format_local_time(policy.deadline_at, '%d %b %H:%M')}"
        if policy.deadline_at
        else ""
    )
    return f"{what} at {where}: {describe_request(wanted.spec.resources)}; {describe_policy(policy)}{after}{wanted_by}"


def _settled(job: Job) -> bool:
    """Whether a job is at a scheduler, ended, or put off."""
    taken = any(one.scheduler_id is not None for one in job.attempts)
    return taken or job.closed or bool(job.after) or job.plan is not None


def _tell(found: Sequence[JobStatus], *, json: bool) -> None:
    """Print what was handed over, and say how to go on."""
    if json:
        print_json(to_document({"jobs": found}, SCHEMA))
    else:
        print_jobs(found)
    refused = [one for one in found if one.closed and one.state is not JobState.COMPLETED and not one.elapsed_s]
    if refused:
        first = refused[0]
        raise LeadlineError(f"job {first.key} was not taken: {plain_text(first.why, 300)}")
    key = found[0].group or found[0].key
    console, who = err(), describe_runner()
    missing = [one for one in found if not one.scheduler_id and not one.closed]
    if missing and not found[0].why.startswith("after"):
        console.print(f"{len(missing)} not taken by a scheduler yet: noted, and submitted as soon as it can be",
                      markup=False, soft_wrap=True)  # fmt: skip
    then = "" if who else "; nobody runs the plane, so watch it, or run leadline plane, for it to be looked after"
    console.print(f"next: leadline watch {key}{then}", markup=False, soft_wrap=True)


app = CommandApp()


EXAMPLES = """\
Examples:
  leadline submit -y -- python train.py --batch-size 64 --epochs 10
  leadline submit --on local --detach -- python train.py
  leadline submit job.toml --on Pitzer:gpu --on Owens:gpu --copies 2 --account PAS0000
  leadline submit job.toml --on slurm:gpu --array 0-99 --attempts 3 --resumes
  leadline submit job.toml --on Pitzer:gpu --account PAS0000 --dry-run"""

RESOURCES, JOB, RUN, PLANE = "What to ask for", "The job", "What happens", "What the plane may do"
PREDICTED = f"what is predicted, at a risk of {DEFAULT_RISK:.0%}"


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
            metavar=f"WORKLOAD.toml | -- {COMMAND_PLACEHOLDER}…",
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
    ] = DEFAULT_RISK,
    no_resize: Annotated[bool, _flag("--no-resize", "Never change what is asked for.", PLANE)] = False,
    no_measure: Annotated[bool, _flag("--no-measure", "Run the command without the measuring wrapper.", PLANE)] = False,
    json: Json = False,
) -> None:
    """Run a job here, measured and remembered; or hand it to the plane, for a cluster or to run detached.

    The plane submits it, watches it, corrects its request, and submits it again where that helps. With --dry-run the
    batch script is printed that the site accepts, and nothing else happens.
    """
    request = JobRequest(
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
    terms = PlaneOptions(
        copies, array, tuple(after or ()), tuple(after_any or ()), attempts, most_cost, most_node_hours, resumes,
        checkpoint_signal, checkpoint_before, deadline, risk, not no_resize, not no_measure,
        checkpoint_folder,
    )  # fmt: skip
    places = on or [LOCAL]
    here = [one.casefold() for one in places] == [LOCAL] and not detach
    if here and terms.needs_plane and not dry_run:
        raise InvalidInput(
            "what the plane may do holds for jobs that are handed to it: add --detach, or name a cluster"
        )
    if here and not dry_run:
        run_now(subject or [], request, yes=yes, json=json)
    elif dry_run:
        print_scripts(subject or [], places, request, terms, json=json)
    else:
        submit_to_plane(subject or [], places, request, terms, yes=yes, json=json)
