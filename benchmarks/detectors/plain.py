"""What simpler methods say of the same rows, each family told from all others."""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from benchmarks.detectors.graphs import PackedGraph
from benchmarks.detectors.measured import Measured, number
from benchmarks.dnn.asked import Array
from benchmarks.dnn.plain_methods import boosting, nearest

Places = npt.NDArray[np.int64]
WEIGHTS, NEAREST, BOOSTING = "weights × constant", "nearest neighbour", "plain boosting"


def said(rows: Sequence[Measured], graphs: Sequence[PackedGraph]) -> dict[str, Array]:
    """Return what each method says of each row in bytes, after seeing the rows of all other families."""
    memory = np.array([row.memory_bytes for row in rows])
    families = np.array([row.family for row in rows])
    weights = np.array([float(graph.parameter_bytes) for graph in graphs])
    table = np.array([_features(row, graph) for row, graph in zip(rows, graphs, strict=True)])
    methods: dict[str, Callable[[Places, Places], Array]] = {
        WEIGHTS: lambda learn, ask: np.median(memory[learn] / weights[learn]) * weights[ask],
        NEAREST: lambda learn, ask: nearest(table[learn], memory[learn], table[ask]),
        BOOSTING: lambda learn, ask: boosting(table[learn], memory[learn], table[ask]),
    }
    found = {name: np.zeros(len(rows)) for name in methods}
    for family in np.unique(families):
        ask, learn = (np.flatnonzero(mine) for mine in (families == family, families != family))
        for name, method in methods.items():
            found[name][ask] = method(learn, ask)
    return found


def _features(row: Measured, graph: PackedGraph) -> list[float]:
    """Return what a table says of a run: size of the batch, weights, what is learned, depth of the backbone."""
    pixels = graph.images * graph.height * graph.width
    depth = number(row.cells.get("Backbone", "")) or 0.0
    return [
        float(np.log(pixels)), float(graph.images), float(graph.height), float(graph.width),
        float(np.log(graph.parameters)), float(np.log(graph.parameters * pixels)), depth,
        float(row.package == "mmdet"), float(any("mask" in name for name in row.cells)),
    ]  # fmt: skip
