"""Run a training script for real on a CPU and count what it does, without Leadline.

Usage: python counter.py OUT.json STEPS [-m] TARGET ARGUMENTS. It ends the script after STEPS steps of every optimizer;
zero lets it run to its end and counts the steps alone. It needs torch and nothing else. A GPU that the script names is
replaced with the CPU: the products that it calculates are the same.
"""

import contextlib
import functools
import gc
import itertools
import json
import math
import os
import runpy
import sys
import weakref

import torch
from torch.optim import optimizer as optimizers
from torch.overrides import TorchFunctionMode
from torch.utils import flop_counter
from torch.utils.data import DataLoader

MOST_EVENTS = 24
EVENTS, LOADS, ALIVE = [], [], []
BUILT = weakref.WeakSet()


class NoTracker:
    """Stands for the tracker of modules, which fails where a script differentiates within a module."""

    parents = frozenset({"Global"})

    def __enter__(self):
        """Track nothing."""
        return self

    def __exit__(self, *_):
        """Track nothing."""


class CountedBatches:
    """An iterator over a loader that notes its batches, and has its length."""

    def __init__(self, loader, batches):
        self.loader, self.batches = loader, batches

    def __len__(self):
        return len(self.loader)

    def __iter__(self):
        return self

    def __next__(self):
        return next(self.batches)


class EnoughSteps(BaseException):
    """Ends the script."""


class OnCpu(TorchFunctionMode):
    """Replaces the GPU with the CPU in every call."""

    def __torch_function__(self, function, _types, args=(), kwargs=None):
        """Call the function on the CPU."""
        if getattr(function, "__name__", "") == "cuda":
            return args[0]
        kwargs = {name: _cpu(value) for name, value in (kwargs or {}).items()}
        return function(*(_cpu(value) for value in args), **kwargs)


def main(out, steps, *command):
    """Run the command, and write what was counted."""
    steps = int(steps)
    is_module = command[0] == "-m"
    target, *argv = command[is_module:]
    sys.argv = [target, *argv]
    sys.path[0] = os.getcwd() if is_module else os.path.dirname(os.path.abspath(target))
    attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    attention_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    formulas = {
        attention: _attention_flops,
        attention_backward: _attention_backward_flops,
        torch.ops.aten.convolution_backward: _convolution_backward_flops,
        torch.ops.aten.mm: _product_flops,
        torch.ops.aten.addmm: lambda _, first, second, *__, **___: _product_flops(first, second),
    }
    for formula in (torch.ops.aten.mm, torch.ops.aten.addmm):
        formulas[formula]._get_raw = True  # with the tensors themselves, not only their shapes
    flop_counter.ModuleTracker = NoTracker
    flops = flop_counter.FlopCounterMode(display=False, custom_mapping=formulas) if steps else None
    _use_cpu()
    _watch(flops, steps)
    error, summary = "", None
    with OnCpu(), flops or contextlib.nullcontext():
        try:
            (runpy.run_module if is_module else runpy.run_path)(target, run_name="__main__")
        except EnoughSteps:
            summary = _summary()  # while the frames of the script hold its modules
        except SystemExit as stop:
            error = str(stop.code or "")
        except Exception as failure:
            if not EVENTS:
                raise
            error = f"{type(failure).__name__}: {failure}"  # the steps before it count
    if os.environ.get("RANK", "0") == "0":
        with open(out, "w", encoding="utf-8") as file:
            json.dump((summary or _summary()) | {"error": error}, file)
    os._exit(0)  # workers and other ranks need not end in order


def _attention_flops(query, key, value, *_, **__):
    return flop_counter.sdpa_flop_count(query, key, value)


def _attention_backward_flops(gradient, query, key, value, *_, **__):
    return flop_counter.sdpa_backward_flop_count(gradient, query, key, value)


def _convolution_backward_flops(gradient, image, weight, _bias, _stride, _padding, _dilation, transposed, *rest, **_):
    """Return twice the multiplications of each gradient. PyTorch's formula leaves the groups out of the weight's."""
    elements = math.prod(image if transposed else gradient)
    return 2 * elements * math.prod(weight[1:]) * sum(rest[2][:2])


def _product_flops(first, second, *_, **__):
    """Return the operations of a product of matrices. A sparse one has none here, nor has its gradient."""
    is_sparse = any(matrix.layout != torch.strided for matrix in (first, second))
    return 0 if is_sparse else 2 * first.shape[0] * math.prod(second.shape)


def _cpu(value):
    if isinstance(value, str):
        return "cpu" if value.partition(":")[0] == "cuda" else value
    return torch.device("cpu") if isinstance(value, torch.device) and value.type == "cuda" else value


def _use_cpu():
    """Replace what only a GPU can do outside the functions that a mode sees."""
    for name in ("set_device", "synchronize", "empty_cache", "reset_peak_memory_stats", "manual_seed_all"):
        setattr(torch.cuda, name, lambda *_, **__: None)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        torch.accelerator.is_available, torch.accelerator.device_count = (lambda: True), (lambda: 8)
        torch.accelerator.current_accelerator = lambda *_: torch.device("cpu")
        torch.accelerator.set_device_index = torch.accelerator.device_index = lambda *_: None
    if torch.distributed.is_available():
        initialize = torch.distributed.init_process_group
        torch.distributed.init_process_group = lambda *_, **options: initialize(
            "gloo", **{name: value for name, value in options.items() if name not in ("backend", "device_id")}
        )
        parallel = torch.nn.parallel.DistributedDataParallel
        build = parallel.__init__
        parallel.__init__ = lambda self, module, *_, **options: build(
            self, module, **{name: value for name, value in options.items() if not name.endswith(("_ids", "_device"))}
        )
    build_rnn = torch.nn.RNNBase.__init__

    def init_rnn(self, *args, **options):
        torch.backends.mkldnn.set_flags(_enabled=False)  # its fused cells hide their products
        build_rnn(self, *args, **options)
        self.register_forward_pre_hook(_with_gradient)

    torch.nn.RNNBase.__init__ = init_rnn


def _with_gradient(_module, inputs):
    """Ask for the gradients of an RNN's input and first state, which cuDNN calculates in any case."""
    return tuple(map(_watched, inputs)) if torch.is_grad_enabled() else None


def _watched(value):
    if type(value) is tuple:
        return tuple(map(_watched, value))
    is_leaf = isinstance(value, torch.Tensor) and not value.requires_grad
    return value.detach().requires_grad_() if is_leaf else value


def _watch(flops, steps):
    """Note each optimizer step and each batch of a loader."""
    build, iterate = DataLoader.__init__, DataLoader.__iter__

    @functools.wraps(build)  # Lightning reads its signature to make loaders again
    def init(self, *args, **options):
        if flops:
            unused = ("num_workers", "prefetch_factor", "persistent_workers", "multiprocessing_context")
            options = {name: value for name, value in options.items() if name not in unused}
            args = args[:5]  # the sixth is the number of workers
        build(self, *args, **options)

    def batches(self):
        try:
            length, samples = len(self), len(self.dataset)
        except TypeError:
            length = samples = None
        size = self.batch_size or getattr(self.batch_sampler, "batch_size", None)
        LOADS.append({"batch": size, "length": length, "samples": samples, "after": len(EVENTS), "batches": 0})
        entry = LOADS[-1]
        for batch in iterate(self):
            entry["batches"] += 1
            entry.setdefault("before", []).append(len(EVENTS))
            yield batch

    def stepped(optimizer, _args, _kwargs):
        if not any(optimizer is other for other in ALIVE):
            ALIVE.append(optimizer)
        number = next(index for index, other in enumerate(ALIVE) if other is optimizer)
        EVENTS.append((number, flops.get_total_flops() if flops else 0))
        counts = [sum(event[0] == index for event in EVENTS) for index in range(len(ALIVE))]
        if steps and min(counts) > steps and (len(ALIVE) >= len(BUILT) or len(EVENTS) >= MOST_EVENTS):
            raise EnoughSteps

    build_optimizer = torch.optim.Optimizer.__init__

    def init_optimizer(self, *args, **options):
        BUILT.add(self)
        build_optimizer(self, *args, **options)

    torch.optim.Optimizer.__init__ = init_optimizer
    DataLoader.__init__, DataLoader.__iter__ = init, lambda self: CountedBatches(self, batches(self))
    optimizers.register_optimizer_step_post_hook(stepped)


def _summary():
    """Return weights, steps, operations of a step and the loaders."""
    counts = [sum(event[0] == index for event in EVENTS) for index in range(len(ALIVE))]
    summary = {"optimizers": counts, "loads": []}
    for load in LOADS[:6]:
        before = load.pop("before", [])
        summary["loads"].append(load | {"per_step": before.count(1) if len(EVENTS) > 2 else 0})
    if not EVENTS:
        return summary
    rarest = counts.index(min(counts))
    totals = [total for number, total in EVENTS if number == rarest]
    summary["steps"] = min(counts)
    summary["flops"] = [later - earlier for earlier, later in itertools.pairwise(totals)][:6]
    trained = {
        id(weight): weight.numel()
        for optimizer in ALIVE
        for group in optimizer.param_groups
        for weight in group["params"]
        if weight.grad is not None or weight.requires_grad
    }
    gc.collect()  # copies that refer to themselves
    alive = {
        id(weight): weight.numel()
        for weight in gc.get_objects()
        if issubclass(type(weight), torch.nn.Parameter) and not weight.is_meta
    }
    summary["parameters"] = sum(trained.values())
    summary["frozen"] = sum(size for key, size in alive.items() if key not in trained)
    return summary


if __name__ == "__main__":
    main(*sys.argv[1:])
