"""The loss of a language model on a tape: from the vocabulary's scores, or fused with the product that makes them."""

import math

from leadline.core.graph import OpKind, Stage, StorageCategory
from leadline.graphs.hf_config import attention_ops
from leadline.graphs.hf_config.tape import Tape, TapeTensor


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


def fused_cross_entropy(tape: Tape, hidden: TapeTensor, weight: TapeTensor) -> TapeTensor:
    """Return the loss of hidden states (…, k) by an output layer (n, k), whose scores exist for a few rows at a time.

    As in Liger Kernel's fused linear cross entropy (Hsu et al. 2024): a chunk of scores is about as large as the hidden
    states, and the gradients of both operands are computed at once, in the forward pass. Each op stands for all chunks.
    """
    matrix = tape.cast_weight(weight)
    hidden = tape.cast(hidden, matrix.dtype)
    (n, k), rows = weight.shape, hidden.elements // hidden.shape[-1]
    chunk = min(rows, 2 ** math.ceil(math.log2(max(rows / math.ceil(n / k), 1))))
    scores = tape.new((chunk, n), hidden.dtype, StorageCategory.TEMPORARY)
    flops, passed = 2.0 * rows * n * k, float(scores.bytes * rows / chunk)
    tape.op("mm", OpKind.GEMM, [hidden, matrix], [scores], flops=flops, dims={"b": 1, "m": rows, "n": n, "k": k},
            written=passed)  # fmt: skip
    loss = tape.new((1,), "float32")
    tape.op("fused_cross_entropy", OpKind.SOFTMAX, [scores], [loss], flops=8.0 * rows * n, read=2 * passed,
            written=passed)  # fmt: skip
    stage, tape.stage = tape.stage, Stage.BACKWARD
    gradients = []
    for slot, shape, dims in (
        (hidden.slot, hidden.shape, {"b": 1, "m": rows, "n": k, "k": n}),
        (matrix.slot, matrix.shape, {"b": 1, "m": n, "n": k, "k": rows}),
    ):
        if slot is None or not tape.training:
            continue
        other = matrix if slot == hidden.slot else hidden
        category = StorageCategory.GRADIENT if tape.is_weight(matrix) and slot == matrix.slot else None
        gradient = tape.new(shape, hidden.dtype, category)
        tape.op("mm", OpKind.GEMM, [scores, other], [gradient], flops=flops, dims=dims, read=passed + other.bytes)
        gradients.append((slot, gradient))
    tape.stage = stage

    def backward(_: TapeTensor) -> None:
        while gradients:
            tape.send(*gradients.pop())

    return tape.node(loss, backward, hidden, matrix)
