"""Whether the runs that a model learned from had the hardware of a place; and if not, how much less is known there."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist

from leadline.core.estimate import Interval
from leadline.core.runs import Value
from leadline.core.trained_model import Feature
from leadline.uncertainty.distributions import log_spreads

SPREAD = 0.4
"""Standard deviation of ln(true ÷ predicted) that other hardware adds, the same as of makers' figures alone."""
UNKNOWN_SPREAD = 0.7
"""The same where not even the makers' figures are known on both sides: a factor of three either way."""

_NOISE = re.compile(r"\((?:r|tm)\)|@.*|\b(?:cpu|processor|nvidia|tesla|\d+-core)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class UnseenHardware:
    """What no run had of a node: the spread that it adds, and the sentence that says so.

    ``model`` says that it is the processor or the GPU itself, rather than how it is fitted out.
    """

    spread: float
    sentence: str
    model: bool = True

    def widen(self, interval: Interval) -> Interval:
        """Return the interval with the spread added, as of independent errors."""
        if interval.point <= 0 or not self.spread:
            return interval
        z = NormalDist().inv_cdf(0.5 + interval.level / 2)
        low, high = (math.exp(z * math.hypot(one, self.spread)) for one in log_spreads(interval))
        return Interval(interval.point, interval.point / low, interval.point * high, interval.level)


def is_same_model(one: str, other: str) -> bool:
    """Whether two names are of one model: ``Intel(R) Xeon(R) Gold 6148 CPU @ 2.40GHz`` and ``Intel Xeon Gold 6148``."""
    return _words(one) == _words(other)


def find_unseen_hardware(
    features: Mapping[str, Feature], node: Mapping[str, Value], gpus: int
) -> UnseenHardware | None:
    """Return what is unseen of a node for a job on so many GPUs; ``None`` where a run had the same.

    ``node`` holds the node's figures under the names of the features, with the runs' own spelling of a model that they
    had. The GPU counts for a job on GPUs, and the processor for one without. A model that learned from several kinds
    of node widens its own interval, and only the sentence is added.
    """
    name, speed = ("node_gpu", "node_gpu_bytes_per_s") if gpus else ("node_cpu", "node_hz")
    what = "GPU" if gpus else "processor"
    seen, here = features.get(name), node.get(name)
    if seen is None:
        return UnseenHardware(UNKNOWN_SPREAD, f"the runs do not say which {what} they had: the ranges are wider for it")
    if here is not None and str(here) in map(str, seen.choices):
        return None
    had = ", ".join(map(str, seen.choices[:3])) + " …" * (len(seen.choices) > 3)
    sentence = f"no run had its {what}{f' ({here})' if here else ''}, but {had}: the range is wider for it"
    return UnseenHardware(0.0 if seen.used else _spread(features.get(speed), node.get(speed)), sentence)


def _spread(seen: Feature | None, here: Value | None) -> float:
    """Return the spread that other hardware adds: more, the farther its speed is from the runs'."""
    if seen is None or not seen.low or not seen.high or not isinstance(here, int | float) or here <= 0:
        return UNKNOWN_SPREAD
    away = max(math.log(here / seen.high), math.log(seen.low / here), 0.0)
    return SPREAD + away


def _words(name: str) -> tuple[str, ...]:
    return tuple(re.sub(r"[-_]", " ", _NOISE.sub(" ", name.casefold())).split())
