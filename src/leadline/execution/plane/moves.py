"""Decide whether a job should move to another place: to end sooner, or to get a larger limit or more memory."""

import math
from collections.abc import Callable, Iterable
from statistics import NormalDist

from leadline.core.estimate import Interval
from leadline.core.plane import Alternative, Decision
from leadline.core.units import format_duration
from leadline.execution.plane.budget import Evidence, accepted, attempts_left, propose_other_place, seconds_to_deadline
from leadline.execution.plane.needs import SituationView

MARGIN = 0.2
"""Share of the time to the result that a move must save: wait predictions vary, and the queue position is lost."""
MARGIN_S = 300.0
CONFIDENCE = 0.8
"""Probability of saving that much from which a waiting job is moved."""
CHANCE = 0.3
"""Required gain in the probability of meeting the deadline."""
RESERVE = 2
"""Attempts that must remain before a job is moved, so that the new attempt may still fail and be repeated."""
_NORMAL = NormalDist()


def move_to_end_sooner(view: SituationView) -> Decision | None:
    """Return the move of a waiting job to where it ends sooner or meets its deadline; None to stay."""
    situation = view.situation
    time_here = total([situation.remaining_wait_s, situation.total_s])
    if time_here is None or attempts_left(view) < RESERVE:
        return None
    for place in reachable(view):
        time_there = _time_at(view, place)
        if time_there is None:
            continue
        if not (_is_sooner(view, place, time_here, time_there) or _meets_deadline(view, time_here, time_there)):
            continue
        there, here = format_duration(time_there.point), format_duration(time_here.point)
        reason = f"at {place.place} it is expected to end in {there}, here in {here}"
        if move := accepted(view, propose_other_place(view, place, reason, _time_details(time_here, time_there))):
            return move
    return None


def move_to_fit(view: SituationView, fits: Callable[[Alternative], bool], reason: str) -> Decision | None:
    """Return the move to the place that ``fits`` and where the job ends soonest; None if there is none."""
    for place in filter(fits, reachable(view)):
        if move := accepted(view, propose_other_place(view, place, f"{reason}; moving to {place.place}")):
            return move
    return None


def reachable(view: SituationView) -> list[Alternative]:
    """Return the alternatives that the policy allows and where no copy of the job is, the soonest end first."""
    free_places = {*view.policy.places} - {view.attempt.place, *(option.place for option in view.job.live_attempts)}
    options = [option for option in view.situation.alternatives if option.place in free_places]
    # Among equal times, the order of the situation stays.
    return sorted(options, key=lambda option: _soonest(view, option))


def total(parts: Iterable[Interval | None], extra: Interval | None = None) -> Interval | None:
    """Return the interval of a sum of independent quantities; None if one of them is unknown.

    Points add up, and the distances between point and bound add in squares.
    """
    intervals = [interval for interval in parts if interval is not None]
    if len(intervals) < 2:
        return None
    terms = intervals if extra is None else [*intervals, extra]
    point = sum(interval.point for interval in terms)
    below = math.hypot(*(interval.point - interval.low for interval in terms))
    above = math.hypot(*(interval.high - interval.point for interval in terms))
    return Interval(point, max(point - below, 0.0), point + above, min(interval.level for interval in terms))


def fits_time(view: SituationView, needed_s: float) -> Callable[[Alternative], bool]:
    """Return whether another place allows the needed run time, scaled to the speed there."""
    total_s = view.situation.total_s

    def fits(place: Alternative) -> bool:
        limit_s = place.resources.walltime_s
        if limit_s is None or place.elapsed_s is None or total_s is None:
            return limit_s is not None and limit_s >= needed_s
        return limit_s >= needed_s * place.elapsed_s.point / total_s.point

    return fits


def fits_memory(needed_bytes: float) -> Callable[[Alternative], bool]:
    """Return whether another place has the needed memory per node."""
    return lambda place: (place.resources.memory_bytes_per_node or 0) >= needed_bytes


def chance_by(interval: Interval, time_s: float) -> float:
    """Return the probability that a time is over by ``time_s``.

    The distribution is taken as normal on each side of its point.
    """
    distance = time_s - interval.point
    spread = _spread(interval.high - interval.point if distance > 0 else interval.point - interval.low, interval.level)
    return _NORMAL.cdf(distance / spread) if spread else float(distance >= 0)


def _is_sooner(view: SituationView, place: Alternative, time_here: Interval, time_there: Interval) -> bool:
    saved_s = time_here.point - time_there.point
    margin_s = max(MARGIN_S, MARGIN * time_here.point)
    spread = math.hypot(
        _spread(time_here.point - time_here.low, time_here.level),
        _spread(time_there.high - time_there.point, time_there.level),
    )
    probability = _NORMAL.cdf((saved_s - margin_s) / spread) if spread else float(saved_s > margin_s)
    return probability >= CONFIDENCE and _is_worth_its_price(view, place, time_here, time_there)


def _is_worth_its_price(view: SituationView, place: Alternative, time_here: Interval, time_there: Interval) -> bool:
    """True if the price grows by no larger factor than the time shrinks, as far as prices are known."""
    price, run = view.situation.cost_per_s, view.situation.total_s
    if place.cost is None or price is None or run is None:
        return view.policy.cost is None or place.cost is not None
    return place.cost * max(time_there.point, 1.0) <= price * run.point * time_here.point


def _meets_deadline(view: SituationView, time_here: Interval, time_there: Interval) -> bool:
    deadline_s = seconds_to_deadline(view)
    return deadline_s is not None and chance_by(time_there, deadline_s) >= chance_by(time_here, deadline_s) + CHANCE


def _time_details(time_here: Interval, time_there: Interval) -> Evidence:
    return {
        "here_s": time_here.point, "here_low_s": time_here.low,
        "there_s": time_there.point, "there_high_s": time_there.high,
    }  # fmt: skip


def _soonest(view: SituationView, place: Alternative) -> float:
    time = _time_at(view, place)
    return time.point if time is not None else math.inf


def _time_at(view: SituationView, place: Alternative) -> Interval | None:
    """Return the time to the result at another place; None if a part of it is unknown, such as the copy time."""
    # Without a known copy time, a job with a checkpoint cannot be compared.
    if place.staging_s is None and view.job.checkpoint_source(place.place.system) is not None:
        return None
    return total([place.wait_s, place.elapsed_s], place.staging_s)


def _spread(half_width: float, level: float) -> float:
    return half_width / _NORMAL.inv_cdf(0.5 + level / 2)
