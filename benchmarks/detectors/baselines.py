"""What simpler methods say of the same rows, each family told from all others."""

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
    """Return what each method says of each row in bytes, after seeing the rows of all other families."""
    memory = np.array([row.memory_bytes for row in rows])
    families = np.array([row.family for row in rows])
    weights = np.array([float(graph.parameter_bytes) for graph in graphs])
    table = np.array([_features(row, graph) for row, graph in zip(rows, graphs, strict=True)])
    methods: dict[str, Callable[[Places, Places], Array]] = {
        WEIGHTS: lambda learn, ask: np.median(memory[learn] / weights[learn]) * weights[ask],
        NEAREST: lambda learn, ask: nearest_row(table[learn], memory[learn], table[ask]),
        BOOSTING: lambda learn, ask: boosted_rows(table[learn], memory[learn], table[ask]),
    }
    found = {name: np.zeros(len(rows)) for name in methods}
    for family in np.unique(families):
        ask, learn = (np.flatnonzero(mine) for mine in (families == family, families != family))
        for name, method in methods.items():
            found[name][ask] = method(learn, ask)
    return found


def _features(row: PublishedPeak, graph: DetectorGraph) -> list[float]:
    """Return what a table says of a run: size of the batch, weights, what is learned, depth of the backbone."""
    pixels = graph.images * graph.height * graph.width
    depth = parse_number(row.cells.get("Backbone", "")) or 0.0
    return [
        float(np.log(pixels)), float(graph.images), float(graph.height), float(graph.width),
        float(np.log(graph.parameters)), float(np.log(graph.parameters * pixels)), depth,
        float(row.package == "mmdet"), float(any("mask" in name for name in row.cells)),
    ]  # fmt: skip
