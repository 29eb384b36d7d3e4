"""Fill a model's weights quickly where torch's own generator would take longer than the measurement."""

import contextlib
import math
from typing import Any, Dict, Iterator

import torch
from torch.nn import init

BLOCK = 1 << 20
"""Random numbers that are drawn once, and repeated along a tensor: a step's time does not depend on which they are."""
SLOW = (
    "kaiming_uniform_",
    "kaiming_normal_",
    "xavier_uniform_",
    "xavier_normal_",
    "uniform_",
    "normal_",
    "trunc_normal_",
)
"""Functions of ``torch.nn.init`` that draw a number for each weight."""


@contextlib.contextmanager
def quick_weights(device_type: str) -> Iterator[None]:
    """Within, let layers fill their weights with a repeated block of random numbers; a GPU draws fast enough."""
    if device_type != "cpu":
        yield
        return
    drawn = torch.rand(BLOCK) * 2 - 1
    scaled_to: Dict[int, torch.Tensor] = {}
    kept = {name: getattr(init, name) for name in SLOW}

    def fill(tensor: Any, *_: Any, **__: Any) -> Any:
        """Fill with numbers as far from zero as ``torch.nn.Linear`` draws them: up to 1 / sqrt(inputs of a unit)."""
        inputs = tensor[0].numel() if tensor.dim() > 1 else 1024
        if inputs not in scaled_to:
            scaled_to[inputs] = drawn / math.sqrt(max(1, inputs))
        scaled = scaled_to[inputs]
        with torch.no_grad():
            flat = tensor.view(-1)
            whole = len(flat) // BLOCK * BLOCK
            flat[:whole].view(-1, BLOCK).copy_(scaled)
            flat[whole:].copy_(scaled[: len(flat) - whole])
        return tensor

    try:
        for name in SLOW:
            setattr(init, name, fill)
        yield
    finally:
        for name, function in kept.items():
            setattr(init, name, function)
