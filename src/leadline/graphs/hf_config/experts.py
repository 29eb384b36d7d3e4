"""Mixture of experts on a tape: scoring, gathering each expert's tokens, and adding the answers up.

The experts' products are one kernel for all of them, which stays in the weights' type under autocast.
"""

import math

from leadline.core.graph import OpKind, StorageCategory
from leadline.graphs.hf_config import ops
from leadline.graphs.hf_config.modules import FeedForwardBlock, Linear, ModelBuilder
from leadline.graphs.hf_config.shape import FeedForwardShape
from leadline.graphs.hf_config.tape import Tape, TapeTensor

TEMPORARY = StorageCategory.TEMPORARY


class MixtureOfExperts:
    """Feed-forward blocks of which a router picks some for each token, and one that every token may pass beside."""

    __slots__ = ("experts", "router", "shape", "shared", "shared_gate", "tape")

    def __init__(self, build: ModelBuilder, hidden: int, shape: FeedForwardShape) -> None:
        self.tape, self.shape = build.tape, shape
        self.router = Linear(build, shape.experts, hidden, bias=shape.router_bias, plain=True)
        self.experts = FeedForwardBlock(build, hidden, shape._replace(fused=True), experts=shape.experts)
        beside = shape._replace(width=shape.shared, bias=False, fused=False)
        self.shared = FeedForwardBlock(build, hidden, beside) if shape.shared else None
        self.shared_gate = Linear(build, 1, hidden, bias=False) if shape.shared_gate else None

    def __call__(self, hidden: TapeTensor) -> TapeTensor:
        """Return the weighed sum of the answers of each token's experts."""
        shape, tape = self.shape, self.tape
        weights = route(tape, self.router(hidden), shape.used)
        chosen = gather_expert_tokens(tape, hidden, shape.experts, shape.used)
        total = combine_expert_outputs(tape, self.experts(chosen), weights, hidden.shape)
        del chosen
        if self.shared is None:
            return total
        beside = self.shared(hidden)
        if self.shared_gate is not None:
            beside = ops.multiply(tape, beside, ops.activation(tape, self.shared_gate(hidden), "sigmoid"))
        return ops.add(tape, total, beside)


def route(tape: Tape, scores: TapeTensor, used: int) -> TapeTensor:
    """Return the weights of the ``used`` best experts of each token, by their scores."""
    chances = tape.new(scores.shape, "float32")
    tape.op("_softmax", OpKind.SOFTMAX, [scores], [chances], flops=5.0 * scores.elements)
    best = tape.new((*scores.shape[:-1], used), "float32")
    tape.op("topk", OpKind.REDUCTION, [chances], [best], flops=scores.elements)
    slot, shape, dtype = scores.slot, scores.shape, scores.dtype

    def backward(gradient: TapeTensor) -> None:
        back = tape.new(shape, dtype, TEMPORARY)
        tape.op("_softmax_backward_data", OpKind.SOFTMAX, [gradient, chances], [back], flops=4.0 * back.elements)
        tape.send(slot, back)

    return tape.node(best, backward)


def gather_expert_tokens(tape: Tape, hidden: TapeTensor, experts: int, used: int) -> TapeTensor:
    """Gather the tokens of each expert, spread evenly: (experts, tokens · used ÷ experts, width).

    Where there are fewer choices than experts, each lands on an expert of its own and the others stay idle.
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
    """Weigh the experts' answers, bring them back into the tokens' order, and add each token's up."""
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
        made = tape.new(weights.shape, weights.dtype, TEMPORARY)
        tape.op("sum", OpKind.REDUCTION, [product], [made], flops=result.elements)
        del product
        tape.send(weights.slot, made)
        back = tape.new(result.shape, result.dtype, TEMPORARY)
        tape.op("mul", OpKind.ELEMENTWISE, [spread, weights], [back], flops=result.elements)
        del spread
        tape.send(result.slot, back)

    return tape.node(total, backward)
