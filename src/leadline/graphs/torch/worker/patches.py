"""Replacements for parts of PyTorch that would leave the trace or harm the user's files."""

import contextlib
import importlib.util
import io
import math
import os
import shlex
import sys
import threading
import types
import weakref
from pathlib import Path
from typing import Any, Dict, List

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_map

from leadline.graphs.torch.worker import scratch
from leadline.graphs.torch.worker.fake_tensors import scalar_value
from leadline.graphs.torch.worker.session import TraceSession


def install_patches(session: TraceSession) -> None:
    """Replace what must not happen in a trace, with a note to the user where it changes the estimate."""
    _disable_compilation(session)
    _redirect_checkpoints(session)
    _load_onto_device()
    _skip_shell_commands(session)
    _recompute_whole_blocks()
    _allow_foreach(session)
    _dense_gradients(session)
    _iterate_lbfgs(session)
    _default_norm_axis()
    _accept_byte_classes()
    _read_numbers_in_threads()
    torch.inference_mode = torch.autograd.grad_mode.inference_mode = _inference_mode
    # Dispatch modes belong to one thread, so backward must run on the thread that records.
    torch.autograd.set_multithreading_enabled(False)
    os.environ.setdefault("HF_DEACTIVATE_ASYNC_LOAD", "1")  # and transformers copies weights to the device in threads
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # or Hydra replaces an error of the script by an exit code
    torch.autograd.set_detect_anomaly(False)
    torch.autograd.anomaly_mode.set_detect_anomaly = lambda *_, **__: contextlib.nullcontext()
    torch.autograd.set_detect_anomaly = torch.autograd.anomaly_mode.set_detect_anomaly
    if hasattr(torch.backends, "mha"):  # since 2.3
        torch.backends.mha.set_fastpath_enabled(False)


def _read_numbers_in_threads() -> None:
    """Let ``float(loss)`` work in other threads, as those of Keras's callbacks, in which the recorder is not active."""
    module = getattr(torch._subclasses, "fake_impls", None)
    rules: Any = getattr(module, "op_implementations_dict", {})  # a list in early versions
    func = torch.ops.aten._local_scalar_dense.default
    original = rules.get(func)

    def read(mode: Any, func: Any, tensor: Any) -> Any:
        is_recorded = threading.current_thread() is threading.main_thread()  # it has rules of its own
        return original(mode, func, tensor) if is_recorded else scalar_value(tensor)

    if original is not None:
        rules[func] = read


def _inference_mode(mode: Any = True) -> Any:
    """Return ``no_grad``: without autograd's keys, ops would not break down into those of the device."""
    if callable(mode):
        return torch.no_grad()(mode)
    return torch.no_grad() if mode else torch.enable_grad()


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
    _leave_unscripted()
    torch.autograd.forward_ad._maybe_load_decompositions = lambda: None  # it would script rules of rare ops
    torch.jit.trace = _leave_untraced


def _leave_unscripted() -> None:
    """Let ``torch.jit.script`` return a model as it is, which code outside of PyTorch takes for a scripted one."""
    scripted: Any = weakref.WeakSet()
    kinds = (torch.jit.ScriptModule, torch.jit.RecursiveScriptModule)

    def script(obj: Any = None, *_: Any, **__: Any) -> Any:
        if isinstance(obj, torch.nn.Module):
            scripted.add(obj)
        return obj

    def is_instance(kind: Any, instance: Any) -> bool:
        if kind in kinds and isinstance(instance, torch.nn.Module) and instance in scripted:
            return not str(sys._getframe(1).f_globals.get("__name__")).startswith("torch.")
        return type.__instancecheck__(kind, instance)

    torch.jit.script = script
    metaclass: Any = type(torch.jit.ScriptModule)
    metaclass.__instancecheck__ = is_instance


GRAPH_WRITERS = ("torch.utils.tensorboard._pytorch_graph", "tensorboardX.pytorch_graph")


def _leave_untraced(model: Any = None, *_: Any, **__: Any) -> Any:
    """Return the model, or for a log of its graph, which costs no time of a step, an empty graph."""
    if sys._getframe(1).f_globals.get("__name__") in GRAPH_WRITERS:
        return types.SimpleNamespace(graph=torch._C.Graph(), named_modules=model.named_modules)
    return model


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


def _load_onto_device() -> None:
    """Let ``torch.load`` read files on the host, and move what belongs on the GPU to the simulated one."""
    original = torch.load

    def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        is_by_tag = map_location is None or isinstance(map_location, dict)
        if callable(map_location) or not (is_by_tag or torch.device(map_location).type == "cuda"):
            return original(f, map_location, *args, **kwargs)
        on_gpu = set()

        def place(storage: Any, tag: str) -> Any:
            device = tag if map_location is None else map_location.get(tag, tag) if is_by_tag else map_location
            if str(device).startswith("cuda"):
                on_gpu.add(storage._cdata)
            return storage

        def move(value: Any) -> Any:
            if isinstance(value, torch.nn.Module):
                return value._apply(move)
            if not isinstance(value, torch.Tensor):
                return value
            if value.__dict__.pop("_was_on_gpu", False):
                place(value.untyped_storage(), "cuda")
            if value.untyped_storage()._cdata not in on_gpu:
                return value
            moved = value.detach().to("cuda").requires_grad_(value.requires_grad)
            return torch.nn.Parameter(moved, value.requires_grad) if isinstance(value, torch.nn.Parameter) else moved

        return tree_map(move, original(f, place, *args, **kwargs))

    torch.load = torch.serialization.load = load


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

    original_popen = os.popen

    def popen(command: Any, *args: Any, **kwargs: Any) -> Any:
        # Progress bars ask for the size of a terminal, which a trace has not.
        return io.StringIO("24 80\n") if command == "stty size" else original_popen(command, *args, **kwargs)

    shell: Any = os
    shell.system, shell.popen = system, popen


def _recompute_whole_blocks() -> None:
    """Let checkpointing recompute the whole block: an early stop needs hooks that see real tensors."""
    from torch.utils import checkpoint

    checkpoint._enable_checkpoint_early_stop = False
    setter = getattr(checkpoint, "set_checkpoint_early_stop", None)
    if setter is not None:
        setter(False).__enter__()
    checkpoint._default_meta_extractor = lambda tensor: {"shape": tensor.shape, "dtype": tensor.dtype}


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


def _default_norm_axis() -> None:
    """Give the shape rule of normalized weights the axis that calls leave out: before 2.3 it has no default."""
    rule: Any = torch._decomp.decomposition_table.get(torch.ops.aten._weight_norm_interface.default)
    if isinstance(rule, types.FunctionType) and not rule.__defaults__:
        rule.__defaults__ = (0,)


def _accept_byte_classes() -> None:
    """Let the shape rules of cross-entropy take classes of type ``uint8``, as the kernels do."""
    rules: Any = sys.modules["torch._decomp.decompositions"]
    forward, backward = rules._nll_loss_forward, rules._nll_loss_backward

    def as_index(target: Any) -> Any:
        return target.to(torch.int64) if target.dtype == torch.uint8 else target

    rules._nll_loss_forward = lambda scores, target, *rest: forward(scores, as_index(target), *rest)
    rules._nll_loss_backward = lambda grad, scores, target, *rest: backward(grad, scores, as_index(target), *rest)


LBFGS_OPS = 10_000
"""Ops of a step of LBFGS, which takes some 10 s to trace. A step that holds more has fewer iterations."""


def _iterate_lbfgs(session: TraceSession) -> None:
    """Let LBFGS run all its iterations: without values it would find no progress in the first one."""
    original_step, original_greater = torch.optim.LBFGS.step, FakeTensor.__gt__
    closure_ops: Dict[int, int] = {}

    def greater(tensor: Any, other: Any) -> Any:
        # An unknown scalar is 1, as for .item(): the curvature is positive.
        return other < 1 if tensor.dim() == 0 and isinstance(other, float) else original_greater(tensor, other)

    def step(optimizer: Any, closure: Any) -> Any:
        group = optimizer.param_groups[0]
        if not isinstance(group["params"][0], FakeTensor):
            return original_step(optimizer, closure)
        limit, settings = group["max_iter"], dict(group)
        before, ops = session.recorder.count, closure_ops.get(id(optimizer))
        # The first step, which no estimate uses, counts the ops of one iteration.
        iterations = 1 if ops is None else max(1, min(limit, LBFGS_OPS // max(ops, 1)))
        group["max_iter"], group["tolerance_change"], group["max_eval"] = iterations, -math.inf, limit + 1
        if iterations == limit:
            session.note(f"LBFGS is assumed to run {limit} iterations a step, each with one call of the closure")
        elif ops is not None:
            session.low_confidence = True
            session.note(
                f"LBFGS is traced with {iterations} of {limit} iterations a step: "
                f"a real step may take {limit / iterations:.0f} times as long"
            )
        FakeTensor.__gt__ = greater
        try:
            return original_step(optimizer, closure)
        finally:
            FakeTensor.__gt__ = original_greater
            group.update(settings)
            closure_ops.setdefault(id(optimizer), session.recorder.count - before)

    def search(evaluate: Any, start: Any, length: Any, direction: Any, *_: Any, **__: Any) -> Any:
        return *evaluate(start, length, direction), length, 1

    torch.optim.LBFGS.step = step
    line_searches: Any = sys.modules["torch.optim.lbfgs"]
    line_searches._strong_wolfe = search


def _allow_foreach(session: TraceSession) -> None:
    """Let optimizers use their multi-tensor update on tensors without data, and on those that stand for a GPU's."""
    if session.calculates == "cuda":
        from torch.optim import optimizer

        optimizer._get_foreach_kernels_supported_devices = lambda: ["cpu"]
    for name in ("torch.utils._foreach_utils", "torch.optim.optimizer"):
        supported = getattr(sys.modules[name], "_foreach_supported_types", [FakeTensor])
        if FakeTensor not in supported:
            supported.append(FakeTensor)


TORCHVISION_SCHEMAS = Path(__file__).with_name("torchvision_schemas.txt")
_libraries: List[Any] = []


def define_torchvision_ops() -> None:
    """Define the signatures of torchvision's ops if its extension cannot be loaded. Its Python code needs no more."""
    spec = importlib.util.find_spec("torchvision")
    if spec is None or not spec.submodule_search_locations:
        return
    for extension in sorted(Path(spec.submodule_search_locations[0]).glob("_C*.so")):
        try:
            torch.ops.load_library(str(extension))
        except OSError:
            continue
        return
    library = torch.library.Library("torchvision", "DEF")
    _libraries.append(library)
    for schema in TORCHVISION_SCHEMAS.read_text(encoding="utf-8").splitlines():
        library.define(schema)
