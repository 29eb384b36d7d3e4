"""Three traced models as rows of the network's bench, with steps made up."""

import numpy as np
import pytest

from benchmarks.dnn.gnn_data import GraphSteps
from benchmarks.dnn.vision_data import VisionSteps
from benchmarks.dnn.vision_graphs import vision_graphs
from leadline.estimators.step_time.op_table import OpTable

MODELS = (("resnet18", "inference"), ("mobilenetv3_small_100", "training"), ("vit_tiny_patch16_224", "inference"))
BATCH = 32


@pytest.fixture(scope="session")
def traced_models():
    shipped = vision_graphs()
    return [shipped.find(model, 224, phase, explicit=False) for model, phase in MODELS]


@pytest.fixture(scope="session")
def graph_rows(traced_models):
    shipped = vision_graphs()
    ops, counted = [], []
    for one in traced_models:
        counted.append({len(ops) + place: count for place, count in enumerate(one.counts)})
        ops += [shipped.packed.ops[number].at(BATCH, 1, ()) for number in one.ops]
    models = np.array([one.model for one in traced_models])
    return GraphSteps(
        VisionSteps(
            OpTable.from_counts(ops, counted), np.array([shipped.number(one) for one in traced_models]),
            np.array([0, 1, 2]),
            np.array([0.01, 0.02, 0.03]), models, models, np.array(["rtx3090", "rtx3090", "rtx4090"]),
            np.array(["infer nhwc 240", "train nchw 112", "infer nchw 291"]),
            {"layout": np.array(["nhwc", "nchw", "nchw"])},
        )
    )  # fmt: skip
