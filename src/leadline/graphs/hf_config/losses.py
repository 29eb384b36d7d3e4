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


def cross_entropy(tape: Tape, logits: Size) -> Size:
    """Return the mean loss over rows of logits, in float32 whatever their dtype."""
    wide = tape.cast(logits, "float32")
    rows, n, slot = wide.elements // wide.shape[-1], wide.elements, wide.slot
    shape = wide.shape
    likely = tape.new(shape, "float32")
    tape.op("_log_softmax", OpKind.SOFTMAX, [wide], [likely], flops=5.0 * n)
    del wide
    loss = tape.new((1,), "float32")
    tape.op("nll_loss_forward", OpKind.REDUCTION, [likely], [loss], flops=rows, read=12.0 * rows)

    def backward(gradient: Size) -> None:
        direct = tape.new(shape, "float32", TEMPORARY)
        tape.op("nll_loss_backward", OpKind.REDUCTION, [gradient], [direct], flops=rows, written=2.0 * direct.bytes)
        back = tape.new(shape, "float32", TEMPORARY)
        tape.op("_log_softmax_backward_data", OpKind.SOFTMAX, [direct, likely], [back], flops=4.0 * n)
        del direct
        tape.send(slot, back)

    return tape.node(loss, backward)


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
