"""Seconds of a training step in any layout, in closed form.

One microbatch on one GPU takes t = (c⁴ + g⁴)^¼ + u·g + r: c are the seconds of computing (products, attention,
memory-bound ops; at least the host's launches), g those in which sharded weights are gathered and their gradients
reduced, u the share of these that never overlaps, and r the communication of tensor, context and expert parallelism. A
step is m microbatches, the pipeline's bubble, the reduction of gradients, and the update.

Sources: tensor and sequence parallelism, selective recomputation (Korthikanti et al. 2022); the bubble (p − 1)/(v·m) of
p stages with v chunks (Narayanan et al. 2021); sharding (Rajbhandari et al. 2020); ring attention (Liu et al. 2023);
Ulysses (Jacobs et al. 2023); experts (Lepikhin et al. 2020).
"""

from collections.abc import Mapping

import numpy as np

from leadline.estimators.parallelism.training_step import StepTable
from leadline.estimators.ports import Array

# Name: start, and deviation of its logarithm before the fit. A coefficient multiplies a bound (time of
# kernels alone or at the link's rate, passes over memory), is a share, or has its unit in its name.
COEFFICIENTS: Mapping[str, tuple[float, float]] = {
    # Over the time of the same products alone, with which engines differ by 3 to 4 %.
    "products": (1.05, 0.03),
    "products_narrow": (1.05, 0.03),  # in 8 bits or fewer
    # Products of experts over the law of products: the fastest fused kernels have 0.8 (L40S) to 1.5 (A100).
    "grouped": (1.0, 0.2),
    "cast": (1.0, 0.5),  # passes of operands that are scaled and cast to 8 bits or fewer
    "cast_blocks": (2.0, 0.5),  # the same if blocks of them are scaled
    "flash1": (1.0, 0.12),
    "flash2": (1.0, 0.12),
    "flash3": (1.0, 0.12),
    "short": (400.0, 0.3),  # sequence at which fused attention reaches half of its rate
    "written": (4.0, 0.4),  # passes of attention scores in memory
    "eager": (0.6, 0.3),  # of the bytes that ops move one by one
    "stream": (14.0, 0.3),  # passes of the residual stream around a reduction, in fused ops
    "inner": (5.0, 0.3),  # passes of a product's output, in fused ops
    "head": (0.8, 0.4),  # passes of the vocabulary's scores
    "optimizer_bytes": (25.0, 0.3),  # of a weight's update
    "launch_s": (9e-6, 0.2),
    "reduction_launch_s": (30e-6, 0.4),
    "link": (1.3, 0.15),
    "network": (1.3, 0.2),
    "hop_s": (14e-6, 0.5),
    "exposed": (0.3, 0.3),
    "tensor_overlapped": (0.4, 0.3),
    "data_exposed": (0.8, 0.3),
    "data_overlapped": (0.2, 0.4),
    "send_s": (40e-6, 0.5),
    "send_overlapped": (0.3, 0.4),
    "uneven": (0.6, 0.3),  # share of the head's time that the other stages wait for the last one
    "imbalance": (1.15, 0.1),  # of experts: the busiest GPU's tokens over the mean
    "routing": (10.0, 0.4),  # passes of tokens that are sorted by expert and back
    "expert_launch_s": (2e-3, 1.0),  # of a layer's routing, and waits for the number of tokens of each expert
    "expert_kernel_s": (20e-6, 0.5),
    "step_s": (0.02, 0.6),
}
NAMES = tuple(COEFFICIENTS)
STARTS = np.log([start for start, _ in COEFFICIENTS.values()])
DEVIATIONS = np.array([deviation for _, deviation in COEFFICIENTS.values()])

BACKWARD_ATTENTION = 2.5  # FLOPs of fused attention backward over forward: scores are computed again
BACKWARD = 2.0
SELECTED = 0.5  # share of the products that selective recomputation repeats where attention is fused (torchtitan)
LINK_HOP_S = 4e-6
# Least time of a kernel that a CUDA graph replays, with its start: the many small ones of three steps on an H200.
REPLAYED_KERNEL_S = 3e-6
# Kernels of each expert in a layer, forward and backward: three products for each of two weights, with their casts, as
# Transformer Engine's GroupedLinear launches them.
EXPERT_KERNELS = 18

Coefficients = Mapping[str, Array]  # (1,), or (..., 1) for many


def step_seconds(theta: Array, table: StepTable) -> Array:
    """Return the seconds of n steps, given the logarithms of the coefficients (k,), or (..., n) for (..., k)."""
    return np.asarray(sum(step_parts(theta, table).values()))


def log_slopes(theta: Array, table: StepTable) -> Array:
    """Return the derivatives of the log seconds by each log coefficient (n, k)."""
    steps = 1e-4 * np.eye(len(theta))
    ahead, behind = np.log(step_seconds(theta + np.stack([steps, -steps]), table))
    return np.asarray((ahead - behind).T / 2e-4, np.float64)


def step_parts(theta: Array, t: StepTable) -> dict[str, Array]:
    """Return the seconds of each part of n steps, (n,) each; their sum is the step."""
    p = {name: np.exp(theta[..., place, None]) for place, name in enumerate(NAMES)}
    products, products_back, head = _products(p, t)
    attention, attention_back = _attention(p, t)
    passes = _passes(p, t)
    forward = products + attention + passes / 3
    again = t.full * forward + t.selective * np.where(t.written, attention, SELECTED * products + passes / 3)
    device = products + products_back + attention + attention_back + passes + again
    launched = t.kernels * (1 + t.full / 3) * p["launch_s"]
    expert_kernels = EXPERT_KERNELS * t.most_experts / t.expert
    # Ops that run one by one are kernels of the graph.
    sorted_s = p["expert_launch_s"] + expert_kernels * p["expert_kernel_s"]
    launched = launched + np.where(t.library, t.expert_layers * sorted_s, 0.0)
    launched = launched + np.where(t.tensor > 1, 4 * t.reductions * p["reduction_launch_s"], 0.0)
    launched = np.where(t.captured, t.kernels * (1 + t.full / 3) * REPLAYED_KERNEL_S, launched)
    computing, gathers = (device**4 + launched**4) ** 0.25, _gathers(p, t)
    layers = (computing**4 + gathers**4) ** 0.25 + p["exposed"] * gathers
    exchanged = {"tensor": _tensor(p, t), "context": _context(p, t), "experts": _all_to_all(p, t)}
    stage, send = (layers + sum(exchanged.values())) / t.pipeline, _sends(p, t)
    scores = p["head"] * t.head_bytes / (t.tensor * t.context * t.memory) * np.where(t.fused, 0.5, 1.0)
    shown = np.where(t.pipeline > 1, p["uneven"] + (1 - p["uneven"]) / t.pipeline, 1.0)
    return {
        "layers": t.microbatches * layers / t.pipeline,
        **{name: t.microbatches * seconds / t.pipeline for name, seconds in exchanged.items()},
        "head": t.microbatches * shown * (head + scores),
        "pipeline": t.microbatches * send,
        "bubble": (t.pipeline - 1) / t.virtual * (stage + send),
        "gradients": _gradients(p, t),
        "optimizer": _optimizer(p, t),
        "constant": np.where(t.captured, 0.0, p["step_s"]),
    }


def _products(p: Coefficients, t: StepTable) -> tuple[Array, Array, Array]:
    """Return the seconds of a microbatch's products in layers, forward and backward, and of the head, both ways."""
    factor = np.where(t.narrow, p["products_narrow"], p["products"])
    passes = np.where(t.scaled_by_block, p["cast_blocks"], p["cast"])
    cast = np.where(t.narrow, passes * t.cast / t.memory, 0.0)
    experts = p["grouped"] * np.where(t.expert > 1, p["imbalance"], 1.0)
    forward, backward = t.layer_s + experts * t.routed_s, t.layer_back_s + experts * t.routed_back_s
    return factor * forward + cast, factor * backward + BACKWARD * cast, p["products"] * (t.head_s + t.head_back_s)


def _attention(p: Coefficients, t: StepTable) -> tuple[Array, Array]:
    """Return the seconds of a microbatch's attention, forward and backward."""
    factor = sum(p[name] * chosen for name, chosen in t.kernel.items())
    flops_s = t.attention_flops / (t.context * t.tensor * t.attention_rate)
    # Ops that are not fused have their own bytes; the two products write and read the scores.
    passes_s = np.where(t.fused, factor, 2.0) * 2 * t.scores / (t.context * t.tensor * t.memory)
    forward = np.where(t.written, flops_s + passes_s, factor * flops_s * (1 + p["short"] / t.sequence))
    return forward, forward * np.where(t.written, BACKWARD, BACKWARD_ATTENTION)


def _passes(p: Coefficients, t: StepTable) -> Array:
    """Return the seconds of a microbatch's ops that move data, forward and backward."""
    half_layers = t.reductions + t.expert_layers
    stream = np.where(t.fused, p["stream"] * half_layers * t.tokens * t.width * 2, p["eager"] * t.stream_bytes)
    inner = np.where(t.fused, p["inner"] * 2 * t.outputs, p["eager"] * t.inner_bytes)
    routing = np.where(t.fused, p["routing"] * t.routed * t.width * 2, 0.0)
    return np.asarray((stream / t.stream_parts + (inner + routing) / t.tensor) / (t.context * t.memory))


def _ring(p: Coefficients, t: StepTable, size: Array, stride: Array) -> tuple[Array, Array]:
    """Return the seconds of a byte in rings of ``size`` GPUs ``stride`` apart, and of a hop.

    Inside an island the link counts. Between islands, all rings of an island share its network.
    """
    inside = (size - 1) * stride < t.island
    across = t.network * t.island / np.minimum(stride, t.island)
    per_byte = np.where(inside, p["link"] / t.link, np.maximum(p["network"] / across, p["link"] / t.link))
    return per_byte, np.where(inside, LINK_HOP_S, p["hop_s"])


def _gathers(p: Coefficients, t: StepTable) -> Array:
    """Return the seconds in which a microbatch gathers sharded weights and reduces their gradients."""
    per_byte, hop_s = _ring(p, t, t.shards, t.tensor)
    weights = t.layer_weights / t.tensor + t.expert_weights / t.expert_parts
    moved = (4 * t.gathers + (2 + t.reduced_bytes) * t.reduces_each - 2 * t.gathers) * weights
    hops = (2 * t.reduces_each + t.gathers) * t.reductions / 2 * np.log2(np.maximum(t.shards, 2))
    return np.where(t.shards > 1, moved * per_byte * (1 - 1 / t.shards) + hops * hop_s, 0.0)


def _tensor(p: Coefficients, t: StepTable) -> Array:
    """Return the exposed seconds of a microbatch's reductions in tensor parallelism."""
    per_byte, hop_s = _ring(p, t, t.tensor, np.ones(t.rows))
    moved = 2 * (1 - 1 / t.tensor) * t.tokens / t.context * t.width * 2
    once = moved * per_byte + 2 * hop_s * np.log2(np.maximum(t.tensor, 2))
    shown = np.where(t.overlaps_all, p["tensor_overlapped"], 1.0)
    return np.where(t.tensor > 1, (2 + t.full) * t.reductions * once * shown, 0.0)


def _context(p: Coefficients, t: StepTable) -> Array:
    """Return the exposed seconds of a microbatch's exchanges in context parallelism.

    In a ring, keys and values (backward: their gradients as well) pass by behind attention. Ulysses' four all-to-alls,
    of queries, keys, values and outputs, are not hidden.
    """
    per_byte, hop_s = _ring(p, t, t.context, t.tensor)
    token_bytes = t.tokens / t.context * 2 / t.tensor
    keys = 2 * token_bytes * t.key_width
    ring = p["exposed"] * 3 * (t.context - 1) * (keys * per_byte + hop_s)
    turned = (2 * token_bytes * t.width + keys) * (1 - 1 / t.context)
    all_to_all = 2 * (turned * per_byte + 4 * hop_s)
    return np.where(t.context > 1, t.attention_blocks * np.where(t.ulysses, all_to_all, ring), 0.0)


def _all_to_all(p: Coefficients, t: StepTable) -> Array:
    """Return the seconds in which a microbatch's tokens travel to their experts and back, forward and backward."""
    per_byte, hop_s = _ring(p, t, t.expert, np.ones(t.rows))
    moved = 2 * t.routed / (t.context * t.tensor) * t.width * 2 * (1 - 1 / t.expert)
    once = moved * per_byte + 2 * t.expert_layers * hop_s
    shown = np.where(t.overlaps_all, p["tensor_overlapped"], 1.0)
    return np.where(t.expert > 1, (2 + t.full) * p["imbalance"] * once * shown, 0.0)


def _sends(p: Coefficients, t: StepTable) -> Array:
    """Return the exposed seconds of a microbatch's sends between stages, forward and backward."""
    inside = t.tensor * t.context * t.replicas < t.island
    per_byte = np.where(inside, p["link"] / t.link, p["network"] / t.network)
    once = t.tokens / t.context * t.width * 2 / t.tensor * per_byte + p["send_s"]
    shown = np.where((t.virtual > 1) & t.overlaps, p["send_overlapped"], 1.0)
    return np.where(t.pipeline > 1, 2 * t.virtual * shown * once, 0.0)


def _gradients(p: Coefficients, t: StepTable) -> Array:
    """Return the exposed seconds in which replicas reduce gradients once a step, and gather updated weights."""
    replicas = t.replicas * t.context
    size = np.where(t.reduces_each > 0, replicas / t.shards, replicas)
    per_byte, _ = _ring(p, t, size, t.tensor * np.where(t.reduces_each > 0, t.shards, 1.0))
    held = ((t.parameters - t.expert_weights) / t.tensor + t.expert_weights / t.expert_parts) / t.pipeline
    held = held / np.where(t.reduces_each > 0, t.shards, 1.0)
    again = np.where((t.shards > 1) & (t.reduces_each == 0), 2.0, t.reduced_bytes)
    shown = np.where(t.overlaps, p["data_overlapped"], p["data_exposed"])
    return np.where(size > 1, shown * (t.reduced_bytes + again) * held * per_byte * (1 - 1 / size), 0.0)


def _optimizer(p: Coefficients, t: StepTable) -> Array:
    """Return the seconds of the update: the weights' traffic, or the launches of its kernels."""
    held = _held(t)
    launch_s = np.where(t.captured, REPLAYED_KERNEL_S, p["launch_s"])
    launched = t.update_kernels * held / t.parameters * launch_s
    return np.asarray(((p["optimizer_bytes"] * held / t.memory) ** 4 + launched**4) ** 0.25)


def _held(t: StepTable) -> Array:
    """Return the number of weights that a GPU updates."""
    stage_gpus = t.tensor * t.context * t.replicas
    experts = t.expert_weights / np.where(t.shards > 1, np.minimum(t.tensor * t.shards, stage_gpus), t.expert_parts)
    return np.asarray(((t.parameters - t.expert_weights) / (t.tensor * t.shards) + experts) / t.pipeline)
