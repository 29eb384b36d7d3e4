"""``leadline submit``: run a job on this machine, submit it to the plane, or print its batch script."""

import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.text import Text

from leadline.app.composition import toolbox, user_catalog
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
    """Ask for confirmation, run the job, and show prediction and measurement; a failed job sets the exit code."""
    spec = build_job_spec(subject, LOCAL, request)
    resources = spec.resources
    limits = [f"at most {format_duration(resources.walltime_s)}"] if resources.walltime_s else []
    limits += [f"{format_bytes(resources.memory_bytes_per_node)}"] if resources.memory_bytes_per_node else []
    console = err()
    if not yes:
        if not sys.stdin.isatty():
            raise InvalidInput("cannot ask for confirmation without a terminal: add -y to run the job")
        question = f"Run {spec.name!r} on this machine{' (' + ', '.join(limits) + ')' if limits else ''}?"
        typer.confirm(question, default=True, abort=True, err=True)
    predicted = predict_job(LOCAL, subject, toolbox(), name=request.name)
    if predicted.estimate is None:
        console.print(f"note: no prediction for this run: {predicted.reason}", markup=False)
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
"""How long the command waits for the scheduler; the job is in the journal either way."""


def print_scripts(
    subject: list[str], on: Sequence[str], request: JobRequest, terms: PlaneOptions, *, json: bool
) -> None:
    """Print only the scripts on stdout; notes go to stderr."""
    prepared, console = _prepared(subject, on, request, terms), err()
    first = prepared.scripts[0] if prepared.scripts else None
    for note in (
        *prepared.notes,
        *([_describe_submission(prepared)] if terms.needs_plane or len(on) > 1 or first is None else []),
    ):
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
    """Ask for confirmation, submit, and wait up to a minute until a scheduler has accepted the job.

    Raises:
        LeadlineError: no target accepted it.
    """
    catalog = user_catalog()
    places = parse_places(on, catalog)
    if not yes and not sys.stdin.isatty():
        raise InvalidInput("cannot ask for confirmation without a terminal: add -y to submit the job")
    check_reachable(places, catalog)
    prepared, console = _prepared(subject, on, request, terms), err()
    for note in prepared.notes:
        console.print(f"note: {note}", markup=False, soft_wrap=True)
    if not yes:
        console.print(Text(_describe_submission(prepared)), soft_wrap=True)
        typer.confirm("Submit it?", default=True, abort=True, err=True)
    jobs = submit_jobs(prepared.submission)
    # The first and the last element stand for a whole array, which may have thousands.
    watched = [jobs[0].key, jobs[-1].key]
    with console.status("submitting"):
        step_until(
            lambda: all(map(_settled, find_jobs(watched))),
            ACCEPTANCE_TIMEOUT_S,
            lambda message: console.print(message, markup=False),
        )
    statuses = job_statuses([job.key for job in jobs])
    _print_submitted(statuses, json=json)


def _prepared(subject: list[str], on: Sequence[str], request: JobRequest, terms: PlaneOptions) -> PreparedSubmission:
    with err().status("predicting resources"):
        return prepare_submission(subject, on, request, terms, toolbox())


def _describe_submission(prepared: PreparedSubmission) -> str:
    """Return the submission in a sentence: the job, its targets and the policy."""
    submission, policy = prepared.submission, prepared.submission.policy
    job = (
        f"array {plain_text(submission.spec.name)!r} of {len(submission.indices)}"
        if submission.indices
        else plain_text(submission.spec.name)
    )
    where = ", else ".join(map(str, policy.places)) + (f" ({policy.copies} at once)" if policy.copies > 1 else "")
    after = f"; after {', '.join(submission.after)}" if submission.after else ""
    wanted_by = f"; deadline {format_local_time(policy.deadline_at, '%d %b %H:%M')}" if policy.deadline_at else ""
    return (
        f"{job} at {where}: {describe_request(submission.spec.resources)}; {describe_policy(policy)}{after}{wanted_by}"
    )


def _settled(job: Job) -> bool:
    """Return whether a job is at a scheduler, ended, or deferred."""
    accepted = any(attempt.scheduler_id is not None for attempt in job.attempts)
    return accepted or job.closed or bool(job.after) or job.plan is not None


def _print_submitted(statuses: Sequence[JobStatus], *, json: bool) -> None:
    """Print the submitted jobs, and the next command."""
    if json:
        print_json(to_document({"jobs": statuses}, SCHEMA))
    else:
        print_jobs(statuses)
    refused = [
        status
        for status in statuses
        if status.closed and status.state is not JobState.COMPLETED and not status.elapsed_s
    ]
    if refused:
        first = refused[0]
        raise LeadlineError(f"job {first.key} was not accepted: {plain_text(first.why, 300)}")
    key = statuses[0].group or statuses[0].key
    console, runner = err(), describe_runner()
    missing = [status for status in statuses if not status.scheduler_id and not status.closed]
    if missing and not statuses[0].why.startswith("after"):
        console.print(
            f"{len(missing)} not accepted by a scheduler yet; the plane submits them as soon as possible",
            markup=False,
            soft_wrap=True,
        )
    then = "" if runner else "; the plane is not running: run leadline watch or leadline plane to manage this job"
    console.print(f"next: leadline watch {key}{then}", markup=False, soft_wrap=True)


app = CommandApp()


EXAMPLES = """\
Examples:
  leadline submit -y -- python train.py --batch-size 64 --epochs 10
  leadline submit --on local --detach -- python train.py
  leadline submit job.toml --on Pitzer:gpu --on Owens:gpu --copies 2 --account PAS0000
  leadline submit job.toml --on slurm:gpu --array 0-99 --attempts 3 --resumes
  leadline submit job.toml --on Pitzer:gpu --account PAS0000 --dry-run"""

RESOURCES, JOB, RUN, PLANE = "Request", "The job", "Behaviour", "Policy of the plane"
PREDICTED = f"predicted, at {DEFAULT_RISK:.0%} risk"


def _option(form: str, description: str, default: str, section: str = RESOURCES) -> Any:  # noqa: ANN401 - an option, for Typer
    """Declare an option whose default is given in words."""
    return typer.Option(metavar=form, help=description, show_default=default, rich_help_panel=section)


def _flag(names: str, description: str, section: str = RUN) -> Any:  # noqa: ANN401 - an option, for Typer
    return typer.Option(*names.split(), help=description, rich_help_panel=section)


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
        _option(
            "PLACE",
            "Where: local, SYSTEM:PARTITION, or slurm[:PARTITION] for a cluster that is not in the "
            "catalog; repeatable, in order of preference.",
            LOCAL,
            RUN,
        ),
    ] = None,
    detach: Annotated[bool, _flag("--detach", "With local: submit to the plane, and do not wait.")] = False,
    dry_run: Annotated[bool, _flag("--dry-run", "Only print the batch script.")] = False,
    yes: Annotated[bool, _flag("-y --yes", "Run without confirmation.")] = False,
    gpus: Annotated[
        int | None, _option("N", "GPUs of the whole job.", "from the workload; at least 1 on a partition with GPUs")
    ] = None,
    nodes: Annotated[int | None, _option("N", "Nodes of the job.", "as many as its GPUs need; else 1")] = None,
    cores: Annotated[int | None, _option("N", "Cores per node.", "the GPUs' share of the node")] = None,
    memory: Annotated[
        str | None,
        _option("SIZE", "Memory per node, such as 16G.", f"on a cluster {PREDICTED}; on this machine unlimited"),
    ] = None,
    time: Annotated[
        str | None,
        _option(
            "TIME", "Time limit, such as 2h or 1-12:00:00.", f"on a cluster {PREDICTED}; on this machine unlimited"
        ),
    ] = None,
    time_min: Annotated[
        str | None,
        _option(
            "TIME", "Minimum time limit that Slurm may set to start the job sooner.", f"{PREDICTED}, if below --time"
        ),
    ] = None,
    account: Annotated[str | None, _option("NAME", "Project to charge.", "none", JOB)] = None,
    name: Annotated[str, _option("NAME", "Job name.", "name of the file or script", JOB)] = "",
    workdir: Annotated[str | None, _option("FOLDER", "Working directory.", "the current one", JOB)] = None,
    setup: Annotated[
        list[str] | None,
        _option("LINE", "Shell line to run before the command, such as 'module load cuda'; repeatable.", "none", JOB),
    ] = None,
    array: Annotated[
        str | None,
        _option(
            "INDICES", "Array indices: 0-99, 1,5,7 or 0-100:10; the command reads SLURM_ARRAY_TASK_ID.", "one job", JOB
        ),
    ] = None,
    after: Annotated[
        list[str] | None, _option("JOB", "Start after this job has completed; repeatable.", "none", JOB)
    ] = None,
    after_any: Annotated[
        list[str] | None, _option("JOB", "Start after this job has ended; repeatable.", "none", JOB)
    ] = None,
    copies: Annotated[
        int,
        typer.Option(
            metavar="N", help="Replicas that wait at different targets; the first to start runs.", rich_help_panel=PLANE
        ),
    ] = 1,
    attempts: Annotated[int | None, _option("N", "Maximum number of submissions.", "4", PLANE)] = None,
    most_cost: Annotated[
        float | None,
        _option("AMOUNT", "Maximum cost of all attempts, in the unit of the first target.", "unlimited", PLANE),
    ] = None,
    most_node_hours: Annotated[
        float | None, _option("HOURS", "Maximum node-hours of all attempts.", "unlimited", PLANE)
    ] = None,
    resumes: Annotated[
        bool, _flag("--resumes", "The command resumes from its own checkpoint when it is restarted.", PLANE)
    ] = False,
    checkpoint_signal: Annotated[
        str | None, _option("NAME", "Signal to request a checkpoint before a limit, such as USR1.", "none", PLANE)
    ] = None,
    checkpoint_folder: Annotated[
        str | None,
        _option(
            "FOLDER",
            "Folder of its checkpoints, within its working directory; copied when the job moves to another system.",
            "none",
            PLANE,
        ),
    ] = None,
    checkpoint_before: Annotated[
        str | None, _option("TIME", "Time of that signal before a limit.", "2m", PLANE)
    ] = None,
    deadline: Annotated[
        str | None, _option("WHEN", "Deadline: 6h from now, or 2026-11-23T08:00.", "none", PLANE)
    ] = None,
    risk: Annotated[
        float, typer.Option(metavar="P", help="Accepted probability of hitting a limit.", rich_help_panel=PLANE)
    ] = DEFAULT_RISK,
    no_resize: Annotated[bool, _flag("--no-resize", "Never change the request.", PLANE)] = False,
    no_measure: Annotated[bool, _flag("--no-measure", "Run the command without the measuring wrapper.", PLANE)] = False,
    json: Json = False,
) -> None:
    """Run a job on this machine and record it, or submit it to the plane for a cluster or a detached run.

    The plane submits the job, watches it, corrects its request, and resubmits it if that helps. --dry-run only prints
    the
    batch script.
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
    # The foreground run needs no plane: the job is done when the command returns.
    run_here = [place.casefold() for place in places] == [LOCAL] and not detach
    if run_here and terms.needs_plane and not dry_run:
        raise InvalidInput("these options need the plane: add --detach, or name a cluster")
    if run_here and not dry_run:
        run_now(subject or [], request, yes=yes, json=json)
    elif dry_run:
        print_scripts(subject or [], places, request, terms, json=json)
    else:
        submit_to_plane(subject or [], places, request, terms, yes=yes, json=json)
