"""Let products of groups (mixtures of experts) run in the types that CUDA multiplies, not in bfloat16 alone."""

from typing import Any

import torch
import torch._meta_registrations as registrations


def install() -> None:
    """Widen PyTorch's rule for the shape of such a product, where this PyTorch has one."""
    own = getattr(registrations, "_meta_grouped_mm_common", None)
    if own is None:
        return

    def common(mat_a: Any, mat_b: Any, scale_a: Any = None, *args: Any, **kwargs: Any) -> Any:
        if scale_a is not None or mat_a.dtype == torch.bfloat16:
            return own(mat_a, mat_b, scale_a, *args, **kwargs)
        made = own(mat_a.to(torch.bfloat16), mat_b.to(torch.bfloat16), scale_a, *args, **kwargs)
        return made if kwargs.get("out_dtype") is not None else made.to(mat_a.dtype)

    registrations._meta_grouped_mm_common = common
