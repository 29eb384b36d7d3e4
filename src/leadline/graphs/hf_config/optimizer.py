"""The optimizer's step on a tape: PyTorch's multi-tensor updates, their traffic and their temporaries."""

import math

from leadline.core.graph import BYTES_PER_ELEMENT, OpKind, Stage, StorageCategory
from leadline.core.workload import Optimizer
from leadline.graphs.hf_config.tape import Size, Tape

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
"""Per optimizer the updates in order: name, tensors read, operations an element, and whether the result is new."""

TENSORS_PER_KERNEL = 100
"""Tensors that one multi-tensor kernel takes, about."""

ELEMENTS_PER_KERNEL = 320 * 65536
"""Elements that one multi-tensor kernel takes: 320 blocks of 65,536 (ATen's MultiTensorApply)."""


def hold_states(tape: Tape, optimizer: Optimizer) -> list[Size]:
    """Make the optimizer's state, which every step but the first starts with."""
    return [
        tape.new(weight.shape, weight.dtype, StorageCategory.OPTIMIZER_STATE)
        for _ in range(optimizer.states)
        for weight in tape.parameters
    ]


def update(tape: Tape, optimizer: Optimizer, *, scaled: bool = False) -> None:
    """Record one optimizer step over all weights, then give the gradients back; ``scaled`` unscales them first."""
    tape.stage = Stage.OPTIMIZER
    weights = tape.parameters
    elements = sum(weight.elements for weight in weights)
    width = BYTES_PER_ELEMENT[weights[0].dtype]
    kernels = max(math.ceil(len(weights) / TENSORS_PER_KERNEL), math.ceil(elements / ELEMENTS_PER_KERNEL))
    steps = UPDATES[optimizer]
    if scaled:
        steps = (("non_finite_check_and_unscale_", 1, 1, False), *steps)
    made: list[Size] = []
    for name, read, cost, new in steps:
        if new:
            made = [tape.new(weight.shape, weight.dtype, StorageCategory.TEMPORARY) for weight in weights]
        tape.op(
            f"_foreach_{name}", OpKind.OPTIMIZER, weights[:1], weights[:1], flops=float(cost * elements),
            read=float(read * elements * width), written=float(elements * width), kernels=kernels,
        )  # fmt: skip
    made.clear()
    tape.gradients.clear()
