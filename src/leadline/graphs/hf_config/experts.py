"""Mixture of experts on a tape: scoring, gathering each expert's tokens, and summing the outputs.

The products of all experts are one kernel, which stays in the weights' type under autocast.
"""

import math

from leadline.core.graph import OpKind, StorageCategory
from leadline.graphs.hf_config import ops
from leadline.graphs.hf_config.modules import FeedForwardBlock, Linear, ModelBuilder
from leadline.graphs.hf_config.shape import FeedForwardShape
from leadline.graphs.hf_config.tape import Tape, TapeTensor

TEMPORARY = StorageCategory.TEMPORARY


class MixtureOfExperts:
    """Feed-forward blocks of which a router picks some for each token, and a block that every token may pass too."""

    __slots__ = ("experts", "router", "shape", "shared", "shared_gate", "tape")

    def __init__(self, builder: ModelBuilder, hidden: int, shape: FeedForwardShape) -> None:
        self.tape, self.shape = builder.tape, shape
        self.router = Linear(builder, shape.experts, hidden, bias=shape.router_bias, plain=True)
        self.experts = FeedForwardBlock(builder, hidden, shape._replace(fused=True), experts=shape.experts)
        shared_shape = shape._replace(width=shape.shared, bias=False, fused=False)
        self.shared = FeedForwardBlock(builder, hidden, shared_shape) if shape.shared else None
        self.shared_gate = Linear(builder, 1, hidden, bias=False) if shape.shared_gate else None

    def __call__(self, hidden: TapeTensor) -> TapeTensor:
        """Return the weighted sum of the outputs of each token's experts."""
        shape, tape = self.shape, self.tape
        weights = route(tape, self.router(hidden), shape.used)
        chosen = gather_expert_tokens(tape, hidden, shape.experts, shape.used)
        total = combine_expert_outputs(tape, self.experts(chosen), weights, hidden.shape)
        del chosen
        if self.shared is None:
            return total
        shared_output = self.shared(hidden)
        if self.shared_gate is not None:
            shared_output = ops.multiply(tape, shared_output, ops.activation(tape, self.shared_gate(hidden), "sigmoid"))
        return ops.add(tape, total, shared_output)


def route(tape: Tape, scores: TapeTensor, used: int) -> TapeTensor:
    """Return the weights of each token's ``used`` best experts, by their scores."""
    probabilities = tape.new(scores.shape, "float32")
    tape.op("_softmax", OpKind.SOFTMAX, [scores], [probabilities], flops=5.0 * scores.elements)
    best = tape.new((*scores.shape[:-1], used), "float32")
    tape.op("topk", OpKind.REDUCTION, [probabilities], [best], flops=scores.elements)
    slot, shape, dtype = scores.slot, scores.shape, scores.dtype

    def backward(gradient: TapeTensor) -> None:
        back = tape.new(shape, dtype, TEMPORARY)
        tape.op("_softmax_backward_data", OpKind.SOFTMAX, [gradient, probabilities], [back], flops=4.0 * back.elements)
        tape.send(slot, back)

    return tape.node(best, backward)


def gather_expert_tokens(tape: Tape, hidden: TapeTensor, experts: int, used: int) -> TapeTensor:
    """Gather the tokens of each expert, in equal numbers: (experts, tokens · used ÷ experts, width).

    With fewer choices than experts, each goes to an expert of its own and the other experts are idle.
    """
    width = hidden.shape[-1]
    choices = hidden.elements // width * used
    busy = min(experts, choices)
    result = tape.new((busy, math.ceil(choices / busy), width), hidden.dtype)
    tape.op("index", OpKind.INDEX, [hidden], [result])
    slot, shape, dtype = hidden.slot, hidden.shape, hidden.dtype

    def backward(gradient: TapeTensor) -> None:
        back = tape.new(shape, dtype, TEMPORARY)
        tape.op("index_put_", OpKind.INDEX, [gradient], [back], read=2.0 * gradient.bytes)
        tape.send(slot, back)

    return tape.node(result, backward)


def combine_expert_outputs(tape: Tape, result: TapeTensor, weights: TapeTensor, shape: tuple[int, ...]) -> TapeTensor:
    """Weight the experts' outputs, restore the order of the tokens, and sum those of each token."""
    weighed = tape.new(result.shape, result.dtype)
    tape.op("mul", OpKind.ELEMENTWISE, [result, weights], [weighed], flops=result.elements)
    ordered = tape.new(result.shape, result.dtype)
    tape.op("index", OpKind.INDEX, [weighed], [ordered])
    del weighed
    total = tape.new(shape, result.dtype)
    tape.op("sum", OpKind.REDUCTION, [ordered], [total], flops=result.elements)
    del ordered

    def backward(gradient: TapeTensor) -> None:
        spread = tape.new(result.shape, result.dtype, TEMPORARY)
        tape.op("index_put_", OpKind.INDEX, [gradient], [spread])
        product = tape.new(result.shape, result.dtype, TEMPORARY)
        tape.op("mul", OpKind.ELEMENTWISE, [spread, result], [product], flops=result.elements)
        weight_gradient = tape.new(weights.shape, weights.dtype, TEMPORARY)
        tape.op("sum", OpKind.REDUCTION, [product], [weight_gradient], flops=result.elements)
        del product
        tape.send(weights.slot, weight_gradient)
        back = tape.new(result.shape, result.dtype, TEMPORARY)
        tape.op("mul", OpKind.ELEMENTWISE, [spread, weights], [back], flops=result.elements)
        del spread
        tape.send(result.slot, back)

    return tape.node(total, backward)
