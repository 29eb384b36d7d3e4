"""Mixture of experts on a tape: scoring, gathering each expert's tokens, and adding the answers up."""

from leadline.core.graph import OpKind, StorageCategory
from leadline.graphs.hf_config.layers import linear
from leadline.graphs.hf_config.tape import Size, Tape

TEMPORARY = StorageCategory.TEMPORARY


def route(tape: Tape, hidden: Size, router: Size, used: int) -> Size:
    """Score the experts for each token and return the weights of the best ones."""
    scores = linear(tape, hidden, router)
    chances = tape.new(scores.shape, "float32")
    tape.op("_softmax", OpKind.SOFTMAX, [scores], [chances], flops=5.0 * scores.elements)
    best = tape.new((*scores.shape[:-1], used), "float32")
    tape.op("topk", OpKind.REDUCTION, [chances], [best], flops=scores.elements)
    slot, shape, dtype = scores.slot, scores.shape, scores.dtype

    def backward(gradient: Size) -> None:
        back = tape.new(shape, dtype, TEMPORARY)
        tape.op("_softmax_backward_data", OpKind.SOFTMAX, [gradient, chances], [back], flops=4.0 * back.elements)
        tape.send(slot, back)

    return tape.node(best, backward)


def dispatch(tape: Tape, hidden: Size, experts: int, used: int) -> Size:
    """Gather the tokens of each expert, spread evenly: (experts, tokens · used ÷ experts, width)."""
    width = hidden.shape[-1]
    tokens = max(1, hidden.elements // width * used // experts)
    result = tape.new((experts, tokens, width), hidden.dtype)
    tape.op("index", OpKind.INDEX, [hidden], [result])
    slot, shape, dtype = hidden.slot, hidden.shape, hidden.dtype

    def backward(gradient: Size) -> None:
        back = tape.new(shape, dtype, TEMPORARY)
        tape.op("index_put_", OpKind.INDEX, [gradient], [back], read=2.0 * gradient.bytes)
        tape.send(slot, back)

    return tape.node(result, backward)


def combine(tape: Tape, result: Size, weights: Size, shape: tuple[int, ...]) -> Size:
    """Weigh the experts' answers and add them up for each token; the answers are saved for their weights."""
    total = tape.new(shape, result.dtype)
    tape.op("mul", OpKind.ELEMENTWISE, [result], [result], flops=result.elements)
    tape.op("index_add_", OpKind.INDEX, [result], [total], flops=result.elements)

    def backward(gradient: Size) -> None:
        back = tape.new(result.shape, result.dtype, TEMPORARY)
        tape.op("index", OpKind.INDEX, [gradient, result], [back])
        tape.send(weights.slot, tape.new(weights.shape, weights.dtype, TEMPORARY))
        tape.send(result.slot, back)

    return tape.node(total, backward)
