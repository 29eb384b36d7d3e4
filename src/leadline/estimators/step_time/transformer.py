"""Time of a transformer's training step on many GPUs: a parametric model and its residuals.

t = m · [(c⁴ + e⁴)^¼ + u·e + layers · l] + optimizer + constant, over m microbatches. Here c are the seconds of
computing (products, attention, memory-bound passes), e those of communication, and u the share that never overlaps.
A Gaussian process of bounded size models the residuals and vanishes far from the training data.

``decoder_step`` reads a step from the op graph of one optimizer step. The training data are eager decoders with fused
causal attention on NVIDIA GPUs that shard weights or gradients (FSDP, ZeRO). All else is refused with the reason.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from leadline.core.errors import InvalidInput
from leadline.core.frozen import Frozen
from leadline.core.graph import Op, OpGraph, OpKind, Stage, TracedJob
from leadline.core.hardware import Device, DeviceKind
from leadline.core.workload import Phase, Precision, Sharding, Workload
from leadline.estimators.gp import Process
from leadline.estimators.parallelism.fabric import Fabric, make_ring
from leadline.estimators.parallelism.tensor import residual_width
from leadline.estimators.ports import Array, Predictions, Stored

# Share of the peak that matrix products keep through a whole step, against Ampere's: Megatron-LM reports 47 % of the
# peak for H100s (its README), and 56 % for A100s (Korthikanti et al. 2022, table 5).
SUSTAINED = {"Hopper": 0.83}
# FLOPs per streaming multiprocessor and clock in fused causal attention, forward and backward: 109 TFLOP/s of
# FlashAttention 1 on an A100 at head size 128 (Dao 2023). It uses Ampere's instructions, so a later GPU is faster by
# its multiprocessors and clock alone: FlashAttention 2 gains 1.6 to 1.7 from A100 to H100, and multiprocessors × clock
# 1.6.
ATTENTION_FLOPS_PER_CLOCK = 716.0
# Sequence length at which fused attention reaches half of its speed, from the same figures.
ATTENTION_RAMP = 450.0
# Relative difference within which a block has as many weights as those that were measured.
SAME = 0.02
# The output layer stays in it where the blocks' products are in float8.
HEAD_DTYPE = "bfloat16"


class TransformerStep(Frozen):
    """One optimizer step of a decoder on ``gpus`` devices over ``nodes``.

    ``microbatch`` counts sequences. ``block_weights`` are the weights in matrix products without embedding and output
    layer; ``parameters`` are all. ``dtype`` is that of these products. ``reduced_bytes`` are the bytes of one gradient
    on the network, and ``node_bytes_per_s`` the network of a node. ``attention_width`` is that of all heads together,
    0 if equal to ``width``.
    """

    device: Device
    gpus: int
    layers: int
    width: int
    vocabulary: int
    block_weights: float
    parameters: float
    sequence: int
    microbatch: int
    microbatches: int = 1
    nodes: int = 1
    node_bytes_per_s: float | None = None
    checkpointing: bool = False
    dtype: str = "bfloat16"
    reduced_bytes: int = 4
    sharding: Sharding = Sharding.FULL
    attention_width: int = 0

    @property
    def attended(self) -> int:
        """Width of all heads together."""
        return self.attention_width or self.width

    @property
    def usual(self) -> bool:
        """True if blocks have the measured shape: heads as wide as the model, four times inside."""
        plain = 12.0 * self.layers * self.width**2
        return self.attended == self.width and abs(self.block_weights / plain - 1) < SAME

    @property
    def tokens(self) -> int:
        """Tokens of one microbatch on one GPU."""
        return self.microbatch * self.sequence


def gpu_generation(device: Device) -> str:
    """Return the key of GPUs with the same instructions and units; A100 and A40 differ."""
    return f"{device.architecture or 'unknown'} {device.compute_capability or ''}".strip()


def step_terms(steps: Sequence[TransformerStep]) -> dict[str, Array]:
    """Return seconds of one microbatch on one GPU for n steps, each (n,), and sizes for efficiency.

    ``products_s`` of the blocks and ``head_s`` of the output layer are at the sustained peak, ``attention_s`` is fused.
    ``activations_s`` of each layer and ``logits_s`` are one pass at the memory bandwidth, ``optimizer_s`` is one over
    the GPU's shard of the weights, once a step. ``transfer_s`` and ``hops_s`` are the bytes and the latencies of
    sharded gathers and reductions.

    Raises:
        InvalidInput: a device lacks a figure, or a size is not above zero.
    """
    rows = [_terms(step) for step in steps]
    return {name: np.array([row[name] for row in rows], np.float64) for name in rows[0]}


def efficiency_features(steps: Sequence[TransformerStep]) -> Array:
    """Return further regressors of efficiency, as logarithms and flags (n, columns)."""
    rows = [
        (
            np.log(step.width), np.log(step.tokens), step.checkpointing, np.log(step.sequence), np.log(step.gpus) / 2,
            np.log(step.microbatch), np.log(step.device.peak_flops_per_s[HEAD_DTYPE]),
            np.log(step.device.memory_bytes_per_s or 1.0), np.log2(step.reduced_bytes), step.dtype == "float8",
        )
        for step in steps
    ]  # fmt: skip
    return np.array(rows, np.float64)


# Display names of the columns of `log_magnitudes`.
MAGNITUDES = ("GPUs", "layers", "channels", "parameters", "tokens a sequence", "tokens a microbatch", "microbatches")


def log_magnitudes(steps: Sequence[TransformerStep]) -> Array:
    """Return the log sizes (n, columns) that are compared with the training range."""
    rows = [
        (step.gpus, step.layers, step.width, step.parameters, step.sequence, step.tokens, step.microbatches)
        for step in steps
    ]
    return np.log(np.array(rows, np.float64))


def _terms(step: TransformerStep) -> dict[str, float]:
    device = step.device
    counts = (step.gpus, step.layers, step.width, step.vocabulary, step.sequence, step.microbatch, step.microbatches)
    if min(counts) < 1 or not step.block_weights > 0:
        raise InvalidInput(f"a step of sizes {counts} is impossible: give every size as 1 or more")
    if not (device.memory_bytes_per_s and device.compute_units and device.boost_hz):
        raise InvalidInput(
            f"{device.name} lacks its memory bandwidth, multiprocessors or clock in the catalog, so the speed of a "
            "transformer on it is not known: add them to a device file of your own"
        )
    again = float(step.checkpointing)
    bytes_per_s, tokens, width = device.memory_bytes_per_s, step.tokens, step.width
    exchange_s, hops_s = _sharded(step)
    per_clock = ATTENTION_FLOPS_PER_CLOCK * device.compute_units * device.boost_hz
    ramp = 1 + ATTENTION_RAMP / step.sequence
    return {
        "products_s": tokens * step.block_weights * (6 + 2 * again) / _sustained(device, step.dtype),
        "head_s": tokens * step.vocabulary * width * 6 / _sustained(device, HEAD_DTYPE),
        "attention_s": tokens * step.layers * (7 + 2 * again) * step.sequence * step.attended / per_clock * ramp,
        "activations_s": tokens * step.layers * width * 2 * (1 + again / 3) / bytes_per_s,
        "logits_s": tokens * step.vocabulary / bytes_per_s,
        "optimizer_s": step.parameters / (step.gpus if step.sharding is not Sharding.NONE else 1) / bytes_per_s,
        "transfer_s": exchange_s, "hops_s": hops_s, "layers": step.layers, "width": width, "tokens": tokens,
        "microbatches": step.microbatches, "float8": float(step.dtype == "float8"),
    }  # fmt: skip


def _sustained(device: Device, dtype: str) -> float:
    peak = device.peak_flops_per_s.get(dtype)
    if not peak:
        raise InvalidInput(f"{device.name} has no {dtype} peak in the catalog: ask for another number format")
    return peak * SUSTAINED.get(device.architecture or "", 1.0)


def _sharded(step: TransformerStep) -> tuple[float, float]:
    """Return the seconds of bytes and of latencies of one microbatch's collectives.

    Weights travel in 2 bytes. They are gathered for forward and, if fully sharded, again for backward. FSDP reduces
    gradients after each microbatch. Where each GPU holds all, the reduction is averaged over microbatches.
    """
    ring = make_ring(step.device, step.gpus, step.nodes, step.node_bytes_per_s)
    if step.gpus < 2:
        return 0.0, 0.0
    if step.sharding in (Sharding.NONE, Sharding.OPTIMIZER):
        share = 2 / step.microbatches
        return share * ring.transfer_s(step.block_weights * step.reduced_bytes), share * ring.hops_s
    gathers = 2 if step.sharding is Sharding.FULL else 1
    moved = step.block_weights * (2 * gathers + step.reduced_bytes)
    return ring.transfer_s(moved), step.layers * (gathers + 1) * ring.hops_s


# Share of the products of all queries and keys that causal attention needs.
CAUSAL = 0.5
# Relative difference within which sizes count as the same.
NEAR = 0.02
# Share of the weights that may take part in no product (norms, biases), embeddings aside.
DENSE = 0.05
DTYPES = {Precision.BF16: "bfloat16", Precision.AMP_BF16: "bfloat16", Precision.FP16: "float16",
          Precision.AMP_FP16: "float16"}  # fmt: skip


def decoder_step(job: TracedJob, workload: Workload, device: Device, fabric: Fabric) -> TransformerStep:
    """Return the step of ``workload.gpus`` such devices; ``job`` is one GPU's with the whole model.

    Number format and accumulation come from the job's loop if the workload leaves them open.

    Raises:
        InvalidInput: the model does not apply; the message says why.
    """
    _require_plan(workload, device)
    graph, precision = job.step, _precision(workload, job)
    microbatches = max(workload.accumulation, job.loop.accumulation)
    forward = [op for op in graph.ops if op.kind is OpKind.ATTENTION and op.stage is Stage.FORWARD]
    attention, layers = _attention(forward, microbatches)
    width = residual_width(graph)
    block, vocabulary = _weights(graph, width, microbatches)
    return TransformerStep(
        device=device, gpus=workload.gpus, nodes=fabric.islands, node_bytes_per_s=fabric.island_bytes_per_s or None,
        layers=layers, width=width, vocabulary=vocabulary, block_weights=block,
        parameters=float(graph.parameters), sequence=attention.dims["q"], microbatch=attention.dims["b"],
        microbatches=microbatches, checkpointing=workload.checkpointing, dtype=DTYPES[precision],
        reduced_bytes=4 if precision.autocast else 2, sharding=workload.parallelism.sharding,
        attention_width=attention.dims["h"] * attention.dims["d"],
    )  # fmt: skip


def _require_plan(workload: Workload, device: Device) -> None:
    """Refuse a job unlike the training data."""
    plan = workload.parallelism
    nvidia = device.kind is DeviceKind.GPU and device.vendor.casefold() == "nvidia"
    unsharded = f"sharding {plan.sharding.value}, which overlaps its communication differently"
    refusals = (
        (workload.phase is not Phase.TRAINING, "predicts nothing of inference"),
        (workload.adapters is not None, "covers only steps that train all weights"),
        (workload.compiled, "covers only eager steps: a compiled one fuses the ops it counts"),
        (plan.tensor * plan.pipeline > 1, "covers no tensor or pipeline parallelism"),
        (workload.gpus > 1 and not plan.sharding.gathers, f"needs sharded weights or gradients, not {unsharded}"),
        (not nvidia, f"covers NVIDIA GPUs only, and {device.name} is none"),
    )
    for applies, reason in refusals:
        if applies:
            raise InvalidInput(f"the training-step model {reason}")


def _precision(workload: Workload, job: TracedJob) -> Precision:
    declared = workload.precision.value if workload.precision else job.loop.precision
    for precision in DTYPES:
        if precision.value == declared:
            return precision
    supported = ", ".join(precision.value for precision in DTYPES)
    raise InvalidInput(f"the training-step model covers half precision only ({supported}), not in {declared or 'fp32'}")


def _attention(forward: list[Op], accumulation: int) -> tuple[Op, int]:
    """Return one layer's attention and the number of layers; refuse unfused or mixed attention."""
    if not forward:
        raise InvalidInput(
            "the training-step model needs fused attention, and this graph has none: it is no "
            "transformer, or writes its attention out op by op"
        )
    first = forward[0]
    if any(op.dims != first.dims for op in forward):
        raise InvalidInput("the training-step model needs identical layers, and this model's attention differs")
    sizes = first.dims
    full = 4.0 * sizes["b"] * sizes["h"] * sizes["q"] * sizes["kv"] * sizes["d"]
    share = first.flops / full
    if sizes["q"] != sizes["kv"] or abs(share - CAUSAL) > NEAR:
        raise InvalidInput(
            "the training-step model needs causal attention to all earlier tokens, and this model's "
            f"computes {share:.0%} of all pairs: an encoder, a pair of both, or a sliding window"
        )
    count = sum(op.count for op in forward)
    if count % accumulation:
        raise InvalidInput(f"{count} attention layers do not divide into {accumulation} microbatches: give the number")
    return first, count // accumulation


def _weights(graph: OpGraph, width: int, accumulation: int) -> tuple[float, int]:
    """Return the weights in block products, and the vocabulary; refuse sparse or headless models."""
    products = [op for op in graph.ops if op.kind is OpKind.GEMM and op.stage is Stage.FORWARD and "n" in op.dims]
    weighing = [op for op in products if op.dims.get("b", 1) == 1]
    if not weighing or not width:
        raise InvalidInput("this graph has no products with weights: the training-step model does not cover it")
    head = weighing[-1].dims
    scored = sum(op.count for op in weighing if op.dims == head)
    if head["k"] != width or scored != accumulation or head["n"] <= width:
        raise InvalidInput(
            "the training-step model covers decoders that end in vocabulary scores, and this one does not"
        )
    vocabulary = head["n"]
    block = sum(op.dims["n"] * op.dims["k"] * op.count for op in weighing if op.dims != head) / accumulation
    products_hold = block + vocabulary * width
    unused = graph.parameters - products_hold
    if unused > vocabulary * width * (1 + NEAR) + DENSE * products_hold:
        raise InvalidInput(
            f"{unused / graph.parameters:.0%} of the weights take part in no product of every token: the "
            "training-step model covers dense decoders, not mixtures of experts"
        )
    return block, vocabulary


# Products: less than the peak where the width or the tokens of a microbatch are of the order of `narrow` and
# `few_tokens`. Activations and logits: bytes that pass for each. Optimizer: bytes a weight.
COEFFICIENTS = ("products", "narrow", "few_tokens", "float8", "attention", "activations", "logits", "optimizer",
                "transfer", "hops", "unhidden", "layer_s", "step_s")  # fmt: skip
# Spread of the efficiency on a GPU generation without training steps.
UNSEEN_PRODUCTS, UNSEEN_ATTENTION = 0.10, 0.20
# llm-foundry's steps at up to this log distance in length or GPUs stayed within the model's own spread.
VALIDATED_LOG_DISTANCE = math.log(32)
# Spread for each further unit of log distance: congestion, stragglers and other kernels have no term. An assumption,
# since nothing was measured there.
GROWTH = 0.2
# Spread of unmeasured block shapes (gated, fewer key-value heads), which pass over memory differently. An assumption.
UNLIKE = 0.05


class TransformerStepModel(Stored):
    """Log coefficients (k,) with covariance (k, k), and the Gaussian process of the residuals.

    ``middle`` and ``scale`` (columns,) standardise the process's inputs. ``noise`` is the deviation of the final
    residuals. ``least`` and ``most`` are the log sizes (``log_magnitudes``) of the training data.
    """

    theta: Array
    covariance: Array
    process: Process
    middle: Array
    scale: Array
    noise: float
    generations: tuple[str, ...]
    least: Array
    most: Array

    def predict(self, steps: Sequence[TransformerStep]) -> Predictions:
        """Return the seconds of each step; ``extrapolation`` is its log distance to the training data.

        Raises:
            InvalidInput: a device lacks a figure, or a size is not above zero.
        """
        features = step_terms(steps)
        point, slopes = predict_seconds(self.theta, features), _slopes(self.theta, features)
        remainder, unsure = self.process.predict((efficiency_features(steps) - self.middle) / self.scale)
        parameter_variance = np.einsum("ij,jk,ik->i", slopes, self.covariance, slopes)
        magnitudes = log_magnitudes(steps)
        beyond = np.maximum(np.maximum(magnitudes - self.most, self.least - magnitudes), 0.0).max(axis=1)
        grown = GROWTH * np.maximum(beyond - VALIDATED_LOG_DISTANCE, 0.0)
        variance = parameter_variance + unsure**2 + self.noise**2 + grown**2 + self.untested_spread(steps) ** 2
        return Predictions(point * np.exp(remainder), np.sqrt(variance), beyond)

    def parts(self, steps: Sequence[TransformerStep]) -> dict[str, Array]:
        """Return the seconds of one step by kind of computing, and of communication without overlap."""
        features = step_terms(steps)
        coefficients = dict(zip(COEFFICIENTS, np.exp(self.theta), strict=True))
        shares = {**_computing(coefficients, features), "exchange": _exchange(coefficients, features)}
        return {name: seconds * features["microbatches"] for name, seconds in shares.items()}

    def untested_spread(self, steps: Sequence[TransformerStep]) -> Array:
        """Return the part of the spread (n,) that no training step can test: new GPUs, other blocks."""
        slopes = _slopes(self.theta, step_terms(steps))
        new = np.array([gpu_generation(step.device) not in self.generations for step in steps])
        unlike = np.array([not step.usual for step in steps])
        products, attention = slopes[:, COEFFICIENTS.index("products")], slopes[:, COEFFICIENTS.index("attention")]
        carried = new * np.hypot(UNSEEN_PRODUCTS * products, UNSEEN_ATTENTION * attention)
        return np.asarray(np.hypot(carried, UNLIKE * unlike), np.float64)


def predict_seconds(theta: Array, features: Mapping[str, Array]) -> Array:
    """Return the seconds of each step (n,) by the parametric model alone."""
    p = dict(zip(COEFFICIENTS, np.exp(theta), strict=True))
    computing = sum(_computing(p, features).values())
    exchange = _exchange(p, features)
    together = (computing**4 + exchange**4) ** 0.25
    microbatch = together + p["unhidden"] * exchange + features["layers"] * p["layer_s"]
    return np.asarray(
        features["microbatches"] * microbatch + p["optimizer"] * features["optimizer_s"] + p["step_s"], np.float64
    )


def _computing(p: dict[str, float], features: Mapping[str, Array]) -> dict[str, Array]:
    """Return the seconds of one microbatch by kind of work."""
    narrow = 1 + p["narrow"] / features["width"]
    few = 1 + p["few_tokens"] / features["tokens"]
    float8 = np.where(features["float8"] > 0, p["float8"], 1.0)
    return {
        "products": features["products_s"] * p["products"] * narrow * few * float8,
        "head": features["head_s"] * p["products"] * narrow,
        "attention": features["attention_s"] * p["attention"],
        "activations": features["activations_s"] * p["activations"],
        "logits": features["logits_s"] * p["logits"],
    }


def _exchange(p: dict[str, float], features: Mapping[str, Array]) -> Array:
    return np.asarray(features["transfer_s"] * p["transfer"] + features["hops_s"] * p["hops"], np.float64)


def _slopes(theta: Array, features: Mapping[str, Array]) -> Array:
    """Return the derivatives of the log seconds by each log coefficient (n, k)."""
    step = 1e-4
    ahead = [np.log(predict_seconds(theta + step * direction, features)) for direction in np.eye(len(theta))]
    behind = [np.log(predict_seconds(theta - step * direction, features)) for direction in np.eye(len(theta))]
    return np.asarray((np.array(ahead) - np.array(behind)).T / (2 * step), np.float64)
