"""What to do with an attempt that waits or runs: whether its limits are too low, too high, or better elsewhere."""

import math
from dataclasses import replace

from leadline.core.jobs import JobState
from leadline.core.plane import Action, Alternative, Attempt, Decision, Situation
from leadline.core.units import MINUTE_S, format_bytes, format_duration
from leadline.execution.plane.budget import (
    Evidence,
    Proposal,
    affordable_s,
    attempts_left,
    broken_bound,
    moment_s,
    propose_same_place,
    seconds_to_deadline,
    within_bounds,
)
from leadline.execution.plane.moves import fits_time, move_to_end_sooner, move_to_fit
from leadline.execution.plane.needs import MIN_RAISE, MIN_SUCCESS_PROBABILITY, SituationView, Sizing, limit_by_risk
from leadline.execution.plane.retry import after_end
from leadline.uncertainty.distributions import quantile

ASKS = 2
"""How often a longer limit is asked for: the first refusal may be of the moment, the second one is the site's rule."""
SURE = 0.95
"""Probability of failing from which on a running attempt may be ended for a larger one, as it cannot be taken back. The
ranges of live estimates were measured up to here (5 % lie beyond each end), and what is beyond is extrapolated. That it
is asked at hundreds of looks does no harm: a probability that holds is a martingale, so of those that ever come so far
as many fail as it says."""
FREED = 0.25
"""Share of a limit that shortening it has to free, and how many seconds at least: less lets no other job in."""
FREED_S = 900.0
CAREFUL = 0.02
"""Share of the accepted risk at which a running job's limit is shortened: its owner may not lengthen it again."""
WINDOW = 2.0
"""How many times what a checkpoint takes before the limit it is asked for."""


def while_waiting(view: SituationView) -> Decision:
    """Return what to do with an attempt in the queue: what is wrong with its request is cheap to mend now."""
    wanted_s = seconds_to_deadline(view)
    if wanted_s is not None and wanted_s <= 0:
        return Decision(Action.WITHDRAW, f"its result was wanted by {view.policy.deadline_at}, and it has not begun")
    found = _more_memory(view) if view.policy.resizes else None
    found = found or (_longer_before_start(view) if view.policy.resizes else None)
    found = found or move_to_end_sooner(view) or (_shorter(view, view.policy.risk) if view.policy.resizes else None)
    return found or _keep(view, "it waits, and its request is right as far as is known")


def while_running(view: SituationView) -> Decision:
    """Return what to do with an attempt that runs."""
    if over := _overspent(view):
        return Decision(Action.WITHDRAW, over, evidence=_time_figures(view))
    found = _short_of_memory(view) if view.policy.resizes else None
    if found is None:
        if view.late(view.limit_s) > view.policy.risk:
            return _late(view)
        found = _shorter(view, CAREFUL * view.policy.risk) if view.policy.resizes else None
    return found or _keep(view, "it runs, and is expected to end within its limits")


def withdraw_if_useless(view: SituationView) -> Decision | None:
    """Return WITHDRAW if the attempt is of no use any more: taken back, or another copy was first."""
    if view.job.cancelled:
        return Decision(Action.WITHDRAW, "its user took it back")
    for other in view.job.attempts:
        if other.key == view.attempt.key:
            continue
        if other.state is JobState.COMPLETED:
            return Decision(Action.WITHDRAW, f"another copy of it is done at {other.place}")
        if other.state is JobState.RUNNING and _was_first(other, view.attempt):
            return Decision(Action.WITHDRAW, f"another copy of it started first, at {other.place}")
    return None


def _late(view: SituationView) -> Decision:
    """Return what to do with a running attempt that may not end within its limit, the cheapest first.

    A longer limit costs nothing, a checkpoint little. Without either, with probability p of lasting beyond the limit l
    after e seconds: to let it run costs l - e more and, with p, the whole again; to begin anew costs the whole. The
    difference is p l - e, so it is ended for a larger one where p l > e + (1 - p) w, w being the wait for a new one
    (as long as this one waited), and where p is nearly sure.
    """
    late, limit_s, elapsed_s = view.late(view.limit_s), view.limit_s or math.inf, view.situation.elapsed_s
    if (extended := _extended(view)) is not None:
        return extended
    figures = _time_figures(view)
    if view.policy.resumes:
        return _checkpoint(view, limit_s - elapsed_s, figures)
    begin_anew = late >= SURE and late * limit_s > elapsed_s + (1 - late) * _waited_s(view)
    if begin_anew and view.policy.resizes and (proposal := _anew(view)) is not None:
        return within_bounds(view, proposal)
    chance = "it may still end in time" if late < SURE else "to begin anew would take more than is left to lose"
    if begin_anew:
        chance = "no larger attempt is to be had"
    return Decision(Action.KEEP, f"it lasts beyond its limit with {_percent(late)}, but {chance}", evidence=figures)


def _extended(view: SituationView) -> Decision | None:
    """Return the request for a longer limit; ``None`` where it was refused too often, or none longer may be had."""
    needed_s, limit_s = view.needed_s(), view.limit_s
    if not view.policy.resizes or needed_s is None or limit_s is None or view.situation.asked_to_extend >= ASKS:
        return None
    left_s = affordable_s(view, view.attempt.resources.nodes, view.situation.cost_per_s)
    longest_s = min(view.situation.allowed_s or math.inf, view.situation.elapsed_s + left_s)
    if longest_s < needed_s and view.late(longest_s) > 1 - MIN_SUCCESS_PROBABILITY:
        return None
    asked_s = math.floor(min(needed_s, longest_s) / MINUTE_S) * MINUTE_S
    if asked_s <= limit_s:
        return None
    reason = f"it lasts beyond its limit with {_percent(view.late(limit_s))}: {format_duration(asked_s)} are asked for"
    asked = replace(view.attempt.resources, walltime_s=float(asked_s))
    return Decision(Action.EXTEND, reason, asked, view.attempt.place, evidence=_time_figures(view))


def _checkpoint(view: SituationView, left_s: float, figures: Evidence) -> Decision:
    late = _percent(view.late(view.limit_s))
    if view.situation.checkpointed:
        return Decision(Action.KEEP, f"it lasts beyond its limit with {late}, and has its checkpoint", evidence=figures)
    if left_s > WINDOW * view.policy.checkpoint_s + MINUTE_S:
        said = f"it lasts beyond its limit with {late}; it is to write a checkpoint shortly before"
        return Decision(Action.KEEP, said, evidence=figures)
    reason = f"it lasts beyond its limit with {late}: it writes a checkpoint and goes on in another attempt"
    return Decision(Action.CHECKPOINT, reason, view.attempt.resources, view.attempt.place, evidence=figures)


def _anew(view: SituationView) -> Proposal | None:
    """Return the larger attempt that would take the place of one that fails; ``None`` if there is none to be had."""
    needed_s, allowed_s = view.needed_s(), view.situation.allowed_s
    if needed_s is None:
        return None
    if allowed_s is not None and needed_s > allowed_s:
        if view.late(allowed_s) > 1 - MIN_SUCCESS_PROBABILITY:
            return None
        needed_s = allowed_s
    if view.limit_s is not None and needed_s < MIN_RAISE * view.limit_s:
        return None
    late = _percent(view.late(view.limit_s))
    reason = f"it lasts beyond its limit with {late}: it is submitted anew with {format_duration(needed_s)}"
    asked = replace(view.request(), walltime_s=needed_s)
    proposal = propose_same_place(view, reason, asked, _time_figures(view))
    return None if broken_bound(view, proposal) else proposal


def _longer_before_start(view: SituationView) -> Decision | None:
    """Return a longer limit for a waiting attempt; most sites let their users change that until it starts."""
    late, allowed_s, needed_s = view.late(view.limit_s), view.situation.allowed_s, view.needed_s()
    if late <= view.policy.risk or needed_s is None:
        return None
    if (extended := _extended(view)) is not None:
        return extended
    if late > 0.5 and (proposal := _anew(view)) is not None:
        return within_bounds(view, proposal)
    if allowed_s is None or view.late(allowed_s) <= 1 - MIN_SUCCESS_PROBABILITY or view.policy.resumes:
        return None
    reason = f"it needs {format_duration(needed_s)} where {format_duration(allowed_s)} are allowed"
    return move_to_fit(view, lambda other: fits_time(view, needed_s, other), reason)


def _more_memory(view: SituationView) -> Decision | None:
    """Return the larger request of a waiting attempt that will rather run out of memory than not."""
    short = view.short_of_memory(view.attempt.resources.memory_bytes_per_node)
    return _larger_memory(view, short) if short > 0.5 else None


def _short_of_memory(view: SituationView) -> Decision | None:
    """Return the larger request of a running attempt that is nearly sure to run out of memory.

    It dies of it at some time up to its end; that is weighed against what it has done as in ``_late``.
    """
    short, elapsed_s = view.short_of_memory(view.attempt.resources.memory_bytes_per_node), view.situation.elapsed_s
    known, limit_s = view.time(), view.limit_s or math.inf
    end_s = min(known.median, limit_s) if known is not None else limit_s
    if short < SURE or short * end_s <= elapsed_s + (1 - short) * _waited_s(view):
        return None
    return _larger_memory(view, short)


def _larger_memory(view: SituationView, short: float) -> Decision | None:
    asked_bytes, there_bytes = view.attempt.resources.memory_bytes_per_node or 0, view.situation.node_memory_bytes
    needed_bytes = view.needed_bytes()
    if needed_bytes is None:
        return None
    reason = f"it needs more than its {format_bytes(asked_bytes)} of memory with {_percent(short)}"
    figures: Evidence = {"memory_bytes": float(asked_bytes), "needed_bytes": needed_bytes, "short": short}
    if there_bytes is not None and needed_bytes > there_bytes:
        if view.short_of_memory(there_bytes) > 1 - MIN_SUCCESS_PROBABILITY:
            return _to_more_memory(view, needed_bytes, reason)
        needed_bytes = there_bytes
    if needed_bytes < MIN_RAISE * asked_bytes:
        return None
    asked = replace(view.request(), memory_bytes_per_node=round(needed_bytes))
    anew = f"{reason}: it is submitted anew with {format_bytes(needed_bytes)} a node"
    proposal = propose_same_place(view, anew, asked, figures)
    return None if broken_bound(view, proposal) else within_bounds(view, proposal)


def _to_more_memory(view: SituationView, needed_bytes: float, reason: str) -> Decision | None:
    def fits(other: Alternative) -> bool:
        return (other.resources.memory_bytes_per_node or 0) >= needed_bytes

    return move_to_fit(view, fits, f"{reason}, which is more than a node has here")


def _shorter(view: SituationView, risk: float) -> Decision | None:
    """Return a shorter limit where that frees much; never below what the job may need at ``risk``, or has used.

    On its last attempt a job keeps what it has.
    """
    limit_s, needed_s, total_s = view.limit_s, view.needed_s(), view.situation.total_s
    if limit_s is None or needed_s is None or total_s is None or attempts_left(view) < 1:
        return None
    needed_s = max(needed_s, quantile(total_s, 1 - risk), view.situation.elapsed_s + FREED_S / 2)
    kept_s = math.ceil(needed_s / MINUTE_S) * MINUTE_S
    if limit_s - kept_s < max(FREED * limit_s, FREED_S):
        return None
    reason = (
        f"it needs more than {format_duration(kept_s)} with {_percent(risk)}: "
        f"its limit of {format_duration(limit_s)} is shortened to that"
    )
    asked = replace(view.attempt.resources, walltime_s=float(kept_s))
    return Decision(Action.SHRINK, reason, asked, view.attempt.place, evidence=_time_figures(view))


def _keep(view: SituationView, reason: str) -> Decision:
    return Decision(Action.KEEP, reason, evidence=_time_figures(view))


def _overspent(view: SituationView) -> str:
    """Return why a running attempt has used up what the job may take; empty if it has not."""
    left_s = affordable_s(view, view.attempt.resources.nodes, view.situation.cost_per_s)
    if left_s > 0:
        return ""
    return "all that its policy lets the job spend is spent"


def _was_first(other: Attempt, mine: Attempt) -> bool:
    """Whether a running copy started before this one; of two at once the one that was submitted first counts."""
    if mine.state is not JobState.RUNNING:
        return True
    return (_started_s(other), other.number) < (_started_s(mine), mine.number)


def _started_s(attempt: Attempt) -> float:
    started_s = moment_s(attempt.started_at)
    return math.inf if started_s is None else started_s


def _waited_s(view: SituationView) -> float:
    """Return how long the attempt waited, which is what a new one is taken to wait; 0 where that is not known."""
    started_s, submitted_s = moment_s(view.attempt.started_at), moment_s(view.attempt.submitted_at)
    return max(started_s - submitted_s, 0.0) if started_s is not None and submitted_s is not None else 0.0


def _time_figures(view: SituationView) -> Evidence:
    found: Evidence = {"elapsed_s": view.situation.elapsed_s}
    if view.limit_s is not None:
        found["limit_s"] = view.limit_s
    if view.situation.total_s is not None:
        total_s = view.situation.total_s
        found |= {"total_s": total_s.point, "total_low_s": total_s.low, "total_high_s": total_s.high}
        found["late"] = view.late(view.limit_s)
    if view.situation.remaining_wait_s is not None:
        found["remaining_wait_s"] = view.situation.remaining_wait_s.point
    return found


def _percent(share: float) -> str:
    """Return a probability as people say it."""
    said = "more than 99" if share > 0.99 else "less than 1" if share < 0.01 else f"{100 * share:.0f}"
    return f"a probability of {said} %"


def decide(situation: Situation, sizing: Sizing = limit_by_risk) -> Decision:
    """Return the decision on ``situation.attempt``; limits are chosen by ``sizing``.

    RESUBMIT and MOVE of an attempt that is at a scheduler mean to withdraw it first. GIVE_UP is said of an attempt
    that ended; copies of it that are left are then withdrawn.
    """
    view, state = SituationView(situation, sizing), situation.attempt.state
    if situation.job.closed:
        return Decision(Action.KEEP, f"the job is settled as {situation.job.state.value}: nothing is decided any more")
    if state is JobState.COMPLETED:
        return Decision(Action.FINISH, "it is done", evidence={"spent_node_s": situation.spent_node_s})
    if not situation.attempt.live:
        return Decision(Action.GIVE_UP, "its user took it back") if situation.job.cancelled else after_end(view)
    return withdraw_if_useless(view) or _LIVE[state](view)


def _in_silence(_: SituationView) -> Decision:
    return Decision(Action.KEEP, "its scheduler does not say what became of it, and silence says nothing")


_LIVE = {JobState.PENDING: while_waiting, JobState.RUNNING: while_running, JobState.UNKNOWN: _in_silence}
