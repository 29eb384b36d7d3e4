"""Hooks on a training script's own loop: batches, epochs, accumulation, evaluation, optimizer and precision."""

import argparse
import collections
import functools
import sys
from typing import Any, Dict, Optional

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader
from torch.utils.data import dataloader as loader_module

from leadline.graphs.torch.worker.frameworks import framework_settings
from leadline.graphs.torch.worker.loop_facts import LoopObservations, WatchedStep, infer_loop_facts
from leadline.graphs.torch.worker.loops import enclosing_loops, read_locals, user_frames

WATCHED_STEPS = 4
"""Steps whose surrounding code is read. Later ones are only counted."""

WORKERS_POSITION, PINNED_POSITION = 5, 7
"""Positions of ``num_workers`` and ``pin_memory`` among the arguments of ``DataLoader`` after ``self``."""

_watch: Optional[LoopObservations] = None


def watch_loop(script: Optional[str] = None) -> None:
    """Start watching. Call it before the user's script runs, and after other code that replaces parts of DataLoader.

    Args:
        script: Path of the script, whose folder holds the user's own files. Defaults to the program's name.
    """
    global _watch  # noqa: PLW0603 - one process runs one script
    _watch = LoopObservations(script)
    _watch_loaders(_watch)
    _watch_backward(_watch)
    _watch_options(_watch)
    _watch_autocast(_watch)
    _watch_forward(_watch)
    register_optimizer_step_post_hook(functools.partial(_record_step, _watch))


def read_facts() -> Dict[str, Any]:
    """Return the known fields of ``LoopFacts``, and ``notes`` that name their sources."""
    return {"notes": []} if _watch is None else infer_loop_facts(_watch)


def count_steps() -> Dict[str, int]:
    """Return the numbers of backward passes and optimizer steps so far."""
    return {"backward": _watch.backward_count, "steps": _watch.step_count} if _watch else {}


def _watch_loaders(watch: LoopObservations) -> None:
    original_init = DataLoader.__init__

    @functools.wraps(original_init)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        if not any(earlier is self for earlier in watch.loaders):
            watch.loaders.append(self)
        workers = args[WORKERS_POSITION] if len(args) > WORKERS_POSITION else kwargs.get("num_workers", 0)
        watch.workers[id(self)] = int(workers)
        watch.prefetch[id(self)] = kwargs.get("prefetch_factor")
        watch.pinned[id(self)] = bool(
            args[PINNED_POSITION] if len(args) > PINNED_POSITION else kwargs.get("pin_memory")
        )
        original_init(self, *args, **kwargs)

    DataLoader.__init__ = init
    get_iterator = DataLoader._get_iterator

    def tagged(self: Any) -> Any:
        iterator = get_iterator(self)
        iterator._watched_loader = self
        return iterator

    DataLoader._get_iterator = tagged
    advance = loader_module._BaseDataLoaderIter.__next__

    def following(self: Any) -> Any:
        batch = advance(self)
        loader = getattr(self, "_watched_loader", None)
        if loader is not None:
            _record_batch(watch, loader, batch)
        return batch

    loader_module._BaseDataLoaderIter.__next__ = following


def _record_batch(watch: LoopObservations, loader: Any, batch: Any) -> None:
    key = id(loader)
    watch.drawn[key] += 1
    if key not in watch.first_batch:
        watch.first_batch[key] = _batch_size_and_bytes(batch)
    if torch.is_grad_enabled():
        watch.current = loader
    elif key not in watch.evaluated:
        watch.evaluated.append(key)


def _batch_size_and_bytes(batch: Any) -> Dict[str, Any]:
    """Return the most common leading dimension of a batch's tensors, their total bytes and the bytes of each."""
    leaves = tree_leaves(dict(batch) if hasattr(batch, "keys") else batch)
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    sizes = collections.Counter(int(tensor.shape[0]) for tensor in tensors if tensor.dim())
    return {
        "batch": sizes.most_common(1)[0][0] if sizes else 0,
        "bytes": sum(tensor.numel() * tensor.element_size() for tensor in tensors),
        "tensors": [tensor.numel() * tensor.element_size() for tensor in tensors],
    }


def _watch_backward(watch: LoopObservations) -> None:
    run = torch.autograd.backward
    depth = [0]

    @functools.wraps(run)
    def backward(*args: Any, **kwargs: Any) -> Any:
        depth[0] += 1
        try:
            if depth[0] == 1:
                _record_backward(watch)
            return run(*args, **kwargs)
        finally:
            depth[0] -= 1

    torch.autograd.backward = backward


def _record_backward(watch: LoopObservations) -> None:
    watch.backward_count += 1
    if len(watch.updates) < WATCHED_STEPS and not watch.step_count:
        loops, location = enclosing_loops(watch.folder)
        watch.updates.append(WatchedStep(loops, location, watch.current, None, 1))
        watch.backward_lines[location or ""] += 1
        _read_stack(watch)
    elif watch.step_count < WATCHED_STEPS:
        frame = next(user_frames(watch.folder), None)
        watch.backward_lines[f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else ""] += 1


def _record_step(watch: LoopObservations, optimizer: Any, *_: Any) -> None:
    watch.step_count += 1
    if not any(known_optimizer is optimizer for known_optimizer in watch.optimizers):
        watch.optimizers.append(optimizer)
    if len(watch.steps) < WATCHED_STEPS:
        loops, location = enclosing_loops(watch.folder)
        repeated = max(watch.backward_lines.values(), default=0)
        watch.steps.append(WatchedStep(loops, location, watch.current, optimizer, repeated))
        _read_stack(watch)
    watch.backward_lines.clear()


def _read_stack(watch: LoopObservations) -> None:
    """Read from the stack of a step the settings of a framework and the names of the loaders."""
    watch.framework.update(framework_settings(sys._getframe(1)))
    for frame in user_frames(watch.folder):
        for names in (read_locals(frame), frame.f_globals):
            for name, value in list(names.items()):
                if isinstance(value, DataLoader):
                    watch.loader_names.setdefault(id(value), name)
                for attribute, member in list(getattr(value, "__dict__", {}).items()) if name == "self" else ():
                    if isinstance(member, DataLoader):
                        watch.loader_names.setdefault(id(member), attribute)


def _watch_options(watch: LoopObservations) -> None:
    parse = argparse.ArgumentParser.parse_known_args

    @functools.wraps(parse)
    def parsed(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = parse(self, *args, **kwargs)
        watch.options.update(vars(result[0]))
        return result

    argparse.ArgumentParser.parse_known_args = parsed  # type: ignore[method-assign]


def _watch_autocast(watch: LoopObservations) -> None:
    enter = torch.autocast.__enter__

    @functools.wraps(enter)
    def entered(self: Any) -> Any:
        if getattr(self, "_enabled", False) and torch.is_grad_enabled() and not watch.step_count:
            name = {torch.float16: "amp-fp16", torch.bfloat16: "amp-bf16"}.get(getattr(self, "fast_dtype", None))
            watch.autocast = name or watch.autocast
        return enter(self)

    torch.autocast.__enter__ = entered


def _watch_forward(watch: LoopObservations) -> None:
    """Read the batch from the inputs of outermost modules until the first step, for scripts without a loader.

    A real ``torch.compile`` removes the hooks, since it would compile them into the model.
    """

    def remove() -> None:
        for hook in watch.hooks:
            hook.remove()
        watch.hooks.clear()

    def before(module: Any, args: Any) -> None:
        if watch.step_count or watch.backward_count > 1:
            remove()
        elif watch.root is None and torch.is_grad_enabled():
            watch.root = module
            _record_forward(watch, module, args)

    def after(module: Any, *_: Any) -> None:
        if watch.root is module:
            watch.root = None

    modules = torch.nn.modules.module
    watch.hooks = [
        modules.register_module_forward_pre_hook(before),
        modules.register_module_forward_hook(after, always_call=True),
    ]
    original_compile = torch.compile
    if original_compile.__module__ == "torch":

        @functools.wraps(original_compile)
        def compiled(*args: Any, **kwargs: Any) -> Any:
            remove()
            return original_compile(*args, **kwargs)

        torch.compile = compiled


def _record_forward(watch: LoopObservations, module: Any, args: Any) -> None:
    tensors = [element for element in tree_leaves(args) if isinstance(element, torch.Tensor)]
    tensor = next((element for element in tensors if element.dim()), None)
    parameters = sum(element.numel() for element in module.parameters())
    if tensor is None or (watch.forward is not None and watch.forward["parameters"] >= parameters):
        return
    layers = (torch.nn.RNNBase, torch.nn.MultiheadAttention)
    batch_first = [element.batch_first for element in module.modules() if isinstance(element, layers)]
    batch_axis = 1 if batch_first and not any(batch_first) and tensor.dim() > 1 else 0
    watch.forward = {"parameters": parameters, "batch": int(tensor.shape[batch_axis]), "module": type(module).__name__}
