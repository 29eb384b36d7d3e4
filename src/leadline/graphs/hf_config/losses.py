"""What ends a forward pass on a tape: picking a token, and the losses that training starts from."""

import math

from leadline.core.graph import OpKind, StorageCategory
from leadline.graphs.hf_config.tape import Size, Tape

TEMPORARY = StorageCategory.TEMPORARY


def first_token(tape: Tape, hidden: Size) -> Size:
    """Take the first token of each sequence; the gradient is zero elsewhere."""
    batch, _, width = hidden.shape
    slot, shape, dtype = hidden.slot, hidden.shape, hidden.dtype
    result = Size((batch, 1, width), dtype, hidden.storage)

    def backward(gradient: Size) -> None:
        back = tape.new(shape, dtype, TEMPORARY)
        tape.op("slice_backward", OpKind.INDEX, [gradient], [back])
        tape.send(slot, back)

    return tape.node(result, backward)


def cross_entropy(tape: Tape, logits: Size, *, upcast: bool) -> Size:
    """Return the mean loss over rows of logits; without ``upcast`` their logarithms are taken in the logits' own type.

    Autocast then converts the logarithms to float32.
    """
    wide = tape.cast(logits, "float32") if upcast else logits
    likely = _log_softmax(tape, wide)
    if tape.autocast:
        likely = tape.cast(likely, "float32")
    rows = likely.elements // likely.shape[-1]
    slot = likely.slot
    loss = tape.new((1,), likely.dtype)
    tape.op("nll_loss_forward", OpKind.REDUCTION, [likely], [loss], flops=rows, read=12.0 * rows)

    def backward(gradient: Size) -> None:
        direct = tape.new(likely.shape, likely.dtype, TEMPORARY)
        tape.op("nll_loss_backward", OpKind.REDUCTION, [gradient], [direct], flops=rows, written=2.0 * direct.bytes)
        tape.send(slot, direct)

    return tape.node(loss, backward)


def _log_softmax(tape: Tape, scores: Size) -> Size:
    n, slot = scores.elements, scores.slot
    likely = tape.new(scores.shape, scores.dtype)
    tape.op("_log_softmax", OpKind.SOFTMAX, [scores], [likely], flops=5.0 * n)

    def backward(gradient: Size) -> None:
        back = tape.new(likely.shape, likely.dtype, TEMPORARY)
        tape.op("_log_softmax_backward_data", OpKind.SOFTMAX, [gradient, likely], [back], flops=4.0 * n)
        tape.send(slot, back)

    return tape.node(likely, backward)


def mean_loss(tape: Tape, output: Size) -> Size:
    """Return the mean of a tensor as the loss of a model without a head."""
    loss = tape.new((1,), "float32")
    tape.op("mean", OpKind.REDUCTION, [output], [loss], flops=output.elements)
    slot, shape, dtype = output.slot, output.shape, output.dtype

    def backward(gradient: Size) -> None:
        back = tape.new(shape, dtype, TEMPORARY)
        tape.op("div", OpKind.ELEMENTWISE, [gradient], [back], flops=math.prod(shape))
        tape.send(slot, back)

    return tape.node(loss, backward)
