"""Hooks on a training script's own loop: batches, epochs, accumulation, evaluation, optimizer and precision."""

import argparse
import ast
import collections
import functools
import sys
from typing import Any, Dict, List, Optional, Sequence

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader
from torch.utils.data import dataloader as loader_module

from leadline.graphs.torch.worker import conditions
from leadline.graphs.torch.worker.batches import batch_tensors
from leadline.graphs.torch.worker.ended_runs import CountedRun
from leadline.graphs.torch.worker.expressions import read_locals, source_text
from leadline.graphs.torch.worker.keras_fit import fit_settings
from leadline.graphs.torch.worker.later_loops import later_training, replaced_loader
from leadline.graphs.torch.worker.libraries import library_frames, record_preloaded, user_frames
from leadline.graphs.torch.worker.loop_facts import infer_loop_facts
from leadline.graphs.torch.worker.loop_observations import LoopObservations, WatchedStep
from leadline.graphs.torch.worker.loop_periods import period_around, read_periods
from leadline.graphs.torch.worker.loop_roles import reads_endlessly
from leadline.graphs.torch.worker.loops import enclosing_loops, loops_of
from leadline.graphs.torch.worker.session import call_after
from leadline.graphs.torch.worker.trainers import trainer_settings

WATCHED_STEPS = 4
"""Steps of an optimizer whose surrounding code is read. Later ones are only counted."""
MOST_WATCHED = 32
"""The same of all optimizers."""
POSITIONAL = (
    "dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "num_workers", "collate_fn", "pin_memory",
)  # fmt: skip
"""Arguments of ``DataLoader`` that may be given by position."""
_watch: Optional[LoopObservations] = None


def watch_loop(script: Optional[str] = None) -> None:
    """Start watching, before the user's script runs, and after other code that replaces parts of DataLoader."""
    global _watch  # noqa: PLW0603 - one process runs one script
    record_preloaded()
    _watch = LoopObservations(script)
    call_after(DataLoader, "__init__", functools.partial(_record_loader, _watch))
    call_after(DataLoader, "_get_iterator", _tag_iterator)
    call_after(torch.optim.Optimizer, "__init__", functools.partial(_record_optimizer, _watch))
    call_after(loader_module._BaseDataLoaderIter, "__next__", functools.partial(_record_batch, _watch))
    options = _watch.options
    call_after(argparse.ArgumentParser, "parse_known_args", lambda result, *_, **__: options.update(vars(result[0])))
    call_after(torch.autocast, "__enter__", functools.partial(_record_autocast, _watch))
    _watch_backward(_watch)
    _watch_forward(_watch)
    register_optimizer_step_post_hook(functools.partial(_record_step, _watch))


def read_facts(run: Optional[CountedRun] = None) -> Dict[str, Any]:
    """Return the known fields of ``LoopFacts``, and ``notes`` that name their sources.

    ``run``: The steps of the whole run, if they were counted.
    """
    return {"notes": []} if _watch is None else infer_loop_facts(_watch, run)


def trains_later() -> bool:
    """Return whether the script trains again after the loops around the traced steps."""
    return _watch is not None and bool(_watch.later)


def expects_evaluation() -> bool:
    """Return whether the loop over the training batches may evaluate after one of the next steps."""
    return _watch is not None and _watch.evaluates_between_steps(_watch.loaders)


def step_periods() -> List[int]:
    """Return the periods of what the loop around the current step does in every so many passes."""
    return [] if _watch is None else read_periods(_watch.folder)


def period_of_call() -> int:
    """Return N of a condition ``... % N`` of the user around the current call, zero without one."""
    return 0 if _watch is None else period_around(_watch.folder)


def record_evaluation_calls(number: int, period: int) -> None:
    """Record that the script evaluates by calls without a loader, and every how many steps, zero if that is unknown."""
    if _watch is not None:
        _watch.evaluation_calls, _watch.evaluation_period = number, period


def _record_loader(watch: LoopObservations, _: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
    if not any(earlier is loader for earlier in watch.loaders):
        watch.loaders.append(loader)
    options = {**dict(zip(POSITIONAL, args)), **kwargs}  # noqa: B905 - Python 3.9 has no strict
    watch.loader_settings[id(loader)] = {
        "workers": int(options.get("num_workers", 0)),
        "prefetch": kwargs.get("prefetch_factor"),
        "pinned": bool(options.get("pin_memory")),
    }


def _record_optimizer(watch: LoopObservations, *_: Any, **__: Any) -> None:
    if not watch.step_count:
        watch.made_in.update(
            (loop.lineno, source_text(loop.iter, frame))
            for frame in user_frames(watch.folder)
            for loop in loops_of(frame)
            if isinstance(loop, ast.For)
        )


def _tag_iterator(iterator: Any, loader: Any) -> None:
    iterator._watched_loader = loader


def _record_batch(watch: LoopObservations, batch: Any, iterator: Any) -> None:
    loader = getattr(iterator, "_watched_loader", None)
    if loader is None:
        return
    key = id(loader)
    is_training = torch.is_grad_enabled()
    if not is_training and watch.steps_to_evaluation is None and watch.step_count and key not in watch.first_batch:
        watch.read_evaluation(loader)
    if key not in watch.first_batch:
        watch.first_batch[key] = _batch_size_and_bytes(batch)
    if is_training:
        watch.current = loader
        watch.drawn[key] += 1
        if watch.drawn[key] <= WATCHED_STEPS and reads_endlessly(next(user_frames(watch.folder), None)):
            watch.endless.add(key)
    elif not (watch.step_count or watch.backward_count):  # inference, or a check before training
        watch.inferring = loader
    elif key not in watch.evaluated:
        watch.evaluated.append(key)


def _batch_size_and_bytes(batch: Any) -> Dict[str, Any]:
    """Return the most common leading dimension of a batch's tensors, their total bytes and the bytes of each.

    ``common`` is that dimension if all have it, some and no other, as labels, and some more, as samples.
    """
    tensors = batch_tensors(batch)
    counts = collections.Counter(int(tensor.shape[0]) for tensor in tensors if tensor.dim())
    sizes = [tensor.numel() * tensor.element_size() for tensor in tensors]
    most = counts.most_common(1)[0][0] if counts else 0
    is_common = counts[most] == len(tensors) and {tensor.dim() == 1 for tensor in tensors} == {True, False}
    return {"batch": most, "bytes": sum(sizes), "tensors": sizes, "common": most if is_common else 1}


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
    if watch.step_count < WATCHED_STEPS:
        frame = next(user_frames(watch.folder), None)
        watch.trained_at = library_frames(watch.folder)
        watch.backward_lines[f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else ""] += 1
    if len(watch.updates) < WATCHED_STEPS and not watch.step_count:
        watch.updates.append(WatchedStep(enclosing_loops(watch.folder, None, watch.trained_at), watch.current, 1))
        _read_stack(watch)


def _record_step(watch: LoopObservations, optimizer: Any, *_: Any) -> None:
    watch.step_count += 1
    conditions.begin_step()
    watch.batches_at.setdefault(id(optimizer), []).append(watch.batch_count)
    if not any(known_optimizer is optimizer for known_optimizer in watch.optimizers):
        watch.optimizers.append(optimizer)
        weights = (weight for group in optimizer.param_groups for weight in group["params"])
        watch.steps_frozen |= any(not weight.requires_grad for weight in weights)
    if len(watch.batches_at[id(optimizer)]) <= WATCHED_STEPS and len(watch.all_steps) < MOST_WATCHED:
        repeated = max(watch.backward_lines.values(), default=0)
        loops = enclosing_loops(watch.folder, None, watch.trained_at)
        if not watch.all_steps:
            watch.later = later_training(watch.folder)
            watch.replaced = replaced_loader(watch.folder, watch.current) if watch.current is not None else ""
        watch.all_steps.append(WatchedStep(loops, watch.current, repeated, watch.batch_count, id(optimizer)))
        _read_stack(watch)
    watch.backward_lines.clear()
    watch.trained_at = {}


def _read_stack(watch: LoopObservations) -> None:
    """Read from the stack of a step the settings of a framework and the names of the loaders."""
    watch.framework.update(trainer_settings(sys._getframe(1)) or fit_settings(sys._getframe(1)))
    if watch.framework:
        watch.read_calls(sys._getframe(1))
    for frame in user_frames(watch.folder):
        for names in (read_locals(frame), frame.f_globals):
            for name, value in list(names.items()):
                if isinstance(value, DataLoader):
                    watch.loader_names.setdefault(id(value), name)
                for attribute, member in list(getattr(value, "__dict__", {}).items()) if name == "self" else ():
                    if isinstance(member, DataLoader):
                        watch.loader_names.setdefault(id(member), attribute)


def _record_autocast(watch: LoopObservations, _: Any, autocast: Any) -> None:
    if getattr(autocast, "_enabled", False) and torch.is_grad_enabled() and not watch.step_count:
        name = {torch.float16: "amp-fp16", torch.bfloat16: "amp-bf16"}.get(getattr(autocast, "fast_dtype", None))
        watch.autocast = name or watch.autocast


def _watch_forward(watch: LoopObservations) -> None:
    """Read the batch from the inputs of outermost modules until the first step, for scripts without a loader.

    The last call is the training's: others may choose actions before.
    """

    def before(module: Any, args: Any) -> None:
        if watch.step_count or watch.backward_count > 1:
            for hook in watch.hooks:
                hook.remove()
            watch.hooks.clear()
        elif watch.root is None and torch.is_grad_enabled():
            watch.root = module
            watch.root_is_read = _record_forward(watch, module, args)
        elif watch.root is not None and not watch.root_is_read:
            # Its inputs are keywords or arrays of NumPy: those of the first module within it stand for them.
            watch.root_is_read = _record_forward(watch, watch.root, args)
        elif isinstance(module, SEQUENCE_LAYERS) and watch.root is not None and watch.forward is not None:
            _correct_batch(watch.forward, module, args)

    def after(module: Any, *_: Any) -> None:
        if watch.root is module:
            watch.root = None

    modules = torch.nn.modules.module
    watch.hooks = [
        modules.register_module_forward_pre_hook(before),
        modules.register_module_forward_hook(after, always_call=True),
    ]


SEQUENCE_LAYERS = (torch.nn.RNNBase, torch.nn.MultiheadAttention)
"""Layers that take the batch second, unless they are ``batch_first``."""


def _record_forward(watch: LoopObservations, module: Any, args: Any) -> bool:
    """Record the batch of a module from its inputs. False if they hold no tensor with dimensions."""
    tensor = next((element for element in batch_tensors(args) if element.dim()), None)
    parameters = sum(element.numel() for element in module.parameters())
    samples = _samples(args[0]) if args else ()
    if tensor is None and not samples:
        return False
    if watch.forward is not None and watch.forward["parameters"] > parameters:
        return True
    if samples or tensor is None:
        watch.forward = {"parameters": parameters, "batch": len(samples), "module": type(module).__name__}
        return True
    batch_first = [element.batch_first for element in module.modules() if isinstance(element, SEQUENCE_LAYERS)]
    least = 3 if tensor.is_floating_point() else 2  # flat rows of features, which a model folds itself, have no time
    batch_axis = 1 if batch_first and not any(batch_first) and tensor.dim() >= least else 0
    sizes = tuple(map(int, tensor.shape))
    watch.forward = {"parameters": parameters, "batch": sizes[batch_axis], "module": type(module).__name__}
    watch.forward["first"] = sizes[0] if batch_axis else None
    return True


def _samples(value: Any) -> Sequence[Any]:
    """Return the samples that a list holds, if it does. A tuple of dictionaries is inputs and targets by name."""
    is_named = isinstance(value, tuple) and any(isinstance(part, dict) for part in value)
    return value if isinstance(value, (list, tuple)) and not is_named and all(map(_is_sample, value)) else ()


def _is_sample(element: Any) -> bool:
    """Return whether an element of a list is a sample of its own: an image, a text, or an object such as a graph."""
    if isinstance(element, torch.Tensor):
        return bool(element.dim() == 3)
    return not isinstance(element, (list, tuple, int, float, type(None))) and not hasattr(element, "shape")


def _correct_batch(forward: Dict[str, Any], layer: Any, args: Any) -> None:
    """Correct the batch of a model that takes it first and swaps the axes itself, before a sequence layer."""
    sequence = args[0] if args else None
    if not isinstance(sequence, torch.Tensor) or sequence.dim() != 3 or layer.batch_first:
        return
    if forward.get("first") == sequence.shape[1]:
        forward["batch"] = int(sequence.shape[1])
