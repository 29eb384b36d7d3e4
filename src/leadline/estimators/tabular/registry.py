"""All tabular estimators by name, their ensemble, and how to restore a fitted one.

The ensemble is the median of estimators of different form, so that no single one goes astray.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from leadline.core.errors import InvalidInput, UnknownName
from leadline.core.frozen import Frozen
from leadline.core.runs import Sample, Value
from leadline.estimators.gp import GaussianProcess
from leadline.estimators.ports import FittedEstimator, FittedModel, Predictions, State, TabularEstimator, unnest
from leadline.estimators.tabular.additive_model import AdditiveForm
from leadline.estimators.tabular.black_box import BlackBox, FittedBlackBox, PerceptronRegression, RidgeRegression
from leadline.estimators.tabular.phased_model import PhasedModel, UnitModel
from leadline.estimators.tabular.posynomials import PosynomialForm
from leadline.estimators.tabular.scaling_model import ScalingModel
from leadline.estimators.tabular.trees import Boosting, DecisionTree, QuantileBoosting, Trees

LEAST_MEMBERS = 2


def median_prediction(predictions: Sequence[Predictions]) -> Predictions:
    """Return the median of the logarithms; disagreement adds to the members' own spread."""
    logs = np.log([prediction.point for prediction in predictions])
    middle = np.median(logs, axis=0)
    spread = np.median([prediction.spread**2 for prediction in predictions], axis=0)
    disagreement = np.mean((logs - middle) ** 2, axis=0)
    return Predictions(
        np.exp(middle),
        np.sqrt(spread + disagreement),
        np.max([prediction.extrapolation for prediction in predictions], axis=0),
    )


class FittedEnsemble(FittedModel):
    """Fitted members with equal votes."""

    members: tuple[FittedEstimator, ...]

    def predict(self, rows: Sequence[Mapping[str, Value]]) -> Predictions:
        """Predict each row by the median of the members."""
        return median_prediction([member.predict(rows) for member in self.members])

    def dump(self) -> State:
        """Return all members as arrays."""
        return {**super().dump(), "members": np.array([member.name for member in self.members])}


class Ensemble(Frozen):
    """Fits every member that the samples allow."""

    name: str
    members: tuple[TabularEstimator, ...]

    def fit(self, samples: Sequence[Sample], *, scale_features: Sequence[str] = (), seed: int = 0) -> FittedEnsemble:
        """Fit the members; one that cannot be fitted is left out. ``InvalidInput`` if fewer than two can be."""
        fitted, why = [], ""
        for member in self.members:
            try:
                fitted.append(member.fit(samples, scale_features=scale_features, seed=seed))
            except InvalidInput as error:
                why = why or str(error).replace(member.name, self.name, 1)
        if len(fitted) < LEAST_MEMBERS:
            raise InvalidInput(why or f"{self.name} needs two fitted estimators, but has {len(fitted)}")
        return FittedEnsemble(self.name, tuple(fitted))

    def load(self, state: State) -> FittedEnsemble:
        """Return the fitted ensemble that ``dump`` gave."""
        by_name = {member.name: member for member in self.members}
        names = [str(member) for member in state["members"]]
        return FittedEnsemble(
            self.name, tuple(by_name[name].load(unnest(f"member{i}", state)) for i, name in enumerate(names))
        )


_LAW = ScalingModel("scaling_law", PosynomialForm())
# For phases that are short compared with the work.
_PLAIN = ScalingModel("plain_law", PosynomialForm(), corrected=False)
_STEADY = ScalingModel("steady_law", PosynomialForm(), steady=True)
# Estimators that extrapolate sensibly; together they form the ensemble.
EXTRAPOLATING: tuple[TabularEstimator, ...] = (
    PhasedModel(BlackBox("gaussian_process", GaussianProcess(), growth=0.1), _PLAIN),
    PhasedModel(_LAW, _PLAIN),
    PhasedModel(ScalingModel("additive_law", AdditiveForm()), _PLAIN),
    PhasedModel(UnitModel("unit_law", _LAW, _STEADY), _PLAIN),
)
ESTIMATORS: dict[str, TabularEstimator] = {
    estimator.name: estimator
    for estimator in (
        BlackBox("linear", RidgeRegression(), growth=0.3),
        BlackBox("tree", DecisionTree(), growth=1.0),
        BlackBox("boosting", Boosting(), growth=1.0),
        BlackBox("quantiles", QuantileBoosting(), growth=1.0, tells_noise=True),
        BlackBox("network", PerceptronRegression(), growth=0.7),
        *EXTRAPOLATING,
        PhasedModel(UnitModel("fixed_unit_law", _LAW, _STEADY, fixed=True), _PLAIN),
        Ensemble("ensemble", EXTRAPOLATING),
    )
}
# The estimator of steps that ``benchmarks.dnn.ship`` fits; here it is only restored.
SHIPPED_BLACK_BOX = "leafwise_boosting"


def load_estimator(state: State) -> FittedEstimator:
    """Return the fitted estimator that ``dump`` wrote; ``UnknownName`` if this version does not know the estimator."""
    name = str(state["estimator"][0]) if "estimator" in state else ""
    if name == SHIPPED_BLACK_BOX:
        return FittedBlackBox.load(state, regressor=Trees.load)
    if name not in ESTIMATORS:
        raise UnknownName("estimator", name, [*ESTIMATORS, SHIPPED_BLACK_BOX])
    return ESTIMATORS[name].load(state)
