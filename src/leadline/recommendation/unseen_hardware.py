"""Check whether a model was trained on the hardware of a place; if not, widen its intervals there."""

import math
import re
from collections.abc import Mapping
from statistics import NormalDist

from leadline.core.estimate import Interval
from leadline.core.frozen import Frozen
from leadline.core.runs import Value
from leadline.core.trained_model import Feature
from leadline.uncertainty.distributions import log_spreads

SPREAD = 0.4
"""Standard deviation of ln(true ÷ predicted) on other hardware, as for estimates from vendor specifications."""
UNKNOWN_SPREAD = 0.7  # the same without vendor specifications of both: a factor of three either way

_NOISE = re.compile(r"\((?:r|tm)\)|@.*|\b(?:cpu|processor|nvidia|tesla|\d+-core)\b", re.IGNORECASE)


class UnseenHardware(Frozen):
    """Hardware of a node that no run had: the spread that it adds, and a sentence about it."""

    spread: float
    sentence: str
    model: bool = True  # False for a node that has the same processor or GPU, but is equipped in another way

    def widen(self, interval: Interval) -> Interval:
        """Return the interval with the spread added as an independent error."""
        if interval.point <= 0 or not self.spread:
            return interval
        z = NormalDist().inv_cdf(0.5 + interval.level / 2)
        low, high = (math.exp(z * math.hypot(spread, self.spread)) for spread in log_spreads(interval))
        return Interval(interval.point, interval.point / low, interval.point * high, interval.level)


def is_same_model(first: str, second: str) -> bool:
    """Return whether two names are of one model: ``Intel(R) Xeon(R) Gold 6148 CPU`` and ``Intel Xeon Gold 6148``."""
    return _words(first) == _words(second)


def find_unseen_hardware(
    features: Mapping[str, Feature], node: Mapping[str, Value], gpus: int
) -> UnseenHardware | None:
    """Return the hardware of a node that no run had, for a job on so many GPUs; ``None`` if a run had it.

    A job on GPUs depends on the GPU, another job on the processor. A model trained on several kinds of node widens its
    own intervals, so it only gets the sentence. ``node`` holds its properties by the names of the model's ``features``;
    a processor or GPU that the runs had is spelled as in the runs.
    """
    name, speed = ("node_gpu", "node_gpu_bytes_per_s") if gpus else ("node_cpu", "node_hz")
    kind = "GPU" if gpus else "processor"
    feature, value = features.get(name), node.get(name)
    if feature is None:
        return UnseenHardware(UNKNOWN_SPREAD, f"the runs do not say which {kind} they had: wider intervals")
    if value is not None and str(value) in map(str, feature.choices):
        return None
    had = ", ".join(map(str, feature.choices[:3])) + " …" * (len(feature.choices) > 3)
    sentence = f"no run had its {kind}{f' ({value})' if value else ''}, but {had}: wider interval"
    return UnseenHardware(0.0 if feature.used else _spread(features.get(speed), node.get(speed)), sentence)


def _spread(feature: Feature | None, speed: Value | None) -> float:
    if feature is None or not feature.low or not feature.high or not isinstance(speed, int | float) or speed <= 0:
        return UNKNOWN_SPREAD
    distance = max(math.log(speed / feature.high), math.log(feature.low / speed), 0.0)
    return SPREAD + distance


def _words(name: str) -> tuple[str, ...]:
    return tuple(re.sub(r"[-_]", " ", _NOISE.sub(" ", name.casefold())).split())
