"""Kernels that a script brings: those of Triton count by their arguments, and extensions for GPUs are refused."""

import inspect
from types import SimpleNamespace
from typing import Any, Callable, List

import torch
from torch._subclasses.fake_tensor import FakeTensor

from leadline.graphs.torch.worker import fake_tensors
from leadline.graphs.torch.worker.custom_ops import REGISTER, note_unknown
from leadline.graphs.torch.worker.import_hooks import after_import
from leadline.graphs.torch.worker.session import ScriptFailure, TraceSession
from leadline.graphs.torch.worker.windows import RecordedOp

GPU_SOURCES = (".cu", ".cuh", ".hip")


class ExtensionNotBuilt(ScriptFailure, OSError, RuntimeError):
    """An extension for GPUs is not built here. Scripts that have another way catch one of these errors."""


def install_extensions(session: TraceSession) -> None:
    """Record Triton kernels by their arguments, and refuse extensions for GPUs."""
    for module in ("jit", "autotuner"):
        after_import(f"triton.runtime.{module}", lambda loaded: _replace_launches(session, loaded))
    if session.policy == "cuda":
        after_import("triton.runtime.driver", _replace_driver)
    after_import("torch.utils.cpp_extension", lambda loaded: _refuse_extensions(session, loaded))


def _replace_launches(session: TraceSession, module: Any) -> None:
    for name in ("JITFunction", "Autotuner", "Heuristics"):
        if name in vars(module):
            kind = getattr(module, name)
            kind.run = _recording(session, kind.run)


def _recording(session: TraceSession, run: Callable[..., Any]) -> Callable[..., Any]:
    def launch(kernel: Any, *args: Any, **kwargs: Any) -> Any:
        values = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
        if not any(isinstance(value, FakeTensor) for value in values):
            return run(kernel, *args, **kwargs)
        while hasattr(kernel, "fn") and hasattr(kernel.fn, "run"):
            kernel = kernel.fn  # below tuning and heuristics
        _record_kernel(session, kernel, values)
        return None

    return launch


def _record_kernel(session: TraceSession, kernel: Any, tensors: List[Any]) -> None:
    name = getattr(getattr(kernel, "fn", kernel), "__name__", "kernel")
    multiplies = "tl.dot" in inspect.getsource(getattr(kernel, "fn", kernel))
    largest = max(tensors, key=lambda tensor: tensor.numel() * tensor.element_size())
    specs = tuple(
        (tuple(tensor.shape), tensor.dtype, tensor.untyped_storage()._cdata, tensor.numel() * tensor.element_size())
        for tensor in tensors
    )
    extra = {
        "kind": "other" if multiplies else "elementwise",
        "flops": float(largest.numel()),
        "bytes_read": float(sum(spec[3] for spec in specs)),
        "bytes_written": float(largest.numel() * largest.element_size()),
    }
    out = (tuple(largest.shape), largest.dtype, largest.untyped_storage()._cdata, int(extra["bytes_written"]))
    session.recorder.append(RecordedOp(f"triton.{name}", session.recorder.stage, specs, (out,), (), (), extra))
    note_unknown(session, f"the Triton kernel {name}", multiplies=multiplies)


def _replace_driver(module: Any) -> None:
    """Let scripts ask Triton's driver about the simulated GPU."""
    properties = torch.cuda.get_device_properties(0)
    described = {
        "multiprocessor_count": properties.multi_processor_count, "max_num_regs": 65536, "max_shared_mem": 232448,
        "warpSize": 32, "mem_clock_rate": 2619000, "mem_bus_width": 5120, "sm_clock_rate": 1980000,
    }  # fmt: skip
    target = SimpleNamespace(backend="cuda", arch=90, warp_size=32)
    driver = SimpleNamespace(
        get_current_device=lambda: 0, set_current_device=lambda _: None, get_current_stream=lambda _: 0,
        get_current_target=lambda: target, get_active_torch_device=lambda: fake_tensors.CUDA, is_active=lambda: True,
        get_device_interface=lambda: torch.cuda, get_device_capability=lambda _: (9, 0),
        utils=SimpleNamespace(get_device_properties=lambda _: described),
    )  # fmt: skip
    module.driver._default = module.driver._active = driver


def _refuse_extensions(session: TraceSession, module: Any) -> None:
    def refusing(original: Callable[..., Any]) -> Callable[..., Any]:
        def load(name: str, *args: Any, **kwargs: Any) -> Any:
            listed = args[0] if args else kwargs.get("sources", ())
            sources = [str(source) for source in ([listed] if isinstance(listed, str) else listed or ())]
            on_gpu = kwargs.get("with_cuda") or kwargs.get("cuda_sources") or kwargs.get("extra_cuda_cflags")
            if not on_gpu and not any(source.endswith(GPU_SOURCES) for source in sources):
                return original(name, *args, **kwargs)
            session.note(f"the extension {name} for GPUs is not built here: the script goes on without it")
            raise ExtensionNotBuilt(
                f"the script builds the extension {name} for GPUs, whose kernels have no shapes here: {REGISTER}"
            )

        return load

    module.load, module.load_inline = refusing(module.load), refusing(module.load_inline)
