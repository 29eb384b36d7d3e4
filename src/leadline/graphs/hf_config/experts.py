"""Mixture of experts on a tape: the router, the tokens of each expert, and the sum of their outputs."""

import math

from leadline.core.graph import OpKind
from leadline.graphs.hf_config import ops
from leadline.graphs.hf_config.modules import FeedForwardBlock, Linear, ModelBuilder
from leadline.graphs.hf_config.shape import FeedForwardShape
from leadline.graphs.hf_config.tape import Tape, TapeTensor


class MixtureOfExperts:
    """Feed-forward blocks of which a router picks some for each token, and a block that every token may pass too.

    The products of all experts are one kernel, which stays in the weights' type under autocast.
    """

    def __init__(self, builder: ModelBuilder, hidden: int, shape: FeedForwardShape) -> None:
        self.tape, self.shape = builder.tape, shape
        self.router = Linear(builder, shape.experts, hidden, bias=shape.router_bias, plain=True)
        width = shape.latent or hidden
        self.narrow = Linear(builder, width, hidden, bias=shape.bias, name="fc1_latent_proj") if shape.latent else None
        with builder.scope("experts"):
            self.experts = FeedForwardBlock(builder, width, shape._replace(fused=True), experts=shape.experts)
        self.widen = Linear(builder, hidden, width, bias=shape.bias, name="fc2_latent_proj") if shape.latent else None
        shared_shape = shape._replace(width=shape.shared, bias=False, fused=False)
        with builder.scope("shared_experts"):
            self.shared = FeedForwardBlock(builder, hidden, shared_shape) if shape.shared else None
        gate = "shared_expert_gate"
        self.shared_gate = Linear(builder, 1, hidden, bias=False, name=gate) if shape.shared_gate else None

    def __call__(self, hidden: TapeTensor) -> TapeTensor:
        """Return the weighted sum of the outputs of each token's experts."""
        shape, tape = self.shape, self.tape
        weights = route(tape, self.router(hidden), shape.used)
        tokens = hidden if self.narrow is None else self.narrow(hidden)
        chosen = gather_expert_tokens(tape, tokens, shape.experts, shape.used)
        total = combine_expert_outputs(tape, self.experts(chosen), weights, tokens.shape)
        del chosen, tokens
        total = total if self.widen is None else self.widen(total)
        if self.shared is None:
            return total
        shared_output = self.shared(hidden)
        if self.shared_gate is not None:
            shared_output = ops.multiply(tape, shared_output, ops.activation(tape, self.shared_gate(hidden), "sigmoid"))
        return ops.add(tape, total, shared_output)


def route(tape: Tape, scores: TapeTensor, used: int) -> TapeTensor:
    """Return the weights of each token's ``used`` best experts, by their scores."""
    n, shape = scores.elements, scores.shape
    probabilities = tape.compute("_softmax", OpKind.SOFTMAX, [scores], shape, "float32", flops=5.0 * n)
    best = tape.compute("topk", OpKind.REDUCTION, [probabilities], (*shape[:-1], used), "float32", flops=n)
    return tape.node_op(
        best, scores, "_softmax_backward_data", OpKind.SOFTMAX, [probabilities], dtype=scores.dtype, flops=4.0 * n
    )


def gather_expert_tokens(tape: Tape, hidden: TapeTensor, experts: int, used: int) -> TapeTensor:
    """Gather the tokens of each expert, in equal numbers: (experts, tokens · used ÷ experts, width).

    With fewer choices than experts, each goes to an expert of its own and the other experts are idle.
    """
    width = hidden.shape[-1]
    choices = hidden.elements // width * used
    busy = min(experts, choices)
    gathered = busy, math.ceil(choices / busy), width
    result = tape.compute("index", OpKind.INDEX, [hidden], gathered, hidden.dtype)
    return tape.node_op(result, hidden, "index_put_", OpKind.INDEX, dtype=hidden.dtype, read=2.0 * result.bytes)


def combine_expert_outputs(tape: Tape, result: TapeTensor, weights: TapeTensor, shape: tuple[int, ...]) -> TapeTensor:
    """Weight the experts' outputs, restore the order of the tokens, and sum those of each token."""
    weighed = tape.pointwise("mul", result, weights)
    ordered = tape.compute("index", OpKind.INDEX, [weighed], result.shape, result.dtype)
    del weighed
    total = tape.sum_to(ordered, shape, result.dtype)
    del ordered

    def backward(gradient: TapeTensor) -> None:
        spread = tape.compute("index_put_", OpKind.INDEX, [gradient], result.shape, result.dtype)
        product = tape.pointwise("mul", spread, result)
        weight_gradient = tape.sum_to(product, weights.shape, weights.dtype)
        del product
        tape.send(weights.slot, weight_gradient)
        back = tape.pointwise("mul", spread, weights)
        del spread
        tape.send(result.slot, back)

    return tape.node(total, backward)
