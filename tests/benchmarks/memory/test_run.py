"""The bench of memory: its points, one of them really measured and foretold, the bound's arithmetic, the page."""

import gc
import json
from pathlib import Path

import pytest

from benchmarks.memory import linear
from benchmarks.memory.bound import bound_factors, exceeded_left_out
from benchmarks.memory.page import tables
from benchmarks.memory.points import OPTIMIZERS, MemoryPoint, measure_point, memory_points
from benchmarks.memory.predictions import alternative_peaks, device_of, predict_points
from benchmarks.memory.run import MEASURED
from leadline.core.graph import Stage
from leadline.core.workload import Phase, Precision
from leadline.estimators.memory.device import peak_memory
from leadline.estimators.memory.heap import resident_peak_bytes

SMALL = MemoryPoint("resnet-mini", 32, 64, Phase.TRAINING, Precision.FP32, OPTIMIZERS[0])


def test_the_points_are_many_distinct_and_of_all_kinds():
    all_points = memory_points()
    assert 60 <= len({one.key for one in all_points}) == len(all_points)
    assert len({one.family for one in all_points}) >= 12
    assert set(OPTIMIZERS) | {None} == {one.optimizer for one in all_points}
    assert {Precision.FP32, Precision.AMP_BF16, Precision.BF16} == {one.precision for one in all_points}


def test_every_point_was_measured():
    document = json.loads(MEASURED.read_text())
    assert [one.key for one in memory_points()] == [one["key"] for one in document["points"]]
    for one in document["points"]:
        assert 0 < one["held_bytes"] < one["live_bytes"] < one["process_bytes"]


@pytest.mark.slow
def test_a_real_step_holds_what_was_foretold():
    pytest.importorskip("torch")
    told = measure_point(SMALL)
    machine = {"processor": "this one"}
    said = predict_points([SMALL], device_of({**told, "machine": machine, "threads": 1}), jobs=1)[SMALL.key]
    assert told["live_bytes"] == pytest.approx(said.live_bytes, rel=0.05)
    assert told["process_bytes"] == pytest.approx(said.process.point, rel=0.15)
    assert said.process.low < said.process.point < said.process.high


@pytest.mark.slow
def test_the_alternatives_are_asked_about_the_same_point():
    pytest.importorskip("torch")
    said = alternative_peaks([SMALL])[SMALL.key]
    assert pytest.approx(said.weights_bytes, rel=0.05) == 4 * 435_000 * 4
    assert said.weights_bytes < said.tracker_bytes
    assert 0 < said.weights_s < said.tracker_s


def test_the_factors_are_the_conformal_quantiles():
    ratios = [1 + one / 100 for one in range(1, 40)]
    assert bound_factors(ratios, ["a"] * 39) == (1.02, 1.38)
    assert bound_factors(ratios, ["a"] * 19 + ["b"] * 20, without="b")[1] == 1.19
    with pytest.raises(ValueError, match="18 points are too few"):
        bound_factors(ratios[:18], ["a"] * 18)


def test_a_family_unlike_the_others_exceeds_their_bound():
    alike = [1 + one / 1000 for one in range(40)]
    assert exceeded_left_out([*alike, *[1.5] * 10], ["a"] * 20 + ["b"] * 20 + ["odd"] * 10) >= 10 / 50
    assert exceeded_left_out(alike, ["a", "b"] * 20) < 0.1


def test_the_chain_holds_all_of_its_forward_half_at_its_peak():
    graph = linear.chain_graph(1000)
    assert sum(op.stage is Stage.FORWARD for op in graph.ops) == 500
    held = [event.size_bytes for event in graph.events if event.size_bytes > 0 and event.storage <= 500]
    assert peak_memory(graph).allocated_bytes == sum(held) + linear.SIZES[499 % len(linear.SIZES)]


@pytest.mark.parametrize("ask", [peak_memory, resident_peak_bytes])
def test_a_longer_step_makes_the_collector_search_no_more(ask):
    """Each search walks through much of the graph, so that an op of a long step would cost more than one of a short."""
    graph, searches = linear.chain_graph(5000), []
    gc.collect()
    gc.callbacks.append(lambda phase, told: searches.append((phase, told)))
    try:
        ask(graph)
    finally:
        gc.callbacks.pop()
    assert len(searches) <= 4


def test_the_page_marks_what_is_missed_and_sums_up_families():
    row = {"name": "live bytes, MAPE", "value": 7.0, "unit": "%", "target": 5.0, "met": False, "n": 2, "how": "so",
           "baseline": None}  # fmt: skip
    point = {
        "family": "vit", "live_error_percent": -4.0, "process_error_percent": 2.0, "tracker_error_percent": -9.0,
        "process_bytes": 2.0, "bound_bytes": 1.0,
    }  # fmt: skip
    text = tables(
        {"bench": "memory", "rows": [row], "details": [point, {**point, "live_error_percent": 8.0, "bound_bytes": 3.0}]}
    )
    assert "| live bytes, MAPE | **7 %** | ≤ 5 |  | 2 | so |" in text
    assert "| vit | 2 | 6.0 % | 8.0 % | 9.0 % | 2.0 % | 2.0 % | 1 of 2 |" in text


def test_the_page_of_published_peaks_says_what_stands_beside():
    row = {"name": "all: median error", "value": 2.0, "unit": "%", "target": 10.0, "met": True, "n": 5, "how": "so",
           "baseline": 16.1}  # fmt: skip
    text = tables({"bench": "detectors", "rows": [row], "details": []})
    assert text.startswith("## Segmenters and detectors\n")
    assert "| all: median error | 2 % | ≤ 10 | 16.1 % | 5 | so |" in text


def test_the_files_that_build_a_model_are_written_once(tmp_path: Path):
    first = SMALL.workload(tmp_path)
    assert SMALL.workload(tmp_path) == first
    assert [one.name for one in tmp_path.iterdir()] == ["resnet-mini-32.py"]
