"""The training step of a decoder, read off the op graph of one optimizer step; what the law cannot tell is refused.

The law of training steps (``transformer_step.py``) was learned from eager decoders whose attention is fused and causal,
on NVIDIA GPUs that share out their weights or gradients (FSDP, ZeRO). Anything else is refused with the reason.
"""

import math

from leadline.core.errors import InvalidInput
from leadline.core.graph import Op, OpGraph, OpKind, Stage, TracedJob
from leadline.core.hardware import Device, DeviceKind
from leadline.core.workload import Phase, Precision, Workload
from leadline.estimators.tensor_share import residual_width
from leadline.estimators.transformer_terms import TransformerStep

CAUSAL = 0.5
"""Share of the products of all queries and keys that causal attention needs."""
NEAR = 0.02
"""Relative difference within which sizes count as the same."""
DENSE = 0.05
"""Share of the weights that may take part in no product (norms, biases), embeddings aside."""
PER_NODE = 8
DTYPES = {Precision.BF16: "bfloat16", Precision.AMP_BF16: "bfloat16", Precision.FP16: "float16",
          Precision.AMP_FP16: "float16"}  # fmt: skip


def decoder_step(
    job: TracedJob, workload: Workload, device: Device, *, nodes: int = 1, interconnect: str | None = None
) -> TransformerStep:
    """Return the step of ``workload.gpus`` such devices; ``job`` is one GPU's with the whole model.

    Where nobody says on how many nodes they are, nodes of eight are taken. What the workload leaves open (number
    format, accumulation) is as the job's own loop has it.

    Raises:
        InvalidInput: the law does not apply; the message says why.
    """
    _require_plan(workload, device)
    graph, microbatches, precision = (
        job.step,
        max(workload.accumulation, job.loop.accumulation),
        _precision(workload, job),
    )
    forward = [op for op in graph.ops if op.kind is OpKind.ATTENTION and op.stage is Stage.FORWARD]
    attention, layers = _attention(forward, microbatches)
    width = residual_width(graph)
    block, vocabulary = _weights(graph, width, microbatches)
    gpus = workload.gpus
    return TransformerStep(
        device=device, gpus=gpus, nodes=max(nodes, math.ceil(gpus / PER_NODE)), interconnect=interconnect,
        layers=layers, width=width, vocabulary=vocabulary, block_weights=block,
        parameters=float(graph.parameters), sequence=attention.dims["q"], microbatch=attention.dims["b"],
        microbatches=microbatches, checkpointing=workload.checkpointing, dtype=DTYPES[precision],
        reduced_bytes=4 if precision.autocast else 2, sharding=workload.parallelism.sharding,
        attention_width=attention.dims["h"] * attention.dims["d"],
    )  # fmt: skip


def _require_plan(workload: Workload, device: Device) -> None:
    """Refuse a job that is run in a way of which the learned steps tell nothing."""
    plan = workload.parallelism
    if workload.phase is not Phase.TRAINING:
        raise InvalidInput("the law of training steps tells nothing of inference")
    if workload.adapters is not None:
        raise InvalidInput("the law of training steps was learned from steps in which all weights are trained")
    if workload.compiled:
        raise InvalidInput(
            "the law of training steps was learned from eager steps: a compiled one fuses what it counts"
        )
    if plan.tensor * plan.pipeline > 1:
        raise InvalidInput("the law of training steps saw no tensor or pipeline parallelism")
    if workload.gpus > 1 and not plan.sharding.gathers:
        raise InvalidInput(
            f"the law of training steps saw weights or gradients shared out, not sharding {plan.sharding.value}, whose "
            "exchanges hide elsewhere"
        )
    if device.kind is not DeviceKind.GPU or device.vendor.casefold() != "nvidia":
        raise InvalidInput(f"the law of training steps carries over to NVIDIA GPUs alone, and {device.name} is none")


def _precision(workload: Workload, job: TracedJob) -> Precision:
    said = workload.precision.value if workload.precision else job.loop.precision
    for one in DTYPES:
        if one.value == said:
            return one
    known = ", ".join(one.value for one in DTYPES)
    raise InvalidInput(f"the law of training steps was learned in half precision ({known}), not in {said or 'fp32'}")


def _attention(forward: list[Op], accumulation: int) -> tuple[Op, int]:
    """Return one attention of a layer, and the number of layers; refuse what is not fused, causal and all alike."""
    if not forward:
        raise InvalidInput(
            "the law of training steps was learned with fused attention, and this graph has none: it is no "
            "transformer, or writes its attention out op by op"
        )
    one = forward[0]
    if any(op.dims != one.dims for op in forward):
        raise InvalidInput(
            "the law of training steps knows layers that are all alike, and this model's attention differs"
        )
    sizes = one.dims
    full = 4.0 * sizes["b"] * sizes["h"] * sizes["q"] * sizes["kv"] * sizes["d"]
    share = one.flops / full
    if sizes["q"] != sizes["kv"] or abs(share - CAUSAL) > NEAR:
        raise InvalidInput(
            "the law of training steps was learned from causal attention to all earlier tokens, and this model's "
            f"computes {share:.0%} of all pairs: an encoder, a pair of both, or a sliding window"
        )
    count = sum(op.count for op in forward)
    if count % accumulation:
        raise InvalidInput(f"{count} attention layers do not divide into {accumulation} microbatches: give the number")
    return one, count // accumulation


def _weights(graph: OpGraph, width: int, accumulation: int) -> tuple[float, int]:
    """Return the weights of the blocks' products, and the vocabulary; refuse what is not dense or has no head."""
    products = [op for op in graph.ops if op.kind is OpKind.GEMM and op.stage is Stage.FORWARD and "n" in op.dims]
    weighing = [op for op in products if op.dims.get("b", 1) == 1]
    if not weighing or not width:
        raise InvalidInput("this graph has no products with weights: the law of training steps does not know it")
    head = weighing[-1].dims
    scored = sum(op.count for op in weighing if op.dims == head)
    if head["k"] != width or scored != accumulation or head["n"] <= width:
        raise InvalidInput(
            "the law of training steps knows decoders that end in scores of a vocabulary, and this does not"
        )
    vocabulary = head["n"]
    block = sum(op.dims["n"] * op.dims["k"] * op.count for op in weighing if op.dims != head) / accumulation
    products_hold = block + vocabulary * width
    rest = graph.parameters - products_hold
    if rest > vocabulary * width * (1 + NEAR) + DENSE * products_hold:
        raise InvalidInput(
            f"{rest / graph.parameters:.0%} of the weights take part in no product of every token: the law of training "
            "steps knows dense decoders, not mixtures of experts"
        )
    return block, vocabulary
