"""The fit of collectives' curves, on times made by known curves and on the measured ones."""

import os
from pathlib import Path

import numpy as np
import pytest

from benchmarks.scale.collectives import (
    DEVIATIONS,
    ORDER,
    STARTS,
    CollectiveRows,
    _predict,
    collective_results,
    fit_curves,
    nccl_rows,
)
from leadline.estimators.parallelism.collectives import Collective


@pytest.fixture(scope="module")
def data():
    """Return the folder of measured data, which is not in the repository."""
    if "LEADLINE_DATA" not in os.environ:
        pytest.skip("LEADLINE_DATA names no folder of measured data")
    return Path(os.environ["LEADLINE_DATA"])


def rows_of(theta, generation, seed, noise=0.05):
    """Return times that curves give at 10 sizes, 3 numbers of devices and two collectives, with noise."""
    sizes, devices, kinds = (grid.ravel() for grid in np.meshgrid(np.logspace(-7, -2, 10), [2.0, 4.0, 8.0], [0, 1]))
    names = np.full(len(sizes), generation)
    rows = CollectiveRows(names, names, kinds.astype(int), devices, sizes, sizes)
    errors = np.exp(noise * np.random.default_rng(seed).standard_normal(len(sizes)))
    return CollectiveRows(names, names, rows.kind, devices, sizes, _predict(theta, rows)[0] * errors)


def test_the_fit_finds_the_curves_that_made_the_times_and_their_mean_predicts_a_new_generation():
    random = np.random.default_rng(1)
    mean = np.tile(STARTS, (len(ORDER), 1)) + 0.1
    theta = {name: mean + DEVIATIONS * random.standard_normal(5) for name in ("first", "second", "third", "new")}
    parts = {name: rows_of(theta[name], name, seed) for seed, name in enumerate(theta)}
    fit = fit_curves(CollectiveRows.joined(*(parts[name] for name in ("first", "second", "third"))))
    seen = np.log(parts["first"].seconds / fit.predict(parts["first"], "first")[0])
    unseen = np.log(parts["new"].seconds / fit.predict(parts["new"])[0])
    assert np.sqrt(np.mean(seen**2)) == pytest.approx(0.05, rel=0.2)
    spreads, freedom = fit.spreads()
    assert np.abs(unseen).mean() < 2 * spreads[0]
    assert freedom == 4


def test_sizes_count_elements_so_no_link_carries_more_than_its_rate(data):
    rows = nccl_rows(data)
    moved = rows.work / rows.seconds * 2 * (rows.devices - 1) / rows.devices
    reduced = rows.kind == ORDER.index(Collective.ALL_REDUCE)
    assert moved[~reduced].max() < 1
    assert 0.6 < moved[rows.generation == "NVLink 4"].max() < 1.05


def test_the_intervals_hold_on_generations_that_the_fit_has_not_seen(data):
    rows = {row.name: row for row in collective_results(data)}
    assert rows["collectives, generation left out: 90 % intervals that hold"].met
    assert rows["collectives, H200 from H100: MAPE"].value < 12
