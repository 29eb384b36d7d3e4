"""The ensemble: no member alone leads it astray, and it is kept and asked as any other estimator."""

import numpy as np
import pytest

from leadline.core.errors import InvalidInput
from leadline.core.runs import Sample, Scale
from leadline.estimators.ports import Predictions
from leadline.estimators.tabular.registry import EXTRAPOLATING, Ensemble, load_estimator, median_prediction


def said(*points, spread=0.1, beyond=0.0):
    return Predictions(np.array(points), np.full(len(points), spread), np.full(len(points), beyond))


def test_a_member_that_goes_astray_moves_the_spread_and_not_the_point():
    together = median_prediction([said(10.0), said(11.0), said(1000.0, beyond=2.0)])
    assert pytest.approx(together.point[0]) == 11.0
    assert together.spread[0] > 2.0
    assert together.extrapolation[0] == 2.0


def test_members_that_agree_are_as_sure_as_they_say():
    together = median_prediction([said(10.0, spread=0.05), said(10.0, spread=0.1), said(10.0, spread=0.4)])
    assert pytest.approx(together.spread[0]) == 0.1


class Refusing:
    name = "refusing"

    def fit(self, *_, **__):
        raise InvalidInput("refusing needs 1000 runs")


def test_a_member_that_cannot_be_fitted_has_no_voice(dnn):
    runs = dnn.history(0, 30, reports=True)
    fitted = Ensemble("ensemble", (*EXTRAPOLATING, Refusing())).fit(runs, scale_features=dnn.scale_features)
    assert [member.name for member in EXTRAPOLATING] == [member.name for member in fitted.members]
    row = [runs[0].features]
    assert fitted.predict(row).point[0] == load_estimator(fitted.dump()).predict(row).point[0]


def test_an_ensemble_that_cannot_be_fitted_says_why_its_first_member_cannot():
    few = [Sample({"size": float(n)}, float(n), Scale.SCALED_DOWN) for n in range(1, 5)]
    with pytest.raises(InvalidInput, match="ensemble needs at least 6 finished runs"):
        Ensemble("ensemble", EXTRAPOLATING).fit(few, scale_features=("size",))
