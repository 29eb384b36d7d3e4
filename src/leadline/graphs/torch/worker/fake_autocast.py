"""Autocast of the simulated GPU, by the lists of CUDA's."""

from typing import Any, Callable, Dict, List

import torch
from torch._subclasses.fake_tensor import FakeTensor

from leadline.graphs.torch.worker import fake_tensors
from leadline.graphs.torch.worker.ops import TABLES

HALVES = (torch.float16, torch.bfloat16)

_casts: Dict[int, Any] = {}
_libraries: List[Any] = []
"""Registrations last as long as these objects."""


def install_autocast() -> None:
    """Register the casts of the ops that CUDA's autocast lists, and let the spare device answer for CUDA."""
    library, fallback = torch.library.Library("aten", "IMPL"), torch.library.Library("_", "IMPL")
    _libraries.extend([library, fallback])
    if fake_tensors.backend() == fake_tensors.SPARE_BACKEND:
        fallback.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
        for name in ("is_autocast_enabled", "get_autocast_dtype", "set_autocast_enabled", "set_autocast_dtype"):
            setattr(torch, name, _with_backend_name(getattr(torch, name)))
        torch.get_autocast_gpu_dtype = lambda: torch.get_autocast_dtype(fake_tensors.SPARE_BACKEND)
        torch.set_autocast_dtype(fake_tensors.SPARE_BACKEND, torch.float16)
    # The lists of PyTorch's documentation, "CUDA Ops that can autocast".
    rules = {"lower_precision": _in_lower, "float32": _in_float32, "float32_results": _with_float32_result}
    for names, rule in rules.items():
        for name in TABLES["autocast"][names]:
            _register_autocast(library, name, rule)
    _rename_in_autocast()


def _with_backend_name(original: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        if not args or isinstance(args[0], bool):  # without a device type they mean CUDA
            args = ("cuda", *args)
        return original(*[fake_tensors.backend() if arg == "cuda" else arg for arg in args])

    return call


def _rename_in_autocast() -> None:
    original_init, original_exit = torch.autocast.__init__, torch.autocast.__exit__

    def init(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        original_init(self, fake_tensors.backend() if device_type == "cuda" else device_type, *args, **kwargs)

    def exit_(self: Any, *args: Any) -> Any:
        _casts.clear()
        return original_exit(self, *args)

    torch.autocast.__init__ = init
    torch.autocast.__exit__ = exit_


def _register_autocast(library: Any, name: str, rule: Callable[..., Any]) -> None:
    base, _, overload = name.partition(".")
    op = getattr(getattr(torch.ops.aten, base), overload or "default")
    key = f"Autocast{fake_tensors.dispatch_key()}"
    excluded = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(excluded):
            return rule(op, args, kwargs)

    library.impl(name, kernel, key)


def _in_lower(op: Any, args: Any, kwargs: Any, dtype: Any = None) -> Any:
    dtype = dtype or torch.get_autocast_gpu_dtype()
    return op(*_cast(args, dtype), **{name: _cast(value, dtype) for name, value in kwargs.items()})


def _in_float32(op: Any, args: Any, kwargs: Any) -> Any:
    return _in_lower(op, args, kwargs, torch.float32)


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
    cached = _casts.get(id(tensor))
    if cached is None or cached[1] is not tensor or cached[0].dtype != dtype:
        cached = _casts[id(tensor)] = (tensor.to(dtype), tensor)
    return cached[0]
