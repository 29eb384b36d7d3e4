"""Steps of vision models by a graph neural network: families that it never saw, beside the law of ops."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import numpy.typing as npt

from leadline.bench.dnn.asked import LEVEL, Asked
from leadline.bench.dnn.gnn_data import GraphRows
from leadline.bench.dnn.vision import FOLDS, OURS, Lab, parts_of
from leadline.bench.dnn.vision_data import vision_steps
from leadline.core.errors import MissingExtra
from leadline.estimators.learned.gnn import GraphNetwork
from leadline.training.graph_network import network_of
from leadline.uncertainty.conformal import Residuals, calibrate

Array = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]

TABLE = "white box by GNN"
NEEDED = ("torch", "onnx", "onnxscript", "onnxruntime")
"""What training a network, writing it and running it need."""
INNER = 3
"""So many networks are trained, each without another part of the families, whose errors make the intervals."""
EPOCHS, QUICK_EPOCHS = 4, 1
"""Passes over the rows: what some four minutes of one core allow."""


def asked(data: Path, *, quick: bool) -> list[Asked]:
    """Return one fold of families that networks, trained here on the others, never saw.

    Raises:
        MissingExtra: torch, which trains, or onnxruntime, which asks, is not installed.
    """
    if any(find_spec(one) is None for one in NEEDED):
        raise MissingExtra("leadline bench dnn", "gnn-train")
    rows = GraphRows(vision_steps(data))
    family = rows.steps.family
    fold = parts_of(family, FOLDS, 0)
    ask = np.flatnonzero(fold == 0)
    said, residuals = _cross_fitted(rows, np.flatnonzero(fold != 0), ask, QUICK_EPOCHS if quick else EPOCHS)
    nothing = np.full(len(ask), np.nan)
    low, high = calibrate(residuals).interval(said, nothing, np.zeros(len(ask)), rows.names[ask].tolist(), LEVEL)
    lab = Lab(data)
    law, _ = lab.answered(ask, lab.laws(np.flatnonzero(fold != 0)))
    answers = {OURS: said, "law of ops": law, "mean of both": np.sqrt(said * law)}
    how = (
        f"the mean of {INNER} networks trained here in some four minutes, each on four fifths of the families less a "
        "part; intervals by the errors on those parts"
    )
    return [
        Asked(
            TABLE, "unseen families", rows.steps.step_s[ask], answers, low, high, rows.names[ask], mape=8.0, how=how,
            limits="kernels that only the unseen family calls, as under the law of ops",
        )
    ]  # fmt: skip


def answered(rows: GraphRows, network: GraphNetwork, ask: Whole) -> Array:
    """Return the step of each row in seconds, by the network as it is shipped."""
    return np.concatenate([network.step_s(batch) for _, batch in rows.batches(ask, 64)])


def _cross_fitted(rows: GraphRows, learn: Whole, ask: Whole, epochs: int) -> tuple[Array, Residuals]:
    """Return the geometric mean of the networks' answers, and the errors of each on the families it did not see."""
    inner = parts_of(rows.steps.family, INNER, 1)[learn]
    logs, errors = [], []
    for part in range(INNER):
        network, kept = _network(rows, learn[inner != part], epochs), learn[inner == part]
        logs.append(np.log(answered(rows, network, ask)))
        errors.append(
            Residuals.of(
                rows.steps.step_s[kept],
                answered(rows, network, kept),
                scale=rows.names[kept].tolist(),
                configuration=rows.steps.model[kept].tolist(),
            )
        )
    said: Array = np.exp(np.mean(logs, axis=0))
    return said, Residuals.joined(*errors)


def _network(rows: GraphRows, learn: Whole, epochs: int) -> GraphNetwork:
    """Return a network trained on the rows ``learn``, run by onnxruntime."""
    from leadline.bench.dnn.gnn_network import exported  # noqa: PLC0415 - torch, which only training needs
    from leadline.bench.dnn.train_gnn import Training, trained  # noqa: PLC0415

    network = trained(rows, learn, Training(epochs=epochs))
    return network_of(exported(network, rows.batch(learn[:4])), "the network trained here")
