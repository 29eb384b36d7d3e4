"""The first steps of a script that the simulated device cannot run: the CPU calculates them in place of a GPU."""

import contextlib
import functools
from typing import Any, Dict, Iterator

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

from leadline.graphs.torch.worker.computed_values import MOST_BYTES
from leadline.graphs.torch.worker.ops import OpTraits
from leadline.graphs.torch.worker.recorder import Recorder
from leadline.graphs.torch.worker.session import ScriptFailure, TraceSession

WAITING = ("set_device", "synchronize", "empty_cache", "reset_peak_memory_stats", "reset_max_memory_allocated")
"""Functions of ``torch.cuda`` that change no result."""


class CalculatingRecorder(Recorder):
    """Records a script that runs on the CPU as it is, as far as its tensors fit into the memory of a trace."""

    def _needs_no_values(self, name: str, args: Any) -> bool:
        return False

    def _run_real(self, func: Any, traits: OpTraits, args: Any, kwargs: Dict[str, Any]) -> Any:
        if self.live_bytes > MOST_BYTES:
            raise ScriptFailure("its tensors do not fit into the memory of a trace")
        result = super()._run_real(func, traits, args, kwargs)
        if traits.mutated and "foreach" in traits.name and hasattr(torch.autograd.graph, "increment_version"):
            torch.autograd.graph.increment_version(args[0])  # which the kernels of the GPU do themselves
        return result


@contextlib.contextmanager
def calculating_device(session: TraceSession) -> Iterator[None]:
    """Put on the CPU what a script puts on a GPU, if its steps are calculated."""
    if not session.calculates:
        yield
        return
    for name in WAITING:
        setattr(torch.cuda, name, lambda *_, **__: None)  # each its own: the compiler tells them apart
    _make_subclasses_unseen()
    with _OnCpu():
        yield


class _OnCpu(TorchFunctionMode):
    """Replaces the GPU among the arguments of PyTorch's functions."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") == "cuda":
            return args[0]
        return func(*map(_on_cpu, args), **{name: _on_cpu(value) for name, value in (kwargs or {}).items()})


def _on_cpu(value: Any) -> Any:
    if isinstance(value, str) and value.partition(":")[0] == "cuda":
        return "cpu"
    return torch.device("cpu") if isinstance(value, torch.device) and value.type == "cuda" else value


def _make_subclasses_unseen() -> None:
    """Make tensors of a subclass outside of the recorder, which would return them as plain ones before."""
    original: Any = torch.Tensor.__new__

    @functools.wraps(original)
    def new(cls: Any, *args: Any, **kwargs: Any) -> Any:
        with contextlib.nullcontext() if cls is torch.Tensor else _disable_current_modes():
            return original(cls, *args, **kwargs)

    torch.Tensor.__new__ = new
