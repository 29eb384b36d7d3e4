"""Optimizers of bitsandbytes with states of 8 bits, and its layers with weights of 4 or 8 bits."""

import sys
from typing import Any, List, Tuple

import torch
from torch.nn import functional

from leadline.graphs.torch.worker.kernels import kernels

ASSUMPTION = (
    "States of 8 bits have a float32 scale per 256 values; paged ones count as on the GPU. Products with quantized "
    "weights expand them first."
)
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


class Adam(torch.optim.Adam):
    """Adam with states of 32 bits."""

    def __init__(
        self, params: Any, lr: float = 1e-3, betas: Any = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 0.0,
        *_: Any, **__: Any,
    ) -> None:  # fmt: skip
        super().__init__(params, lr, betas, eps, weight_decay)


class AdamW(Adam):
    """AdamW with states of 32 bits."""


class GlobalOptimManager:
    """Exceptions from 8 bits, which count as none."""

    @classmethod
    def get_instance(cls) -> Any:
        """Return a manager."""
        return cls()

    def register_parameters(self, *_: Any) -> None:
        """Do nothing."""

    register_module_override = override_config = register_parameters


Adam32bit = PagedAdam = PagedAdam32bit = Adam
AdamW32bit = PagedAdamW = PagedAdamW32bit = AdamW


class _QuantizedProduct(torch.autograd.Function):
    """Product with weights that are expanded in each direction, and kept packed."""

    @staticmethod
    def forward(ctx: Any, x: Any, packed: Any, scales: Any, shape: Tuple[int, int]) -> Any:
        ctx.save_for_backward(packed, scales)
        ctx.shape = shape
        return functional.linear(x, kernels.dequantize(packed, scales, *shape, x.dtype))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        weight = kernels.dequantize(*ctx.saved_tensors, *ctx.shape, grads[0].dtype)
        return grads[0] @ weight, None, None, None


class Linear4bit(torch.nn.Linear):
    """A layer whose weights are packed when it moves to the GPU, with a float32 scale per 64 of them."""

    bits, block = 4, 64
    weight: Any

    def __init__(
        self, input_features: int, output_features: int, bias: bool = True, compute_dtype: Any = None, *_: Any,
        device: Any = None, **__: Any,
    ) -> None:  # fmt: skip
        super().__init__(input_features, output_features, bias, device)
        self.compute_dtype = compute_dtype
        self.weight.requires_grad_(False)

    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        super()._apply(*args, **kwargs)
        weight = self.weight
        if weight.is_cuda and weight.is_floating_point():
            scales = weight.new_empty(-(-weight.numel() // self.block), dtype=torch.float32)
            self.register_buffer("absmax", scales, persistent=False)
            packed = weight.new_empty((weight.numel() * self.bits // 8, 1), dtype=torch.uint8)
            self.weight = torch.nn.Parameter(packed, requires_grad=False)
        return self

    def forward(self, x: Any) -> Any:
        """Return the product with the weights in the format of computing."""
        if self.weight.is_floating_point():
            return super().forward(x)
        inner = x.to(self.compute_dtype or x.dtype)
        out = _QuantizedProduct.apply(inner, self.weight, self.absmax, (self.out_features, self.in_features))
        return (out if self.bias is None else out + self.bias.to(out.dtype)).to(x.dtype)


class LinearFP4(Linear4bit):
    """The same for one of the formats."""


class LinearNF4(Linear4bit):
    """The same for the other format."""


class Linear8bitLt(Linear4bit):
    """A layer with weights of 8 bits and a scale per row, unless it trains them in 16 bits."""

    bits = 8

    def __init__(
        self, input_features: int, output_features: int, bias: bool = True, has_fp16_weights: bool = True, *_: Any,
        device: Any = None, **__: Any,
    ) -> None:  # fmt: skip
        super().__init__(input_features, output_features, bias, device=device)
        self.block, self.has_fp16_weights = input_features, has_fp16_weights
        self.weight.requires_grad_(has_fp16_weights)

    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        return (
            torch.nn.Module._apply(self, *args, **kwargs) if self.has_fp16_weights else super()._apply(*args, **kwargs)
        )


class StableEmbedding(torch.nn.Embedding):
    """An embedding with a normalization."""

    def __init__(self, num_embeddings: int, embedding_dim: int, *args: Any, **kwargs: Any) -> None:
        super().__init__(num_embeddings, embedding_dim, *args, **kwargs)
        self.norm = torch.nn.LayerNorm(embedding_dim)

    def forward(self, indices: Any) -> Any:
        """Return the normalized rows."""
        return self.norm(super().forward(indices))


Embedding = torch.nn.Embedding
optim = nn = sys.modules[__name__]
