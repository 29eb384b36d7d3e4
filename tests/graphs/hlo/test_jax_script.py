"""JAX scripts run unmodified until their jitted step was called; nothing of it is computed."""

import importlib.util
import sys

import pytest

from leadline.core.errors import Untraceable
from leadline.core.graph import OpKind, Stage
from leadline.core.workload import ModelKind, ModelSource, Workload
from leadline.graphs.scripts import trace_script
from tests.support.forked_python import run_forked

pytestmark = pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("jax", "flax", "optax")), reason="needs the [jax] extra"
)

LINEN = """
import argparse
import jax, jax.numpy as jnp, numpy as np, optax
from flax import linen as nn
from flax.training import train_state

class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(10)(nn.relu(nn.Dense(2048)(x)))

def loss_of(state, params, x, y):
    return optax.softmax_cross_entropy_with_integer_labels(state.apply_fn({"params": params}, x), y).mean()

@jax.jit
def train_step(state, x, y):
    loss, grads = jax.value_and_grad(lambda params: loss_of(state, params, x, y))(state.params)
    return state.apply_gradients(grads=grads), loss

@jax.jit
def gradients(state, x, y):
    return jax.value_and_grad(lambda params: loss_of(state, params, x, y))(state.params)

@jax.jit
def update(state, grads):
    return state.apply_gradients(grads=grads)

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--two", action="store_true")
options = parser.parse_args()
x, y = np.ones((6000, 784), np.float32), np.zeros(6000, np.int32)
net = Net()
state = train_state.TrainState.create(
    apply_fn=net.apply, params=net.init(jax.random.key(0), x[:1])["params"], tx=optax.adam(1e-3)
)
for epoch in range(options.epochs):
    for i in range(len(x) // 128):
        batch = x[i * 128 : i * 128 + 128], y[i * 128 : i * 128 + 128]
        if options.two:
            loss, grads = gradients(state, *batch)
            state = update(state, grads)
        else:
            state, loss = train_step(state, *batch)
    open("result.txt", "w").write(str(float(loss)))
    raise SystemExit("the trace should have ended in the first epoch")
"""

NNX = """
import jax, jax.numpy as jnp, numpy as np, optax
from flax import nnx

class Net(nnx.Module):
    def __init__(self, rngs):
        self.first, self.last = nnx.Linear(784, 2048, rngs=rngs), nnx.Linear(2048, 10, rngs=rngs)
    def __call__(self, x):
        return self.last(nnx.relu(self.first(x)))

@nnx.jit
def train_step(model, optimizer, x, y):
    def loss(model):
        return optax.softmax_cross_entropy_with_integer_labels(model(x), y).mean()
    value, grads = nnx.value_and_grad(loss)(model)
    optimizer.update(model, grads)
    return value

model = Net(nnx.Rngs(0))
optimizer = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)
for step in range(1000):
    train_step(model, optimizer, np.ones((128, 784), np.float32), np.zeros(128, np.int32))
"""

PLAIN = """
import functools
import jax, jax.numpy as jnp, numpy as np

WIDTH, LAYERS, BATCH = 512, 4, 64

def loss(weights, x):
    return (jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, weights)[0] ** 2).mean()

@functools.partial(jax.jit, donate_argnums=0)
def train_epoch(weights, batches):
    def step(weights, x):
        return weights - 0.1 * jax.grad(loss)(weights, x), None
    return jax.lax.scan(step, weights, batches)[0]

@functools.partial(jax.pmap, axis_name="devices", donate_argnums=0)
def mapped(weights, x):
    return weights - 0.1 * jax.lax.pmean(jax.grad(loss)(weights, x), "devices")

key, weights = jax.random.key(0), jnp.ones((LAYERS, WIDTH, WIDTH))
if MAPPED:
    n = len(jax.devices("gpu"))
    weights = jnp.broadcast_to(weights, (n, *weights.shape))
for epoch in range(7):
    key, _ = jax.random.split(key)
    if MAPPED:
        weights = mapped(weights, np.ones((n, BATCH // n, WIDTH), np.float32))
    else:
        weights = train_epoch(weights, np.ones((10, BATCH, WIDTH), np.float32))
"""


MAPPED_CLASSIFIER = """
import functools
import jax, jax.numpy as jnp, numpy as np

def loss(weights, x, y):
    return -jnp.mean(jnp.sum(jax.nn.log_softmax(jnp.tanh(x @ weights[0]) @ weights[1]) * y, axis=1))

@functools.partial(jax.pmap, axis_name="devices")
def update(weights, x, y):
    gradients = jax.grad(loss)(weights, x, y)
    return [w - 0.1 * jax.lax.psum(gradient, "devices") for w, gradient in zip(weights, gradients)]

weights = [np.ones((1, 256, 128)), np.ones((1, 128, 10))]  # JAX makes them float32
for step in range(100):
    weights = update(weights, np.ones((1, 64, 256), np.float32), np.ones((1, 64, 10), np.float32))
"""


TWO_PLAYERS = """
import jax, jax.numpy as jnp, numpy as np

@jax.jit
def generator(w, v, x):
    return w - 0.1 * jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w) @ v))(w)

@jax.jit
def critic(v, w, x):
    return v - 0.1 * jax.grad(lambda v: jnp.mean(jnp.tanh(x @ w) @ v))(v)

w, v, x = jnp.ones((256, 512)), jnp.ones((512, 256)), np.ones((64, 256), np.float32)
for i in range(100):
    w = generator(w, v, x)
    v = critic(v, w, x)
"""


LOOPS = """
import jax, jax.numpy as jnp, numpy as np

IMAGES = jnp.ones((6000, 256))
def loss(w, x, target):
    return ((jnp.tanh(x @ w["a"]) @ w["b"] - target) ** 2).mean()

def sgd(w, gradient):
    return jax.tree.map(lambda v, g: v - 0.1 * g, w, gradient)

w = {"a": jnp.ones((256, 512)), "b": jnp.ones((512, 256))}
"""

SLICED = """
@jax.jit
def epoch(w, images, batches):
    def body(i, w):
        x = jax.lax.dynamic_slice_in_dim(images, i * 50, 50)
        return sgd(w, jax.grad(loss)(w, x, 0.0))
    return jax.lax.fori_loop(0, batches, body, w)

for number in range(3):
    w = epoch(w, IMAGES, BATCHES)
"""

ACCUMULATED = """
@jax.jit
def step(w, parts):
    def add(total, x):
        return jax.tree.map(jnp.add, total, jax.grad(loss)(w, x, 0.0)), None
    return sgd(w, jax.lax.scan(add, jax.tree.map(jnp.zeros_like, w), parts)[0])

for _ in range(30):
    w = step(w, np.ones((4, 16, 256), np.float32))
"""

OVER_TIME = """
@jax.jit
def step(w, series):
    def add(carry, x):
        before, total = carry
        return (x, jax.tree.map(jnp.add, total, jax.grad(loss)(w, before, x))), None
    return sgd(w, jax.lax.scan(add, (series[0], jax.tree.map(jnp.zeros_like, w)), series[1:])[0][1])

for _ in range(30):
    w = step(w, np.ones((5, 16, 256), np.float32))
"""

JACOBIAN = """
@jax.jit
def step(w, x):
    residual = lambda w: (jnp.tanh(x @ w["a"]) @ w["b"]).mean(1) - jax.grad(lambda y: (y ** 2).sum())(x).mean()
    return sgd(w, jax.tree.map(lambda j: j.sum(0), jax.jacrev(residual)(w))), x

for _ in range(30):
    w, _ = step(w, np.ones((8, 256), np.float32))
"""

EAGER_LOOP = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--num_steps", type=int, default=40)
steps = parser.parse_args().num_steps
w = jax.lax.fori_loop(0, steps, lambda i, w: sgd(w, jax.grad(loss)(w, IMAGES[:64], 0.0)), w)
"""

SMALL = """
import functools
import jax, jax.numpy as jnp, numpy as np

@functools.partial(jax.jit, donate_argnums=0)
def step(state, x):
    w, count = state
    return w - 0.1 * jax.grad(lambda w: ((x @ w) ** 2).sum())(w), count + 1

state = jnp.ones((3, 3)), jnp.int32(0)
for x in [np.ones((4, 3), np.float32), np.zeros((4, 3), np.float32)]:
    state = step(state, x)
"""

EAGER = """
accuracy = jax.jit(loss)
for _ in range(100):
    w = sgd(w, jax.grad(loss)(w, IMAGES[:64], 0.0))
    accuracy(w, IMAGES, 0.0)
"""

PENALTY = """
@jax.jit
def step(w, x, frozen):
    def penalized(w):
        return loss(w, x, x @ frozen) + (jax.grad(loss, argnums=1)(w, x, 0.0) ** 2).mean()
    return sgd(w, jax.grad(penalized)(w)), x

frozen = jnp.ones((256, 256))
def batches(count, size):
    total = count * 2
    for i in range(total):
        yield np.ones((size, 256), np.float32)

for epoch in range(2):
    for x in batches(25, size=64):
        w, _ = step(w, x, frozen)
"""


def trace(tmp_path, code, *arguments):
    script = tmp_path / "train.py"
    script.write_text(code)
    words = (sys.executable, str(script), *arguments)
    workload = Workload(ModelSource(ModelKind.COMMAND, " ".join(words), words))
    return trace_script(workload, runner=run_forked, cwd=tmp_path)


def products(graph):
    """Multiply-adds of matrix products, times two."""
    return sum(
        2 * op.count * op.dims["b"] * op.dims["m"] * op.dims["n"] * op.dims["k"]
        for op in graph.ops
        if op.kind is OpKind.GEMM
    )


MLP = 2 * 128 * (2 * 784 * 2048 + 3 * 2048 * 10)
"""Two layers forward, their weights' gradients, and the gradient of the hidden layer."""


def test_a_flax_script_gives_its_step_and_its_loop(tmp_path):
    job = trace(tmp_path, LINEN, "--epochs", "3")
    assert products(job.step) == MLP
    assert job.step.parameters == pytest.approx(784 * 2048 + 2048 + 2048 * 10 + 10, rel=0.01)
    assert {Stage.FORWARD, Stage.BACKWARD, Stage.OPTIMIZER} == {op.stage for op in job.step.ops}
    assert (job.loop.batch, job.loop.steps_per_epoch, job.loop.epochs) == (128, 46, 3)
    assert job.loop.loading is not None
    assert job.loop.loading.batches == 7
    assert not (tmp_path / "result.txt").exists()


def test_gradients_and_update_in_two_functions_are_one_step(tmp_path):
    whole, parts = trace(tmp_path, LINEN).step, trace(tmp_path, LINEN, "--two").step
    assert products(parts) == MLP
    assert parts.flops == pytest.approx(whole.flops, rel=0.02)
    assert {Stage.FORWARD, Stage.BACKWARD, Stage.OPTIMIZER} == {op.stage for op in parts.ops}


def test_two_functions_that_train_in_turn_are_one_step(tmp_path):
    job = trace(tmp_path, TWO_PLAYERS)
    assert job.step.parameters == 2 * 256 * 512
    assert (job.loop.batch, job.loop.steps_per_epoch) == (64, 100)
    assert "the step is generator and critic, lowered" in job.notes


def test_weights_are_those_of_the_first_trace_of_a_function(tmp_path):
    assert trace(tmp_path, MAPPED_CLASSIFIER).step.parameters == 256 * 128 + 128 * 10


def test_an_nnx_script_gives_its_step(tmp_path):
    job = trace(tmp_path, NNX)
    assert products(job.step) == MLP
    assert (job.loop.batch, job.loop.steps_per_epoch, job.loop.epochs) == (128, 1000, 1)


def test_a_scan_over_an_epoch_is_its_training_loop(tmp_path):
    job = trace(tmp_path, PLAIN.replace("MAPPED", "False"))
    assert products(job.step) == 3 * 4 * 2 * 64 * 512 * 512  # 3 passes of 4 layers
    assert (job.loop.batch, job.loop.steps_per_epoch, job.loop.epochs) == (64, 10, 7)
    assert job.step.parameters == 4 * 512 * 512
    assert "each call of train_epoch takes 10 steps" in job.notes


def test_a_mapped_step_is_that_of_one_device(tmp_path):
    job = trace(tmp_path, PLAIN.replace("MAPPED", "True"))
    assert products(job.step) == pytest.approx(3 * 4 * 2 * 64 * 512 * 512, rel=0.1)
    assert (job.loop.batch, job.loop.epochs) == (64, 7)


def test_a_script_without_a_jitted_function_is_refused_with_the_way_on(tmp_path):
    with pytest.raises(Untraceable, match=r"jit the training step"):
        trace(tmp_path, "import jax.numpy as jnp\nprint(jnp.ones(3).sum())")


def test_an_error_of_the_script_carries_its_line(tmp_path):
    with pytest.raises(Untraceable, match=r"FileNotFoundError") as failure:
        trace(tmp_path, "import jax\nopen('missing.npz')")
    assert str(failure.value.location).endswith("train.py:2")


WEIGHTS, STEP = 2 * 256 * 512, 2 * 256 * 512 * (2 + 3)
"""Weights of LOOPS, and operations of a step for each image: two layers forward, three products backward."""


@pytest.mark.parametrize("bound", ["120", "jnp.int32(120)"])
def test_a_loop_over_slices_of_a_data_set_takes_a_step_in_each_trip(tmp_path, bound):
    job = trace(tmp_path, LOOPS + SLICED.replace("BATCHES", bound))
    assert (job.loop.batch, job.loop.steps_per_epoch, job.loop.epochs) == (50, 3 * 120, 1)
    assert (job.step.parameters, products(job.step)) == (WEIGHTS, 50 * STEP)


@pytest.mark.parametrize("code", [ACCUMULATED, OVER_TIME], ids=["parts of a batch", "times of a series"])
def test_a_loop_that_sums_gradients_is_one_step(tmp_path, code):
    job = trace(tmp_path, LOOPS + code)
    assert (job.loop.steps_per_epoch, job.loop.epochs) == (30, 1)
    assert (job.step.parameters, products(job.step)) == (WEIGHTS, 4 * 16 * STEP)


def test_weights_may_be_what_a_jacobian_is_taken_for(tmp_path):
    assert trace(tmp_path, LOOPS + JACOBIAN).step.parameters == WEIGHTS


def test_a_loop_of_lax_outside_of_jit_is_traced(tmp_path):
    job = trace(tmp_path, LOOPS + EAGER_LOOP)
    assert (job.loop.steps_per_epoch, job.loop.epochs) == (40, 1)
    assert (job.step.parameters, products(job.step)) == (WEIGHTS, 64 * STEP)


def test_a_small_step_that_takes_its_arguments_memory_is_run_and_traced(tmp_path):
    job = trace(tmp_path, SMALL)
    assert (job.loop.batch, job.loop.steps_per_epoch, job.loop.epochs) == (4, 2, 1)
    assert job.step.parameters == 9


def test_gradients_outside_of_jit_are_refused_with_the_way_on(tmp_path):
    with pytest.raises(Untraceable, match=r"takes gradients outside of jax.jit.*wrap the training step"):
        trace(tmp_path, LOOPS + EAGER)


def test_weights_are_what_is_differentiated_and_updated_and_a_generators_source_counts_its_batches(tmp_path):
    job = trace(tmp_path, LOOPS + PENALTY)
    assert job.step.parameters == WEIGHTS  # without the inputs of the penalty and the frozen matrix
    assert (job.loop.batch, job.loop.steps_per_epoch, job.loop.epochs) == (64, 50, 2)


def test_a_script_that_ends_gives_all_its_steps(tmp_path):
    job = trace(
        tmp_path,
        LOOPS
        + PENALTY.replace("for epoch in range(2):", "if True:").replace(
            "batches(25, size=64)", "filter(len, batches(2, 64))"
        ),
    )
    assert (job.loop.steps_per_epoch, job.loop.epochs) == (4, 1)
    assert "the script ended after 4 calls of step" in job.notes
