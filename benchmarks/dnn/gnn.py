"""Steps of vision models of held-out families by a graph neural network, compared with the op model."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.dnn.gnn_data import GraphSteps
from benchmarks.dnn.splits import SplitResult
from benchmarks.dnn.vision import bounds_by_fold
from benchmarks.dnn.vision_data import vision_steps
from benchmarks.dnn.vision_lab import FOLDS, LEADLINE, VisionLab, fold_numbers
from leadline.core.errors import MissingExtra
from leadline.estimators.step_time.step_kernels import GraphNetwork
from leadline.training.shipped_models import load_network

Array = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]

TABLE = "white box by GNN"
NEEDED = ("torch", "onnx", "onnxscript", "onnxruntime")
"""Modules for training, exporting and running a network."""
EPOCHS, QUICK_EPOCHS = 4, 1
"""Passes over the rows; all folds then take some four minutes of one core."""


def splits(data: Path, *, quick: bool) -> list[SplitResult]:
    """Return all folds of families, each by a network trained on the others; a quick run takes one fold.

    Raises:
        MissingExtra: torch, for training, or onnxruntime, for inference, is not installed.
    """
    if any(find_spec(module) is None for module in NEEDED):
        raise MissingExtra("leadline bench dnn", "gnn-train")
    rows, lab = GraphSteps(vision_steps(data)), VisionLab(data)
    fold = fold_numbers(rows.steps.family, FOLDS, 0)
    ask = np.flatnonzero(fold == 0) if quick else np.arange(len(fold))
    predicted, op_model = np.empty(len(ask)), np.empty(len(ask))
    for number in np.unique(fold[ask]):
        learn, mask = np.flatnonzero(fold != number), fold[ask] == number
        predicted[mask] = predicted_steps(rows, _network(rows, learn, QUICK_EPOCHS if quick else EPOCHS), ask[mask])
        op_model[mask], _ = lab.answered(ask[mask], lab.laws(learn))
    low, high = bounds_by_fold(lab, ask, fold[ask], predicted, np.full(len(ask), np.nan))
    answers = {LEADLINE: predicted, "op model": op_model, "mean of both": np.sqrt(predicted * op_model)}
    how = f"networks trained here, {EPOCHS} passes over the other families in five folds; intervals by the other folds"
    return [
        SplitResult(
            TABLE, "unseen families", rows.steps.step_s[ask], answers, low, high, rows.names[ask], mape=8.0, how=how,
            limits="kernels that only the unseen family calls, as with the op model",
        )
    ]  # fmt: skip


def predicted_steps(rows: GraphSteps, network: GraphNetwork, ask: Whole) -> Array:
    """Return the step of each row in seconds, by the exported network."""
    return np.concatenate([network.step_s(batch) for _, batch in rows.batches(ask, 64)])


def _network(rows: GraphSteps, learn: Whole, epochs: int) -> GraphNetwork:
    """Return a network trained on the rows ``learn``, run by onnxruntime."""
    from benchmarks.dnn.gnn_network import onnx_network  # noqa: PLC0415 - torch, which only training needs
    from benchmarks.dnn.train_gnn import GnnTraining, train_network  # noqa: PLC0415

    network = train_network(rows, learn, GnnTraining(epochs=epochs))
    return load_network(onnx_network(network, rows.batch(learn[:4])), "the network trained here")
