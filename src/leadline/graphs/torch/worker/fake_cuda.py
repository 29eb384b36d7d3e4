"""Simulate CUDA devices: the functions and types of ``torch.cuda`` and its relatives in a trace."""

import contextlib
import json
import types
from pathlib import Path
from typing import Any, Dict

import torch
from torch._subclasses.fake_tensor import FakeTensor

from leadline.graphs.torch.worker import fake_tensors
from leadline.graphs.torch.worker.session import TraceSession

GPU: Dict[str, Dict[str, Any]] = json.loads(Path(__file__).with_name("fake_gpu.json").read_text(encoding="utf-8"))
"""The simulated GPU: its properties, and the functions of ``torch.cuda`` and its relatives that only return a value."""
PROPERTIES = types.SimpleNamespace(**GPU["properties"])
MEMORY_BYTES: int = PROPERTIES.total_memory
STREAMS = ("default_stream", "current_stream", "get_stream_from_external")


def install_fake_cuda(session: TraceSession) -> None:
    """Replace ``torch.cuda`` by that of a node with ``session.local_size`` GPUs."""
    memory = _memory_functions(session)
    for name, value in {**_returning("cuda"), **_device_functions(session), **memory}.items():
        setattr(torch.cuda, name, value)
        for part in (torch.cuda.memory, torch.cuda.random):
            if hasattr(part, name):
                setattr(part, name, value)
    torch.cuda.Event = torch.cuda.streams.Event = _FakeEvent
    torch.cuda.Stream = torch.cuda.streams.Stream = _FakeStream
    torch.cuda.nvtx = types.SimpleNamespace(**_returning("nvtx"), range=lambda *_, **__: contextlib.nullcontext())
    accelerator = {
        "device_count": lambda: session.local_size,
        "current_accelerator": lambda *_, **__: torch.device("cuda"),
        "current_stream": lambda *_, **__: _FakeStream(),
    }
    for name, value in {**_returning("accelerator"), **accelerator, **memory}.items():
        if hasattr(torch.accelerator, name):
            setattr(torch.accelerator, name, value)
    torch._C._get_accelerator = lambda *_: torch.device("cuda")
    torch.backends.cudnn.is_available = torch.backends.cuda.is_built = lambda: True
    torch.backends.cudnn.version = lambda: 91002
    torch.backends.cudnn.is_acceptable = lambda _: True
    torch.version.cuda = "12.8"
    _define_tensor_types()
    torch.Tensor.is_cuda = property(_is_cuda)
    _redirect_moves()
    torch.Generator = _generator


def _returning(part: str) -> Dict[str, Any]:
    """Return functions that only return a value: new ones, as PyTorch's compiler refuses one under two names."""

    def function(answer: Any) -> Any:
        return lambda *_, **__: answer

    return {name: function(answer) for name, answer in GPU[part].items()}


def _device_functions(session: TraceSession) -> Dict[str, Any]:
    return {
        "device_count": lambda: session.local_size,
        "get_device_name": lambda *_, **__: PROPERTIES.name,
        "get_device_capability": lambda *_, **__: (PROPERTIES.major, PROPERTIES.minor),
        "get_device_properties": lambda *_, **__: PROPERTIES,
        "get_amp_supported_dtype": lambda: [torch.float16, torch.bfloat16],
        **{name: lambda *_, **__: _FakeStream() for name in STREAMS},
        **{name: lambda *_, **__: contextlib.nullcontext() for name in ("stream", "device_of")},
        "device": _DeviceContext,
        "get_rng_state": lambda *_, **__: torch.zeros(16, dtype=torch.uint8),
        "get_rng_state_all": lambda: [torch.zeros(16, dtype=torch.uint8)],
        "cudart": lambda: types.SimpleNamespace(cudaProfilerStart=_do_nothing, cudaProfilerStop=_do_nothing),
        "default_generators": (torch.default_generator,),
    }


def _memory_functions(session: TraceSession) -> Dict[str, Any]:
    def live(*_: Any, **__: Any) -> int:
        return int(session.recorder.live_bytes)

    def peak(*_: Any, **__: Any) -> int:
        return int(session.recorder.peak_bytes)

    def reset(*_: Any, **__: Any) -> None:
        session.recorder.peak_bytes = session.recorder.live_bytes

    return {
        **dict.fromkeys(("memory_allocated", "memory_reserved", "memory_cached"), live),
        **dict.fromkeys(("max_memory_allocated", "max_memory_reserved", "max_memory_cached"), peak),
        **dict.fromkeys(("reset_peak_memory_stats", "reset_max_memory_allocated", "reset_max_memory_cached"), reset),
        "mem_get_info": lambda *_, **__: (MEMORY_BYTES - live(), MEMORY_BYTES),
        "memory_stats": lambda *_, **__: {"allocated_bytes.all.current": live(), "allocated_bytes.all.peak": peak()},
    }


def _do_nothing(*_: Any, **__: Any) -> None:
    """Do nothing, as there is no device."""


class _FakeEvent:
    """A device event that is always complete, one millisecond from any other, as nothing runs on a device."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.cuda_event = 0

    record = wait = synchronize = _do_nothing

    def query(self) -> bool:
        return True

    def elapsed_time(self, _: Any) -> float:
        return 1.0


class _FakeStream(_FakeEvent):
    """A device stream with nothing in it."""

    cuda_stream = 0
    device = fake_tensors.CUDA
    wait_stream = wait_event = _do_nothing

    def is_capturing(self) -> bool:
        return False

    def record_event(self, event: Any = None) -> Any:
        return event or _FakeEvent()

    def __enter__(self) -> Any:
        return self

    __exit__ = _do_nothing


class _DeviceContext(contextlib.nullcontext[None]):
    idx = 0

    def __init__(self, device: Any = None) -> None:
        super().__init__()


def _define_tensor_types() -> None:
    """Define the old constructors, such as ``torch.cuda.FloatTensor(3, 4)``."""
    kinds = {
        "Float": torch.float32, "Double": torch.float64, "Half": torch.float16, "BFloat16": torch.bfloat16,
        "Long": torch.int64, "Int": torch.int32, "Short": torch.int16, "Byte": torch.uint8, "Char": torch.int8,
        "Bool": torch.bool,
    }  # fmt: skip
    for name, dtype in kinds.items():
        setattr(torch.cuda, name + "Tensor", _TensorType(name + "Tensor", (), {"dtype": dtype}))


class _TensorType(type):
    """A type such as ``torch.cuda.LongTensor``, which makes tensors of its dtype and supports ``isinstance``."""

    dtype: torch.dtype

    def __call__(cls, *args: Any) -> Any:
        if args and not isinstance(args[0], int):
            return torch.as_tensor(args[0], dtype=cls.dtype, device="cuda")
        return torch.empty(args, dtype=cls.dtype, device="cuda")

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, torch.Tensor) and value.is_cuda and value.dtype is cls.dtype


def _redirect_moves() -> None:
    """Map ``cuda`` to the simulated GPU in moves of tensors: the C++ side of ``to`` looks for a real one."""
    move = torch.Tensor.to

    def to(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if args:
            args = (fake_tensors.map_device(args[0]), *args[1:])
        if "device" in kwargs:
            kwargs["device"] = fake_tensors.map_device(kwargs["device"])
        return move(tensor, *args, **kwargs)

    def cuda(tensor: Any, device: Any = None, *_: Any, **__: Any) -> Any:
        return move(tensor, fake_tensors.gpu_device())

    for name in ("tensor", "as_tensor", "asarray"):
        setattr(torch, name, _construct_on_host(getattr(torch, name)))
    torch.Tensor.to = to
    torch.Tensor.cuda = cuda


def _construct_on_host(original: Any) -> Any:
    """Wrap a constructor from Python values: it runs on the host and copies to the simulated GPU."""

    def construct(*args: Any, device: Any = None, requires_grad: bool = False, **kwargs: Any) -> Any:
        if device is None and torch._GLOBAL_DEVICE_CONTEXT.__dict__:
            device = torch.get_default_device()
        device = fake_tensors.map_device(device)
        if not isinstance(device, torch.device) or device.type != fake_tensors.BACKEND:
            tensor = original(*args, device=device, **kwargs)
        elif isinstance(args[0], FakeTensor):
            tensor = args[0].to(device, kwargs.get("dtype"))
        else:
            tensor = original(*args, device="cpu", **kwargs).to(device)
        return tensor.requires_grad_() if requires_grad else tensor

    return construct


def _is_cuda(tensor: Any) -> bool:
    return isinstance(tensor, FakeTensor) and fake_tensors.true_device(tensor).type == fake_tensors.BACKEND


_RealGenerator = torch.Generator


class _GeneratorKind(type):
    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, _RealGenerator)


class _generator(metaclass=_GeneratorKind):  # noqa: N801 - stands in for torch.Generator
    """A random generator. One for the GPU is a host one, since its numbers have no values."""

    def __new__(cls, device: Any = "cpu") -> Any:
        return _RealGenerator("cpu" if str(device).startswith("cuda") else device)
