"""Tensors without data: the device they show, and the device that ops on them run on."""

import math
import sys
from typing import Any, Callable, Dict, List, Optional, Sequence

import torch
from torch._prims_common import suggest_memory_format
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._pytree import tree_map

from leadline.graphs.torch.worker.conditions import asserted_number, expected_number, expected_truth
from leadline.graphs.torch.worker.expressions import read_locals

SPARE_BACKEND = "fgpu"
"""Name given to PyTorch's spare device slot (PrivateUse1), which represents the GPU inside the trace."""
CUDA_BACKEND = "cuda"
"""The device itself represents the GPU where the spare slot cannot (before 2.10)."""
STAND_IN = torch.device("meta", 0)
"""Answer to PyTorch's C++ side, which asks the driver about a tensor on ``cuda``. Scripts use ``meta`` unnumbered."""
FAKE_MODE = FakeTensorMode(allow_non_fake_inputs=True)
FAKE_MODE.cache_enabled = False
CUDA = torch.device("cuda", 0)
NESTING = [0]
"""Depth of Leadline's own handlers. Inside them a fake tensor shows its true device, outside it shows ``cuda``."""
_true_device = FakeTensor.device.fget
_gpu: Optional[torch.device] = None


def claim_device(*, spare: bool) -> None:
    """Turn the spare device slot into the simulated GPU, or ``cuda`` itself without one or if ``spare`` is false."""
    global _gpu  # noqa: PLW0603 - one device for one process
    from torch.utils import backend_registration

    setup = getattr(backend_registration, "_setup_privateuseone_for_python_backend", None)
    if spare and setup is not None:
        # PyTorch calls the backend's Python module, which torch.cuda is by the time that anything runs.
        setup(rename=SPARE_BACKEND, backend_module=torch.cuda)
        _gpu = torch.device(SPARE_BACKEND, 0)
    else:
        _gpu = CUDA
        torch.cuda._lazy_init = fake_tensor.init_cuda_context = fake_tensor.init_gpu_context = do_nothing
        # Shape rules run without the recorder, which answers elsewhere.
        FakeTensor.__torch_dispatch__ = classmethod(_answering(FakeTensor.__torch_dispatch__.__func__))
        FakeTensorMode.__torch_dispatch__ = _answering(FakeTensorMode.__torch_dispatch__)
        FakeTensor.__new__ = staticmethod(_on_gpu(FakeTensor.__new__))
        torch._C._group_tensors_by_device_and_dtype = _group_tensors(torch._C._group_tensors_by_device_and_dtype)
    fake_tensor.run_fallback_kernel = _on_host(fake_tensor.run_fallback_kernel)
    FakeTensor.device = property(_shown_device)
    FakeTensorMode.avoid_device_init = property(lambda _: True)


def _answering(original: Callable[..., Any]) -> Callable[..., Any]:
    def dispatch(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is DEVICE and isinstance(args[0], FakeTensor) and not args[0].fake_mode.in_kernel_invocation:
            return inner_device(args[0])
        return original(self, func, types, args, kwargs)

    return dispatch


def _on_host(original: Callable[..., Any]) -> Callable[..., Any]:
    """Run an op without a shape rule on zeros of the host, since there is no GPU to run it on."""

    def run(mode: Any, func: Any, flat_args: Any, *rest: Any) -> Any:
        def move(tensor: Any, device: torch.device) -> Any:
            return empty_tensor(tensor.shape, tensor.dtype, device, tensor.stride())

        host = [move(arg, torch.device("cpu")) if isinstance(arg, FakeTensor) else arg for arg in flat_args]
        same = {id(moved): flat_args[place] for place, moved in enumerate(host)}
        out = original(mode, func, host, *rest)
        return tree_map(lambda x: same.get(id(x), move(x, gpu_device())) if isinstance(x, FakeTensor) else x, out)

    return run


def _on_gpu(original: Callable[..., Any]) -> Callable[..., Any]:
    """Put a tensor that the C++ side makes beside another one on the GPU."""

    def new(kind: Any, mode: Any, inner: Any, device: Any, *args: Any, **kwargs: Any) -> Any:
        return original(kind, mode, inner, CUDA if device == STAND_IN else device, *args, **kwargs)

    return new


def _group_tensors(original: Callable[..., Any]) -> Callable[..., Any]:
    def group(*args: Any) -> Any:
        groups = original(*args)
        return {(CUDA if device == STAND_IN else device, dtype): members for (device, dtype), members in groups.items()}

    return group


def do_nothing(*_: Any, **__: Any) -> None:
    """Do and know nothing."""


def gpu_device() -> torch.device:
    """Return the device that tensors of the simulated GPU are really on."""
    return _gpu if _gpu is not None else torch.device("cpu")


def _shown_device(tensor: Any) -> torch.device:
    device = _true_device(tensor)
    return CUDA if device.type == SPARE_BACKEND and not NESTING[0] else device


def map_device(device: Any) -> Any:
    """Return the true device for a script's ``cuda``. Other values are unchanged."""
    name = device.type if isinstance(device, torch.device) else device
    return gpu_device() if isinstance(name, str) and name.partition(":")[0] == "cuda" else device


def backend() -> str:
    """Return the type of the device that represents the GPU; no tensor has it where only the CPU is traced."""
    return SPARE_BACKEND if _gpu is None else str(_gpu.type)


def dispatch_key() -> str:
    """Return the dispatch key of the GPU's kernels."""
    return "CUDA" if backend() == CUDA_BACKEND else "PrivateUse1"


def inner_device(tensor: Any) -> torch.device:
    """Return the device that PyTorch's C++ side is told for a fake tensor."""
    device: torch.device = tensor.fake_device
    return STAND_IN if device.type == CUDA_BACKEND else device


def true_device(tensor: Any) -> torch.device:
    """Return the device a tensor is really on."""
    return _true_device(tensor) if isinstance(tensor, FakeTensor) else tensor.device


def empty_tensor(shape: Any, dtype: torch.dtype, device: torch.device, stride: Any = None) -> torch.Tensor:
    """Return a new fake tensor. ``stride`` defaults to contiguous."""
    with torch._C._DisableTorchDispatch():
        if stride is None:
            meta = torch.empty(shape, dtype=dtype, device="meta")
        else:
            meta = torch.empty_strided(shape, stride, dtype=dtype, device="meta")
        return FakeTensor(FAKE_MODE, meta, device)


def empty_like(tensor: torch.Tensor, device: Any = None, dtype: Any = None) -> torch.Tensor:
    """Return a fake tensor of the same shape and memory layout, contiguous or channels last."""
    is_channels_last = tensor.is_contiguous(memory_format=torch.channels_last) and tensor.dim() == 4
    stride = tensor.stride() if is_channels_last else None
    return empty_tensor(tensor.shape, dtype or tensor.dtype, device or true_device(tensor), stride)


def in_cudnn_format(out: torch.Tensor, image: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return the result of a convolution as cuDNN stores it: channels last if the image or the filter is."""
    is_last = any(suggest_memory_format(tensor) == torch.channels_last for tensor in (image, weight))
    if not is_last or out.dim() != 4 or out.dtype == torch.float64:
        return out
    _, channels, height, width = out.shape
    strides = (channels * height * width, 1, width * channels, channels)
    return empty_tensor(out.shape, out.dtype, true_device(out), strides)


def in_module_constructor() -> bool:
    """Return whether the call comes from the construction of an ``nn.Module`` (its ``__init__`` is on the stack)."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        is_constructor = code.co_name == "__init__" and code.co_argcount
        if is_constructor and isinstance(read_locals(frame).get(code.co_varnames[0]), torch.nn.Module):
            return True
        frame = frame.f_back
    return False


REAL_LIMIT_BYTES = 64 << 20
"""Above this size a tensor brought back to the host stays without data."""
KEPT_LIMIT_BYTES = 4 << 20
"""Up to this size the values of a host tensor are remembered when it is copied to the device."""
VIEWS = {"detach", "alias", "select", "unbind", "unsqueeze", "squeeze", "view", "_unsafe_view", "slice", "expand", "t"}
"""Ops whose result shows values of their input."""
VALUE_OPS = VIEWS | {"max", "min", "amax", "amin", "sum", "any", "all", "eq", "ne", "lt", "gt", "le", "ge"}
"""Ops whose result is computed where their input is known (``labels.max().item() + 1`` classes)."""
ARITHMETIC = {
    "add", "sub", "rsub", "mul", "div", "floor_divide", "remainder", "neg", "floor", "ceil", "round", "clamp",
    "clamp_min", "clamp_max", "maximum", "minimum", "cumsum", "sort", "argsort", "flip", "index", "index_select", "cat",
    "stack", "_to_copy", "arange", "linspace", "eye",
}  # fmt: skip
"""Ops on few known numbers of any type whose result is computed, such as the lengths after a strided convolution."""
OPTIONS = {"alpha", "rounding_mode", "dtype", "dim", "descending", "stable"}
"""Their arguments that are only given by name."""
SMALL = 1024
"""Elements up to which known numbers of a floating type are compared, and known numbers calculated with."""
aten = torch.ops.aten
DEVICE = torch.ops.prim.device.default


def scalar_value(tensor: torch.Tensor) -> Any:
    """Return the value of ``.item()``: the real one if known, else what the line expects, or 1.

    Of an unknown integer and a later one, which is larger by a constant, the second is as much larger, so that a part
    from the one to the other has its size.
    """
    value = known_value(tensor)
    if value is not None and value.numel() == 1:
        return value.item()
    GUESSED[0] = True
    if tensor.dtype == torch.bool:
        truth = tensor.__dict__.get("_truth")
        return bool(expected_truth()) if truth is None else truth
    if tensor.dtype.is_complex:
        return 1 + 0j
    asserted = asserted_number()
    if asserted is not None:
        return asserted if tensor.dtype.is_floating_point else int(asserted)
    if tensor.dtype.is_floating_point:
        return expected_number()
    return 1 + tensor.__dict__.get("_offset", 0) + (next(VARIED[0]) // 4 if VARIED else 0)


def with_values(elements: Any) -> Any:
    """Return a list, however nested, with the values of its tensors without data; anything else as it is."""
    if not isinstance(elements, (list, tuple)) or not any(isinstance(e, (FakeTensor, list, tuple)) for e in elements):
        return elements
    return [host_copy(e.reshape(())).tolist() if isinstance(e, FakeTensor) else with_values(e) for e in elements]


def host_copy(tensor: torch.Tensor, dtype: Any = None) -> torch.Tensor:
    """Return a host tensor for a device tensor: its known values, else zeros, and ones for truths.

    A large one stays without data.
    """
    dtype = dtype or tensor.dtype
    value = known_value(tensor)
    if value is not None:
        return value.to(dtype)
    if tensor.numel() * tensor.element_size() > REAL_LIMIT_BYTES or tensor.__dict__.get("_is_param"):
        return empty_like(tensor, torch.device("cpu"), dtype)
    GUESSED[0] = True
    if tensor.dim() == 0:
        return torch.full((), scalar_value(tensor), dtype=dtype, device="cpu")
    if tensor.__dict__.get("_distinct"):
        # From the second on: the first one is often none to choose, such as a constant frequency.
        places = torch.arange(1, tensor.numel() + 1, device="cpu") % tensor.__dict__["_extent"]
        return places.reshape(tensor.shape).to(dtype)
    if tensor.dtype == torch.bool:  # a mask selects on the host as many as on the device
        share = tensor.__dict__.get("_share", tensor.__dict__.get("_truth", 1.0))
        selected = math.ceil(tensor.numel() * share)
        return (torch.arange(tensor.numel(), device="cpu") < selected).reshape(tensor.shape).to(dtype)
    if VARIED and dtype.is_floating_point:
        return torch.rand(tensor.shape, dtype=dtype, device="cpu")
    if VARIED and not dtype.is_complex:
        return torch.randint(0, 2, tensor.shape, dtype=dtype, device="cpu")
    return torch.zeros(tensor.shape, dtype=dtype, device="cpu")


GUESSED = [False]
"""Whether the script has read a value that is not known."""
VARIED: List[Any] = []
"""A counter, if values are guessed to vary: integers rise, and those of a host tensor are random."""
computed_value: Callable[[Any], Any] = do_nothing
"""Returns the values of a device tensor where ops run on values, too."""


def known_value(tensor: torch.Tensor) -> Any:
    """Return the host tensor that a device tensor was copied from, if it is remembered and unchanged."""
    if not isinstance(tensor, FakeTensor):
        return tensor
    value = computed_value(tensor)
    return tensor.__dict__.get("_known") if value is None else value


def remember_value(tensor: torch.Tensor, host: torch.Tensor) -> None:
    """Remember the host values of a device tensor."""
    if not isinstance(host, FakeTensor) and host.numel() * host.element_size() <= KEPT_LIMIT_BYTES:
        # A copy to the device of a part of a tensor has no gaps.
        tensor.__dict__["_known"] = host.detach() if host.stride() == tensor.stride() else host.detach().contiguous()


def infer_value(func: Any, args: Any, kwargs: Dict[str, Any], out: Any) -> None:
    """Remember the result of an op on known integers or on few known numbers, or of a view of any known tensor."""
    name = func._schema.name.partition("::")[2]
    view = name in VIEWS
    results = [out] if isinstance(out, torch.Tensor) else out
    is_small = not view and sum(result.numel() for result in results) <= 2 * SMALL
    if "out" in kwargs or (name in ARITHMETIC and not is_small) or (values := _known_values(args)) is None:
        return
    is_comparison = is_small and results[0].dtype == torch.bool
    is_exact = not any(value.dtype.is_floating_point for value in values if isinstance(value, torch.Tensor))
    if view or is_comparison or is_exact or name in ARITHMETIC:
        computed = func(*values, **{key: value for key, value in kwargs.items() if key in OPTIONS})
        pairs = zip(results, [computed] if isinstance(out, torch.Tensor) else computed)  # noqa: B905 - Python 3.9
        for result, value in pairs:
            remember_value(result, value)


def _known_values(args: Sequence[Any]) -> Optional[List[Any]]:
    """Return arguments with the known values of their tensors; ``None`` if a tensor is unknown."""
    values: List[Any] = []
    for argument in args:
        value = argument
        if isinstance(argument, torch.Tensor):
            value = known_value(argument)
        elif isinstance(argument, (list, tuple)):
            value = _known_values(argument)
        if isinstance(value, FakeTensor) or (value is None and argument is not None):
            return None
        values.append(value)
    return values
