"""Autocast and loss scaling of CUDA on the simulated device.

The op lists are those of PyTorch's documentation, "CUDA Ops that can autocast".
"""

from typing import Any, Callable, Dict, List

import torch

from leadline.graphs.torch.worker import fake_tensors

LOWER_PRECISION = (
    "conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d.input conv_transpose3d.input convolution prelu "
    "addmm addmv addr matmul einsum mm mv linear addbmm baddbmm bmm chain_matmul linalg_multi_dot "
    "scaled_dot_product_attention"
)
FLOAT32 = (
    "acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow.Tensor_Scalar "
    "pow.Tensor_Tensor pow.Scalar softplus layer_norm native_layer_norm group_norm cosine_similarity "
    "poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss kl_div l1_loss smooth_l1_loss "
    "huber_loss mse_loss margin_ranking_loss soft_margin_loss triplet_margin_loss binary_cross_entropy_with_logits "
    "dist cdist renorm logsumexp upsample_nearest2d upsample_bilinear2d"
)
FLOAT32_RESULTS = "prod prod.dim_int softmax.int log_softmax.int cumprod cumsum sum sum.dim_IntList linalg_vector_norm"
HALVES = (torch.float16, torch.bfloat16)

_cache: Dict[int, Any] = {}
_libraries: List[Any] = []


def install_autocast() -> None:
    """Register CUDA's autocast lists for the simulated device, and let GradScaler always take its step."""
    ops = torch.library.Library("aten", "IMPL")
    fallback = torch.library.Library("_", "IMPL")
    fallback.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    _libraries.extend([ops, fallback])
    for names, rule in ((LOWER_PRECISION, _in_lower), (FLOAT32, _in_float32), (FLOAT32_RESULTS, _with_float32_result)):
        for name in names.split():
            _register(ops, name, rule)
    for name in ("is_autocast_enabled", "get_autocast_dtype", "set_autocast_enabled", "set_autocast_dtype"):
        setattr(torch, name, _with_backend_name(getattr(torch, name)))
    torch.get_autocast_gpu_dtype = lambda: torch.get_autocast_dtype(fake_tensors.BACKEND)
    torch.set_autocast_dtype(fake_tensors.BACKEND, torch.float16)
    _rename_in_autocast()
    torch.amp.GradScaler._maybe_opt_step = _always_step


def _always_step(self: Any, optimizer: Any, state: Any, *args: Any, **kwargs: Any) -> Any:
    return optimizer.step(*args, **kwargs)


def _with_backend_name(original: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        if not args:
            return original(fake_tensors.BACKEND)
        if len(args) == 1 and isinstance(args[0], bool):
            return original(fake_tensors.BACKEND, args[0])
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


def _register(library: Any, name: str, rule: Callable[..., Any]) -> None:
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
        return _cast_tensor(value, dtype) if floating and fake_tensors.is_fake(value) else value
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
