"""Conclude from what was seen: batch, steps per epoch, epochs, and where each of these was read."""

import math
import os
from typing import Any, Dict, List, Optional, Tuple

import torch
from torch.utils.data import IterableDataset

from leadline.graphs.torch.worker.loops import Loop
from leadline.graphs.torch.worker.objects import object_bytes
from leadline.graphs.torch.worker.watch import Step, Watch

EPOCH_OPTIONS = (
    "epochs",
    "num_epochs",
    "n_epochs",
    "max_epochs",
    "num_train_epochs",
    "total_epochs",
    "nepochs",
    "niter",
)
STEP_OPTIONS = ("max_steps", "max_iters", "total_steps", "num_steps", "steps", "iterations", "max_train_steps")


def conclude(watch: Watch) -> Dict[str, Any]:
    """Return the fields of ``LoopFacts`` and ``notes``; what is not known is absent or ``None``."""
    notes: List[str] = []
    step = _typical(watch)
    loader = step.loader if step else None
    accumulation = _accumulation(watch, notes)
    found: Dict[str, Any] = {
        "accumulation": accumulation,
        "world_size": _world_size(),
        "optimizer": _optimizer(watch, notes),
        "precision": watch.autocast or watch.framework.get("precision") or _weights(watch),
    }
    if loader is not None:
        found.update(_of_loader(watch, loader, notes))
    elif watch.forward is not None:
        found["batch"] = watch.forward["batch"]
        notes.append(
            f"batch {found['batch']} is read from the input of {watch.forward['module']}: there is no DataLoader"
        )
    if "batch" in watch.framework:
        found["batch"] = watch.framework["batch"]
    batches = found.pop("batches", None)
    found["steps_per_epoch"], found["epochs"] = _length(watch, step, batches, accumulation, notes)
    found["evaluation_batches_per_epoch"] = _evaluation(watch, loader, notes)
    found["notes"] = notes
    return found


def _typical(watch: Watch) -> Optional[Step]:
    """Return the last step that was read; without an optimizer object, the last backward pass."""
    if watch.steps:
        with_loader = [one for one in watch.steps if one.loader is not None]
        return with_loader[-1] if with_loader else watch.steps[-1]
    return watch.updates[-1] if watch.updates else None


def _accumulation(watch: Watch, notes: List[str]) -> int:
    """Count backward passes from one source line in one optimizer step; LBFGS repeats its closure, which is none."""
    if watch.framework.get("accumulation"):
        return int(watch.framework["accumulation"])
    if any(type(one).__name__ == "LBFGS" for one in watch.optimizers):
        notes.append("LBFGS calls its closure several times a step; that is not counted as gradient accumulation")
        return 1
    seen = [step.backward for step in watch.steps[1:] or watch.steps if step.backward]
    return max(seen, default=1)


def _world_size() -> int:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return int(torch.distributed.get_world_size())
    return int(os.environ.get("WORLD_SIZE", "1"))


def _optimizer(watch: Watch, notes: List[str]) -> Optional[str]:
    if not watch.optimizers:
        if watch.updates:
            notes.append("no optimizer object made a step: the weights are taken to be updated by hand, without state")
        return "sgd" if watch.updates else None
    first = watch.optimizers[0]
    name = type(first).__name__.lower()
    return "momentum" if name == "sgd" and first.param_groups[0].get("momentum") else name


def _weights(watch: Watch) -> Optional[str]:
    """Name the format of the weights when no autocast is at work."""
    for optimizer in watch.optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.dtype == torch.float32:
                    return "fp32" if torch.get_float32_matmul_precision() == "highest" else "tf32"
                return {torch.float16: "fp16", torch.bfloat16: "bf16"}.get(parameter.dtype)
    return None


def _of_loader(watch: Watch, loader: Any, notes: List[str]) -> Dict[str, Any]:
    drawn = watch.first_batch.get(id(loader), {})
    batch = loader.batch_size or drawn.get("batch") or None
    found: Dict[str, Any] = {"batch": batch, "loader_workers": watch.workers.get(id(loader), loader.num_workers)}
    found["prefetch"] = watch.prefetch.get(id(loader))
    found["pinned"] = watch.pinned.get(id(loader), False)
    found["batch_tensor_bytes"] = drawn.get("tensors", [])
    for name, said in (("loader_workers", "workers"), ("pinned", "pinned"), ("prefetch", "prefetch")):
        if said in watch.framework:
            found[name] = watch.framework[said]
    if found["loader_workers"]:
        found["object_bytes"] = object_bytes(loader.dataset)
    if drawn.get("batch"):
        found["bytes_per_sample"] = round(drawn["bytes"] / drawn["batch"])
    if isinstance(loader.dataset, IterableDataset) and not hasattr(loader.dataset, "__len__"):
        notes.append("the data set is a stream without a length, so the steps of an epoch are not known from it")
        return found
    try:
        found["samples"] = len(loader.dataset)
        found["batches"] = len(loader)
    except TypeError:
        notes.append("the data set has no length, so the steps of an epoch are not known from it")
    return found


def _length(
    watch: Watch, step: Optional[Step], batches: Optional[int], accumulation: int, notes: List[str]
) -> Tuple[Optional[int], Optional[float]]:
    """Return optimizer steps per epoch and epochs."""
    loader = step.loader if step else None
    whole = watch.framework.get("framework")
    per_epoch = None
    if batches is not None:
        per_epoch = max(1, math.ceil(batches / accumulation) if whole else batches // accumulation)
    if whole:
        epochs, limit = watch.framework.get("epochs"), watch.framework.get("max_steps")
        notes.append(f"epochs and accumulation are the settings of the {whole}")
        return _limited(per_epoch, epochs, limit)
    outer, inner, limit_loop = _split(step.loops if step else [], loader)
    if limit_loop is not None:
        notes.append(f"{limit_loop.times} steps are read from `{limit_loop.text}` in line {limit_loop.line}")
        return _limited(per_epoch, None, limit_loop.times)
    if per_epoch is None and inner is not None and inner.times is not None:
        per_epoch = max(1, inner.times)
        notes.append(f"{per_epoch} steps are read from the loop over `{inner.text}` in line {inner.line}")
    if loader is None and inner is not None and inner.times is None:
        notes.append(
            f"the end of the loop over `{inner.text}` in line {inner.line} depends on the run: steps are not known"
        )
        return None, None
    phases = [one for one in outer if _over_phases(one)]
    if phases:
        notes.append(f"of the phases in `{phases[0].text}` in line {phases[0].line} one is taken to train")
    outer = [one for one in outer if one not in phases]
    counted = [one for one in outer if one.times is not None]
    if counted and len(counted) == len(outer):
        epochs = math.prod(one.times or 1 for one in counted)
        where = " and ".join(f"`{one.text}` in line {one.line}" for one in counted)
        notes.append(f"{epochs} epochs are read from the loop over {where}")
        return per_epoch if per_epoch is not None or loader is not None else 1, epochs
    if per_epoch is not None and not outer and loader is None:
        return per_epoch, 1
    if loader is not None and not outer and step and step.loops:
        return per_epoch, 1
    return _from_options(watch, per_epoch, notes)


def _limited(
    per_epoch: Optional[int], epochs: Optional[float], limit: Optional[int]
) -> Tuple[Optional[int], Optional[float]]:
    """Apply a limit on the number of steps."""
    if limit is None:
        return per_epoch, epochs
    if per_epoch is None or limit <= per_epoch:
        return limit, 1
    rounds = limit / per_epoch
    return per_epoch, int(rounds) if rounds.is_integer() else rounds


def _split(loops: List[Loop], loader: Any) -> Tuple[List[Loop], Optional[Loop], Optional[Loop]]:
    """Part the loops around a step into those over epochs, the one over batches, and one that limits the steps."""
    for loop in loops:
        if loop.counts_inner and loop.times is not None:
            return [], None, loop
    if loader is not None:
        places = [i for i, loop in enumerate(loops) if loop.iterable is loader]
        if not places:
            places = [i for i, loop in enumerate(loops) if loop.is_for and not isinstance(loop.iterable, range)]
        if places:
            return loops[: places[-1]], loops[places[-1]], None
        limit = next((loop for loop in reversed(loops) if loop.times is not None and not _over_epochs(loop)), None)
        return [loop for loop in loops if loop is not limit and _over_epochs(loop)], None, limit
    if loops and _over_epochs(loops[-1]):
        return loops, None, None
    return loops[:-1], loops[-1] if loops else None, None


def _over_epochs(loop: Loop) -> bool:
    return "epoch" in loop.name.lower() or "epoch" in loop.text.lower()


def _over_phases(loop: Loop) -> bool:
    """Whether a loop goes through names such as ``["train", "val"]``, of which only training updates the weights."""
    names = loop.iterable if isinstance(loop.iterable, (list, tuple)) else []
    return bool(names) and all(isinstance(one, str) for one in names) and any("train" in one.lower() for one in names)


def _from_options(watch: Watch, per_epoch: Optional[int], notes: List[str]) -> Tuple[Optional[int], Optional[float]]:
    """Fall back on the script's own command-line options."""
    for names, is_limit in ((STEP_OPTIONS, True), (EPOCH_OPTIONS, False)):
        for name in names:
            value = watch.options.get(name)
            if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0:
                notes.append(f"{value:g} {'steps' if is_limit else 'epochs'} are read from the option {name}")
                return _limited(per_epoch, None, int(value)) if is_limit else (per_epoch, value)
    notes.append("the number of epochs is not known: no loop with a readable end is around the training step")
    return per_epoch, None


def _evaluation(watch: Watch, training: Any, notes: List[str]) -> Optional[int]:
    """Return the batches of one evaluation: of the loader iterated without gradients, else of one not yet used."""
    if watch.framework.get("evaluation_batches") is not None:
        return int(watch.framework["evaluation_batches"])
    others = [one for one in watch.loaders if one is not training and id(one) not in _trained(watch)]
    used = [one for one in others if id(one) in watch.evaluated]
    named = [
        one for one in others if any(k in watch.loader_names.get(id(one), "").lower() for k in ("val", "dev", "eval"))
    ]
    chosen = used or named or others
    if not chosen or training is None:
        return None
    try:
        count = len(chosen[0])
    except TypeError:
        return None
    if not used:
        name = watch.loader_names.get(id(chosen[0]), "the loader that the traced steps did not use")
        notes.append(f"{count} evaluation batches per epoch: {name} is taken to be read once an epoch")
    return count


def _named_for_validation(name: str) -> bool:
    return any(word in name.lower() for word in ("val", "dev", "eval"))


def _trained(watch: Watch) -> List[int]:
    return [id(step.loader) for step in watch.steps + watch.updates if step.loader is not None]
