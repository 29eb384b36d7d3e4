"""FlashAttention by PyTorch's own flash kernel, which has the same arithmetic and keeps the same tensors."""

from typing import Any, Dict, Tuple

import torch
from torch.nn import functional

ASSUMPTION = "Windows and ALiBi slopes count as full attention, packed sequences as equally long."


def flash_attn_func(
    q: Any, k: Any, v: Any, dropout_p: float = 0.0, softmax_scale: Any = None, causal: bool = False, **_: Any
) -> Any:
    """Attend. Tensors are batch × positions × heads × width."""
    if q.dtype not in (torch.float16, torch.bfloat16):
        raise RuntimeError("FlashAttention only support fp16 and bf16 data type")
    query, key, value = (tensor.transpose(1, 2) for tensor in (q, k, v))
    grouped: Dict[str, Any] = {"enable_gqa": True} if q.shape[2] != k.shape[2] else {}
    attend = functional.scaled_dot_product_attention
    out = attend(query, key, value, dropout_p=dropout_p, is_causal=causal, scale=softmax_scale, **grouped)
    return out.transpose(1, 2)


def flash_attn_qkvpacked_func(qkv: Any, *args: Any, **kwargs: Any) -> Any:
    """Attend. The tensor is batch × positions × 3 × heads × width."""
    return flash_attn_func(*qkv.unbind(2), *args, **kwargs)


def flash_attn_kvpacked_func(q: Any, kv: Any, *args: Any, **kwargs: Any) -> Any:
    """Attend. Keys and values are batch × positions × 2 × heads × width."""
    return flash_attn_func(q, *kv.unbind(2), *args, **kwargs)


def flash_attn_varlen_func(
    q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, max_seqlen_q: Any, max_seqlen_k: Any, *args: Any,
    **kwargs: Any,
) -> Any:  # fmt: skip
    """Attend within sequences that follow each other: tokens × heads × width."""
    batch = cu_seqlens_q.numel() - 1
    inputs = [_split_evenly(tensor, batch) for tensor in (q, k, v)]
    return flash_attn_func(*inputs, *args, **kwargs).flatten(0, 1)[: q.shape[0]]


def flash_attn_varlen_qkvpacked_func(qkv: Any, cu_seqlens: Any, max_seqlen: Any, *args: Any, **kwargs: Any) -> Any:
    """Attend within sequences that follow each other: tokens × 3 × heads × width."""
    lengths = (cu_seqlens, cu_seqlens, max_seqlen, max_seqlen)
    return flash_attn_varlen_func(*qkv.unbind(1), *lengths, *args, **kwargs)


def flash_attn_varlen_kvpacked_func(q: Any, kv: Any, *args: Any, **kwargs: Any) -> Any:
    """Attend within sequences that follow each other; keys and values are tokens × 2 × heads × width."""
    return flash_attn_varlen_func(q, *kv.unbind(1), *args, **kwargs)


def _split_evenly(tensor: Any, batch: int) -> Any:
    missing = -tensor.shape[0] % batch
    whole = functional.pad(tensor, (0, 0) * (tensor.dim() - 1) + (0, missing)) if missing else tensor
    return whole.unflatten(0, (batch, -1))


def unpad_input(hidden_states: Any, attention_mask: Any, *_: Any) -> Tuple[Any, ...]:
    """Return the tokens that the mask selects, their places, where sequences begin, the longest, and all lengths."""
    lengths = attention_mask.sum(dim=-1, dtype=torch.int32)
    places = torch.nonzero(attention_mask.flatten()).flatten()
    begins = functional.pad(torch.cumsum(lengths, 0, dtype=torch.int32), (1, 0))
    return hidden_states.flatten(0, 1)[places], places, begins, attention_mask.shape[-1], lengths


def pad_input(hidden_states: Any, indices: Any, batch: int, seqlen: int) -> Any:
    """Return the tokens at their places in batch × positions."""
    padded = hidden_states.new_zeros((batch * seqlen, *hidden_states.shape[1:]))
    return padded.index_put((indices,), hidden_states).unflatten(0, (batch, seqlen))


def index_first_axis(tensor: Any, indices: Any) -> Any:
    """Return the chosen rows."""
    return tensor[indices]
