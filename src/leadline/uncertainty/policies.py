"""Which of several models to keep, by what they predicted for runs that none of them saw."""

import math
from collections.abc import Callable, Mapping, Sequence

from leadline.core.errors import UnknownName
from leadline.uncertainty.metrics import mae, mape, ov_mape, pinball, underprediction

Key = Callable[[Sequence[float], Sequence[float]], tuple[float, ...]]
"""(measured, predicted) → what is compared, in order; less is better."""

QUANTILE = 0.9
"""Of the pinball policy: nine short predictions cost as much as one that is as far too long."""
WASTE = 0.2
"""Of the cost policy: what a second asked for and not used costs, where a second of running costs 1."""
GROWTH = 1.5
"""Of the cost policy: what a killed run asks for next, times what it asked for before."""
REQUEUE = 0.25
"""Of the cost policy: what each kill costs besides, in shares of the run: another wait in the queue."""
MOST_RERUNS = 40


def choose(policy: str, measured: Sequence[float], predictions: Mapping[str, Sequence[float]]) -> str:
    """Return the name of the model that ``policy`` keeps; of equals the first.

    Args:
        policy: a key of ``POLICIES``, or ``wtm-published``.
        measured: of the validation runs, above zero.
        predictions: model → what it predicted for the same runs; at least one.

    Raises:
        UnknownName: there is no such policy.
    """
    if policy == "wtm-published":
        return wtm_published(measured, predictions)
    if policy not in POLICIES:
        raise UnknownName("policy", policy, [*POLICIES, "wtm-published"])
    return min(predictions, key=lambda name: POLICIES[policy](measured, predictions[name]))


def wtm(measured: Sequence[float], predicted: Sequence[float]) -> tuple[float, float]:
    """Return HARP's walltime metric: the share under-predicted, then the error of the rest (UPP, OV_MAPE)."""
    return underprediction(measured, predicted), ov_mape(measured, predicted)


def wtm_published(measured: Sequence[float], predictions: Mapping[str, Sequence[float]]) -> str:
    """Return the model that HARP 1.0 picks, which is not the one that its walltime metric describes.

    Where several models share the least UPP, the release takes the least OV_MAPE of *all* models, so a model that
    under-predicts everything (OV_MAPE 0) wins the tie.
    """
    scores = {name: wtm(measured, predicted) for name, predicted in predictions.items()}
    least = min(upp for upp, _ in scores.values())
    first = [name for name, (upp, _) in scores.items() if upp == least]
    return first[0] if len(first) == 1 else min(scores, key=lambda name: scores[name][1])


def expected_cost(
    measured: Sequence[float],
    requested: Sequence[float],
    *,
    waste: float = WASTE,
    growth: float = GROWTH,
    requeue: float = REQUEUE,
) -> float:
    """Return the mean cost of asking for ``requested`` beyond that of the run itself, in shares of what was measured.

    What is asked for and not used costs ``waste`` of its length. A run that is killed has cost all it asked for and
    ``requeue`` of its length, and is run again with ``growth`` times as much until that is enough.

    Raises:
        ValueError: as the metrics do, or ``growth`` is not above 1.
    """
    if growth <= 1:
        raise ValueError(f"a rerun must ask for more than before: growth is {growth}")
    mae(measured, requested)  # the same demands on what is scored
    costs = [_cost(y, r, growth, waste, requeue) for y, r in zip(measured, requested, strict=True)]
    return sum(costs) / len(costs)


def _kills(needed: float, asked: float, growth: float) -> int:
    """Return how often a run is killed before what it asks for is enough."""
    if asked >= needed:
        return 0
    if asked <= needed * growth**-MOST_RERUNS:
        return MOST_RERUNS
    return math.ceil(math.log(needed / asked) / math.log(growth) - 1e-12)


def _cost(needed: float, asked: float, growth: float, waste: float, requeue: float) -> float:
    kills = _kills(needed, asked, growth)
    asked = max(asked, needed * growth**-MOST_RERUNS)
    lost = asked * (growth**kills - 1) / (growth - 1)
    return (lost + waste * max(asked * growth**kills - needed, 0.0)) / needed + requeue * kills


POLICIES: dict[str, Key] = {
    "mae": lambda measured, predicted: (mae(measured, predicted),),
    "mape": lambda measured, predicted: (mape(measured, predicted),),
    "wtm": wtm,
    "pinball": lambda measured, predicted: (pinball(measured, predicted, QUANTILE),),
    "cost": lambda measured, predicted: (expected_cost(measured, predicted),),
}
"""Policy → its key. ``mae`` and ``wtm`` are HARP's; ``mape`` counts short and long runs alike."""
