"""Attention of xFormers by PyTorch's own kernels, of which xFormers chooses among the same."""

import types
from typing import Any

from torch.nn import functional

ASSUMPTION = "Attention runs PyTorch's flash or memory-efficient kernel."


class LowerTriangularMask:
    """A causal mask."""


def memory_efficient_attention(
    query: Any, key: Any, value: Any, attn_bias: Any = None, p: float = 0.0, scale: Any = None, **_: Any
) -> Any:
    """Attend. Tensors are batch × positions × heads × width, or without heads."""
    inputs = [each.unsqueeze(1) if each.dim() == 3 else each.transpose(1, 2) for each in (query, key, value)]
    causal = isinstance(attn_bias, LowerTriangularMask)
    mask = None if causal else attn_bias
    if mask is not None and mask.dim() == 3:
        mask = mask.unsqueeze(1)
    attend: Any = functional.scaled_dot_product_attention
    out = attend(*inputs, attn_mask=mask, dropout_p=p, is_causal=causal, scale=scale)
    return out.squeeze(1) if query.dim() == 3 else out.transpose(1, 2)


ops = types.SimpleNamespace(
    memory_efficient_attention=memory_efficient_attention, LowerTriangularMask=LowerTriangularMask
)
