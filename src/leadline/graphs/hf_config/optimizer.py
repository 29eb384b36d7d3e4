"""The optimizer's step on a tape: PyTorch's multi-tensor updates with temporaries, or bitsandbytes' kernels."""

import math
from collections.abc import Iterator, Sequence

from leadline.core.graph import BYTES_PER_ELEMENT, OpKind, Stage, StorageCategory
from leadline.core.workload import Optimizer
from leadline.graphs.hf_config.tape import Tape, TapeTensor

UPDATES = {
    Optimizer.SGD: "add_",
    Optimizer.MOMENTUM: "mul_ add_ add_",
    Optimizer.ADAM: "lerp_ mul_ addcmul_ sqrt div_ add_scalar_ addcdiv_",
    Optimizer.ADAMW: "mul_ lerp_ mul_ addcmul_ sqrt div_ add_scalar_ addcdiv_",
    Optimizer.ADAGRAD: "addcmul_ sqrt add_scalar_ mul_ addcdiv_",
    Optimizer.RMSPROP: "mul_ addcmul_ sqrt add_scalar_ addcdiv_",
    Optimizer.LION: "mul_ lerp sign_ add_ lerp_",
}
"""Updates of each optimizer in order. Names that end in an underscore work in place, as in PyTorch."""

COSTS = {
    "add_": (2, 2), "add_scalar_": (1, 1), "addcdiv_": (3, 3), "addcmul_": (3, 3), "div_": (1, 1), "lerp": (2, 3),
    "lerp_": (2, 3), "mul_": (1, 1), "non_finite_check_and_unscale_": (1, 1), "sign_": (1, 1), "sqrt": (1, 2),
}  # fmt: skip
"""Tensors read by each update, and operations per element."""

TENSORS_PER_KERNEL = 100
"""Approximate number of tensors per multi-tensor kernel."""

ELEMENTS_PER_KERNEL = 320 * 65536
"""Elements per multi-tensor kernel: 320 blocks of 65,536 (ATen's MultiTensorApply)."""

QUANTIZATION_BLOCK = 256
"""Elements of an 8-bit state that share a float32 scale (bitsandbytes)."""
MIN_QUANTIZED_ELEMENTS = 4096
"""Weights with fewer elements keep a float32 state (bitsandbytes' ``min_8bit_size``)."""


def hold_states(tape: Tape, optimizer: Optimizer, *, bucket: int = 0) -> list[TapeTensor]:
    """Make the optimizer's state, with which every step but the first starts. Paged state is on the host.

    With a ``bucket``, DeepSpeed's optimizer holds float32 weights and states, and two buffers of so many gradients
    (``contiguous_gradients`` and ``overlap_comm`` of its ZeRO-2).
    """
    if optimizer.paged:
        return []
    if bucket:
        wide = [(weight.shape, "float32") for weight in tape.parameters] * (1 + optimizer.states)
        buffers = [tape.new((bucket,), tape.parameters[0].dtype, StorageCategory.GRADIENT) for _ in range(2)]
        return buffers + [tape.new(*tensor, StorageCategory.OPTIMIZER_STATE) for tensor in wide]
    return [
        tape.new(shape, dtype, StorageCategory.OPTIMIZER_STATE)
        for _ in range(optimizer.states)
        for shape, dtype in _state_tensors(tape.parameters, optimizer)
    ]


def _state_tensors(weights: Sequence[TapeTensor], optimizer: Optimizer) -> Iterator[tuple[tuple[int, ...], str]]:
    """Yield shape and dtype of the tensors of one state, weight by weight."""
    if not optimizer.from_bitsandbytes:
        yield from ((weight.shape, weight.dtype) for weight in weights)
        return
    quantized = optimizer.quantized
    for weight in weights:
        if quantized and weight.elements >= MIN_QUANTIZED_ELEMENTS:
            yield weight.shape, "uint8"
            yield (math.ceil(weight.elements / QUANTIZATION_BLOCK),), "float32"
        else:
            yield weight.shape, "float32"


def update_weights(tape: Tape, optimizer: Optimizer, *, scaled: bool = False, deepspeed: bool = False) -> None:
    """Record one optimizer step over all weights, then free the gradients. ``scaled`` unscales them first.

    ``deepspeed`` copies the gradients into one flat tensor, widens it to float32, and updates in one kernel.
    """
    tape.stage = Stage.OPTIMIZER
    weights = tape.parameters
    elements = sum(weight.elements for weight in weights)
    bytes_once = float(sum(weight.bytes for weight in weights))
    kernels = max(math.ceil(len(weights) / TENSORS_PER_KERNEL), math.ceil(elements / ELEMENTS_PER_KERNEL))
    steps = UPDATES.get(optimizer, "").split()
    if scaled:
        steps.insert(0, "non_finite_check_and_unscale_")
    temporaries: list[TapeTensor] = []
    if deepspeed:
        temporaries = [
            tape.new((elements,), dtype, StorageCategory.TEMPORARY) for dtype in (weights[0].dtype, "float32")
        ]
    for name in steps:
        read, cost = COSTS[name]
        if not name.endswith("_") and not deepspeed:
            temporaries = [tape.new(weight.shape, weight.dtype, StorageCategory.TEMPORARY) for weight in weights]
        tape.op(
            f"_foreach_{name.replace('_scalar', '')}", OpKind.OPTIMIZER, weights[:1], weights[:1],
            flops=float(cost * elements), read=read * bytes_once, written=bytes_once, kernels=kernels,
        )  # fmt: skip
    temporaries.clear()
    if optimizer.from_bitsandbytes:
        # One kernel per weight reads gradient, weight and state, and writes weight and state in place.
        states = optimizer.states * sum(
            math.prod(shape) * BYTES_PER_ELEMENT[dtype] for shape, dtype in _state_tensors(weights, optimizer)
        )
        tape.op("optimizer_update", OpKind.OPTIMIZER, weights[:1], weights[:1], flops=14.0 * elements,
                read=2 * bytes_once + states, written=bytes_once + states, kernels=len(weights))  # fmt: skip
    tape.gradients.clear()
