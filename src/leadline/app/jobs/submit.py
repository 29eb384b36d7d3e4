"""Run a job on this machine, or show what would be submitted elsewhere."""

from collections.abc import Callable
from dataclasses import replace

from leadline.app import settings
from leadline.app.jobs.journal import JobSubmission, next_jobs, plane_dir
from leadline.app.jobs.schedulers import JobTarget, scheduler_of
from leadline.app.machines.targets import LOCAL
from leadline.core.errors import JobFailed
from leadline.core.estimate import Estimate
from leadline.core.frozen import Frozen
from leadline.core.jobs import JobSpec, JobState
from leadline.core.plane import AttemptPlan
from leadline.core.runs import Run
from leadline.execution.launch import run_local
from leadline.execution.plane.submitter import batches_of, new_attempts, submission_of
from leadline.execution.schedulers.local.scheduler import LocalScheduler
from leadline.execution.schedulers.port import SubmissionText
from leadline.history.sqlite import SqliteHistory


class SubmissionPreview(Frozen):
    """What a target would get: the job there, and the exact text of its submission."""

    target: JobTarget
    spec: JobSpec
    text: SubmissionText


def preview_submission(submission: JobSubmission) -> tuple[SubmissionPreview, ...]:
    """Return what each target would get from the plane if it were submitted now; nothing is written or sent.

    The first targets get the replicas; every other one is shown as if it came first. An array may be split.

    Raises:
        InvalidInput: a target has no folder, or the job cannot be expressed for it.
        RequestRefused: replicas need Leadline at their target.
    """
    jobs, copies = next_jobs(submission), submission.policy.copies
    groups = [submission.targets[:copies], *((target,) for target in submission.targets[copies:])]
    previews = []
    for group in groups:
        plans = [AttemptPlan(target.place, submission.spec.resources) for target in group]
        # The plane makes no replicas of jobs without the measuring wrapper.
        attempts = [attempt for job in jobs for attempt in new_attempts(job, plans)]
        by_key = {job.key: job for job in jobs}
        targets = {target.place: target for target in group}
        for batch in batches_of(attempts, by_key):
            target, sent = targets[batch[0].place], submission_of(batch, by_key)
            # Opening this machine's queue would create its file.
            is_local = target.kind == LOCAL
            text = LocalScheduler.render(sent) if is_local else scheduler_of(target, plane_dir()).render(sent)
            previews.append(SubmissionPreview(target, sent.spec, text))
    return tuple(previews)


def run_locally(
    spec: JobSpec,
    *,
    predicted: Estimate | None = None,
    tags: dict[str, str] | None = None,
    on_progress: Callable[[str], None] = lambda _: None,
    output: int | None = None,
) -> Run:
    """Run the job on this machine under the measuring wrapper, and add the run with its prediction to the history.

    Raises:
        InvalidInput: the command cannot be started; nothing is added to the history.
        LeadlineError: the history cannot be read or written; raised before the job runs.
    """
    store = SqliteHistory(settings.history_path())
    # An unreadable history must fail now, and not after hours of running.
    next(iter(store.runs(limit=1)), None)
    settings.require_writable(settings.runs_dir())
    run = run_local(spec, folder=settings.runs_dir(), on_progress=on_progress, output=output)
    run = replace(run, predicted=predicted, tags={**run.tags, **(tags or {})})
    store.add(run)
    return run


def raise_if_failed(run: Run) -> None:
    """Raise ``JobFailed`` with the reason, unless the run completed."""
    if run.state is JobState.COMPLETED:
        return
    how = run.tags.get("reason") or (f"exit code {run.exit_code}" if run.exit_code is not None else "no exit code")
    raise JobFailed(f"run {run.id} ended {run.state.value} ({how}); details: leadline history show {run.id}")
