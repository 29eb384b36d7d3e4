"""Keras scripts are traced by their backend, and ``fit`` gives the loop."""

import sys

import pytest

from leadline.core.errors import Untraceable
from leadline.core.graph import OpKind, Stage
from leadline.core.workload import ModelKind, ModelSource, Workload
from leadline.graphs.scripts import trace_script
from tests.support.forked_python import run_forked

FIT = """
import os
os.environ["KERAS_BACKEND"] = "{backend}"
import keras
import numpy as np
from keras import layers

x, y = np.ones((1000, 784), "float32"), np.zeros(1000, "int32")
model = keras.Sequential([keras.Input((784,)), layers.Dense(2048, activation="relu"), layers.Dense(10)])
model.compile(keras.optimizers.Adam(), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
model.fit(x, y, batch_size=100, epochs=7, validation_split=0.1)
raise SystemExit("the trace should have ended in the first epoch")
"""

AGAIN = """
for fold in range(4):
    for size in (1, 2, 3):
        model.fit(x[:500], y[:500], batch_size=100, epochs=2)
model.fit(x, y, batch_size=100)
"""


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_calls_of_fit_in_a_loop_are_epochs_and_a_later_one_is_a_note_unless_counted(tmp_path, backend):
    job = trace(tmp_path, FIT.format(backend=backend).split("model.fit")[0] + AGAIN)
    if backend == "torch" and job.loop.epochs == 4 * 3 * 2 + 2:
        assert job.loop.steps_per_epoch == 5
        assert not any("unknown" in note for note in job.notes if "data set" not in note)
        return
    # Threads of Keras may use simulated tensors at the same time, which ends the count.
    assert job.loop.epochs in ((4 * 3 * 2, None) if backend == "torch" else (4 * 3 * 2,))
    assert any("trains again in line" in note for note in job.notes)


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_fit_gives_its_step_and_its_loop(tmp_path, backend):
    job = trace(tmp_path, FIT.format(backend=backend))
    products = sum(op.flops * op.count for op in job.step.ops if op.kind is OpKind.GEMM)
    # Two layers forward, their weights' gradients, and the gradient of the hidden layer.
    assert products == pytest.approx(2 * 100 * (2 * 784 * 2048 + 3 * 2048 * 10), rel=0.01)
    assert {Stage.FORWARD, Stage.BACKWARD} <= {op.stage for op in job.step.ops}
    assert (job.loop.batch, job.loop.steps_per_epoch, job.loop.epochs) == (100, 9, 7)
    assert job.loop.optimizer == "adam"
    # Without the optimizer's slots, and what counts its steps and measures the loss.
    assert job.step.parameters == 784 * 2048 + 2048 + 2048 * 10 + 10


def test_a_layer_that_keras_does_not_compile_is_named(tmp_path):
    code = FIT.format(backend="jax").replace("np.ones((1000, 784)", "np.ones((1000, 28, 28, 1)")
    code = code.replace("keras.Input((784,))", "keras.Input((28, 28, 1)), layers.RandomZoom(0.1), layers.Flatten()")
    with pytest.raises(
        Untraceable, match=r"without jax\.jit, since JAX cannot compile RandomZoom: apply that to the data"
    ):
        trace(tmp_path, code)


def trace(folder, code):
    script = folder / "train.py"
    script.write_text(code)
    words = (sys.executable, str(script))
    return trace_script(Workload(ModelSource(ModelKind.COMMAND, " ".join(words), words)), runner=run_forked)
