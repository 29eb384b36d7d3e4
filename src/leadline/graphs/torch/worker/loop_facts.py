"""What was seen of a training script's loop so far."""

import collections
import math
import os
import sys
import types
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Set, Tuple

import torch
from torch.utils.data import IterableDataset

from leadline.graphs.torch.worker.loops import EnclosingLoop


class WatchedStep(NamedTuple):
    """What surrounded one update of the weights."""

    loops: List[EnclosingLoop]
    where: Optional[str]
    loader: Any
    optimizer: Any
    backward: int


class LoopObservations:
    """Everything seen so far; one for the process."""

    def __init__(self, script: Optional[str]) -> None:
        self.script = script
        self.workers: Dict[int, int] = {}
        self.prefetch: Dict[int, Optional[int]] = {}
        self.pinned: Dict[int, bool] = {}
        self.loaders: List[Any] = []
        self.drawn: "collections.Counter[int]" = collections.Counter()
        self.first_batch: Dict[int, Any] = {}
        self.current: Any = None
        self.evaluated: List[int] = []
        self.options: Dict[str, Any] = {}
        self.steps: List[WatchedStep] = []
        self.step_count = 0
        self.updates: List[WatchedStep] = []
        self.backward_count = 0
        self.backward_lines: "collections.Counter[str]" = collections.Counter()
        self.autocast: Optional[str] = None
        self.optimizers: List[Any] = []
        self.root: Any = None
        self.forward: Optional[Dict[str, Any]] = None
        self.framework: Dict[str, Any] = {}
        self.hooks: List[Any] = []
        self.loader_names: Dict[int, str] = {}

    @property
    def folder(self) -> str:
        """The folder that holds the user's own files."""
        return os.path.dirname(os.path.abspath(self.script or sys.argv[0]))


PAGE_BYTES = 4096
SAMPLED_ELEMENTS = 1000
"""Elements of a container that stand for all of them."""
MOST_OBJECTS = 200_000
"""Objects that are looked at."""
LEAF_TYPES = (str, bytes, bytearray, int, float, complex, bool, type(None), range)
SHARED_TYPES = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType)
"""What is no data, or is shared by everything."""


def object_bytes(root: Any) -> int:
    """Return the bytes of the Python objects below ``root`` that reading all of it writes a count of references to.

    Of a large object that is its first page alone. Tensors and arrays count as one object each, and of a long container
    a sample of elements, evenly over it, stands for all.
    """
    seen: Set[int] = set()
    return int(_below(root, seen))


def _below(one: Any, seen: Set[int]) -> float:
    if id(one) in seen or len(seen) >= MOST_OBJECTS or isinstance(one, SHARED_TYPES):
        return 0.0
    seen.add(id(one))
    own = float(min(sys.getsizeof(one, 0), PAGE_BYTES))
    if isinstance(one, LEAF_TYPES):
        return own
    if isinstance(one, (list, tuple, set, frozenset, dict)):
        own = 64.0  # its header: the array of its elements is read only
        if isinstance(one, dict):
            return own + _sampled(one.keys(), len(one), seen) + _sampled(one.values(), len(one), seen)
        return own + _sampled(one, len(one), seen)
    held = getattr(one, "__dict__", None)
    return own + (sum(_below(value, seen) for value in list(held.values())) if isinstance(held, dict) else 0.0)


def _sampled(elements: Iterable[Any], count: int, seen: Set[int]) -> float:
    """Return the bytes of all elements, by some of them where there are many."""
    if count <= SAMPLED_ELEMENTS:
        return sum(_below(one, seen) for one in list(elements))
    stride = count / SAMPLED_ELEMENTS
    wanted = {int(place * stride) for place in range(SAMPLED_ELEMENTS)}
    found: List[float] = [_below(one, seen) for place, one in enumerate(elements) if place in wanted]
    return sum(found) * count / len(found)


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


def infer_loop_facts(watch: LoopObservations) -> Dict[str, Any]:
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


def _typical(watch: LoopObservations) -> Optional[WatchedStep]:
    """Return the last step that was read; without an optimizer object, the last backward pass."""
    if watch.steps:
        with_loader = [one for one in watch.steps if one.loader is not None]
        return with_loader[-1] if with_loader else watch.steps[-1]
    return watch.updates[-1] if watch.updates else None


def _accumulation(watch: LoopObservations, notes: List[str]) -> int:
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


def _optimizer(watch: LoopObservations, notes: List[str]) -> Optional[str]:
    if not watch.optimizers:
        if watch.updates:
            notes.append("no optimizer object made a step: the weights are taken to be updated by hand, without state")
        return "sgd" if watch.updates else None
    first = watch.optimizers[0]
    name = type(first).__name__.lower()
    return "momentum" if name == "sgd" and first.param_groups[0].get("momentum") else name


def _weights(watch: LoopObservations) -> Optional[str]:
    """Name the format of the weights when no autocast is at work."""
    for optimizer in watch.optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.dtype == torch.float32:
                    return "fp32" if torch.get_float32_matmul_precision() == "highest" else "tf32"
                return {torch.float16: "fp16", torch.bfloat16: "bf16"}.get(parameter.dtype)
    return None


def _of_loader(watch: LoopObservations, loader: Any, notes: List[str]) -> Dict[str, Any]:
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
    watch: LoopObservations, step: Optional[WatchedStep], batches: Optional[int], accumulation: int, notes: List[str]
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


def _split(
    loops: List[EnclosingLoop], loader: Any
) -> Tuple[List[EnclosingLoop], Optional[EnclosingLoop], Optional[EnclosingLoop]]:
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


def _over_epochs(loop: EnclosingLoop) -> bool:
    return "epoch" in loop.name.lower() or "epoch" in loop.text.lower()


def _over_phases(loop: EnclosingLoop) -> bool:
    """Whether a loop goes through names such as ``["train", "val"]``, of which only training updates the weights."""
    names = loop.iterable if isinstance(loop.iterable, (list, tuple)) else []
    return bool(names) and all(isinstance(one, str) for one in names) and any("train" in one.lower() for one in names)


def _from_options(
    watch: LoopObservations, per_epoch: Optional[int], notes: List[str]
) -> Tuple[Optional[int], Optional[float]]:
    """Fall back on the script's own command-line options."""
    for names, is_limit in ((STEP_OPTIONS, True), (EPOCH_OPTIONS, False)):
        for name in names:
            value = watch.options.get(name)
            if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0:
                notes.append(f"{value:g} {'steps' if is_limit else 'epochs'} are read from the option {name}")
                return _limited(per_epoch, None, int(value)) if is_limit else (per_epoch, value)
    notes.append("the number of epochs is not known: no loop with a readable end is around the training step")
    return per_epoch, None


def _evaluation(watch: LoopObservations, training: Any, notes: List[str]) -> Optional[int]:
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


def _trained(watch: LoopObservations) -> List[int]:
    return [id(step.loader) for step in watch.steps + watch.updates if step.loader is not None]
