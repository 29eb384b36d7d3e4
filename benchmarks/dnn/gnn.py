"""Steps of vision models by a graph neural network: families that it never saw, beside the law of ops."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.dnn.asked import Asked
from benchmarks.dnn.gnn_data import GraphRows
from benchmarks.dnn.vision import bounds_by_fold
from benchmarks.dnn.vision_data import vision_steps
from benchmarks.dnn.vision_lab import FOLDS, OURS, Lab, parts_of
from leadline.core.errors import MissingExtra
from leadline.estimators.learned.gnn import GraphNetwork
from leadline.training.graph_network import network_of

Array = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]

TABLE = "white box by GNN"
NEEDED = ("torch", "onnx", "onnxscript", "onnxruntime")
"""What training a network, writing it and running it need."""
EPOCHS, QUICK_EPOCHS = 4, 1
"""Passes over the rows: what some four minutes of one core allow for all folds."""


def asked(data: Path, *, quick: bool) -> list[Asked]:
    """Return all folds of families by networks that are trained here on the others; a quick run, one fold.

    Raises:
        MissingExtra: torch, which trains, or onnxruntime, which asks, is not installed.
    """
    if any(find_spec(one) is None for one in NEEDED):
        raise MissingExtra("leadline bench dnn", "gnn-train")
    rows, lab = GraphRows(vision_steps(data)), Lab(data)
    fold = parts_of(rows.steps.family, FOLDS, 0)
    ask = np.flatnonzero(fold == 0) if quick else np.arange(len(fold))
    said, law = np.empty(len(ask)), np.empty(len(ask))
    for number in np.unique(fold[ask]):
        learn, own = np.flatnonzero(fold != number), fold[ask] == number
        said[own] = answered(rows, _network(rows, learn, QUICK_EPOCHS if quick else EPOCHS), ask[own])
        law[own], _ = lab.answered(ask[own], lab.laws(learn))
    low, high = bounds_by_fold(lab, ask, fold[ask], said, np.full(len(ask), np.nan))
    answers = {OURS: said, "law of ops": law, "mean of both": np.sqrt(said * law)}
    how = f"networks trained here, {EPOCHS} passes over the other families in five folds; intervals by the other folds"
    return [
        Asked(
            TABLE, "unseen families", rows.steps.step_s[ask], answers, low, high, rows.names[ask], mape=8.0, how=how,
            limits="kernels that only the unseen family calls, as under the law of ops",
        )
    ]  # fmt: skip


def answered(rows: GraphRows, network: GraphNetwork, ask: Whole) -> Array:
    """Return the step of each row in seconds, by the network as it is shipped."""
    return np.concatenate([network.step_s(batch) for _, batch in rows.batches(ask, 64)])


def _network(rows: GraphRows, learn: Whole, epochs: int) -> GraphNetwork:
    """Return a network trained on the rows ``learn``, run by onnxruntime."""
    from benchmarks.dnn.gnn_network import exported  # noqa: PLC0415 - torch, which only training needs
    from benchmarks.dnn.train_gnn import Training, trained  # noqa: PLC0415

    network = trained(rows, learn, Training(epochs=epochs))
    return network_of(exported(network, rows.batch(learn[:4])), "the network trained here")
