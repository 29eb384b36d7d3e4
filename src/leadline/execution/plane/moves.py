"""Whether a job should go to another place: where it ends sooner, or where what it needs is to be had."""

import math
from collections.abc import Callable, Iterable
from statistics import NormalDist

from leadline.core.estimate import Interval
from leadline.core.plane import Alternative, Decision
from leadline.core.units import format_duration
from leadline.execution.plane.budget import (
    Evidence,
    attempts_left,
    broken_bound,
    propose_other_place,
    seconds_to_deadline,
    within_bounds,
)
from leadline.execution.plane.needs import SituationView

MARGIN = 0.2
"""Share of the time to the result that a move has to save: forecasts of waits waver, and a place in a queue is lost."""
MARGIN_S = 300.0
CONFIDENCE = 0.8
"""Probability of saving that much from which on a waiting job is moved."""
CHANCE = 0.3
"""How much likelier the deadline has to be met elsewhere."""
RESERVE = 2
"""Attempts that are left when a job moves of its own accord, so that the new one may still fail and be made again."""
_NORMAL = NormalDist()


def move_to_end_sooner(view: SituationView) -> Decision | None:
    """Return the move of a waiting job to where it ends sooner or meets its deadline; ``None`` if it should stay."""
    situation = view.situation
    here = total([situation.remaining_wait_s, situation.total_s])
    if here is None or attempts_left(view) < RESERVE:
        return None
    best: tuple[float, Decision] | None = None
    for other in reachable(view):
        there = _there(view, other)
        if there is None:
            continue
        proposal = propose_other_place(view, other, _saves(other, here, there), _figures(here, there))
        if not (_is_sooner(view, other, here, there) or _meets_deadline(view, here, there)) or broken_bound(
            view, proposal
        ):
            continue
        if best is None or there.point < best[0]:
            best = there.point, within_bounds(view, proposal)
    return best[1] if best is not None else None


def move_to_fit(view: SituationView, fits: Callable[[Alternative], bool], reason: str) -> Decision | None:
    """Return the move to the place that ``fits`` and where the job ends soonest; ``None`` where there is none."""
    places = [(_soonest(view, other), at, other) for at, other in enumerate(reachable(view)) if fits(other)]
    for _, _, other in sorted(places, key=lambda one: one[:2]):
        proposal = propose_other_place(view, other, f"{reason}; {other.place} has it")
        if not broken_bound(view, proposal):
            return within_bounds(view, proposal)
    return None


def reachable(view: SituationView) -> list[Alternative]:
    """Return the other places that the policy names and where no copy of the job is, as the situation lists them."""
    taken = {view.attempt.place, *(one.place for one in view.job.live_attempts)}
    return [one for one in view.situation.alternatives if one.place in view.policy.places and one.place not in taken]


def total(parts: Iterable[Interval | None], extra: Interval | None = None) -> Interval | None:
    """Return the interval of a sum of independent quantities, ``None`` if one is not known.

    Points add, and so do the squares of what lies between a point and an end.
    """
    known = [one for one in parts if one is not None]
    if len(known) < 2:
        return None
    listed = known if extra is None else [*known, extra]
    point = sum(one.point for one in listed)
    below = math.hypot(*(one.point - one.low for one in listed))
    above = math.hypot(*(one.high - one.point for one in listed))
    return Interval(point, max(point - below, 0.0), point + above, min(one.level for one in listed))


def fits_time(view: SituationView, needed_s: float, other: Alternative) -> bool:
    """Whether another place lets the job run as long as it needs here, or as long as it would need there."""
    asked_s = other.resources.walltime_s
    if asked_s is None:
        return False
    if other.elapsed_s is None or view.situation.total_s is None:
        return asked_s >= needed_s
    return asked_s >= needed_s * other.elapsed_s.point / view.situation.total_s.point


def chance_by(known: Interval, time_s: float) -> float:
    """Return the probability that a sum of waits and run times is over by ``time_s``, taken as normal on each side."""
    away = time_s - known.point
    spread = _spread(known.high - known.point if away > 0 else known.point - known.low, known.level)
    return _NORMAL.cdf(away / spread) if spread else float(away >= 0)


def _is_sooner(view: SituationView, other: Alternative, here: Interval, there: Interval) -> bool:
    saved_s = here.point - there.point
    margin_s = max(MARGIN_S, MARGIN * here.point)
    spread = math.hypot(_spread(here.point - here.low, here.level), _spread(there.high - there.point, there.level))
    sure = _NORMAL.cdf((saved_s - margin_s) / spread) if spread else float(saved_s > margin_s)
    return sure >= CONFIDENCE and _is_worth_its_price(view, other, here, there)


def _is_worth_its_price(view: SituationView, other: Alternative, here: Interval, there: Interval) -> bool:
    """Whether it is dearer there by no larger factor than it is sooner, as far as prices are known."""
    price, run = view.situation.cost_per_s, view.situation.total_s
    if other.cost is None or price is None or run is None:
        return view.policy.cost is None or other.cost is not None
    return other.cost * max(there.point, 1.0) <= price * run.point * here.point


def _meets_deadline(view: SituationView, here: Interval, there: Interval) -> bool:
    wanted_s = seconds_to_deadline(view)
    return wanted_s is not None and chance_by(there, wanted_s) >= chance_by(here, wanted_s) + CHANCE


def _saves(other: Alternative, here: Interval, there: Interval) -> str:
    return (
        f"at {other.place} it is expected to be done in {format_duration(there.point)}, "
        f"here in {format_duration(here.point)}"
    )


def _figures(here: Interval, there: Interval) -> Evidence:
    return {
        "here_s": here.point, "here_low_s": here.low, "there_s": there.point, "there_high_s": there.high,
    }  # fmt: skip


def _soonest(view: SituationView, other: Alternative) -> float:
    known = _there(view, other)
    return known.point if known is not None else math.inf


def _there(view: SituationView, other: Alternative) -> Interval | None:
    """Return the time to the result there; ``None`` where a part of it, such as that of staging, is not known."""
    if other.staging_s is None and view.job.checkpoint_source(other.place.system) is not None:
        return None
    return total([other.wait_s, other.elapsed_s], other.staging_s)


def _spread(half_width: float, level: float) -> float:
    return half_width / _NORMAL.inv_cdf(0.5 + level / 2)
