"""``leadline submit``: run a job on this machine, submit it to the plane, or print its batch script."""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import fields
from functools import partial
from typing import Any

import click

from leadline.app.composition import toolbox
from leadline.app.estimate.estimate import DEFAULT_RISK
from leadline.app.jobs.event_log import describe_policy, describe_request, format_local_time
from leadline.app.jobs.inline_plane import describe_runner, step_until
from leadline.app.jobs.job_request import LOCAL_PLACE, JobRequest, build_job_spec, predict_job, resolve_request
from leadline.app.jobs.job_status import JobStatus, is_unreachable, job_statuses
from leadline.app.jobs.journal import JobSubmission, find_jobs, open_journal, submit_jobs
from leadline.app.jobs.plane_options import PlaneOptions
from leadline.app.jobs.submit import preview_submission, raise_if_failed, run_locally
from leadline.app.machines.targets import LOCAL
from leadline.core.errors import InvalidInput, LeadlineError
from leadline.core.jobs import JobState
from leadline.core.plane import Job
from leadline.core.units import format_bytes, format_duration, parse_bytes, parse_duration_s
from leadline.interfaces.cli.command import COMMAND_PLACEHOLDER, argument, command, flag, json_option, option
from leadline.interfaces.cli.history import print_run
from leadline.interfaces.cli.jobs import plain_text, print_jobs
from leadline.interfaces.cli.output import print_json, print_note, print_notes, status


def run_now(request: JobRequest, *, yes: bool, json: bool) -> None:
    """Ask for confirmation, run the job, and show prediction and measurement; a failed job sets the exit code."""
    spec = build_job_spec(request)
    resources = spec.resources
    limits = [f"at most {format_duration(resources.walltime_s)}"] if resources.walltime_s else []
    limits += [format_bytes(resources.memory_bytes_per_node)] if resources.memory_bytes_per_node else []
    if not yes:
        if not sys.stdin.isatty():
            raise InvalidInput("cannot ask for confirmation without a terminal: add -y to run the job")
        question = f"Run {spec.name!r} on this machine{' (' + ', '.join(limits) + ')' if limits else ''}?"
        click.confirm(question, default=True, abort=True, err=True)
    with status("predicting", quiet=json):
        predicted = predict_job(LOCAL_PLACE, request.subject, toolbox(), name=spec.name)
    if predicted.estimate is None:
        print_note(f"note: no prediction for this run: {predicted.reason}")
    run = run_locally(
        spec, predicted=predicted.estimate, tags=predicted.tags, on_progress=print_note,
        output=sys.stderr.fileno() if json else None,
    )  # fmt: skip
    print_run(run, json=json)
    raise_if_failed(run)


MOST_PATH = 4096
ACCEPTANCE_TIMEOUT_S = 60.0
"""How long the command waits for the scheduler; the job is in the journal either way."""


def print_scripts(request: JobRequest, *, here: bool, json: bool) -> None:
    """Print the scripts on stdout; their command lines and notes go to stderr."""
    submission = _resolved(request, json=json)
    # A run in the foreground is no submission, so there is nothing to show but the description.
    previews = () if here else preview_submission(submission)
    first = previews[0] if previews else None
    print_notes(submission.notes)
    if request.options.needs_plane or len(request.on) > 1 or here:
        print_notes([_describe_submission(submission)])
    if json:
        scripts = [
            {"place": str(each.target.place), "job": each.spec, "script": each.text.script, "argv": each.text.argv}
            for each in previews[1:]
        ]
        print_json({
            "schema": "leadline.script/1", "job": submission.spec, "script": first.text.script if first else None,
            "argv": first.text.argv if first else (), "notes": submission.notes, "policy": submission.policy,
            "others": scripts,
        })  # fmt: skip
        return
    for each in previews:
        if len(previews) > 1:
            print_note(f"note: the script for {each.target.place}")
        if each.text.caveat:
            print_note(f"note: it assumes the paths of this machine: {each.text.caveat}")
        if each.text.argv:
            print_note(f"note: submitted with {shlex.join(each.text.argv)}")
        # The queue entry of this machine is one line without an end.
        sys.stdout.write(each.text.script.removesuffix("\n") + "\n")
        sys.stdout.flush()


def submit_to_plane(request: JobRequest, *, yes: bool, json: bool) -> None:
    """Ask for confirmation, submit, and wait up to a minute until a scheduler has accepted the job.

    Raises:
        LeadlineError: no target accepted it.
    """
    submission = _resolved(request, at_hand=True, json=json)
    if not yes and not sys.stdin.isatty():
        raise InvalidInput("cannot ask for confirmation without a terminal: add -y to submit the job")
    print_notes(submission.notes)
    if not yes:
        print_note(_describe_submission(submission))
        click.confirm("Submit it?", default=True, abort=True, err=True)
    with open_journal():
        jobs = submit_jobs(submission)
        # The first and the last element stand for a whole array, which may have thousands.
        watched = [jobs[0].key, jobs[-1].key]
        with status("submitting", quiet=json):
            step_until(lambda: all(map(_settled, find_jobs(watched))), ACCEPTANCE_TIMEOUT_S, print_note)
        _print_submitted(job_statuses([job.key for job in jobs]), json=json)


def _resolved(request: JobRequest, *, json: bool, at_hand: bool = False) -> JobSubmission:
    with status("predicting resources", quiet=json):
        return resolve_request(request, toolbox(), at_hand=at_hand)


def _describe_submission(submission: JobSubmission) -> str:
    """Return the submission in a sentence: the job, its targets and the policy."""
    policy = submission.policy
    name = plain_text(submission.spec.name)
    job = f"array {name!r} of {len(submission.indices)}" if submission.indices else name
    where = ", else ".join(map(str, policy.places)) + (f" ({policy.copies} at once)" if policy.copies > 1 else "")
    after = f"; after {', '.join(submission.after)}" if submission.after else ""
    wanted_by = f"; deadline {format_local_time(policy.deadline_at, '%d %b %H:%M')}" if policy.deadline_at else ""
    return (
        f"{job} at {where}: {describe_request(submission.spec.resources)}; {describe_policy(policy)}{after}{wanted_by}"
    )


def _settled(job: Job) -> bool:
    """Return whether a job is at a scheduler, ended, or deferred, or its system does not answer."""
    accepted = any(attempt.scheduler_id is not None for attempt in job.attempts)
    return accepted or job.closed or bool(job.after) or job.plan is not None or is_unreachable(job)


def _print_submitted(statuses: Sequence[JobStatus], *, json: bool) -> None:
    """Print the submitted jobs, and the next command."""
    print_jobs(statuses, json=json, schema="leadline.submitted/1")
    for job in statuses:
        if job.closed and job.state is not JobState.COMPLETED and not job.elapsed_s:
            raise LeadlineError(f"job {job.key} was not accepted: {plain_text(job.why, 300)}")
    key = statuses[0].group or statuses[0].key
    runner = describe_runner()
    missing = sum(not job.scheduler_id and not job.closed for job in statuses)
    if missing and not statuses[0].why.startswith("after"):
        print_note(f"{missing} not accepted by a scheduler yet; the plane submits them as soon as possible")
    then = "" if runner else "; the plane is not running: run leadline watch or leadline plane to manage this job"
    if len(statuses) == 1 and statuses[0].output:
        print_note(f"output: {plain_text(statuses[0].output, MOST_PATH)} (leadline logs {key})")
    print_note(f"next: leadline watch {key}{then}")


RUN, PLANE = "Behaviour", "Policy of the plane"
resource, about_job = partial(option, section="Request"), partial(option, section="The job")
policy_option = partial(option, section=PLANE)
PREDICTED = "predicted, at the --risk"
UNLIMITED_HERE = f"on a cluster {PREDICTED}; on this machine unlimited"


@command("submit")
@argument(
    "subject", f"WORKLOAD.toml | -- {COMMAND_PLACEHOLDER}…",
    "A workload file with a command, or your command after --.", nargs=-1,
)  # fmt: skip
@option(
    "--on", "PLACE", "Where: local, SYSTEM:PARTITION, or slurm[:PARTITION] for a cluster that is not in the "
    "catalog; repeatable, in order of preference.", LOCAL, section=RUN, multiple=True,
)  # fmt: skip
@flag("--detach", "With local: submit to the plane, and do not wait.", section=RUN)
@flag("--dry-run", "Only print what would be submitted: the batch script, and its command line on stderr.", section=RUN)
@flag("-y --yes", "Run without confirmation.", section=RUN)
@resource("--gpus", "N", "GPUs of the whole job.", "from the workload; at least 1 on a partition with GPUs", type=int)
@resource("--nodes", "N", "Nodes of the job.", "as many as its GPUs need; else 1", type=int)
@resource("--cores", "N", "Cores per node.", "the GPUs' share of the node", type=int)
@resource("memory_bytes --memory", "SIZE", "Memory per node, such as 16G.", UNLIMITED_HERE, type=parse_bytes)
@resource("walltime_s --time", "TIME", "Time limit, such as 2h or 1-12:00:00.", UNLIMITED_HERE, type=parse_duration_s)
@resource(
    "least_walltime_s --time-min", "TIME", "Minimum time limit that Slurm may set to start the job sooner.",
    f"{PREDICTED}, if below --time and the partition allows it", type=parse_duration_s,
)  # fmt: skip
@about_job("--account", "NAME", "Project to charge.", "none")
@about_job("--name", "NAME", "Job name.", "name of the file or script", default="")
@about_job("--workdir", "FOLDER", "Working directory.", "the current one")
@about_job(
    "--setup", "LINE", "Shell line to run before the command, such as 'module load cuda'; repeatable.", "none",
    multiple=True,
)  # fmt: skip
@about_job(
    "--array", "INDICES", "Array indices: 0-99, 1,5,7 or 0-100:10; the command reads SLURM_ARRAY_TASK_ID.", "one job"
)
@about_job("--after", "JOB", "Start after this job has completed; repeatable.", "none", multiple=True)
@about_job("--after-any", "JOB", "Start after this job has ended; repeatable.", "none", multiple=True)
@policy_option(
    "--copies", "N", "Replicas that wait at different targets; the first to start runs.", type=int, default=1
)
@policy_option("--attempts", "N", "Maximum number of submissions.", "4", type=int)
@policy_option(
    "cost --most-cost", "AMOUNT", "Maximum cost of all attempts, in the unit of the first target.", "unlimited",
    type=float,
)  # fmt: skip
@policy_option("node_hours --most-node-hours", "HOURS", "Maximum node-hours of all attempts.", "unlimited", type=float)
@flag("--resumes", "The command resumes from its own checkpoint when it is restarted.", section=PLANE)
@policy_option("--checkpoint-signal", "NAME", "Signal to request a checkpoint before a limit, such as USR1.", "none")
@policy_option(
    "--checkpoint-folder", "FOLDER",
    "Folder of its checkpoints, within its working directory; copied when the job moves to another system.", "none",
)  # fmt: skip
@policy_option("--checkpoint-before", "TIME", "Time of that signal before a limit.", "2m")
@policy_option("--deadline", "WHEN", "Deadline: 6h from now, or 2026-11-23T08:00.", "none")
@policy_option("--risk", "P", "Accepted probability of hitting a limit.", type=float, default=DEFAULT_RISK)
@flag("--no-resize", "Never change the request.", section=PLANE)
@flag(
    "--may-restart",
    "A prediction may end a running attempt for a larger one, or shorten a limit. Without it, the plane only warns.",
    section=PLANE,
)
@flag("--no-measure", "Run the command without the measuring wrapper.", section=PLANE)
@json_option
def submit(
    subject: tuple[str, ...], *, on: tuple[str, ...], detach: bool, dry_run: bool, yes: bool, no_resize: bool,
    no_measure: bool, json: bool, **typed: Any,  # noqa: ANN401 - fields of JobRequest and PlaneOptions
) -> None:  # fmt: skip
    """Run a job on this machine and record it, or submit it to the plane for a cluster or a detached run.

    The plane submits the job, watches it, corrects its request, and resubmits it if that helps. --dry-run prints the
    script on stdout, and on stderr the command line that gets it, both as the next submission sends them.
    """
    policy = {field.name: typed.pop(field.name) for field in fields(PlaneOptions) if field.name in typed}
    options = PlaneOptions(**policy, resizes=not no_resize, measured=not no_measure)
    request = JobRequest(subject, on or (LOCAL,), options=options, **typed)
    # The foreground run needs no plane: the job is done when the command returns.
    here = [place.casefold() for place in request.on] == [LOCAL] and not detach
    if dry_run:
        print_scripts(request, here=here, json=json)
    elif not here:
        submit_to_plane(request, yes=yes, json=json)
    elif options.needs_plane:
        raise InvalidInput("these options need the plane: add --detach, or name a cluster")
    else:
        run_now(request, yes=yes, json=json)
