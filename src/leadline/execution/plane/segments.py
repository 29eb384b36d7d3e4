"""Tell a segment, which saved its state to continue in another attempt, from the end of a job."""

from dataclasses import replace

from leadline.core.jobs import JobState
from leadline.core.plane import FailureCause, Job
from leadline.execution.plane.diagnose import Diagnosis
from leadline.execution.schedulers.port import SchedulerStatus
from leadline.execution.wrapper.outcome import DONE, SAVED, JobOutcome

REQUEUE_CODES = (75, 85, 99)
"""Exit codes that mean: run it again. EX_TEMPFAIL of sysexits.h, the checkpoint code in HTCondor's manual, and the
reschedule code of Grid Engine."""
_OVERRULED = (None, FailureCause.UNKNOWN, FailureCause.PROGRAM, FailureCause.TRANSIENT)
"""Diagnosed causes that a checkpoint overrules. Frameworks that stop on a signal end with any code and traceback."""


def diagnose_segment(
    job: Job, status: SchedulerStatus | None, outcome: JobOutcome | None, diagnosis: Diagnosis
) -> Diagnosis:
    """Return the diagnosis of an ended attempt, or CHECKPOINT if it saved its state before its work was done."""
    stopped = status is not None and status.state is JobState.CANCELLED
    ended_by_itself = diagnosis.state in (JobState.COMPLETED, JobState.FAILED) and diagnosis.cause in _OVERRULED
    if outcome is None or stopped or not ended_by_itself:
        return diagnosis
    why = _saved_because(job, outcome)
    if not why:
        return replace(diagnosis, evidence=(*diagnosis.evidence, *_doubt(job, outcome)))
    evidence = f"{why}{_position(outcome)}: its work is not done"
    return replace(diagnosis, state=JobState.TIMEOUT, cause=FailureCause.CHECKPOINT, evidence=(evidence,))


def has_checkpoint(job: Job, outcome: JobOutcome | None) -> bool:
    """True if a job has a checkpoint: it said so, got the signal, or without a signal has shown progress."""
    if not job.policy.resumes or outcome is None:
        return False
    if outcome.marker == SAVED or outcome.exit_code in REQUEUE_CODES:
        return True
    if job.policy.checkpoint_signal is not None:
        return outcome.warned
    return outcome.progress is not None and bool(outcome.progress.done)


def is_segment(job: Job, outcome: JobOutcome | None, diagnosis: Diagnosis) -> bool:
    """True if an attempt counts as a part of the job and not as a failed try.

    Without reported progress or a marker, an attempt that failed after the signal counts as a try, so that a crash loop
    ends.
    """
    if not has_checkpoint(job, outcome) or outcome is None:
        return False
    failed = diagnosis.cause is FailureCause.CHECKPOINT and outcome.exit_code not in (0, *REQUEUE_CODES)
    return not failed or outcome.marker == SAVED or done_share(outcome) is not None


def done_share(outcome: JobOutcome | None) -> float | None:
    """Return the share of the work that the job itself counts as done over all its attempts; None if it counts none."""
    progress = outcome.progress if outcome is not None else None
    # Without a total, or seen by the hook, the count may be that of this attempt alone.
    if progress is None or progress.done is None or not (progress.reported and progress.total):
        return None
    return min(progress.done / progress.total, 1.0)


def _saved_because(job: Job, outcome: JobOutcome) -> str:
    """Return how an attempt showed that it saved its state and did not finish; empty if it did not."""
    progress = outcome.progress
    if not outcome.state.final or outcome.marker == DONE:
        return ""
    if job.policy.resumes and outcome.marker == SAVED:
        return f"it wrote {SAVED!r} to its marker file and ended"
    if job.policy.resumes and outcome.exit_code in REQUEUE_CODES:
        return f"it ended with exit code {outcome.exit_code}, a request to run again,"
    if not outcome.warned or (progress is not None and progress.complete):
        return ""
    # A job that does not resume may handle the signal for another reason, so only its own count shows the rest.
    unfinished = progress is not None and progress.total is not None and outcome.exit_code == 0
    if not (job.policy.resumes or unfinished):
        return ""
    how = f"exit code {outcome.exit_code}" if outcome.exit_code is not None else f"signal {outcome.signal}"
    return f"it handled the warning before its limit and ended with {how}"


def _doubt(job: Job, outcome: JobOutcome) -> tuple[str, ...]:
    """Return that exit code 0 after a warning does not prove that the work is done, if nothing else tells."""
    complete = outcome.progress is not None and outcome.progress.complete
    is_clear = job.policy.resumes or outcome.marker == DONE or complete
    if is_clear or not outcome.warned or outcome.exit_code != 0:
        return ()
    return ("it had handled the warning before its limit, so its work may not be done (--resumes would continue it)",)


def _position(outcome: JobOutcome) -> str:
    progress = outcome.progress
    if progress is None or progress.done is None or progress.total is None:
        return ""
    return f" at {progress.done} of {progress.total} {'steps' if progress.steps is not None else 'epochs'}"
