"""The fit of the times of matrix products, and the card of the shipped curves."""

import os
from pathlib import Path

import msgspec
import numpy as np
import pytest

from benchmarks.scale.products import ProductRows, curve_name, fit_curve, held_out_errors, predict, product_rows
from benchmarks.scale.ship import PRODUCTS_CARD_FILE
from benchmarks.shipped.cards import ProductTimesCard
from leadline.catalog.read import TomlCatalog
from leadline.estimators.parallelism.product_times import PARAMETERS, ProductCurves
from leadline.training.decoder_steps import shipped_step_model
from leadline.training.shipped_files import read_shipped

H100, H200 = (TomlCatalog().device(name) for name in ("H100 SXM5 80GB", "H200 SXM"))
CURVES = shipped_step_model().curves
CURVE = CURVES.logs[CURVES.names.index("9.0 bfloat16")]


def timed(device, curve, count=400, noise=0.0, seed=0):
    """Return products that take the time of a curve, of which the second engine takes a tenth more."""
    generator = np.random.default_rng(seed)
    m, n, k = 2.0 ** generator.integers(8, 15, (3, count))
    engine = generator.integers(0, 2, count)
    rows = ProductRows(device, "bfloat16", m, n, k, np.ones(count), engine)
    spread = generator.normal(0, noise, count)
    return ProductRows(device, "bfloat16", m, n, k, np.exp(predict(curve, [rows]) + spread + 0.1 * engine), engine)


def test_the_fit_finds_the_curve_that_made_the_times():
    rows = timed(H100, CURVE, noise=0.02)
    predicted = predict(fit_curve([rows]), [rows])
    offsets = 0.1 * (rows.engine - 0.5)
    assert np.median(np.abs(np.log(rows.elapsed_s) - predicted - offsets)) < 0.03


def test_the_errors_are_those_on_rows_that_took_no_part():
    slower = CURVE + np.log(1.5) * np.array([name == "launch_s" for name in PARAMETERS])
    slower[:4] -= np.log(1.5)
    parts = [timed(H100, CURVE), timed(H200, slower, seed=1)]
    figures = held_out_errors(parts, ProductCurves(("9.0 bfloat16",), CURVE[None]))
    assert figures["9.0 bfloat16: half of the shapes"]["median"] < 30
    assert figures["9.0 bfloat16: H200 SXM by the other device"]["median"] == pytest.approx(33, abs=12)
    assert figures["9.0 bfloat16: H200 SXM by the other device"]["n"] == 400


def test_the_card_describes_the_shipped_curves():
    card = msgspec.json.decode(read_shipped(PRODUCTS_CARD_FILE), type=ProductTimesCard)
    for name, logs in zip(CURVES.names, CURVES.logs, strict=True):
        assert list(card.curves[name].values()) == pytest.approx(np.exp(logs).tolist(), rel=1e-3)
    halves = {name: figures for name, figures in card.errors.items() if name.endswith("half of the shapes")}
    assert set(halves) == {f"{name}: half of the shapes" for name in CURVES.names}
    assert all(figures["median"] < min(15, figures["roofline"]) for figures in halves.values())
    assert "aiconfigurator" in card.sources[0]


def test_the_shipped_curves_predict_the_measured_products():
    folder = Path(os.environ.get("LEADLINE_DATA", "missing"))
    if not (folder / "aic_gemm.parquet").is_file():
        pytest.skip("LEADLINE_DATA names no folder with aic_gemm.parquet")
    for part in product_rows(folder):
        curve = CURVES.logs[CURVES.names.index(curve_name(part))]
        assert np.median(np.abs(np.log(part.elapsed_s) - predict(curve, [part]))) < 0.2, part.device.name
