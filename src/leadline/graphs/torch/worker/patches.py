"""Replacements for parts of PyTorch that would leave the trace or harm the user's files."""

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
    """Replace what must not happen in a trace, with a note to the user where it changes the estimate."""
    _disable_compilation(session)
    _redirect_checkpoints(session)
    _skip_shell_commands(session)
    _recompute_whole_blocks()
    _replace_data_parallel(session)
    _allow_foreach()
    _dense_gradients(session)
    torch.inference_mode = torch.autograd.grad_mode.inference_mode = _inference_mode
    # Dispatch modes belong to one thread, so backward must run on the thread that records.
    torch.autograd.set_multithreading_enabled(False)
    torch.autograd.set_detect_anomaly(False)
    torch.autograd.anomaly_mode.set_detect_anomaly = lambda *_, **__: contextlib.nullcontext()
    torch.autograd.set_detect_anomaly = torch.autograd.anomaly_mode.set_detect_anomaly
    torch.backends.mha.set_fastpath_enabled(False)


def _inference_mode(mode: Any = True) -> Any:
    """Return ``no_grad``: without autograd's keys, ops would not break down into those of the device."""
    if callable(mode):
        return torch.no_grad()(mode)
    return torch.no_grad() if mode else contextlib.nullcontext()


GRAPH_CAPTURING_MODES = ("reduce-overhead", "max-autotune")
"""Modes of ``torch.compile`` that capture CUDA graphs, whose memory is a pool of its own."""


def _disable_compilation(session: TraceSession) -> None:
    def compile_(model: Any = None, **settings: Any) -> Any:
        session.compiled = True
        session.note(
            "torch.compile is traced as eager code: fused kernels would be faster; tensors that a compiled backward "
            "pass recomputes are not held, as if the whole step were compiled"
        )
        if settings.get("mode") in GRAPH_CAPTURING_MODES:
            session.note(f"the memory that CUDA graphs keep for themselves (mode {settings['mode']}) is not counted")
        return model if model is not None else lambda function: function

    def compile_module(self: Any, *_: Any, **__: Any) -> None:
        compile_(self)

    torch.compile = compile_
    torch.nn.Module.compile = compile_module
    torch.jit.script = lambda obj=None, *_, **__: obj
    torch.jit.trace = lambda func=None, *_, **__: func


def _redirect_checkpoints(session: TraceSession) -> None:
    """Write checkpoints among the scratch files, and tensors without data by their shape alone."""
    original_save = torch.save

    def save(obj: Any = None, f: Any = None, *args: Any, **kwargs: Any) -> None:
        if hasattr(f, "write"):
            original_save(obj, f, *args, **kwargs)
            return
        session.note("checkpoints are not written during the trace, and their time is not counted")
        with open(f, "wb") as file:
            original_save(obj, file, *args, **kwargs)

    torch.save = torch.serialization.save = save
    try:
        safe: Any = importlib.import_module("safetensors.torch")
    except ImportError:
        return
    original_load = safe.load_file

    def load_file(filename: Any, *args: Any, **kwargs: Any) -> Any:
        return torch.load(filename) if scratch.is_scratch(filename) else original_load(filename, *args, **kwargs)

    safe.load_file = load_file
    safe.save_file = lambda tensors, filename, *_, **__: save(tensors, filename)
    safe.save_model = lambda model, filename, *_, **__: save(model.state_dict(), filename)


def _skip_shell_commands(session: TraceSession) -> None:
    """Skip shell commands, which could write anywhere. Only ``mkdir`` is carried out."""

    def system(command: Any) -> int:
        words = shlex.split(os.fsdecode(command))
        if words[:1] == ["mkdir"]:
            for folder in (word for word in words[1:] if not word.startswith("-")):
                os.makedirs(folder, exist_ok=True)
        else:
            session.note(f"the shell command {words[0] if words else ''!r} of the script is not run during the trace")
        return 0

    os.system = system


def _recompute_whole_blocks() -> None:
    """Let checkpointing recompute the whole block: an early stop needs hooks that see real tensors."""
    from torch.utils import checkpoint

    checkpoint._enable_checkpoint_early_stop = False
    setter = getattr(checkpoint, "set_checkpoint_early_stop", None)
    if setter is not None:
        setter(False).__enter__()
    checkpoint._default_meta_extractor = lambda tensor: {"shape": tensor.shape, "dtype": tensor.dtype}


def _replace_data_parallel(session: TraceSession) -> None:
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

    def dense(embed: Any, sparse_position: int) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            if kwargs.get("sparse") or (len(args) > sparse_position and args[sparse_position]):
                session.note("sparse gradients of embeddings are traced as dense ones, which take more time and memory")
                session.low_confidence = True
            kwargs.pop("sparse", None)
            return embed(
                *(value if position != sparse_position else False for position, value in enumerate(args)), **kwargs
            )

        return call

    class SparseAdam(torch.optim.Adam):
        """Adam, which updates every row."""

        def __init__(self, params: Any, lr: Any = 1e-3, betas: Any = (0.9, 0.999), eps: float = 1e-8, **_: Any) -> None:
            super().__init__(params, lr, betas, eps)

    torch.embedding, torch.embedding_bag = dense(torch.embedding, 4), dense(torch.embedding_bag, 5)
    torch.optim.SparseAdam = SparseAdam


def _allow_foreach() -> None:
    """Let optimizers use their multi-tensor update on tensors without data, as on CUDA."""
    from torch._subclasses.fake_tensor import FakeTensor

    for name in ("torch.utils._foreach_utils", "torch.optim.optimizer"):
        supported = getattr(sys.modules[name], "_foreach_supported_types", [FakeTensor])
        if FakeTensor not in supported:
            supported.append(FakeTensor)
