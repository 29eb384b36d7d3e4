"""Let the pretended device have the kernels that CUDA has, where PyTorch would take another way."""

from typing import Any, List

import torch
import torch._meta_registrations as registrations

WHOLE = ("silu_backward", "mish_backward")
"""Ops that PyTorch writes out in elementary ones on devices it does not know."""

_libraries: List[Any] = []


def install() -> None:
    """Keep gradients of activations whole, and let products of groups run in float32 and float16 too."""
    library = torch.library.Library("aten", "IMPL")
    _libraries.append(library)
    for name in WHOLE:
        library.impl(name, torch.library.fallthrough_kernel, "AutogradPrivateUse1")
        library.impl(name, _whole(name), "PrivateUse1")
    _widen_grouped_products()


def _whole(name: str) -> Any:
    """Return a kernel that says the result's shape; the recorder stands above it and keeps the op."""

    def kernel(gradient: Any, source: Any) -> Any:
        return torch.empty_like(source)

    return kernel


def _widen_grouped_products() -> None:
    """Widen PyTorch's rule for the shape of a product of groups, which knows bfloat16 alone."""
    own = getattr(registrations, "_meta_grouped_mm_common", None)
    if own is None:
        return

    def common(mat_a: Any, mat_b: Any, scale_a: Any = None, *args: Any, **kwargs: Any) -> Any:
        if scale_a is not None or mat_a.dtype == torch.bfloat16:
            return own(mat_a, mat_b, scale_a, *args, **kwargs)
        made = own(mat_a.to(torch.bfloat16), mat_b.to(torch.bfloat16), scale_a, *args, **kwargs)
        return made if kwargs.get("out_dtype") is not None else made.to(mat_a.dtype)

    registrations._meta_grouped_mm_common = common
