"""What ends a forward pass on a tape: picking a token, and the losses that training starts from."""

import math

from leadline.core.graph import OpKind, StorageCategory
from leadline.graphs.hf_config import ops
from leadline.graphs.hf_config.modules import Linear, ModelBuilder, Norm
from leadline.graphs.hf_config.shape import HeadShape
from leadline.graphs.hf_config.tape import Tape, TapeTensor

TEMPORARY = StorageCategory.TEMPORARY


def first_token(tape: Tape, hidden: TapeTensor) -> TapeTensor:
    """Take the first token of each sequence; the gradient is zero elsewhere."""
    batch, _, width = hidden.shape
    slot, shape, dtype = hidden.slot, hidden.shape, hidden.dtype
    result = TapeTensor((batch, 1, width), dtype, hidden.storage)

    def backward(gradient: TapeTensor) -> None:
        back = tape.new(shape, dtype, TEMPORARY)
        tape.op("slice_backward", OpKind.INDEX, [gradient], [back])
        tape.send(slot, back)

    return tape.node(result, backward)


def cross_entropy(tape: Tape, logits: TapeTensor, *, upcast: bool) -> TapeTensor:
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

    def backward(gradient: TapeTensor) -> None:
        direct = tape.new(likely.shape, likely.dtype, TEMPORARY)
        tape.op("nll_loss_backward", OpKind.REDUCTION, [gradient], [direct], flops=rows, written=2.0 * direct.bytes)
        tape.send(slot, direct)

    return tape.node(loss, backward)


def _log_softmax(tape: Tape, scores: TapeTensor) -> TapeTensor:
    n, slot = scores.elements, scores.slot
    likely = tape.new(scores.shape, scores.dtype)
    tape.op("_log_softmax", OpKind.SOFTMAX, [scores], [likely], flops=5.0 * n)

    def backward(gradient: TapeTensor) -> None:
        back = tape.new(likely.shape, likely.dtype, TEMPORARY)
        tape.op("_log_softmax_backward_data", OpKind.SOFTMAX, [gradient, likely], [back], flops=4.0 * n)
        tape.send(slot, back)

    return tape.node(likely, backward)


def mean_loss(tape: Tape, output: TapeTensor) -> TapeTensor:
    """Return the mean of a tensor as the loss of a model without a head."""
    loss = tape.new((1,), "float32")
    tape.op("mean", OpKind.REDUCTION, [output], [loss], flops=output.elements)
    slot, shape, dtype = output.slot, output.shape, output.dtype

    def backward(gradient: TapeTensor) -> None:
        back = tape.new(shape, dtype, TEMPORARY)
        tape.op("div", OpKind.ELEMENTWISE, [gradient], [back], flops=math.prod(shape))
        tape.send(slot, back)

    return tape.node(loss, backward)


class ModelHead:
    """The head of a model; ``table`` is the embedding whose weights a tied head scores with."""

    __slots__ = ("bias", "build", "norm", "score", "shape", "table", "transform")

    def __init__(self, build: ModelBuilder, hidden: int, shape: HeadShape, table: TapeTensor | None = None) -> None:
        self.build, self.shape, self.table = build, shape, table
        self.transform = None
        self.norm = None
        if shape.transform:
            self.transform = Linear(build, shape.transform, hidden, bias=shape.transform_bias)
            if shape.transform_norm:
                self.norm = Norm(build, shape.transform_norm, shape.transform)
        self.score = None
        self.bias = build.weight(shape.outputs) if shape.tied and shape.bias else None
        if shape.outputs and not shape.tied:
            self.score = Linear(build, shape.outputs, shape.transform or hidden, bias=shape.bias, saved=True)

    def __call__(self, hidden: TapeTensor) -> TapeTensor:
        """Return scores (…, outputs), or the hidden states of a model without."""
        tape, shape = self.build.tape, self.shape
        answer = first_token(tape, hidden) if shape.pooled else hidden
        if self.transform is not None:
            answer = ops.activation(tape, self.transform(answer), shape.activation)
            answer = self.norm(answer) if self.norm is not None else answer
        if self.score is not None:
            answer = self.score(answer)
        elif shape.outputs and self.table is not None:
            answer = ops.linear(tape, answer, self.table, self.bias)
        else:
            return hidden
        if shape.capped:
            answer = ops.scale_tensor(tape, answer)
            answer = ops.activation(tape, answer, "tanh")
            answer = ops.scale_tensor(tape, answer)
        return answer

    def loss(self, answer: TapeTensor) -> TapeTensor:
        """Return what training starts from: cross entropy over scores, the mean of hidden states."""
        tape = self.build.tape
        return cross_entropy(tape, answer, upcast=self.shape.upcast) if self.shape.outputs else mean_loss(tape, answer)
