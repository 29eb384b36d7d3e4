"""Predictions of simpler methods for the same rows, each family from all others."""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from benchmarks.detectors.graphs import DetectorGraph
from benchmarks.detectors.published import PublishedPeak, parse_number
from benchmarks.dnn.baselines import boosted_rows, nearest_row
from benchmarks.dnn.splits import Array

Places = npt.NDArray[np.int64]
WEIGHTS, NEAREST, BOOSTING = "weights × constant", "nearest neighbour", "plain boosting"


def baseline_peaks(rows: Sequence[PublishedPeak], graphs: Sequence[DetectorGraph]) -> dict[str, Array]:
    """Return each method's prediction of each row in bytes, from the rows of all other families."""
    memory = np.array([row.memory_bytes for row in rows])
    families = np.array([row.family for row in rows])
    weights = np.array([float(graph.parameter_bytes) for graph in graphs])
    table = np.array([_features(row, graph) for row, graph in zip(rows, graphs, strict=True)])
    methods: dict[str, Callable[[Places, Places], Array]] = {
        WEIGHTS: lambda learn, ask: np.median(memory[learn] / weights[learn]) * weights[ask],
        NEAREST: lambda learn, ask: nearest_row(table[learn], memory[learn], table[ask]),
        BOOSTING: lambda learn, ask: boosted_rows(table[learn], memory[learn], table[ask]),
    }
    predictions = {name: np.zeros(len(rows)) for name in methods}
    for family in np.unique(families):
        ask, learn = np.flatnonzero(families == family), np.flatnonzero(families != family)
        for name, method in methods.items():
            predictions[name][ask] = method(learn, ask)
    return predictions


def _features(row: PublishedPeak, graph: DetectorGraph) -> list[float]:
    """Return the features of a run: size of the batch, weights, depth of the backbone, package, masks."""
    pixels = graph.images * graph.height * graph.width
    depth = parse_number(row.cells.get("Backbone", "")) or 0.0
    return [
        float(np.log(pixels)), float(graph.images), float(graph.height), float(graph.width),
        float(np.log(graph.parameters)), float(np.log(graph.parameters * pixels)), depth,
        float(row.package == "mmdet"), float(any("mask" in name for name in row.cells)),
    ]  # fmt: skip
