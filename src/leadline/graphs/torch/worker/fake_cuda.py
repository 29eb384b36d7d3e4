"""Simulate CUDA devices: ``torch.cuda`` and its relatives, and CUDA's kernels.

PyTorch would run some ops in another way on the simulated device.
"""

import abc
import contextlib
import itertools
import json
import types
import warnings
from pathlib import Path
from typing import Any, Dict, List

import torch
import torch._meta_registrations as registrations
from torch._subclasses.fake_tensor import FakeTensor

from leadline.graphs.torch.worker import fake_autocast, fake_tensors
from leadline.graphs.torch.worker.session import TraceSession

GPU: Dict[str, Dict[str, Any]] = json.loads(Path(__file__).with_name("fake_gpu.json").read_text(encoding="utf-8"))
"""The simulated GPU: its properties, and the functions of ``torch.cuda`` and its relatives that only return a value."""
PROPERTIES = types.SimpleNamespace(**GPU["properties"])
MEMORY_BYTES: int = PROPERTIES.total_memory
STREAMS = ("default_stream", "current_stream", "get_stream_from_external")


def install_fake_cuda(session: TraceSession) -> None:
    """Replace ``torch.cuda`` by that of a node with ``session.local_size`` GPUs, and use its kernels and autocast."""
    memory = _memory_functions(session)
    for name, value in {**_returning("cuda"), **_device_functions(session), **memory}.items():
        setattr(torch.cuda, name, value)
        for part in (torch.cuda.memory, torch.cuda.random):
            if hasattr(part, name):
                setattr(part, name, value)
    for name, kind in {"_EventBase": _FakeEvent, "_StreamBase": _FakeStream}.items():
        base = getattr(getattr(torch, "_streambase", None), name, None)
        if isinstance(base, abc.ABCMeta):  # before 2.5, PyTorch's compiler refuses others
            base.register(kind)
    torch.cuda.Event = torch.cuda.streams.Event = _FakeEvent
    torch.cuda.Stream = torch.cuda.streams.Stream = _FakeStream
    torch.cuda.nvtx = types.SimpleNamespace(**_returning("nvtx"), range=lambda *_, **__: contextlib.nullcontext())
    accelerator = {
        "device_count": session.count_devices,
        "current_accelerator": lambda *_, **__: torch.device("cuda"),
        "current_stream": lambda *_, **__: _FakeStream(),
    }
    for name, value in {**_returning("accelerator"), **accelerator, **memory}.items():
        if hasattr(getattr(torch, "accelerator", None), name):  # since 2.6
            setattr(torch.accelerator, name, value)
    torch._C._get_accelerator = lambda *_: torch.device("cuda")
    torch.backends.cudnn.is_available = torch.backends.cuda.is_built = lambda: True
    torch.backends.cudnn.version = lambda: 91002
    torch.backends.cudnn.is_acceptable = lambda _: True
    torch.version.cuda = torch.version.cuda or "12.8"  # torchvision compares its release with it
    _define_tensor_types()
    torch.Tensor.is_cuda = property(_is_cuda)
    _redirect_moves()
    torch.Generator = _generator
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch has kernels for CUDA under some of these names
        _install_kernels()


def _returning(part: str) -> Dict[str, Any]:
    """Return functions that only return a value: new ones, as PyTorch's compiler refuses one under two names."""

    def function(answer: Any) -> Any:
        return lambda *_, **__: answer

    return {name: function(answer) for name, answer in GPU[part].items()}


def _device_functions(session: TraceSession) -> Dict[str, Any]:
    return {
        "device_count": session.count_devices,
        "get_device_name": lambda *_, **__: PROPERTIES.name,
        "get_device_capability": lambda *_, **__: (PROPERTIES.major, PROPERTIES.minor),
        "get_device_properties": lambda *_, **__: PROPERTIES,
        "get_amp_supported_dtype": lambda: [torch.float16, torch.bfloat16],
        **{name: lambda *_, **__: _FakeStream() for name in STREAMS},
        **{name: lambda *_, **__: contextlib.nullcontext() for name in ("stream", "device_of")},
        "device": _DeviceContext,
        "get_rng_state": lambda *_, **__: torch.zeros(16, dtype=torch.uint8),
        "get_rng_state_all": lambda: [torch.zeros(16, dtype=torch.uint8)],
        "cudart": lambda: types.SimpleNamespace(
            cudaProfilerStart=fake_tensors.do_nothing, cudaProfilerStop=fake_tensors.do_nothing
        ),
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
        "memory_stats": lambda *_, **__: _memory_stats(live(), peak()),
    }


STATISTICS = ("allocation", "segment", "active", "inactive_split", "allocated_bytes", "reserved_bytes", "active_bytes",
              "inactive_split_bytes", "requested_bytes")  # fmt: skip
POOLS, COUNTS = ("all", "large_pool", "small_pool"), ("num_alloc_retries", "num_ooms", "num_device_alloc")


def _memory_stats(live_bytes: int, peak_bytes: int) -> Dict[str, int]:
    """Return the statistics of PyTorch's allocator by their names, of which only the bytes are known."""
    kinds = ("current", "peak", "allocated", "freed")
    stats = {".".join(parts): 0 for parts in itertools.product(STATISTICS, POOLS, kinds)}
    for name in ("allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes"):
        stats[f"{name}.all.current"], stats[f"{name}.all.peak"] = live_bytes, peak_bytes
    return {**stats, **dict.fromkeys(COUNTS, 0)}


class _FakeEvent:
    """A device event that is always complete, one millisecond from any other, as nothing runs on a device."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.cuda_event = 0

    record = wait = synchronize = fake_tensors.do_nothing

    def query(self) -> bool:
        return True

    def elapsed_time(self, _: Any) -> float:
        return 1.0


class _FakeStream(_FakeEvent):
    """A device stream with nothing in it."""

    cuda_stream = stream_id = device_index = device_type = priority = 0
    device = fake_tensors.CUDA
    wait_stream = wait_event = fake_tensors.do_nothing

    def is_capturing(self) -> bool:
        return False

    def record_event(self, event: Any = None) -> Any:
        return event or _FakeEvent()

    def __enter__(self) -> Any:
        return self

    __exit__ = fake_tensors.do_nothing


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
    _allow_default_types()


def _allow_default_types() -> None:
    """Let ``torch.set_default_tensor_type`` take a type of the GPU: its dtype and device, also of ``torch.Tensor``."""
    set_host_type, make = torch.set_default_tensor_type, torch.Tensor.__new__

    def make_on_gpu(*args: Any, **kwargs: Any) -> Any:  # the compiler compares this signature with its own
        tensor = make(*args, **kwargs)
        return tensor.to("cuda") if args[0] is torch.Tensor else tensor

    def set_default_type(kind: Any) -> None:
        if isinstance(kind, str) and kind.startswith("torch.cuda."):
            kind = getattr(torch.cuda, kind.rpartition(".")[2])
        is_on_gpu = isinstance(kind, _TensorType)
        if is_on_gpu:
            torch.set_default_dtype(kind.dtype)
        else:
            set_host_type(kind)
        torch.set_default_device("cuda" if is_on_gpu else None)
        torch.Tensor.__new__ = staticmethod(make_on_gpu if is_on_gpu else make)

    torch.set_default_tensor_type = set_default_type


class _TensorType(type):
    """A type such as ``torch.cuda.LongTensor``, which makes tensors of its dtype and supports ``isinstance``."""

    dtype: torch.dtype

    def __call__(cls, *args: Any) -> Any:
        if args and not isinstance(args[0], int):
            return torch.as_tensor(args[0], dtype=cls.dtype, device="cuda")
        return torch.empty(args or (0,), dtype=cls.dtype, device="cuda")

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

    torch.Tensor.to, torch.Tensor.cuda = to, cuda


def _is_cuda(tensor: Any) -> bool:
    return isinstance(tensor, FakeTensor) and fake_tensors.true_device(tensor).type == fake_tensors.backend()


_RealGenerator = torch.Generator


class _GeneratorKind(type):
    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, _RealGenerator)


class _generator(metaclass=_GeneratorKind):  # noqa: N801 - stands in for torch.Generator
    """A random generator. One for the GPU is a host one, since its numbers have no values."""

    def __new__(cls, device: Any = "cpu") -> Any:
        return _RealGenerator("cpu" if str(device).startswith("cuda") else device)


aten = torch.ops.aten
_libraries: List[Any] = []
"""Registrations last as long as these objects."""
WHOLE = ("silu_backward", "mish_backward")
"""Ops that PyTorch decomposes on devices it does not know."""

FUSED_UPDATES = ("_fused_sgd_", "_fused_adagrad_")
"""Updates of weights in place, for which PyTorch has no shape rule."""


def _install_kernels() -> None:
    """Register CUDA's choice of attention kernels, and its whole gradients of activations.

    GradScaler always takes its step, and grouped products run in float32 and float16 too.
    """
    library = torch.library.Library("aten", "IMPL")
    _libraries.append(library)
    key = fake_tensors.dispatch_key()
    for name, kernel in {"scaled_dot_product_attention": _attention, "dropout": _dropout}.items():
        library.impl(name, kernel, f"Autograd{key}")
        library.impl(name, kernel, key)
    if fake_tensors.backend() == fake_tensors.SPARE_BACKEND:
        for name in WHOLE:
            library.impl(name, torch.library.fallthrough_kernel, "AutogradPrivateUse1")
            # Only the shape of the result matters: the recorder sees the op before it gets here.
            library.impl(name, lambda _, source: torch.empty_like(source), "PrivateUse1")
    for name in FUSED_UPDATES:
        if hasattr(aten, name):
            library.impl(name, fake_tensors.do_nothing, "Meta")
    _widen_grouped_products()
    fake_autocast.install_autocast()
    scaler = getattr(torch.amp, "GradScaler", torch.cuda.amp.GradScaler)  # the first since 2.3
    scaler._maybe_opt_step = lambda _, optimizer, state, *args, **kwargs: optimizer.step(*args, **kwargs)


def _dropout(values: Any, p: float, train: bool) -> Any:
    """Run the fused kernel, which keeps a mask of bytes."""
    return aten.native_dropout(values, p, train)[0] if train and 0 < p < 1 and values.numel() else aten.alias(values)


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
    math = aten._scaled_dot_product_attention_math
    return math(query, key, value, attn_mask, dropout_p, is_causal, None, **options)[0]


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
