"""Optimizers of bitsandbytes with states of 8 bits."""

import sys
from typing import Any, List

import torch

from leadline.graphs.torch.worker.kernels import kernels

ASSUMPTION = "States of 8 bits have a float32 scale per 256 values; paged ones count as on the GPU."
SMALLEST, BLOCK = 4096, 256
"""Elements below which a weight keeps states of 32 bits (``min_8bit_size``), and values that share a scale."""


class _EightBit(torch.optim.Optimizer):
    """One kernel per weight."""

    states = 2

    def __init__(self, params: Any, lr: float = 1e-3, *_: Any, min_8bit_size: int = SMALLEST, **__: Any) -> None:
        super().__init__(params, {"lr": lr})
        self.smallest = min_8bit_size

    def step(self, closure: Any = None) -> Any:
        """Update the weights."""
        loss = None if closure is None else closure()
        weights = [weight for group in self.param_groups for weight in group["params"] if weight.grad is not None]
        with torch.no_grad():
            for weight in weights:
                state = self.state[weight]
                if not state:
                    state.update({f"state{n}": part for n, part in enumerate(self._new_state(weight))})
                kernels.optimizer_8bit_(weight, weight.grad, list(state.values()))
        return loss

    def _new_state(self, weight: Any) -> List[Any]:
        if weight.numel() < self.smallest:
            return [torch.zeros_like(weight, dtype=torch.float32) for _ in range(self.states)]
        scales = [weight.new_zeros(-(-weight.numel() // BLOCK), dtype=torch.float32) for _ in range(self.states)]
        return [*(torch.zeros_like(weight, dtype=torch.uint8) for _ in range(self.states)), *scales]


class Adam8bit(_EightBit):
    """Adam."""


class AdamW8bit(_EightBit):
    """AdamW."""


class PagedAdam8bit(_EightBit):
    """Adam, whose states may move to the host."""


class PagedAdamW8bit(_EightBit):
    """AdamW, whose states may move to the host."""


class Lion8bit(_EightBit):
    """Lion, with one state."""

    states = 1


class PagedLion8bit(Lion8bit):
    """Lion, whose state may move to the host."""


class SGD8bit(_EightBit):
    """SGD with momentum."""

    states = 1


Adam, AdamW = torch.optim.Adam, torch.optim.AdamW
optim = sys.modules[__name__]
