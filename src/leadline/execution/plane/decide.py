"""Decide what to do with one attempt of a job.

All functions are pure, so that every decision can be explained, tested and reproduced.
"""

import math
from dataclasses import replace

from leadline.core.jobs import JobState, ResourceSpec
from leadline.core.plane import NO_CONSENT, Action, Attempt, Decision, Situation
from leadline.core.units import MINUTE_S, format_bytes, format_duration
from leadline.execution.plane.budget import (
    Evidence,
    accepted,
    affordable_s,
    attempts_left,
    moment_s,
    propose_same_place,
    seconds_to_deadline,
)
from leadline.execution.plane.moves import fits_memory, fits_time, move_to_end_sooner, move_to_fit
from leadline.execution.plane.needs import MIN_RAISE, MIN_SUCCESS_PROBABILITY, SituationView
from leadline.execution.plane.retry import after_end
from leadline.uncertainty.distributions import quantile

ASKS = 2
"""Requests for a longer limit. The first refusal may be temporary, the second one is the site's rule."""
SURE = 0.95
"""Failure probability from which a running attempt may be replaced by a larger one, which cannot be undone.

Live intervals were measured up to here (5 % outside each bound); higher probabilities are extrapolated. Checking it at
hundreds of polls does no harm: a calibrated probability is a martingale, so of the attempts that ever reach it, as many
fail as it says.
"""
FREED = 0.25
"""Share of a limit that shortening must free. Less time lets no other job start."""
FREED_S = 900.0
"""Seconds that shortening a limit must free."""
CAREFUL = 0.02
"""Share of the accepted risk used when a running job's limit is shortened: the owner cannot raise it again."""
WINDOW = 2.0
"""A checkpoint is requested this many checkpoint durations before the limit."""


def while_waiting(view: SituationView) -> Decision:
    """Return what to do with a waiting attempt, whose request is cheap to change."""
    deadline_s = seconds_to_deadline(view)
    if deadline_s is not None and deadline_s <= 0:
        return Decision(Action.WITHDRAW, f"its deadline {view.policy.deadline_at} has passed and it has not started")
    larger, short = None, view.memory.exceeds(view.limit_bytes)
    if view.policy.resizes:
        larger = (_larger_memory(view, short) if short > 0.5 else None) or _longer_before_start(view)
    decision = larger or move_to_end_sooner(view) or _shorter(view, view.policy.risk)
    return decision or _keep(view, "it waits, and nothing is wrong with its request")


def while_running(view: SituationView) -> Decision:
    """Return what to do with a running attempt. Only ``may_restart`` lets a prediction end it."""
    if affordable_s(view, view.attempt.resources.nodes, view.situation.cost_per_s) <= 0:
        reason = "the job has spent the budget of its policy"
        return Decision(Action.WITHDRAW, reason, evidence=_time_details(view))
    larger = _short_of_memory(view) if view.policy.resizes else None
    if larger is not None and view.policy.may_restart:
        return larger
    if view.time.exceeds(view.limit_s) > view.policy.risk:
        return _late(view)
    if larger is not None:
        needs = f"it needs more memory than its {format_bytes(view.limit_bytes or 0)}"
        return _keep(view, f"{needs} with {_percent(view.memory.exceeds(view.limit_bytes))}, but {NO_CONSENT}")
    decision = _shorter(view, CAREFUL * view.policy.risk)
    return decision or _keep(view, "it runs and is expected to end within its limits")


def withdraw_if_useless(view: SituationView) -> Decision | None:
    """Return WITHDRAW if the job was cancelled or another copy was first."""
    if view.job.cancelled:
        return Decision(Action.WITHDRAW, "its user cancelled it")
    for copy in view.job.attempts:
        if copy.key == view.attempt.key:
            continue
        if copy.state is JobState.COMPLETED:
            return Decision(Action.WITHDRAW, f"another copy completed at {copy.place}")
        if copy.state is JobState.RUNNING and _was_first(copy, view.attempt):
            return Decision(Action.WITHDRAW, f"another copy started first, at {copy.place}")
    return None


def _late(view: SituationView) -> Decision:
    """Return the cheapest action for a running attempt that may outlast its limit.

    A longer limit costs nothing, and a checkpoint little. Otherwise let p be the probability of outlasting the limit l
    after e seconds. Letting it run costs l - e more and, with probability p, the whole again. Starting again costs the
    whole. The difference is p l - e, so the attempt is replaced if p l > e + (1 - p) w and p is nearly 1. Here w is the
    wait of a new attempt, taken to be as long as this one waited.
    """
    late, limit_s, elapsed_s = view.time.exceeds(view.limit_s), view.limit_s or math.inf, view.situation.elapsed_s
    if (extended := _extended(view)) is not None:
        return extended
    if view.policy.resumes:
        return _checkpoint(view, limit_s - elapsed_s)
    restart = late >= SURE and late * limit_s > elapsed_s + (1 - late) * _waited_s(view)
    larger = _larger_attempt(view) if restart and view.policy.resizes else None
    if larger is not None and view.policy.may_restart:
        return larger
    why = "it may still end in time" if late < SURE else "starting again would cost more than it can save"
    if restart:
        why = "no larger attempt is possible" if larger is None else NO_CONSENT
    return _keep(view, f"it will exceed its limit with {_percent(late)}, but {why}")


def _extended(view: SituationView) -> Decision | None:
    """Return EXTEND; None after too many refusals or if no longer limit is possible."""
    needed_s, limit_s = view.time.needed(), view.limit_s
    if not view.policy.resizes or needed_s is None or limit_s is None or view.situation.asked_to_extend >= ASKS:
        return None
    affordable = affordable_s(view, view.attempt.resources.nodes, view.situation.cost_per_s)
    longest_s = min(view.situation.allowed_s or math.inf, view.situation.elapsed_s + affordable)
    # A limit that almost surely fails again is not worth a request.
    if longest_s < needed_s and view.time.exceeds(longest_s) > 1 - MIN_SUCCESS_PROBABILITY:
        return None
    new_limit_s = math.floor(min(needed_s, longest_s) / MINUTE_S) * MINUTE_S
    if new_limit_s <= limit_s:
        return None
    late = _percent(view.time.exceeds(limit_s))
    reason = f"it will exceed its limit with {late}: requesting {format_duration(new_limit_s)}"
    return _changed(view, Action.EXTEND, reason, replace(view.attempt.resources, walltime_s=float(new_limit_s)))


def _checkpoint(view: SituationView, remaining_s: float) -> Decision:
    late = _percent(view.time.exceeds(view.limit_s))
    if view.situation.checkpointed:
        return _keep(view, f"it will exceed its limit with {late} and has its checkpoint")
    if remaining_s > WINDOW * view.policy.checkpoint_s + MINUTE_S:
        reason = f"it will exceed its limit with {late}; it will be asked to write a checkpoint shortly before"
        return _keep(view, reason)
    reason = f"it will exceed its limit with {late}: it writes a checkpoint and continues in another attempt"
    return _changed(view, Action.CHECKPOINT, reason, view.attempt.resources)


def _larger_attempt(view: SituationView) -> Decision | None:
    """Return a larger attempt in place of one that will fail; None if there is none."""
    needed_s, allowed_s = view.time.needed(), view.situation.allowed_s
    if needed_s is None:
        return None
    if allowed_s is not None and needed_s > allowed_s:
        if view.time.exceeds(allowed_s) > 1 - MIN_SUCCESS_PROBABILITY:
            return None
        needed_s = allowed_s
    if view.limit_s is not None and needed_s < MIN_RAISE * view.limit_s:
        return None
    late = _percent(view.time.exceeds(view.limit_s))
    reason = f"it will exceed its limit with {late}: resubmitting with {format_duration(needed_s)}"
    request = replace(view.request(), walltime_s=needed_s)
    return accepted(view, propose_same_place(view, reason, request, _time_details(view)))


def _longer_before_start(view: SituationView) -> Decision | None:
    """Return a longer limit for a waiting attempt. Most sites let users change it until the start."""
    late, allowed_s, needed_s = view.time.exceeds(view.limit_s), view.situation.allowed_s, view.time.needed()
    if late <= view.policy.risk or needed_s is None:
        return None
    if (extended := _extended(view)) is not None:
        return extended
    if late > 0.5 and (larger := _larger_attempt(view)) is not None:
        return larger
    if allowed_s is None or view.time.exceeds(allowed_s) <= 1 - MIN_SUCCESS_PROBABILITY or view.policy.resumes:
        return None
    reason = f"it needs {format_duration(needed_s)}, but {format_duration(allowed_s)} are allowed"
    return move_to_fit(view, fits_time(view, needed_s), reason)


def _short_of_memory(view: SituationView) -> Decision | None:
    """Return a larger request if a running attempt will almost surely run out of memory.

    It may fail at any time before its end. This is weighed against the work done as in ``_late``.
    """
    probability, elapsed_s = view.memory.exceeds(view.limit_bytes), view.situation.elapsed_s
    run_time, limit_s = view.time.distribution, view.limit_s or math.inf
    # The memory peak may come at any time, so the expected end replaces the limit in the comparison.
    end_s = min(run_time.median, limit_s) if run_time is not None else limit_s
    if probability < SURE or probability * end_s <= elapsed_s + (1 - probability) * _waited_s(view):
        return None
    return _larger_memory(view, probability)


def _larger_memory(view: SituationView, probability: float) -> Decision | None:
    requested_bytes, node_bytes = view.limit_bytes or 0, view.situation.node_memory_bytes
    needed_bytes = view.memory.needed()
    if needed_bytes is None:
        return None
    reason = f"it needs more memory than its {format_bytes(requested_bytes)} with {_percent(probability)}"
    details: Evidence = {"memory_bytes": float(requested_bytes), "needed_bytes": needed_bytes, "short": probability}
    if node_bytes is not None and needed_bytes > node_bytes:
        if view.memory.exceeds(node_bytes) > 1 - MIN_SUCCESS_PROBABILITY:
            return move_to_fit(view, fits_memory(needed_bytes), f"{reason}, which is more than a node here has")
        needed_bytes = node_bytes
    if needed_bytes < MIN_RAISE * requested_bytes:
        return None
    request = replace(view.request(), memory_bytes_per_node=round(needed_bytes))
    resubmit_reason = f"{reason}: resubmitting with {format_bytes(needed_bytes)} per node"
    return accepted(view, propose_same_place(view, resubmit_reason, request, details))


def _shorter(view: SituationView, risk: float) -> Decision | None:
    """Return a shorter limit if that frees much time.

    It needs the user's consent, because a shorter limit may end the attempt and users cannot raise it again. The limit
    never goes below the need at ``risk`` or below the time used. On its last attempt a job keeps its limit.
    """
    if not (view.policy.may_restart and view.policy.resizes):
        return None
    limit_s, needed_s, total_s = view.limit_s, view.time.needed(), view.situation.total_s
    if limit_s is None or needed_s is None or total_s is None or attempts_left(view) < 1:
        return None
    # Half of FREED_S is the margin for a job that is about to end.
    needed_s = max(needed_s, quantile(total_s, 1 - risk), view.situation.elapsed_s + FREED_S / 2)
    new_limit_s = math.ceil(needed_s / MINUTE_S) * MINUTE_S
    if limit_s - new_limit_s < max(FREED * limit_s, FREED_S):
        return None
    reason = (
        f"it needs more than {format_duration(new_limit_s)} with {_percent(risk)}: "
        f"its limit of {format_duration(limit_s)} is shortened"
    )
    return _changed(view, Action.SHRINK, reason, replace(view.attempt.resources, walltime_s=float(new_limit_s)))


def _keep(view: SituationView, reason: str) -> Decision:
    return Decision(Action.KEEP, reason, evidence=_time_details(view))


def _changed(view: SituationView, action: Action, reason: str, request: ResourceSpec) -> Decision:
    return Decision(action, reason, request, view.attempt.place, evidence=_time_details(view))


def _was_first(copy: Attempt, attempt: Attempt) -> bool:
    """True if a running copy started before this one. At equal times, the one submitted first counts."""
    if attempt.state is not JobState.RUNNING:
        return True
    return (_started_s(copy), copy.number) < (_started_s(attempt), attempt.number)


def _started_s(attempt: Attempt) -> float:
    started_s = moment_s(attempt.started_at)
    return math.inf if started_s is None else started_s


def _waited_s(view: SituationView) -> float:
    """Return how long the attempt waited, the estimate for a new one; 0 if unknown."""
    started_s, submitted_s = moment_s(view.attempt.started_at), moment_s(view.attempt.submitted_at)
    return max(started_s - submitted_s, 0.0) if started_s is not None and submitted_s is not None else 0.0


def _time_details(view: SituationView) -> Evidence:
    details: Evidence = {"elapsed_s": view.situation.elapsed_s}
    if view.limit_s is not None:
        details["limit_s"] = view.limit_s
    if view.situation.total_s is not None:
        total_s = view.situation.total_s
        details |= {"total_s": total_s.point, "total_low_s": total_s.low, "total_high_s": total_s.high}
        details["late"] = view.time.exceeds(view.limit_s)
    if view.situation.remaining_wait_s is not None:
        details["remaining_wait_s"] = view.situation.remaining_wait_s.point
    return details


def _percent(share: float) -> str:
    """Return a probability as text."""
    percentage = "more than 99" if share > 0.99 else "less than 1" if share < 0.01 else f"{100 * share:.0f}"
    return f"a probability of {percentage} %"


def decide(situation: Situation) -> Decision:
    """Return the decision on ``situation.attempt``.

    RESUBMIT and MOVE of a live attempt mean to withdraw it first. GIVE_UP applies to an ended attempt; its remaining
    copies are then withdrawn.
    """
    view, state = SituationView(situation), situation.attempt.state
    if situation.job.closed:
        return Decision(Action.KEEP, f"the job is already settled as {situation.job.state.value}")
    if state is JobState.COMPLETED:
        return Decision(Action.FINISH, "it completed", evidence={"spent_node_s": situation.spent_node_s})
    if not situation.attempt.live:
        return Decision(Action.GIVE_UP, "its user cancelled it") if situation.job.cancelled else after_end(view)
    if (useless := withdraw_if_useless(view)) or state is JobState.UNKNOWN:
        return useless or Decision(Action.KEEP, "its scheduler does not report its state")
    return while_running(view) if state is JobState.RUNNING else while_waiting(view)
