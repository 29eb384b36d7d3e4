"""Kernels that CUDA has, for ops that PyTorch would run in another way on the simulated device."""

from typing import Any, List

import torch
import torch._meta_registrations as registrations

from leadline.graphs.torch.worker import fake_tensors

aten = torch.ops.aten
_libraries: List[Any] = []
"""Registrations last as long as these objects."""


def install_attention() -> None:
    """Register the choice of the fused attention kernel that CUDA would make."""
    library = torch.library.Library("aten", "IMPL")
    _libraries.append(library)
    for key in ("AutogradPrivateUse1", "PrivateUse1"):
        library.impl("scaled_dot_product_attention", _attention, key)


def _attention(
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False, *,
    scale: Any = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    """Run flash attention for half precision without a mask, else the memory-efficient kernel, else plain math.

    If heads share keys and values, flash attention takes them as they are. The memory-efficient kernel refuses them.
    """
    grouped = enable_gqa and key.shape[1] != query.shape[1]
    cuda = torch.backends.cuda
    fused = query.dim() == 4 and query.shape[-1] <= 256
    half = query.dtype in (torch.float16, torch.bfloat16)
    if fused and half and attn_mask is None and query.shape[-1] == value.shape[-1] and cuda.flash_sdp_enabled():
        return _flash(query, key, value, dropout_p, is_causal, scale)
    if fused and not grouped and cuda.mem_efficient_sdp_enabled() and query.dtype != torch.float64:
        bias = _bias(query, key, attn_mask)
        train = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
        return aten._scaled_dot_product_efficient_attention(
            query, key, value, bias, train, dropout_p, is_causal, scale=scale
        )[0]
    return aten._scaled_dot_product_attention_math(
        query,
        key,
        value,
        attn_mask,
        dropout_p,
        is_causal,
        None,
        scale=scale,
        **({"enable_gqa": True} if grouped else {}),
    )[0]


def _flash(query: Any, key: Any, value: Any, dropout_p: float, is_causal: bool, scale: Any) -> Any:
    """Run flash attention on a head size padded to a multiple of 8, as CUDA pads it."""
    size = query.shape[-1]
    pad = -size % 8
    if pad:
        scale = scale or size**-0.5
        query, key, value = (torch.nn.functional.pad(t, (0, pad)) for t in (query, key, value))
    out = aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, False, scale=scale)[0]
    return out[..., :size] if pad else out


def _bias(query: Any, key: Any, mask: Any) -> Any:
    if mask is None:
        return None
    if mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype)
    if not fake_tensors.is_fake(mask):
        mask = mask.to(fake_tensors.CUDA)
    return mask.to(query.dtype).expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])


WHOLE = ("silu_backward", "mish_backward")
"""Ops that PyTorch decomposes on devices it does not know."""


def install_cuda_kernels() -> None:
    """Keep gradients of activations whole, and let grouped products run in float32 and float16 too."""
    library = torch.library.Library("aten", "IMPL")
    _libraries.append(library)
    for name in WHOLE:
        library.impl(name, torch.library.fallthrough_kernel, "AutogradPrivateUse1")
        library.impl(name, _empty_like_source, "PrivateUse1")
    _widen_grouped_products()


def _empty_like_source(gradient: Any, source: Any) -> Any:
    """Return a result of the right shape. The recorder sees the op before it gets here."""
    return torch.empty_like(source)


def _widen_grouped_products() -> None:
    """Widen PyTorch's shape rule for grouped products, which accepts bfloat16 alone."""
    original = getattr(registrations, "_meta_grouped_mm_common", None)
    if original is None:
        return

    def common(mat_a: Any, mat_b: Any, scale_a: Any = None, *args: Any, **kwargs: Any) -> Any:
        if scale_a is not None or mat_a.dtype == torch.bfloat16:
            return original(mat_a, mat_b, scale_a, *args, **kwargs)
        result = original(mat_a.to(torch.bfloat16), mat_b.to(torch.bfloat16), scale_a, *args, **kwargs)
        return result if kwargs.get("out_dtype") is not None else result.to(mat_a.dtype)

    registrations._meta_grouped_mm_common = common
