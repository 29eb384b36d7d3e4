"""Parts of PyTorch that would leave the trace or harm the user's files: savers, compilers, helper processes."""

import contextlib
import importlib
import os
import shlex
import sys
from typing import Any

import torch

from leadline.graphs.torch.worker import scratch
from leadline.graphs.torch.worker.session import TraceSession


def install_patches(session: TraceSession) -> None:
    """Replace what must not happen in a trace by what is harmless, with a note where the estimate is concerned."""
    _stay_eager(session)
    _save_aside(session)
    _no_shell(session)
    _recompute_whole()
    _one_device(session)
    _foreach_fakes()
    _dense_gradients(session)
    torch.inference_mode = torch.autograd.grad_mode.inference_mode = _inference_mode
    torch.autograd.set_multithreading_enabled(False)
    torch.autograd.set_detect_anomaly(False)
    torch.autograd.anomaly_mode.set_detect_anomaly = _NoAnomaly
    torch.autograd.set_detect_anomaly = _NoAnomaly
    torch.backends.mha.set_fastpath_enabled(False)


def _inference_mode(mode: Any = True) -> Any:
    """Do what ``no_grad`` does: without autograd's keys, ops would not break down into those of the device."""
    if callable(mode):
        return torch.no_grad()(mode)
    return torch.no_grad() if mode else contextlib.nullcontext()


class _NoAnomaly:
    def __init__(self, *_: Any, **__: Any) -> None:
        """Ignore the setting."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None


CAPTURING = ("reduce-overhead", "max-autotune")
"""Modes of ``torch.compile`` that capture CUDA graphs, whose memory is a pool of its own."""


def _stay_eager(session: TraceSession) -> None:
    def compile_(model: Any = None, **settings: Any) -> Any:
        session.compiled = True
        session.note(
            "torch.compile is traced as eager code: fused kernels would be faster; what its backward pass would make "
            "again is not held, as if the whole step were compiled"
        )
        if settings.get("mode") in CAPTURING:
            session.note(f"the memory that CUDA graphs keep for themselves (mode {settings['mode']}) is not counted")
        if model is None:
            return lambda function: function
        return model

    def compile_module(self: Any, *_: Any, **__: Any) -> None:
        compile_(self)

    torch.compile = compile_
    torch.nn.Module.compile = compile_module
    torch.jit.script = lambda obj=None, *_, **__: obj
    torch.jit.trace = lambda func=None, *_, **__: func


def _save_aside(session: TraceSession) -> None:
    """Keep checkpoints among the scratch files, tensors without data by their shape alone."""
    own = torch.save

    def save(obj: Any = None, f: Any = None, *args: Any, **kwargs: Any) -> None:
        if hasattr(f, "write"):
            own(obj, f, *args, **kwargs)
            return
        session.note("checkpoints are not written during the trace, and their time is not counted")
        with open(f, "wb") as aside:
            own(obj, aside, *args, **kwargs)

    torch.save = torch.serialization.save = save
    try:
        safe: Any = importlib.import_module("safetensors.torch")
    except ImportError:
        return
    own_load = safe.load_file

    def load_file(filename: Any, *args: Any, **kwargs: Any) -> Any:
        return torch.load(filename) if scratch.is_scratch(filename) else own_load(filename, *args, **kwargs)

    safe.load_file = load_file
    safe.save_file = lambda tensors, filename, *_, **__: save(tensors, filename)
    safe.save_model = lambda model, filename, *_, **__: save(model.state_dict(), filename)


def _no_shell(session: TraceSession) -> None:
    """Leave out shell commands, which could write anywhere, but for the making of folders."""

    def system(command: Any) -> int:
        words = shlex.split(os.fsdecode(command))
        if words[:1] == ["mkdir"]:
            for folder in words[1:]:
                if not folder.startswith("-"):
                    os.makedirs(folder, exist_ok=True)
        else:
            session.note(f"the shell command {words[0] if words else ''!r} of the script is not run during the trace")
        return 0

    os.system = system


def _recompute_whole() -> None:
    """Let checkpointing recompute the whole block: stopping early needs hooks that see true tensors."""
    from torch.utils import checkpoint

    checkpoint._enable_checkpoint_early_stop = False
    setter = getattr(checkpoint, "set_checkpoint_early_stop", None)
    if setter is not None:
        setter(False).__enter__()
    checkpoint._default_meta_extractor = lambda tensor: {
        "shape": tensor.shape,
        "dtype": tensor.dtype,
    }


def _one_device(session: TraceSession) -> None:
    class DataParallel(torch.nn.Module):
        """The wrapped module on one device."""

        def __init__(self, module: Any, *_: Any, **__: Any) -> None:
            super().__init__()
            session.note("nn.DataParallel is traced on one GPU")
            self.module = module

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return self.module(*args, **kwargs)

    torch.nn.DataParallel = torch.nn.parallel.DataParallel = DataParallel


def _dense_gradients(session: TraceSession) -> None:
    """Give embeddings dense gradients: tensors without data cannot be sparse."""

    def dense(own: Any, place: int) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            if kwargs.get("sparse") or (len(args) > place and args[place]):
                session.note("sparse gradients of embeddings are traced as dense ones, which take more time and memory")
                session.low_confidence = True
            kwargs.pop("sparse", None)
            return own(*(value if at != place else False for at, value in enumerate(args)), **kwargs)

        return call

    class SparseAdam(torch.optim.Adam):
        """Adam, which updates every row."""

        def __init__(self, params: Any, lr: Any = 1e-3, betas: Any = (0.9, 0.999), eps: float = 1e-8, **_: Any) -> None:
            super().__init__(params, lr, betas, eps)

    torch.embedding, torch.embedding_bag = dense(torch.embedding, 4), dense(torch.embedding_bag, 5)
    torch.optim.SparseAdam = SparseAdam


def _foreach_fakes() -> None:
    """Let optimizers take their multi-tensor route for tensors without data, as they do on CUDA."""
    from torch._subclasses.fake_tensor import FakeTensor

    for name in ("torch.utils._foreach_utils", "torch.optim.optimizer"):
        module = sys.modules[name]
        supported = getattr(module, "_foreach_supported_types", None)
        if supported is not None and FakeTensor not in supported:
            supported.append(FakeTensor)
