"""Decide what follows an attempt that ended: a retry with a larger request, or the reason to stop."""

import math
from collections.abc import Callable
from dataclasses import replace

from leadline.core.jobs import JobState
from leadline.core.plane import Action, Alternative, Attempt, Decision, FailureCause
from leadline.core.units import MINUTE_S, format_bytes, format_duration
from leadline.execution.plane.budget import Evidence, give_up, moment_s, propose_same_place, within_bounds
from leadline.execution.plane.moves import fits_memory, fits_time, move_to_fit
from leadline.execution.plane.needs import MIN_RAISE, MIN_SUCCESS_PROBABILITY, SituationView

BACK_OFF_S = 60.0
"""First delay after a failure that was not the job's fault. It doubles each time."""
LONGEST_DELAY_S = 1800.0
TRANSIENT_TRIES = 2
"""Retries after a transient failure."""
_CAUSE_OF = {
    JobState.TIMEOUT: FailureCause.WALLTIME,
    JobState.OUT_OF_MEMORY: FailureCause.HOST_MEMORY,
    JobState.NODE_FAIL: FailureCause.NODE,
    JobState.PREEMPTED: FailureCause.PREEMPTION,
    JobState.FAILED: FailureCause.UNKNOWN,
}
_WHOLE_TIME = (FailureCause.WALLTIME, FailureCause.CHECKPOINT)
_NOT_AGAIN = {
    FailureCause.PROGRAM: "its own program failed, and a retry would fail in the same way",
    FailureCause.STORAGE: "its file system is full; free space before submitting it again",
    FailureCause.DEPENDENCY: "a job that it depends on did not end as required",
    FailureCause.USER: "its user cancelled it",
    FailureCause.ADMINISTRATOR: "the site ended it",
    FailureCause.UNKNOWN: "the reason of its failure is unknown, so it is not retried",
}
_AGAIN = {
    FailureCause.PREEMPTION: "it was preempted by a job of higher priority: resubmitting",
    FailureCause.REQUEUE: "its site put it back into the queue, and no attempt runs twice: resubmitting",
}


def cause_of(view: SituationView) -> FailureCause:
    """Return the cause of the end: the diagnosed one, or that of the state."""
    if view.situation.cause is not None:
        return view.situation.cause
    if view.attempt.state is JobState.CANCELLED:
        return FailureCause.PLANE if view.attempt.withdrawn else FailureCause.USER
    return _CAUSE_OF.get(view.attempt.state, FailureCause.UNKNOWN)


def after_end(view: SituationView) -> Decision:
    """Return what follows an attempt that did not complete."""
    if any(attempt.state is JobState.COMPLETED for attempt in view.job.attempts):
        return Decision(Action.FINISH, "another copy completed")
    cause = cause_of(view)
    if reason := _followed(view, cause):
        return Decision(Action.KEEP, reason)
    if cause in _NOT_AGAIN:
        return give_up(view, _NOT_AGAIN[cause], {"cause": cause.value})
    return _retry(view, _AGAIN[cause]) if cause in _AGAIN else _AFTER[cause](view)


def retry_with_longer_limit(view: SituationView, reason: str) -> Decision:
    """Return a retry with a longer limit, here or at another place.

    The limit comes from the distribution of run times above this attempt's time, and is never the same again.
    """
    needed_s, allowed_s = view.time.needed(), view.situation.allowed_s
    if needed_s is None:
        return give_up(view, f"{reason}, and neither its limit nor its run time is known")
    # Runs of one job differ, so the new limit is noticeably above what was not enough. The scheduler may have granted
    # less than was requested (--time-min), or someone lowered it: the whole request comes before more.
    needed_s = max(needed_s, MIN_RAISE * view.time.floor, MIN_RAISE * (view.limit_s or 0.0), view.requested_s or 0.0)
    details: Evidence = {"lasted_at_least_s": view.time.floor, "needed_s": needed_s}
    if allowed_s is not None and needed_s > allowed_s:
        if not _is_worth_trying(view.limit_s, allowed_s, view.time.beyond(allowed_s)):
            return _nowhere_longer(view, reason, needed_s)
        needed_s = allowed_s
    request = replace(view.request(), walltime_s=needed_s)
    retry_reason = f"{reason}: resubmitting with a limit of {format_duration(needed_s)}"
    return within_bounds(view, propose_same_place(view, retry_reason, request, details))


def retry_with_more_memory(view: SituationView, reason: str) -> Decision:
    """Return a retry with more memory, here or at another place."""
    requested_bytes, node_bytes = view.limit_bytes, view.situation.node_memory_bytes
    needed_bytes = view.memory.needed() or node_bytes
    if needed_bytes is None:
        return give_up(view, f"{reason}, and its memory limit is unknown: request an amount of memory")
    needed_bytes = max(needed_bytes, MIN_RAISE * view.memory.floor, MIN_RAISE * (requested_bytes or 0))
    if node_bytes is not None and needed_bytes > node_bytes:
        if not _is_worth_trying(requested_bytes, node_bytes, view.memory.beyond(node_bytes)):
            return _nowhere_more(view, reason, needed_bytes)
        needed_bytes = node_bytes
    request = replace(view.request(), memory_bytes_per_node=round(needed_bytes))
    retry_reason = f"{reason}: resubmitting with {format_bytes(needed_bytes)} per node"
    details: Evidence = {"needed_at_least_bytes": view.memory.floor, "needed_bytes": needed_bytes}
    return within_bounds(view, propose_same_place(view, retry_reason, request, details))


def _after_walltime(view: SituationView) -> Decision:
    reason = f"it reached its limit after {format_duration(view.time.floor)}"
    if view.policy.resumes and view.situation.checkpointed:
        return _resumed(view, reason)
    if not view.policy.resizes:
        return give_up(view, f"{reason}, and its request may not be changed")
    return retry_with_longer_limit(view, reason)


def _after_checkpoint(view: SituationView) -> Decision:
    if not view.policy.resumes:
        return give_up(view, "it ended before its work was done; submit it with --resumes to continue it")
    return _resumed(view, "it saved its state before its work was done")


def _after_host_memory(view: SituationView) -> Decision:
    requested_bytes = view.limit_bytes
    reason = f"it ran out of memory{f' at {format_bytes(requested_bytes)} per node' if requested_bytes else ''}"
    if not view.policy.resizes:
        return give_up(view, f"{reason}, and its request may not be changed")
    return retry_with_more_memory(view, reason)


def _after_gpu_memory(view: SituationView) -> Decision:
    gpu_bytes = view.situation.gpu_memory_bytes
    size = f" of {format_bytes(gpu_bytes)}" if gpu_bytes else ""
    reason = f"its GPU memory{size} was too small, and no larger request changes that"

    def fits(place: Alternative) -> bool:
        return gpu_bytes is not None and (place.gpu_memory_bytes or 0) >= MIN_RAISE * gpu_bytes

    fix = "use a smaller batch, more accumulation, activation checkpointing or a larger GPU"
    move = move_to_fit(view, fits, reason)
    return move or give_up(view, f"{reason}; {fix}", {"cause": FailureCause.GPU_MEMORY.value})


def _after_node(view: SituationView) -> Decision:
    node = view.attempt.node
    decision = _retry(view, f"its node{f' {node}' if node else ''} failed: resubmitting")
    return replace(decision, evidence={**decision.evidence, "avoid_node": node}) if node else decision


def _after_transient(view: SituationView) -> Decision:
    failures = sum(attempt.state is JobState.FAILED for attempt in view.job.attempts)
    if failures > TRANSIENT_TRIES:
        reason = f"it failed {failures} times with errors that are usually transient"
        return give_up(view, reason, {"failures": float(failures)})
    return _retry(view, "it failed with a transient error: resubmitting")


def _after_withdrawal(view: SituationView) -> Decision:
    """Return the attempt after a withdrawn one that has no successor."""
    if any(attempt.state is JobState.FAILED and _overlaps(attempt, view.attempt) for attempt in view.job.attempts):
        return give_up(view, "its running copy failed, so it is not retried")
    if view.time.exceeds(view.limit_s) > view.policy.risk and view.policy.resizes:
        return retry_with_longer_limit(view, "the plane withdrew it because its limit was too low")
    return _retry(view, "the plane withdrew it without a successor: resubmitting", back_off=False)


_AFTER: dict[FailureCause, Callable[[SituationView], Decision]] = {
    FailureCause.WALLTIME: _after_walltime,
    FailureCause.CHECKPOINT: _after_checkpoint,
    FailureCause.HOST_MEMORY: _after_host_memory,
    FailureCause.GPU_MEMORY: _after_gpu_memory,
    FailureCause.NODE: _after_node,
    FailureCause.TRANSIENT: _after_transient,
    FailureCause.PLANE: _after_withdrawal,
}


def _followed(view: SituationView, cause: FailureCause) -> str:
    """Return why this attempt needs no successor; empty if it does."""
    if view.job.plan is not None and view.attempt.withdrawn:
        return "its next attempt is already planned"
    copies = [attempt for attempt in view.job.live_attempts if attempt.key != view.attempt.key]
    if copies and (cause not in _NOT_AGAIN or cause is FailureCause.USER):
        return f"another copy is still at {copies[0].place}"
    return ""


def _retry(view: SituationView, reason: str, *, back_off: bool = True) -> Decision:
    """Return the same attempt again, with its request raised to the predicted need and a growing delay."""
    # Node and network failures tend to repeat within minutes, so the delay grows.
    ended = sum(attempt.state.final and not attempt.withdrawn for attempt in view.job.attempts)
    delay_s = min(BACK_OFF_S * 2.0 ** max(ended - 1, 0), LONGEST_DELAY_S) if back_off else 0.0
    if view.policy.resumes and view.situation.checkpointed and view.situation.elapsed_s > 0:
        return _resumed(view, reason, delay_s=delay_s)
    return within_bounds(view, propose_same_place(view, reason, view.request(), delay_s=delay_s))


def _overlaps(attempt: Attempt, withdrawn: Attempt) -> bool:
    """True if another attempt ended after this one was submitted, as far as known."""
    ended_s, submitted_s = moment_s(attempt.ended_at), moment_s(withdrawn.submitted_at)
    return ended_s is None or submitted_s is None or ended_s >= submitted_s


def _resumed(view: SituationView, reason: str, *, delay_s: float = 0.0) -> Decision:
    """Return the attempt that continues from the checkpoint, with a limit for the remaining work if known."""
    if standstill := _standstill(view):
        return give_up(view, f"{reason}, but {standstill}")
    request = view.request()
    needed_s, limit_s = view.time.needed(), view.limit_s
    if view.policy.resizes and needed_s is not None and view.situation.total_s is not None and limit_s is not None:
        remaining_s = MIN_RAISE * (needed_s - view.situation.elapsed_s) + 2 * view.policy.checkpoint_s
        whole_s = float(max(1, math.ceil(remaining_s / MINUTE_S)) * MINUTE_S)
        request = replace(request, walltime_s=min(whole_s, view.situation.allowed_s or math.inf))
    else:
        request = replace(request, walltime_s=view.requested_s)
    proposal = propose_same_place(view, f"{reason}; it continues from its checkpoint", request, delay_s=delay_s)
    # The distribution is of the whole run, but a resumed attempt only runs the remainder.
    return within_bounds(view, replace(proposal, run_time=None))


def _standstill(view: SituationView) -> str:
    """Return that this attempt did no more work than an earlier one; empty if it did, or if the job counts no work."""
    before, share = view.job.share_before(view.attempt), view.attempt.done_share
    # Only an attempt that had its whole time shows that the next one would do no more.
    if not before or share is None or share > before or cause_of(view) not in _WHOLE_TIME:
        return ""
    shown = f"it reached {share:.1%} of its work, and an earlier attempt {before:.1%}"
    return f"{shown}: it does not continue from its checkpoint"


def _nowhere_longer(view: SituationView, reason: str, needed_s: float) -> Decision:
    """Return a move to a place with longer limits, a resumed attempt, or GIVE_UP."""
    allowed_s = view.situation.allowed_s or 0.0
    explanation = f"{reason}, and it may need {format_duration(needed_s)} but {format_duration(allowed_s)} are allowed"
    if move := move_to_fit(view, fits_time(view, needed_s), explanation):
        return move
    if view.policy.resumes:
        request = replace(view.request(), walltime_s=allowed_s)
        resume_reason = f"{explanation}; it continues from its own checkpoint"
        return within_bounds(view, replace(propose_same_place(view, resume_reason, request), run_time=None))
    return give_up(view, f"{explanation}; no allowed place has a limit that long", {"needed_s": needed_s})


def _nowhere_more(view: SituationView, reason: str, needed_bytes: float) -> Decision:
    node_memory = format_bytes(view.situation.node_memory_bytes or 0)
    explanation = f"{reason}, and it may need {format_bytes(needed_bytes)} but a node has {node_memory}"
    move = move_to_fit(view, fits_memory(needed_bytes), explanation)
    return move or give_up(view, f"{explanation}; no allowed place has more", {"needed_bytes": needed_bytes})


def _is_worth_trying(requested: float | None, available: float, failure_probability: float) -> bool:
    """True if the largest available amount is clearly above the request and likely enough to suffice."""
    return available >= MIN_RAISE * (requested or 0.0) and failure_probability <= 1 - MIN_SUCCESS_PROBABILITY
