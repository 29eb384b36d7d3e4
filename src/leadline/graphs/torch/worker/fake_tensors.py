"""Tensors without data: the device they show, and the device that ops on them run on."""

import sys
from typing import Any, Dict, Optional

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from leadline.graphs.torch.worker.loops import read_locals

BACKEND = "fgpu"
"""Name given to PyTorch's spare device slot (PrivateUse1), which represents the GPU inside the trace."""

FAKE_MODE = FakeTensorMode(allow_non_fake_inputs=True)
FAKE_MODE.cache_enabled = False
CUDA = torch.device("cuda", 0)
NESTING = [0]
"""Depth of Leadline's own handlers. Inside them a fake tensor shows its true device, outside it shows ``cuda``."""

_true_device = FakeTensor.device.fget
_gpu: Optional[torch.device] = None
_attributes: Dict[torch.device, Dict[str, Any]] = {}
_pointer_policy = "warn_deprecated" if getattr(FAKE_MODE, "_allow_unsafe_data_ptr_access", False) else "throw"
_guard_data: Any = getattr(torch._C, f"_set_{_pointer_policy}_on_mutable_data_ptr", lambda _: None)
"""The guard that PyTorch's constructor sets on a fake tensor against reading its data."""


def claim_spare_device() -> bool:
    """Turn the spare device slot into the simulated GPU. False if this torch is too old (before 2.10)."""
    global _gpu  # noqa: PLW0603 - one device for one process
    from torch.utils import backend_registration

    setup = getattr(backend_registration, "_setup_privateuseone_for_python_backend", None)
    if setup is None:
        return False
    dummy: Any = backend_registration._DummyBackendModule

    class _Backend(dummy):
        """The few calls PyTorch makes to a backend's Python module."""

        def get_amp_supported_dtype(self) -> Any:
            return [torch.float16, torch.bfloat16]

        def synchronize(self, device: Any = None) -> None:
            """Return at once, as nothing runs."""

        def get_rng_state(self, device: Any = None) -> torch.Tensor:
            return torch.zeros(16, dtype=torch.uint8)

        def set_rng_state(self, state: Any, device: Any = None) -> None:
            """Ignore the state, as random numbers have no values here."""

        def __getattr__(self, name: str) -> Any:
            """Return the attribute of ``torch.cuda``: streams, events, memory."""
            return getattr(torch.cuda, name)

    setup(rename=BACKEND, backend_module=_Backend())
    _gpu = torch.device(BACKEND, 0)
    FakeTensor.device = property(_shown_device)
    FakeTensorMode.avoid_device_init = property(lambda _: True)
    return True


def gpu_device() -> torch.device:
    """Return the device that tensors of the simulated GPU are really on."""
    return _gpu if _gpu is not None else torch.device("cpu")


def _shown_device(tensor: Any) -> torch.device:
    device = _true_device(tensor)
    return CUDA if device.type == BACKEND and not NESTING[0] else device


def map_device(device: Any) -> Any:
    """Return the true device for a script's ``cuda``. Other values are unchanged."""
    if isinstance(device, torch.device):
        return gpu_device() if device.type == "cuda" else device
    if isinstance(device, str) and device.partition(":")[0] == "cuda":
        return gpu_device()
    return device


def is_fake(value: object) -> bool:
    """Return whether a tensor has no data."""
    return isinstance(value, FakeTensor)


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
        return wrap_meta(meta, device)


def wrap_meta(meta: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a fake tensor around a meta tensor.

    PyTorch's constructor computes the same attributes for every tensor of a device. Those of the first are reused.
    """
    attributes = _attributes.get(device)
    if attributes is None or meta.requires_grad:
        tensor = FakeTensor(FAKE_MODE, meta, device)
        if not meta.requires_grad:
            _attributes[device] = dict(vars(tensor))
        return tensor
    tensor = torch.Tensor._make_subclass(FakeTensor, meta, False, dispatch_device=True, device_for_backend_keys=device)
    _guard_data(tensor)
    vars(tensor).update(attributes)
    return tensor


def empty_like(
    tensor: torch.Tensor, device: Optional[torch.device] = None, dtype: Optional[torch.dtype] = None
) -> torch.Tensor:
    """Return a fake tensor of the same shape and memory layout."""
    return empty_tensor(tensor.shape, dtype or tensor.dtype, device or true_device(tensor), _dense_stride(tensor))


def _dense_stride(tensor: torch.Tensor) -> Any:
    """Return the strides of a channels-last tensor, or ``None`` for contiguous ones."""
    return tensor.stride() if tensor.is_contiguous(memory_format=torch.channels_last) and tensor.dim() == 4 else None


def in_module_constructor() -> bool:
    """Return whether the call comes from the construction of an ``nn.Module`` (its ``__init__`` is on the stack)."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        if code.co_name == "__init__" and code.co_argcount:
            owner = read_locals(frame).get(code.co_varnames[0])
            if isinstance(owner, torch.nn.Module):
                return True
        frame = frame.f_back
    return False
