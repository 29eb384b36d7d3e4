"""Boosting for ample data is LightGBM's, and needs numpy alone to be asked."""

import numpy as np
import pytest

from benchmarks.dnn.leafwise_boosting import LIGHTGBM_SETTINGS, LeafwiseBoosting
from leadline.estimators.tabular.trees import Trees

lightgbm = pytest.importorskip("lightgbm")


@pytest.fixture(scope="module")
def rows():
    dice = np.random.default_rng(0)
    x = dice.uniform(-2, 2, (600, 4))
    return x, np.sin(2 * x[:, 0]) + x[:, 1] * (x[:, 2] > 0), np.ones(600)


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr("benchmarks.dnn.leafwise_boosting.LEAFWISE_ROUNDS", 80)


def test_stored_trees_predict_as_lightgbm_does(rows, short):
    x, y, weight = rows
    single = x.astype(np.float32).astype(float)
    base = np.median(y)
    direct = lightgbm.train({**LIGHTGBM_SETTINGS, "seed": 3}, lightgbm.Dataset(single, y - base, weight=weight), 80)
    said, spread = LeafwiseBoosting().fit(x, y, weight, 3).predict(x)
    assert np.allclose(direct.predict(single) + base, said, atol=1e-9)
    assert np.isnan(spread).all()


def test_a_few_odd_rows_do_not_decide(rows, short):
    x, y, weight = rows
    odd = y.copy()
    odd[::50] += 1000.0
    said, _ = LeafwiseBoosting().fit(x, odd, weight, 0).predict(x)
    assert np.median(np.abs(said - y)) < 0.3


def test_fitted_estimators_survive_storage_as_arrays(rows, short):
    x, y, weight = rows
    fitted = LeafwiseBoosting().fit(x, y, weight, 0)
    again = Trees.load(fitted.dump())
    assert np.array_equal(fitted.predict(x)[0], again.predict(x)[0])
