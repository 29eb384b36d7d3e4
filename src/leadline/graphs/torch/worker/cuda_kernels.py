"""Kernels and autocast of CUDA, for ops that PyTorch would run in another way on the simulated device."""

from typing import Any, Callable, Dict, List

import torch
import torch._meta_registrations as registrations
from torch._subclasses.fake_tensor import FakeTensor

from leadline.graphs.torch.worker import fake_tensors
from leadline.graphs.torch.worker.ops import TABLES

aten = torch.ops.aten
_libraries: List[Any] = []
"""Registrations last as long as these objects."""
WHOLE = ("silu_backward", "mish_backward")
"""Ops that PyTorch decomposes on devices it does not know."""


def install_cuda_kernels() -> None:
    """Register CUDA's choice of attention kernels, its whole gradients of activations, and its autocast lists.

    GradScaler always takes its step, and grouped products run in float32 and float16 too.
    """
    library, fallback = torch.library.Library("aten", "IMPL"), torch.library.Library("_", "IMPL")
    _libraries.extend([library, fallback])
    for key in ("AutogradPrivateUse1", "PrivateUse1"):
        library.impl("scaled_dot_product_attention", _attention, key)
    for name in WHOLE:
        library.impl(name, torch.library.fallthrough_kernel, "AutogradPrivateUse1")
        # Only the shape of the result matters: the recorder sees the op before it gets here.
        library.impl(name, lambda _, source: torch.empty_like(source), "PrivateUse1")
    _widen_grouped_products()
    fallback.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    # The lists of PyTorch's documentation, "CUDA Ops that can autocast".
    rules = {"lower_precision": _in_lower, "float32": _in_float32, "float32_results": _with_float32_result}
    for names, rule in rules.items():
        for name in TABLES["autocast"][names]:
            _register_autocast(library, name, rule)
    for name in ("is_autocast_enabled", "get_autocast_dtype", "set_autocast_enabled", "set_autocast_dtype"):
        setattr(torch, name, _with_backend_name(getattr(torch, name)))
    torch.get_autocast_gpu_dtype = lambda: torch.get_autocast_dtype(fake_tensors.BACKEND)
    torch.set_autocast_dtype(fake_tensors.BACKEND, torch.float16)
    _rename_in_autocast()
    torch.amp.GradScaler._maybe_opt_step = lambda _, optimizer, state, *args, **kwargs: optimizer.step(*args, **kwargs)


def _attention(
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False, *,
    scale: Any = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    """Run flash attention for half precision without a mask, else the memory-efficient kernel, else plain math."""
    # If heads share keys and values, flash attention takes them as they are. The memory-efficient kernel refuses them.
    grouped = enable_gqa and key.shape[1] != query.shape[1]
    cuda = torch.backends.cuda
    fused = query.dim() == 4 and query.shape[-1] <= 256
    half = query.dtype in (torch.float16, torch.bfloat16)
    if fused and half and attn_mask is None and query.shape[-1] == value.shape[-1] and cuda.flash_sdp_enabled():
        return _flash(query, key, value, dropout_p, is_causal, scale)
    if fused and not grouped and cuda.mem_efficient_sdp_enabled() and query.dtype != torch.float64:
        bias = _bias(query, key, attn_mask)
        train = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
        efficient = aten._scaled_dot_product_efficient_attention
        return efficient(query, key, value, bias, train, dropout_p, is_causal, scale=scale)[0]
    options = {"scale": scale, **({"enable_gqa": True} if grouped else {})}
    return aten._scaled_dot_product_attention_math(query, key, value, attn_mask, dropout_p, is_causal, None, **options)[
        0
    ]


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
    if not isinstance(mask, FakeTensor):
        mask = mask.to(fake_tensors.CUDA)
    return mask.to(query.dtype).expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])


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


HALVES = (torch.float16, torch.bfloat16)

_cache: Dict[int, Any] = {}


def _with_backend_name(original: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        if not args or isinstance(args[0], bool):  # without a device type they mean CUDA
            args = ("cuda", *args)
        return original(*[fake_tensors.BACKEND if arg == "cuda" else arg for arg in args])

    return call


def _rename_in_autocast() -> None:
    original_init, original_exit = torch.autocast.__init__, torch.autocast.__exit__

    def init(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        original_init(self, fake_tensors.BACKEND if device_type == "cuda" else device_type, *args, **kwargs)

    def exit_(self: Any, *args: Any) -> Any:
        _cache.clear()
        return original_exit(self, *args)

    torch.autocast.__init__ = init
    torch.autocast.__exit__ = exit_


def _register_autocast(library: Any, name: str, rule: Callable[..., Any]) -> None:
    base, _, overload = name.partition(".")
    op = getattr(getattr(torch.ops.aten, base), overload or "default")
    excluded = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(excluded):
            return rule(op, args, kwargs)

    library.impl(name, kernel, "AutocastPrivateUse1")


def _in_lower(op: Any, args: Any, kwargs: Any) -> Any:
    dtype = torch.get_autocast_dtype(fake_tensors.BACKEND)
    return op(*_cast(args, dtype), **{name: _cast(value, dtype) for name, value in kwargs.items()})


def _in_float32(op: Any, args: Any, kwargs: Any) -> Any:
    return op(*_cast(args, torch.float32), **{name: _cast(value, torch.float32) for name, value in kwargs.items()})


def _with_float32_result(op: Any, args: Any, kwargs: Any) -> Any:
    """Compute a float32 result of a reduction over half-precision inputs, unless the caller sets a dtype."""
    names = [argument.name for argument in op._schema.arguments]
    dtype_position = names.index("dtype") if "dtype" in names else len(names)
    dtype = args[dtype_position] if len(args) > dtype_position else kwargs.get("dtype")
    halves = any(isinstance(a, torch.Tensor) and a.dtype in HALVES for a in args)
    if dtype is not None or not halves:
        return op(*args, **kwargs)
    return op(*args[:dtype_position], **{**kwargs, "dtype": torch.float32})


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, torch.Tensor):
        floating = value.dtype.is_floating_point and value.dtype not in (torch.float64, dtype)
        return _cast_tensor(value, dtype) if floating and isinstance(value, FakeTensor) else value
    if isinstance(value, (list, tuple)):
        return type(value)(_cast(element, dtype) for element in value)
    return value


def _cast_tensor(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Cast a tensor. Casts of weights are kept until autocast ends, as PyTorch keeps them."""
    keep = tensor.is_leaf and tensor.requires_grad and tensor.dtype == torch.float32 and dtype in HALVES
    if not keep or not torch.is_autocast_cache_enabled():
        return tensor.to(dtype)
    cached = _cache.get(id(tensor))
    if cached is None or cached[1] is not tensor or cached[0].dtype != dtype:
        cached = _cache[id(tensor)] = (tensor.to(dtype), tensor)
    return cached[0]
