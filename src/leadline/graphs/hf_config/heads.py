"""Heads of models on a tape: picking a token, scores, and the losses of training."""

from leadline.core.graph import OpKind
from leadline.graphs.hf_config import attention_ops, ops
from leadline.graphs.hf_config.modules import Linear, ModelBuilder, Norm
from leadline.graphs.hf_config.shape import HeadShape
from leadline.graphs.hf_config.tape import Tape, TapeTensor


def first_token(tape: Tape, hidden: TapeTensor) -> TapeTensor:
    """Return the first token of each sequence. The gradient is zero elsewhere."""
    batch, _, width = hidden.shape
    result = TapeTensor((batch, 1, width), hidden.dtype, hidden.storage)
    return tape.node_op(result, hidden, "slice_backward", OpKind.INDEX, dtype=hidden.dtype)


def cross_entropy(tape: Tape, logits: TapeTensor, *, upcast: bool) -> TapeTensor:
    """Return the mean loss over rows of logits.

    Without ``upcast``, the log-probabilities have the logits' own type, and autocast converts them to float32.
    """
    wide = tape.cast(logits, "float32") if upcast else logits
    log_probabilities = attention_ops.softmax(tape, wide, "_log_softmax")
    if tape.autocast:
        log_probabilities = tape.cast(log_probabilities, "float32")
    rows = log_probabilities.elements // log_probabilities.shape[-1]
    slot = log_probabilities.slot
    dtype, read = log_probabilities.dtype, 12.0 * rows
    loss = tape.compute("nll_loss_forward", OpKind.REDUCTION, [log_probabilities], (1,), dtype, flops=rows, read=read)

    def backward(gradient: TapeTensor) -> None:
        back = tape.new(log_probabilities.shape, dtype)
        written = 2.0 * back.bytes
        tape.op("nll_loss_backward", OpKind.REDUCTION, [gradient], [back], flops=rows, written=written)
        tape.send(slot, back)

    return tape.node(loss, backward)


class ModelHead:
    """The head of a model. A tied head scores with the weights of the embedding ``table``."""

    def __init__(self, builder: ModelBuilder, hidden: int, shape: HeadShape, table: TapeTensor | None = None) -> None:
        self.builder, self.shape, self.table = builder, shape, table
        self.transform = self.norm = self.score = None
        if shape.transform:
            self.transform = Linear(builder, shape.transform, hidden, bias=shape.transform_bias)
            if shape.transform_norm:
                self.norm = Norm(builder, shape.transform_norm, shape.transform)
        self.bias = builder.weight(shape.outputs) if shape.tied and shape.bias else None
        if shape.outputs and not shape.tied:
            width = shape.transform or hidden
            self.score = Linear(builder, shape.outputs, width, bias=shape.bias, saved=True, name="lm_head")

    def __call__(self, hidden: TapeTensor) -> TapeTensor:
        """Return scores (…, outputs), or the hidden states of a model without a head."""
        tape, shape = self.builder.tape, self.shape
        output_states = first_token(tape, hidden) if shape.pooled else hidden
        if self.transform is not None:
            output_states = ops.activation(tape, self.transform(output_states), shape.activation)
            output_states = self.norm(output_states) if self.norm is not None else output_states
        if self.score is not None:
            output_states = self.score(output_states)
        elif shape.outputs and self.table is not None:
            output_states = ops.linear(tape, output_states, self.table, self.bias)
        else:
            return hidden
        if shape.capped:
            output_states = ops.scale_tensor(tape, output_states)
            output_states = ops.activation(tape, output_states, "tanh")
            output_states = ops.scale_tensor(tape, output_states)
        return output_states

    def loss(self, output_states: TapeTensor) -> TapeTensor:
        """Return the loss: cross entropy over scores, or the mean of hidden states."""
        tape, n = self.builder.tape, output_states.elements
        if self.shape.outputs:
            return cross_entropy(tape, output_states, upcast=self.shape.upcast)
        loss = tape.compute("mean", OpKind.REDUCTION, [output_states], (1,), "float32", flops=n)
        return tape.node_op(loss, output_states, "div", OpKind.ELEMENTWISE, dtype=output_states.dtype, flops=n)
