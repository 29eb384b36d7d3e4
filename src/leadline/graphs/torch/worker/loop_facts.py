"""Batch, steps per epoch, epochs and other facts of a training loop, inferred from what the hooks observed."""

import collections
import math
import operator
import os
import sys
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

from leadline.graphs.torch.worker.ended_runs import correct_lengths
from leadline.graphs.torch.worker.evaluation_loaders import evaluation_batches
from leadline.graphs.torch.worker.expressions import is_count
from leadline.graphs.torch.worker.loops import EnclosingLoop
from leadline.graphs.torch.worker.object_sizes import object_bytes

torch: Any = sys.modules.get("torch")
"""None in the trace of a JAX script, which needs no PyTorch."""


class WatchedStep(NamedTuple):
    """One update of the weights, and the code around it."""

    loops: List[EnclosingLoop]
    loader: Any
    backward: int
    batches: int = 0
    """Training batches that were drawn before it."""
    optimizer: int = 0
    """Identity of the optimizer."""


class LoopObservations:
    """Everything the hooks observed so far. There is one for the process."""

    def __init__(self, script: Optional[str]) -> None:
        self.script = script
        self.loaders: List[Any] = []
        self.loader_settings: Dict[int, Dict[str, Any]] = {}
        self.first_batch: Dict[int, Any] = {}
        self.current: Any = None
        self.inferring: Any = None
        """Loader that was read without gradients before any training."""
        self.evaluated: List[int] = []
        self.steps_to_evaluation: Optional[int] = None
        """Steps before the first evaluation, if the loop over the training batches evaluates."""
        self.options: Dict[str, Any] = {}
        self.all_steps: List[WatchedStep] = []
        self.step_count = 0
        self.updates: List[WatchedStep] = []
        self.backward_count = self.batch_count = 0
        self.backward_lines: "collections.Counter[str]" = collections.Counter()
        self.autocast: Optional[str] = None
        self.optimizers: List[Any] = []
        self.batches_at: Dict[int, List[int]] = {}
        """Training batches that were drawn before each step of each optimizer."""
        self.root: Any = None
        self.forward: Optional[Dict[str, Any]] = None
        self.framework: Dict[str, Any] = {}
        self.hooks: List[Any] = []
        self.loader_names: Dict[int, str] = {}

    @property
    def folder(self) -> str:
        """The folder that holds the user's own files."""
        return os.path.dirname(os.path.abspath(self.script or sys.argv[0]))

    @property
    def steps(self) -> List[WatchedStep]:
        """The first steps of the optimizer that steps most rarely."""
        rarest = min(self.batches_at, key=lambda optimizer: len(self.batches_at[optimizer]), default=0)
        return [step for step in self.all_steps if step.optimizer == rarest]

    def evaluates_between_steps(self, loaders: List[Any]) -> bool:
        """Return whether the loop over the training batches names one of these loaders, which was not read yet."""
        step = _typical_step(self)
        loop = _split_loops(step.loops, step.loader)[1] if step and not self.framework.get("framework") else None
        unread = [loader for loader in loaders if id(loader) not in self.first_batch]
        return loop is not None and any(self.loader_names.get(id(loader)) in loop.names for loader in unread)


WATCHED_FOR_BATCHES = 3
"""Steps without a new batch between them that show a training on one batch."""
EPOCH_OPTIONS = (
    "epochs", "num_epochs", "n_epochs", "max_epochs", "num_train_epochs", "total_epochs", "nepochs", "niter",
)  # fmt: skip
STEP_OPTIONS = ("max_steps", "max_iters", "total_steps", "num_steps", "steps", "iterations", "max_train_steps")


def infer_loop_facts(observed: LoopObservations, made: Optional[int] = None) -> Dict[str, Any]:
    """Return the fields of ``LoopFacts`` and ``notes``. Unknown fields are absent or ``None``.

    ``made`` are the steps of a script that ended by itself.
    """
    notes: List[str] = []
    step = _typical_step(observed)
    loader = step.loader if step else observed.inferring
    accumulation = _accumulation(observed, notes)
    is_distributed = torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized()
    world_size = torch.distributed.get_world_size() if is_distributed else int(os.environ.get("WORLD_SIZE", "1"))
    facts: Dict[str, Any] = {
        "accumulation": accumulation,
        "world_size": world_size,
        "optimizer": observed.framework.get("optimizer") or _optimizer(observed, notes),
        "precision": observed.autocast or observed.framework.get("precision") or _weight_precision(observed),
    }
    if loader is not None:
        facts.update(_loader_facts(observed, loader, notes))
    elif observed.forward is not None:
        facts["batch"], module = observed.forward["batch"], observed.forward["module"]
        notes.append(f"batch {facts['batch']} is read from the input of {module}: there is no DataLoader")
    if "batch" in observed.framework:
        facts["batch"] = observed.framework["batch"]
    batches = observed.framework.get("steps_per_epoch", facts.pop("batches", None))
    read = _epoch_length(observed, step, batches, accumulation, notes)
    loops = step.loops if step and not observed.framework else []
    facts["steps_per_epoch"], facts["epochs"] = correct_lengths(made, loops, read, notes)
    facts["evaluation_batches_per_epoch"] = evaluation_batches(observed, loader, facts["steps_per_epoch"], notes)
    facts["notes"] = notes
    facts["one_batch"] = _trains_on_one_batch(observed)
    return facts


def _typical_step(observed: LoopObservations) -> Optional[WatchedStep]:
    """Return the last step that was read, or the last backward pass without an optimizer object."""
    with_loader = [step for step in observed.steps if step.loader is not None]
    return next(reversed(with_loader or observed.steps or observed.updates), None)


def _step_loader(observed: LoopObservations, step: Optional[WatchedStep]) -> Any:
    """Return the loader that the steps draw their batches from, if any."""
    return step.loader if step and not _trains_on_one_batch(observed) else None


def _trains_on_one_batch(observed: LoopObservations) -> bool:
    """Return whether the steps drew no batches of their own, as after ``next(iter(loader))``."""
    step = _typical_step(observed)
    if step is None or len(observed.steps) < WATCHED_FOR_BATCHES:
        return False
    is_iterated = any(loop.iterable is step.loader or loop.times is None for loop in step.loops)
    return not is_iterated and observed.batch_count == observed.steps[0].batches


def _accumulation(observed: LoopObservations, notes: List[str]) -> int:
    """Return the backward passes from one source line in one optimizer step, at most one per batch."""
    if observed.framework.get("accumulation"):
        return int(observed.framework["accumulation"])
    if any(type(optimizer).__name__ == "LBFGS" for optimizer in observed.optimizers):
        # Its closure runs backward passes of its own, for one update.
        notes.append("LBFGS calls its closure several times a step; that is not counted as gradient accumulation")
        return 1
    counts = [step.backward for step in observed.steps[1:] or observed.steps if step.backward]
    # All passes of a library's loop come from one line of the script, those of several losses on one batch too.
    batches = [step.batches for step in observed.steps]
    repeated = max(counts, default=1)
    return min(repeated, max(map(operator.sub, batches[1:], batches), default=0) or repeated)


def _optimizer(observed: LoopObservations, notes: List[str]) -> Optional[str]:
    if not observed.optimizers:
        if observed.updates:
            notes.append("no optimizer object made a step: assuming that weights are updated by hand, without state")
        return "sgd" if observed.updates else None
    first = observed.optimizers[0]
    name = type(first).__name__.lower()
    return "momentum" if name == "sgd" and first.param_groups[0].get("momentum") else name


def _weight_precision(observed: LoopObservations) -> Optional[str]:
    """Return the format of the weights, which is the precision without autocast."""
    groups = [group["params"] for optimizer in observed.optimizers for group in optimizer.param_groups]
    dtype = next((parameter.dtype for parameters in groups for parameter in parameters), None)
    if dtype is None:
        return None
    if dtype == torch.float32:
        return "fp32" if torch.get_float32_matmul_precision() == "highest" else "tf32"
    return {torch.float16: "fp16", torch.bfloat16: "bf16"}.get(dtype)


def _loader_facts(observed: LoopObservations, loader: Any, notes: List[str]) -> Dict[str, Any]:
    first_batch = observed.first_batch.get(id(loader), {})
    settings = {**observed.loader_settings.get(id(loader), {}), **observed.framework}
    facts: Dict[str, Any] = {
        "batch": loader.batch_size or first_batch.get("batch") or None,
        "loader_workers": settings.get("workers", loader.num_workers),
        "prefetch": settings.get("prefetch"),
        "pinned": settings.get("pinned", False),
        "batch_tensor_bytes": first_batch.get("tensors", []),
    }
    if facts["loader_workers"]:
        facts["object_bytes"] = object_bytes(loader.dataset)
    if first_batch.get("batch"):
        facts["bytes_per_sample"] = round(first_batch["bytes"] / first_batch["batch"])
    if isinstance(loader.dataset, torch.utils.data.IterableDataset) and not hasattr(loader.dataset, "__len__"):
        notes.append("the data set is a stream without a length, so the steps of an epoch are unknown from it")
        return facts
    try:
        facts["samples"] = len(loader.dataset)
        facts["batches"] = len(loader)
    except TypeError:
        notes.append("the data set has no length, so the steps of an epoch are unknown from it")
    return facts


def _epoch_length(
    observed: LoopObservations, step: Optional[WatchedStep], batches: Optional[int], accumulation: int, notes: List[str]
) -> Tuple[Optional[int], Optional[float]]:
    """Return optimizer steps per epoch and epochs."""
    framework = observed.framework.get("framework")
    loader = _step_loader(observed, step)
    per_epoch = None
    if batches is not None and not _trains_on_one_batch(observed):
        per_epoch = max(1, (math.ceil if framework or _steps_at_end(step) else math.floor)(batches / accumulation))
        if accumulation == 1:
            per_epoch = _steps_of_rarest(observed, batches, notes)
    if framework:
        epochs, limit = observed.framework.get("epochs"), observed.framework.get("max_steps")
        notes.append(f"epochs and accumulation are the settings of the {framework}")
        return _apply_step_limit(per_epoch, epochs, limit)
    outer, inner, limit_loop = _split_loops(step.loops if step else [], loader)
    if limit_loop is not None:
        notes.append(f"{limit_loop.times} steps are read from `{limit_loop.text}` in line {limit_loop.line}")
        return _apply_step_limit(per_epoch, None, limit_loop.times)
    notes += _loop_notes([*outer, *([inner] if inner is not None else [])])
    if inner is not None and (inner.joined or _ends_before(inner, loader, batches)):
        per_epoch = None
    if per_epoch is None and inner is not None and inner.times is not None:
        if loader is not None and accumulation == 1 and _ends_before(inner, loader, batches):
            per_epoch, passes = _steps_of_rarest(observed, inner.times, notes), ""
        else:
            per_epoch, passes = _steps_in_loop(observed, inner, inner.times, accumulation)
        notes.append(f"{per_epoch} steps are read from the loop over `{inner.text}` in line {inner.line}{passes}")
    if inner is not None and inner.times is None and (loader is None or inner.joined):
        notes.append(
            f"the end of the loop over `{inner.text}` in line {inner.line} depends on the run: steps are unknown"
        )
        return None, None
    return _epochs(observed, outer, per_epoch, step, notes)


def _steps_at_end(step: Optional[WatchedStep]) -> bool:
    """Return whether the last batches of an epoch make a step, even if they are fewer than accumulate otherwise."""
    states = sys.modules.get("accelerate.state")
    if states is not None and states.GradientState().num_steps > 1:
        return bool(states.GradientState().sync_with_dataloader)
    return step is not None and any(loop.steps_at_end for loop in step.loops)


def _epochs(
    observed: LoopObservations,
    outer: List[EnclosingLoop],
    per_epoch: Optional[int],
    step: Optional[WatchedStep],
    notes: List[str],
) -> Tuple[Optional[int], Optional[float]]:
    """Return steps per epoch and epochs, from the loops around those over batches or else the script's options."""
    loader = _step_loader(observed, step)
    phases = [loop for loop in outer if _is_over_phases(loop)]
    if phases:
        notes.append(f"one of the phases in `{phases[0].text}` in line {phases[0].line} is assumed to train")
    outer = [loop for loop in outer if loop not in phases]
    if outer and all(loop.times is not None for loop in outer):
        epochs = math.prod(loop.times or 1 for loop in outer)
        locations = " and ".join(f"`{loop.text}` in line {loop.line}" for loop in outer)
        notes.append(f"{epochs} epochs are read from the loop over {locations}")
        return per_epoch if per_epoch is not None or loader is not None else 1, epochs
    if any(loop.times is not None for loop in outer):
        unread = next(loop for loop in outer if loop.times is None)
        notes.append(f"the epochs are unknown, as the length of the loop over `{unread.text}` in line {unread.line} is")
        return per_epoch, None
    if not outer and (per_epoch is not None if loader is None else step and step.loops):
        return per_epoch, 1
    return _read_options(observed, per_epoch, notes)


def _loop_notes(loops: List[EnclosingLoop]) -> Iterator[str]:
    """Yield the assumptions on the lengths of loops."""
    for loop in loops:
        if loop.varies_with:
            yield f"the loop over `{loop.text}` is assumed to be as long in each pass of `{loop.varies_with}`"
        if loop.may_end:
            yield f"the loop over `{loop.text}` in line {loop.line} may end early, by {loop.may_end}"


def _steps_in_loop(observed: LoopObservations, loop: EnclosingLoop, times: int, accumulation: int) -> Tuple[int, str]:
    """Return the steps of a loop, which need not have one in each pass, and a remark if it has not."""
    steps = [step.loops for step in observed.steps if _same_loop(step.loops[-1:], [loop])]
    outer = [[around.position for around in loops[:-1]] for loops in steps]
    places = [loops[-1].position for loops, around in zip(steps, outer) if around == outer[0]]  # noqa: B905
    counted = [place for place in places if place is not None]
    between = (counted[-1] - counted[0]) / (len(counted) - 1) if len(counted) == len(places) > 1 else 1
    if between > 1:
        gaps = {later - earlier for earlier, later in zip(counted, counted[1:])}  # noqa: B905, RUF007 - Python 3.9
        assumed = "" if len(gaps) == 1 else "assumed: "
        passes = f", {assumed}every {between:g} passes from pass {counted[0] + 1:,}"
        return max(1, math.ceil((times - counted[0]) / between)), passes
    # Backward passes of the same loop accumulate, those of a loop within it are one round of it.
    is_shared = any(_same_loop(update.loops[-1:], [loop]) for update in observed.updates)
    return max(1, times // (accumulation if is_shared else 1)), ""


def _steps_of_rarest(observed: LoopObservations, batches: int, notes: List[str]) -> int:
    """Return the steps in some batches of the optimizer that steps most rarely, if there are several."""
    drawn = [places for places in observed.batches_at.values() if len(places) > 1]
    rarest = min(drawn, key=len, default=[1, 2])
    between = round((rarest[-1] - rarest[0]) / (len(rarest) - 1))
    if len(drawn) < 2 or between < 2:
        return max(1, batches)
    notes.append(f"one of the optimizers steps every {between} batches, which are one step")
    return max(0, batches - rarest[0]) // between + 1


def _ends_before(loop: EnclosingLoop, loader: Any, batches: Optional[int]) -> bool:
    """Return whether a loop over a loader ends by a ``break`` before its last batch."""
    is_over_loader = loader is not None and (loop.iterable is loader or loop.iterable is None)
    return is_over_loader and loop.times is not None and loop.times < (batches or 0)


def _same_loop(loops: List[EnclosingLoop], others: List[EnclosingLoop]) -> bool:
    return [(loop.line, loop.text) for loop in loops] == [(loop.line, loop.text) for loop in others]


def _apply_step_limit(
    per_epoch: Optional[int], epochs: Optional[float], limit: Optional[int]
) -> Tuple[Optional[int], Optional[float]]:
    """Apply a limit on the number of steps."""
    if limit is None:
        return per_epoch, epochs
    if per_epoch is None or limit <= per_epoch:
        return limit, 1
    rounds = limit / per_epoch
    return per_epoch, int(rounds) if rounds.is_integer() else rounds


def _split_loops(
    loops: List[EnclosingLoop], loader: Any
) -> Tuple[List[EnclosingLoop], Optional[EnclosingLoop], Optional[EnclosingLoop]]:
    """Split the loops around a step into those over epochs, the one over batches, and one that limits the steps."""
    for loop in loops:
        if loop.counts_inner and loop.times is not None:
            return [], None, loop
    if loader is not None:
        others = [i for i, loop in enumerate(loops) if loop.is_for and not isinstance(loop.iterable, range)]
        places = [i for i, loop in enumerate(loops) if loop.iterable is loader] or others
        if places:
            return loops[: places[-1]], loops[places[-1]], None
        limit = next((loop for loop in reversed(loops) if loop.times is not None and not _is_over_epochs(loop)), None)
        return [loop for loop in loops if loop is not limit and _is_over_epochs(loop)], None, limit
    if loops and _is_over_epochs(loops[-1]):
        return loops, None, None
    return loops[:-1], loops[-1] if loops else None, None


def _is_over_epochs(loop: EnclosingLoop) -> bool:
    return "epoch" in loop.name.lower() or "epoch" in loop.text.lower()


def _is_over_phases(loop: EnclosingLoop) -> bool:
    """Return whether a loop goes through names such as ``["train", "val"]``, of which only training updates weights."""
    names = loop.iterable if isinstance(loop.iterable, (list, tuple)) else []
    return all(isinstance(name, str) for name in names) and any("train" in name.lower() for name in names)


def _read_options(
    observed: LoopObservations, per_epoch: Optional[int], notes: List[str]
) -> Tuple[Optional[int], Optional[float]]:
    """Fall back on the script's own command-line options."""
    for names, is_limit in ((STEP_OPTIONS, True), (EPOCH_OPTIONS, False)):
        for name in names:
            value: Any = observed.options.get(name)
            if is_count(value):
                notes.append(f"{value:g} {'steps' if is_limit else 'epochs'} are read from the option {name}")
                return _apply_step_limit(per_epoch, None, int(value)) if is_limit else (per_epoch, value)
    notes.append("the number of epochs is unknown: the training step is in no loop with a readable end")
    return per_epoch, None
