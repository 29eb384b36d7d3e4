"""All tabular estimators by name, and how a fitted one is made again of its state."""

from leadline.core.errors import UnknownName
from leadline.estimators.tabular.additive import Sums
from leadline.estimators.tabular.blackbox import BlackBox
from leadline.estimators.tabular.ensemble import Ensemble
from leadline.estimators.tabular.gaussian_process import GaussianProcess
from leadline.estimators.tabular.leafwise import LeafwiseBoosting
from leadline.estimators.tabular.linear import Ridge
from leadline.estimators.tabular.network import Network
from leadline.estimators.tabular.phased import Phased
from leadline.estimators.tabular.ports import FittedEstimator, Kept, State
from leadline.estimators.tabular.posynomials import Posynomials
from leadline.estimators.tabular.scaling_law import ScalingLaw
from leadline.estimators.tabular.trees import Boosting, DecisionTree, QuantileBoosting
from leadline.estimators.tabular.unit_law import UnitLaw

_LAW = ScalingLaw("scaling_law", Posynomials())
_PLAIN = ScalingLaw("plain_law", Posynomials(), corrected=False)
"""For phases that are short beside the work."""
_STEADY = ScalingLaw("steady_law", Posynomials(), steady=True)
EXTRAPOLATING: tuple[Kept, ...] = (
    Phased(BlackBox("gaussian_process", GaussianProcess(), growth=0.1), _PLAIN),
    Phased(_LAW, _PLAIN),
    Phased(ScalingLaw("additive_law", Sums()), _PLAIN),
    Phased(UnitLaw("unit_law", _LAW, _STEADY), _PLAIN),
)
"""Those that say something sensible far from what was run; together they are the ensemble."""
_FIXED = Phased(UnitLaw("fixed_unit_law", _LAW, _STEADY, fixed=True), _PLAIN)
ESTIMATORS: dict[str, Kept] = {
    one.name: one
    for one in (
        BlackBox("linear", Ridge(), growth=0.3),
        BlackBox("tree", DecisionTree(), growth=1.0),
        BlackBox("boosting", Boosting(), growth=1.0),
        BlackBox("quantiles", QuantileBoosting(), growth=1.0, tells_noise=True),
        BlackBox("network", Network(), growth=0.7),
        *EXTRAPOLATING,
        _FIXED,
        Ensemble("ensemble", EXTRAPOLATING),
    )
}
AMPLE = BlackBox("leafwise_boosting", LeafwiseBoosting(), growth=1.0)
"""For thousands of rows; with fewer the others say more."""


def estimator(name: str) -> Kept:
    """Return the estimator of that name.

    Raises:
        UnknownName: there is none; the closest ones.
    """
    known = {**ESTIMATORS, AMPLE.name: AMPLE}
    if name not in known:
        raise UnknownName("estimator", name, known)
    return known[name]


def load(state: State) -> FittedEstimator:
    """Return the fitted estimator that ``dump`` gave.

    Raises:
        UnknownName: it is of an estimator that this version does not know.
    """
    return estimator(str(state["estimator"][0]) if "estimator" in state else "").load(state)
