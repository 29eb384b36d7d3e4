"""The optimizer's step on a tape: PyTorch's multi-tensor updates with temporaries, or bitsandbytes' kernels."""

import math
from collections.abc import Iterator, Sequence

from leadline.core.graph import BYTES_PER_ELEMENT, OpKind, Stage, StorageCategory
from leadline.core.workload import Optimizer
from leadline.graphs.hf_config.tape import Tape, TapeTensor

UPDATES: dict[Optimizer, tuple[tuple[str, int, int, bool], ...]] = {
    Optimizer.SGD: (("add_", 2, 2, False),),
    Optimizer.MOMENTUM: (("mul_", 1, 1, False), ("add_", 2, 2, False), ("add_", 2, 2, False)),
    Optimizer.ADAM: (
        ("lerp_", 2, 3, False), ("mul_", 1, 1, False), ("addcmul_", 3, 3, False), ("sqrt", 1, 2, True),
        ("div_", 1, 1, False), ("add_", 1, 1, False), ("addcdiv_", 3, 3, False),
    ),
    Optimizer.ADAMW: (
        ("mul_", 1, 1, False), ("lerp_", 2, 3, False), ("mul_", 1, 1, False), ("addcmul_", 3, 3, False),
        ("sqrt", 1, 2, True), ("div_", 1, 1, False), ("add_", 1, 1, False), ("addcdiv_", 3, 3, False),
    ),
    Optimizer.ADAGRAD: (
        ("addcmul_", 3, 3, False), ("sqrt", 1, 2, True), ("add_", 1, 1, False), ("mul_", 1, 1, False),
        ("addcdiv_", 3, 3, False),
    ),
    Optimizer.RMSPROP: (
        ("mul_", 1, 1, False), ("addcmul_", 3, 3, False), ("sqrt", 1, 2, True), ("add_", 1, 1, False),
        ("addcdiv_", 3, 3, False),
    ),
    Optimizer.LION: (
        ("mul_", 1, 1, False), ("lerp", 2, 3, True), ("sign_", 1, 1, False), ("add_", 2, 2, False),
        ("lerp_", 2, 3, False),
    ),
}  # fmt: skip
"""Updates of each optimizer in order: name, tensors read, operations per element, and whether the result is new."""

TENSORS_PER_KERNEL = 100
"""Approximate number of tensors per multi-tensor kernel."""

ELEMENTS_PER_KERNEL = 320 * 65536
"""Elements per multi-tensor kernel: 320 blocks of 65,536 (ATen's MultiTensorApply)."""

QUANTIZATION_BLOCK = 256
"""Elements of an 8-bit state that share a float32 scale (bitsandbytes)."""
MIN_QUANTIZED_ELEMENTS = 4096
"""Weights with fewer elements keep a float32 state (bitsandbytes' ``min_8bit_size``)."""


def hold_states(tape: Tape, optimizer: Optimizer) -> list[TapeTensor]:
    """Make the optimizer's state, with which every step but the first starts. Paged state is on the host."""
    if optimizer.paged:
        return []
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


def update_weights(tape: Tape, optimizer: Optimizer, *, scaled: bool = False) -> None:
    """Record one optimizer step over all weights, then free the gradients. ``scaled`` unscales them first."""
    tape.stage = Stage.OPTIMIZER
    weights = tape.parameters
    elements = sum(weight.elements for weight in weights)
    bytes_once = float(sum(weight.bytes for weight in weights))
    kernels = max(math.ceil(len(weights) / TENSORS_PER_KERNEL), math.ceil(elements / ELEMENTS_PER_KERNEL))
    steps = UPDATES.get(optimizer, ())
    if scaled:
        steps = (("non_finite_check_and_unscale_", 1, 1, False), *steps)
    temporaries: list[TapeTensor] = []
    for name, read, cost, is_new in steps:
        if is_new:
            temporaries = [tape.new(weight.shape, weight.dtype, StorageCategory.TEMPORARY) for weight in weights]
        tape.op(
            f"_foreach_{name}", OpKind.OPTIMIZER, weights[:1], weights[:1], flops=float(cost * elements),
            read=read * bytes_once, written=bytes_once, kernels=kernels,
        )  # fmt: skip
    temporaries.clear()
    if optimizer.from_bitsandbytes:
        _update_each(tape, optimizer)
    tape.gradients.clear()


def _update_each(tape: Tape, optimizer: Optimizer) -> None:
    """Record one kernel per weight. It reads gradient, weight and state, and writes weight and state in place."""
    weights = tape.parameters
    states = optimizer.states * sum(
        math.prod(shape) * BYTES_PER_ELEMENT[dtype] for shape, dtype in _state_tensors(weights, optimizer)
    )
    weight_bytes = float(sum(weight.bytes for weight in weights))
    tape.op("optimizer_update", OpKind.OPTIMIZER, weights[:1], weights[:1],
            flops=14.0 * sum(weight.elements for weight in weights), read=2 * weight_bytes + states,
            written=weight_bytes + states,
            kernels=len(weights))  # fmt: skip
