"""The bench of power limits finds the exponent that made the rates, and its table fits the catalog."""

import os
from pathlib import Path

import numpy as np
import pytest

from benchmarks.scale.power import (
    LIMITS_W,
    LimitedRate,
    fit_exponent,
    limited_rate_pairs,
    offline_rates,
    power_rows,
    predict_rates,
)
from leadline.app.composition import toolbox
from leadline.estimators.step_time.power_limit import EXPONENT_SPREAD, LEAST_MEASURED, LIMIT_EXPONENT, limit_power


def pairs(exponent, noise=0.0):
    generator = np.random.default_rng(0)
    asked = [
        LimitedRate(device, model, share, 0.0)
        for device in ("A", "B", "C") for model in ("bert", "resnet50") for share in (0.5, 0.7, 0.9)
    ]  # fmt: skip
    rates = predict_rates(asked, exponent) * np.exp(generator.normal(0, noise, len(asked)))
    return [pair._replace(rate=float(rate)) for pair, rate in zip(asked, rates, strict=True)]


@pytest.mark.parametrize("exponent", [0.4, 0.8])
def test_the_fit_finds_the_exponent_and_its_deviation(exponent):
    found, deviation = fit_exponent(pairs(exponent))
    assert found == pytest.approx(exponent, abs=0.011)
    assert deviation < 0.02
    assert fit_exponent(pairs(exponent, noise=0.05))[1] > 0.05


def test_the_predicted_rate_is_that_of_the_product():
    device = toolbox().catalog.device("H100 SXM5 80GB")
    limited = limit_power(device, 350)
    bert, resnet = predict_rates([LimitedRate("", name, 0.5, 1) for name in ("bert", "resnet50")], LIMIT_EXPONENT)
    assert bert == pytest.approx(limited.peak_flops_per_s["bfloat16"] / device.peak_flops_per_s["bfloat16"])
    assert bert < resnet < limited.memory_bytes_per_s / device.memory_bytes_per_s


def test_every_limit_is_one_that_the_device_accepts():
    catalog = toolbox().catalog
    shares = [watts / catalog.device(device).tdp_w for _, device, _, limits in LIMITS_W for watts in limits.values()]
    assert min(shares) >= LEAST_MEASURED
    assert max(shares) < 1


def test_rates_are_compared_within_a_release_and_system_alone():
    rows = [
        ("v4.1", "H200-SXM-141GBx8_TRT", "bert-99", 100.0), ("v4.1", "H200-SXM-141GBx8_TRT_MaxQ", "bert-99", 75.0),
        ("v4.0", "H200-SXM-141GBx8_TRT", "bert-99", 50.0), ("v4.1", "other_MaxQ", "bert-99", 1.0),
        ("v4.1", "H200-SXM-141GBx8_TRT", "gptj-99", 10.0),
    ]  # fmt: skip
    names = ("version", "Platform", "Model", "rate")
    table = {name: np.array(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}
    assert limited_rate_pairs(table) == [LimitedRate("H200 SXM", "bert", 400 / 700, 0.75)]


def test_the_shipped_exponent_is_the_fit_of_the_measured_rates():
    folder = Path(os.environ.get("LEADLINE_DATA", "missing"))
    if not (folder / "mlperf_inference.parquet").is_file():
        pytest.skip("LEADLINE_DATA names no folder with mlperf_inference.parquet")
    exponent, deviation = fit_exponent(limited_rate_pairs(offline_rates(folder)))
    assert exponent == pytest.approx(LIMIT_EXPONENT, abs=0.006)
    assert deviation == pytest.approx(EXPONENT_SPREAD, abs=0.006)
    assert all(row.met for row in power_rows(folder))
