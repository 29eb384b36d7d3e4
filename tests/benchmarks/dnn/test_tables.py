"""The tables of many GPUs: what they hold out, and what they reach on the measured data where these are at hand."""

import os
from pathlib import Path

import numpy as np
import pytest

from benchmarks.dnn.baselines import boosted_rows, nearest_row
from benchmarks.dnn.run import TABLES, table_splits
from benchmarks.dnn.splits import RefusedSplit, SplitResult, joined_split

pytest.importorskip("sklearn")


@pytest.fixture(scope="module")
def data():
    folder = Path(os.environ.get("LEADLINE_DATA") or "-")
    if not (folder / "vidur_collectives.parquet").is_file():
        pytest.skip("LEADLINE_DATA names no folder of measured data")
    pytest.importorskip("pyarrow")
    return folder


def test_every_refusal_is_counted_and_all_are_asked_for():
    row, *_ = RefusedSplit("collectives", "other links", 9, 10, 80.0, "a guess is off by 80 %").rows()
    assert pytest.approx(90.0) == row.value
    assert row.met is False
    assert RefusedSplit("collectives", "other links", 10, 10, 80.0).rows()[0].met is True


def test_splits_of_one_kind_are_joined_row_by_row():
    ones = np.ones(2)
    parts = [
        SplitResult("t", name, ones * 100, {"Leadline": ones * predicted}, ones * 90, ones * 110, np.array(["a", name]))
        for name, predicted in (("x", 110.0), ("y", 130.0))
    ]
    whole = joined_split("t", "both", parts, mape=25.0)
    assert pytest.approx(20.0) == whole.rows()[0].value
    assert whole.group.tolist() == ["a", "x", "a", "y"]
    assert [whole.more["parts"][name]["mape"] for name in "xy"] == [10.0, 30.0]


def test_the_nearest_row_is_the_nearest_in_deviations():
    """The second column varies a thousand times as much as the first, and says as little."""
    learned = np.array([[0.0, 0.0], [1.0, 1000.0]])
    assert nearest_row(learned, np.array([7.0, 9.0]), np.array([[0.2, 400.0]])).tolist() == [7.0]
    assert nearest_row(learned, np.array([7.0, 9.0]), np.array([[0.2, 900.0]]), np.array([1e9, 1.0])).tolist() == [9.0]


def test_boosting_learns_a_step_of_positive_values():
    x = np.arange(200.0)[:, None]
    predicted = boosted_rows(x, np.where(x[:, 0] < 100, 1.0, 100.0), np.array([[10.0], [190.0]]))
    assert pytest.approx([1.0, 100.0], rel=0.1) == predicted


@pytest.mark.parametrize("table", ["collectives", "whole_runs", "decode"])
@pytest.mark.timeout(300)
def test_a_table_beats_every_plain_method_on_every_split(data, table):
    assert table in TABLES
    for split in table_splits(table, data, quick=True):
        if isinstance(split, RefusedSplit):
            assert split.questions == split.refused > 0
            assert split.guessed > 20
            continue
        medians = {name: float(np.nanmedian(split.errors(name))) for name in split.answers}
        means = {name: float(np.nanmean(split.errors(name))) for name in split.answers}
        assert min(means, key=means.get) == "Leadline", (split.name, means)
        assert medians["Leadline"] <= 1.5 * min(medians.values()), (split.name, medians)
        assert (split.low <= split.answers["Leadline"]).all()
        assert (split.answers["Leadline"] <= split.high).all()
