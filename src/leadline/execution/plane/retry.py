"""What follows an attempt that ended: the next one, larger by what it ended of, or the reason why there is none."""

import math
from collections.abc import Callable
from dataclasses import replace

from leadline.core.jobs import JobState, ResourceSpec
from leadline.core.plane import Action, Alternative, Attempt, Decision, FailureCause
from leadline.core.units import MINUTE_S, format_bytes, format_duration
from leadline.execution.plane.budget import Evidence, give_up, moment_s, propose_same_place, within_bounds
from leadline.execution.plane.moves import fits_time, move_to_fit
from leadline.execution.plane.needs import MIN_RAISE, MIN_SUCCESS_PROBABILITY, SituationView

BACK_OFF_S = 60.0
"""The first delay after something that was not the job's fault; it doubles each time."""
LONGEST_DELAY_S = 1800.0
TRANSIENT_TRIES = 2
"""How often what may be gone the next time is tried again; then it is not gone."""
_CAUSE_OF = {
    JobState.TIMEOUT: FailureCause.WALLTIME,
    JobState.OUT_OF_MEMORY: FailureCause.HOST_MEMORY,
    JobState.NODE_FAIL: FailureCause.NODE,
    JobState.PREEMPTED: FailureCause.PREEMPTION,
    JobState.FAILED: FailureCause.UNKNOWN,
}
_NOT_AGAIN = {
    FailureCause.PROGRAM: "its own program failed, and the same again would end the same",
    FailureCause.STORAGE: "no room was left for its files; make room before it is submitted again",
    FailureCause.DEPENDENCY: "a job that it depends on did not end as it had to",
    FailureCause.USER: "its user cancelled it",
    FailureCause.ADMINISTRATOR: "the site cancelled it",
    FailureCause.UNKNOWN: "nothing tells why it failed, and it is not tried again blindly",
}


def cause_of(view: SituationView) -> FailureCause:
    """Return what ended the attempt: as it was diagnosed, else as its state says."""
    if view.situation.cause is not None:
        return view.situation.cause
    if view.attempt.state is JobState.CANCELLED:
        return FailureCause.PLANE if view.attempt.withdrawn else FailureCause.USER
    return _CAUSE_OF.get(view.attempt.state, FailureCause.UNKNOWN)


def after_end(view: SituationView) -> Decision:
    """Return what follows an attempt that did not complete."""
    if any(one.state is JobState.COMPLETED for one in view.job.attempts):
        return Decision(Action.FINISH, "another copy of it is done")
    cause = cause_of(view)
    if followed := _followed(view, cause):
        return Decision(Action.KEEP, followed)
    if cause in _NOT_AGAIN:
        return give_up(view, _NOT_AGAIN[cause], {"cause": cause.value})
    return _AFTER[cause](view)


def longer(view: SituationView, reason: str) -> Decision:
    """Return the attempt with a limit for what it is now known to last, or where there is such a limit.

    The limit comes of the distribution of run times beyond what this attempt lasted, and never is the same again.
    """
    needed_s, allowed_s = view.needed_s(), view.situation.allowed_s
    if needed_s is None:
        return give_up(view, f"{reason}, and neither its limit nor how long it ran is known")
    needed_s = max(needed_s, MIN_RAISE * view.outlived_s, MIN_RAISE * (view.limit_s or 0.0))
    figures: Evidence = {"lasted_at_least_s": view.outlived_s, "needed_s": needed_s}
    if allowed_s is not None and needed_s > allowed_s:
        if not _can_be_had(view.limit_s, allowed_s, view.time_beyond(allowed_s)):
            return _nowhere_longer(view, reason, needed_s)
        needed_s = allowed_s
    asked = replace(view.request(), walltime_s=needed_s)
    again = f"{reason}: it is submitted again with a limit of {format_duration(needed_s)}"
    return within_bounds(view, propose_same_place(view, again, asked, figures))


def roomier_memory(view: SituationView, reason: str) -> Decision:
    """Return the attempt with memory for what it is now known to need, or where there is so much."""
    asked_bytes, there_bytes = view.attempt.resources.memory_bytes_per_node, view.situation.node_memory_bytes
    needed_bytes = view.needed_bytes() or there_bytes
    if needed_bytes is None:
        return give_up(view, f"{reason}, and how much it had is not known: ask for an amount of memory")
    needed_bytes = max(needed_bytes, MIN_RAISE * view.memory_floor_bytes, MIN_RAISE * (asked_bytes or 0))
    if there_bytes is not None and needed_bytes > there_bytes:
        if not _can_be_had(asked_bytes, there_bytes, view.memory_beyond(there_bytes)):
            return _nowhere_more(view, reason, needed_bytes)
        needed_bytes = there_bytes
    asked = replace(view.request(), memory_bytes_per_node=round(needed_bytes))
    again = f"{reason}: it is submitted again with {format_bytes(needed_bytes)} a node"
    figures: Evidence = {"needed_at_least_bytes": view.memory_floor_bytes, "needed_bytes": needed_bytes}
    return within_bounds(view, propose_same_place(view, again, asked, figures))


def _after_walltime(view: SituationView) -> Decision:
    reason = f"it was ended at its limit after {format_duration(view.outlived_s)}"
    if view.policy.resumes and view.situation.checkpointed:
        return _resumed(view, reason)
    if not view.policy.resizes:
        return give_up(view, f"{reason}, and its request may not be changed")
    return longer(view, reason)


def _after_host_memory(view: SituationView) -> Decision:
    asked = view.attempt.resources.memory_bytes_per_node
    reason = f"it ran out of memory{f' at {format_bytes(asked)} a node' if asked else ''}"
    if not view.policy.resizes:
        return give_up(view, f"{reason}, and its request may not be changed")
    return roomier_memory(view, reason)


def _after_gpu_memory(view: SituationView) -> Decision:
    here = view.situation.gpu_memory_bytes
    had = f" of {format_bytes(here)}" if here else ""
    reason = f"the memory{had} of its GPU was too little, which no larger request cures"

    def fits(other: Alternative) -> bool:
        return here is not None and other.gpu_memory_bytes is not None and other.gpu_memory_bytes >= MIN_RAISE * here

    cure = "a smaller batch, more accumulation, recomputed activations or a larger GPU would"
    return move_to_fit(view, fits, reason) or give_up(
        view, f"{reason}; {cure}", {"cause": FailureCause.GPU_MEMORY.value}
    )


def _after_node(view: SituationView) -> Decision:
    node = view.attempt.node
    decision = _again(view, f"its node{f' {node}' if node else ''} failed under it: the same is submitted again")
    return replace(decision, evidence={**decision.evidence, "avoid_node": node}) if node else decision


def _after_preemption(view: SituationView) -> Decision:
    return _again(view, "another job of higher priority took its place: the same is submitted again")


def _after_transient(view: SituationView) -> Decision:
    tried = sum(one.state is JobState.FAILED for one in view.job.attempts)
    if tried > TRANSIENT_TRIES:
        return give_up(
            view, f"it failed {tried} times of what should have been gone the next time", {"failures": float(tried)}
        )
    return _again(view, "it failed of something that may be gone the next time: the same is submitted again")


def _after_withdrawal(view: SituationView) -> Decision:
    """Return the attempt that was to follow: a copy that was to take its place ended, or the plane was stopped."""
    if any(one.state is JobState.FAILED and _overlaps(one, view.attempt) for one in view.job.attempts):
        return give_up(view, "the copy of it that ran failed, and it is not tried again blindly")
    if view.late(view.limit_s) > view.policy.risk and view.policy.resizes:
        return longer(view, "the plane took it back, and its limit was too low")
    return _again(view, "the plane took it back, and nothing followed: it is submitted again", back_off=False)


_AFTER: dict[FailureCause, Callable[[SituationView], Decision]] = {
    FailureCause.WALLTIME: _after_walltime,
    FailureCause.HOST_MEMORY: _after_host_memory,
    FailureCause.GPU_MEMORY: _after_gpu_memory,
    FailureCause.NODE: _after_node,
    FailureCause.PREEMPTION: _after_preemption,
    FailureCause.TRANSIENT: _after_transient,
    FailureCause.PLANE: _after_withdrawal,
}


def _followed(view: SituationView, cause: FailureCause) -> str:
    """Return why nothing has to follow this attempt: another one is there, or planned already."""
    if view.job.plan is not None and view.attempt.withdrawn:
        return "what follows it is planned already"
    others = [one for one in view.job.live_attempts if one.key != view.attempt.key]
    if others and (cause not in _NOT_AGAIN or cause is FailureCause.USER):
        return f"another copy of it is still at {others[0].place}"
    return ""


def _again(view: SituationView, reason: str, *, back_off: bool = True) -> Decision:
    """Return the same again, its request raised to what forecasts call for; later each time."""
    delay_s = _delay_s(view) if back_off else 0.0
    if view.policy.resumes and view.situation.checkpointed and view.situation.elapsed_s > 0:
        return _resumed(view, reason, delay_s=delay_s)
    return within_bounds(view, propose_same_place(view, reason, view.request(), delay_s=delay_s))


def _overlaps(other: Attempt, mine: Attempt) -> bool:
    """Whether another attempt ended after this one was submitted, or may have."""
    ended_s, submitted_s = moment_s(other.ended_at), moment_s(mine.submitted_at)
    return ended_s is None or submitted_s is None or ended_s >= submitted_s


def _delay_s(view: SituationView) -> float:
    ended = sum(one.state.final and not one.withdrawn for one in view.job.attempts)
    return min(BACK_OFF_S * 2.0 ** max(ended - 1, 0), LONGEST_DELAY_S)


def _resumed(view: SituationView, reason: str, *, delay_s: float = 0.0) -> Decision:
    """Return the attempt that goes on from the checkpoint, with a limit for what is left where that is known."""
    asked = view.request()
    needed_s, limit_s = view.needed_s(), view.limit_s
    if needed_s is not None and view.situation.total_s is not None and limit_s is not None:
        left_s = MIN_RAISE * (needed_s - view.situation.elapsed_s) + 2 * view.policy.checkpoint_s
        asked = replace(asked, walltime_s=min(_minutes(left_s), view.situation.allowed_s or math.inf))
    elif limit_s is not None:
        asked = replace(asked, walltime_s=limit_s)
    proposal = propose_same_place(view, f"{reason}; it goes on from its checkpoint", asked, delay_s=delay_s)
    return within_bounds(view, replace(proposal, known=None))


def _nowhere_longer(view: SituationView, reason: str, needed_s: float) -> Decision:
    """Return the move to where it may last longer, the same again if it resumes by itself, or the end of it."""
    allowed_s = view.situation.allowed_s or 0.0
    beyond = f"{reason}, and it may need {format_duration(needed_s)} where {format_duration(allowed_s)} are allowed"
    found = move_to_fit(view, lambda other: fits_time(view, needed_s, other), beyond)
    if found is not None:
        return found
    if view.policy.resumes:
        asked = replace(view.request(), walltime_s=allowed_s)
        goes_on = f"{beyond}; it goes on from its own checkpoint"
        return within_bounds(view, replace(propose_same_place(view, goes_on, asked), known=None))
    return give_up(view, f"{beyond}; no place that it may go to lets it run so long", {"needed_s": needed_s})


def _nowhere_more(view: SituationView, reason: str, needed_bytes: float) -> Decision:
    there = format_bytes(view.situation.node_memory_bytes or 0)
    beyond = f"{reason}, and it may need {format_bytes(needed_bytes)} where a node has {there}"

    def fits(other: Alternative) -> bool:
        return _memory_of(other.resources) >= needed_bytes

    found = move_to_fit(view, fits, beyond)
    return found or give_up(view, f"{beyond}; no place that it may go to has more", {"needed_bytes": needed_bytes})


def _can_be_had(asked: float | None, there: float, beyond: float) -> bool:
    """Whether the most that there is, is noticeably more than was asked for and likely enough to be enough."""
    return there >= MIN_RAISE * (asked or 0.0) and beyond <= 1 - MIN_SUCCESS_PROBABILITY


def _memory_of(resources: ResourceSpec) -> float:
    return resources.memory_bytes_per_node or 0.0


def _minutes(time_s: float) -> float:
    return float(max(1, math.ceil(time_s / MINUTE_S)) * MINUTE_S)
