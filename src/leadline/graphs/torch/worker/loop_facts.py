"""Batch, steps per epoch, epochs and other facts of a training loop, inferred from what the hooks observed."""

import collections.abc
import math
import operator
import os
import statistics
import sys
import types
from typing import Any, Dict, List, Optional, Tuple

from leadline.graphs.torch.worker.counted_steps import counted_steps
from leadline.graphs.torch.worker.ended_runs import CountedRun, Guesses, correct_lengths, split_steps
from leadline.graphs.torch.worker.evaluation_loaders import evaluation_batches
from leadline.graphs.torch.worker.expressions import is_count
from leadline.graphs.torch.worker.loop_observations import LoopObservations, WatchedStep
from leadline.graphs.torch.worker.loop_roles import is_over_phases, loop_notes, same_loop, split_loops
from leadline.graphs.torch.worker.loops import EnclosingLoop
from leadline.graphs.torch.worker.object_sizes import object_bytes

torch: Any = sys.modules.get("torch")
"""None in the trace of a JAX script, which needs no PyTorch."""

WATCHED_FOR_BATCHES = 3
"""Steps without a new batch between them that show a training on one batch."""
EPOCH_OPTIONS = (
    "epochs", "num_epochs", "n_epochs", "max_epochs", "num_train_epochs", "total_epochs", "nepochs", "niter",
)  # fmt: skip
STEP_OPTIONS = ("max_steps", "max_iters", "total_steps", "num_steps", "steps", "iterations", "max_train_steps")


def infer_loop_facts(observed: LoopObservations, run: Optional[CountedRun] = None) -> Dict[str, Any]:
    """Return the fields of ``LoopFacts`` and ``notes``. Unknown fields are absent or ``None``.

    ``run``: The steps of the whole run, if they were counted.
    """
    notes: List[str] = []
    step = observed.typical_step()
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
    if not facts.get("batch") and observed.forward is not None:
        facts["batch"], module = observed.forward["batch"] or None, observed.forward["module"]
        found = f"batch {facts['batch']}" if facts["batch"] else "no batch"
        why = "there is no DataLoader" if loader is None else "its DataLoader tells none"
        notes.append(f"{found} is read from the input of {module}: {why}")
    if loader is not None and observed.forward is not None and _trains_on_one_batch(observed):
        # Of a data set loaded as one batch, a step may take a part.
        facts["batch"] = min(facts.get("batch") or math.inf, observed.forward["batch"])
    taken = (observed.forward or {}).get("batch")
    if loader is not None and accumulation == 1 and taken == _period_of_rarest(observed)[0] * (facts["batch"] or 0):
        facts["batch"] = taken  # the loader gives samples, or parts of a batch
    if "batch" in observed.framework:
        facts["batch"] = observed.framework["batch"]
    batches = observed.framework.get("steps_per_epoch", facts.pop("batches", None))
    on_lengths: List[str] = []
    read = _epoch_length(observed, step, batches, accumulation, on_lengths)
    loops = step.loops if step and not observed.framework else []
    facts["steps_per_epoch"], facts["epochs"] = correct_lengths(run, loops, read, on_lengths)
    notes += on_lengths
    steps = (facts["steps_per_epoch"] or 0) * (facts["epochs"] or 0)
    is_counted = run is not None and run.guesses is not Guesses.TRACED and round(steps) == run.steps
    if run is not None and is_counted and run.evaluated:
        facts["evaluation_batches_per_epoch"] = run.evaluated / facts["epochs"]
    else:
        facts["evaluation_batches_per_epoch"] = evaluation_batches(observed, loader, facts["steps_per_epoch"], notes)
    if observed.steps_frozen:
        notes.append("the optimizer holds weights without gradients, which are assumed to stay frozen")
    notes += () if is_counted else observed.unsure_of(loops)
    facts["notes"] = notes
    facts["one_batch"] = _trains_on_one_batch(observed)
    return facts


def _step_loader(observed: LoopObservations, step: Optional[WatchedStep]) -> Any:
    """Return the loader that the steps draw their batches from, if any."""
    return step.loader if step and not _trains_on_one_batch(observed) else None


def _trains_on_one_batch(observed: LoopObservations) -> bool:
    """Return whether the steps drew no batches of their own, as after ``next(iter(loader))``."""
    step = observed.typical_step()
    if step is None or len(observed.steps) < WATCHED_FOR_BATCHES:
        return False
    is_iterated = any(loop.iterable is step.loader for loop in step.loops)
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
    repeated = statistics.median_high(counts or [1])  # the first step of an epoch may have more, the last one fewer
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
        return "fp32" if _is_full_precision() else "tf32"
    return {torch.float16: "fp16", torch.bfloat16: "bf16"}.get(dtype)


def _is_full_precision() -> bool:
    try:
        return bool(torch.get_float32_matmul_precision() == "highest")
    except RuntimeError:  # set by the newer interface, since 2.9
        return bool(torch.backends.cuda.matmul.fp32_precision != "tf32")


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
    collates = loader.batch_size == 1 and loader.collate_fn is not torch.utils.data.default_collate
    taken = (observed.forward or {}).get("batch")
    within = first_batch.get("common", 1) if collates and taken in (None, first_batch.get("common")) else 1
    if within > 1:
        facts["batch"] = within
        notes.append(f"batch {within} is read from a batch of the loader, whose items are taken for whole batches")
    if first_batch.get("batch"):
        facts["bytes_per_sample"] = round(first_batch["bytes"] / first_batch["batch"])
    if isinstance(loader.dataset, torch.utils.data.IterableDataset) and not hasattr(loader.dataset, "__len__"):
        notes.append("the data set is a stream without a length, so the steps of an epoch are unknown from it")
        return facts
    try:
        facts["samples"] = len(loader.dataset) * within
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
        notes += filter(None, [observed.framework.get("note")])
        per_epoch, epochs = _apply_step_limit(per_epoch, epochs, limit)
        return per_epoch, _repeated(observed.around, epochs, notes)
    loops = step.loops if step else []
    outer, inner, limit_loop = split_loops(loops, loader, step is None or observed.advances(step))
    if limit_loop is not None:
        notes += loop_notes([limit_loop])
        counted, assumed = counted_steps(observed, limit_loop)
        if counted is None:
            notes.append(f"the steps of {limit_loop.place} are unknown{assumed}")
            return None, None
        notes.append(f"{counted} steps are read from {limit_loop.place}{assumed}")
        return _apply_step_limit(per_epoch, None, counted)
    per_epoch, epochs = _passes(observed, step, outer, inner, per_epoch, batches, accumulation, notes)
    if per_epoch is not None and epochs is not None and batches and loops and loops[-1].counts_on:
        period, first = (accumulation, accumulation) if accumulation > 1 else _period_of_rarest(observed)
        if period > 1:
            return _apply_step_limit(per_epoch, None, int(batches * epochs - first) // period + 1)
    limits = [loop.limit for loop in loops if loop.limit is not None]
    limit = min(limits, default=None)
    if limit is not None and limits[-1] == limit + 1:
        limit += 1  # the innermost loop tells whether its test precedes the count, which those around it do not
    if limit is not None and (per_epoch is None or epochs is None or per_epoch * epochs > limit):
        assumed = ", assuming that it counts steps of the optimizer" if accumulation > 1 else ""
        notes[:] = [note for note in notes if not note.endswith("steps are unknown")]
        notes.append(f"{limit} steps are read from the condition that ends the loop early{assumed}")
        return _apply_step_limit(per_epoch, None, limit)
    return per_epoch, epochs


def _repeated(loops: List[EnclosingLoop], epochs: Optional[float], notes: List[str]) -> Optional[float]:
    """Return the epochs of all calls of a framework, which loops of the script make."""
    notes += loop_notes(loops)
    for loop in loops:
        if is_over_phases(loop):
            notes.append(f"one of the phases in {loop.place} is assumed to train")
        elif loop.times is None:
            notes.append(f"the epochs are unknown, as the length of the loop over {loop.place} is")
            return None
        else:
            notes.append(f"the loop over {loop.place} repeats them {loop.times} times")
            epochs = None if epochs is None else epochs * loop.times
    return epochs


def _passes(
    observed: LoopObservations,
    step: Optional[WatchedStep],
    outer: List[EnclosingLoop],
    inner: Optional[EnclosingLoop],
    epoch: Optional[int],
    batches: Optional[int],
    accumulation: int,
    notes: List[str],
) -> Tuple[Optional[int], Optional[float]]:
    """Return steps per epoch and epochs from the loops around a step; ``epoch``: steps in a pass over the loader."""
    loader = _step_loader(observed, step)
    notes += loop_notes([*outer, *([inner] if inner is not None else [])])
    if inner is None:
        return _epochs(observed, outer, epoch, step, notes)
    is_endless = _is_endless(observed, inner, loader)
    is_whole = not (inner.joined or is_endless or _ends_before(inner, loader, batches))
    per_epoch = epoch if is_whole else None
    if per_epoch is None and inner.times is not None:
        if loader is not None and accumulation == 1 and _ends_before(inner, loader, batches):
            per_epoch, passes = _steps_of_rarest(observed, inner.times, notes), ""
        else:
            per_epoch, passes = _steps_in_loop(observed, inner, inner.times, accumulation)
        notes.append(f"{per_epoch} steps are read from the loop over {inner.place}{passes}")
    if inner.times is None and (loader is None or inner.joined or is_endless):
        notes.append(f"the end of the loop over {inner.place} depends on the run: steps are unknown")
        return None, None
    if inner.is_drawing and inner.times is None:
        notes.append(f"the loop over {inner.place} is assumed to end with the batches")
    per_epoch, epochs = _epochs(observed, outer, per_epoch, step, notes)
    if is_endless and per_epoch is not None and epochs is not None:
        per_epoch, epochs = _apply_step_limit(epoch, None, int(per_epoch * epochs))
    return per_epoch, epochs


def _steps_at_end(step: Optional[WatchedStep]) -> bool:
    """Return whether the last batches of an epoch make a step, even if they are fewer than accumulate otherwise."""
    states = sys.modules.get("accelerate.state")
    state: Any = states.GradientState() if states is not None else None
    if getattr(state, "num_steps", 1) > 1:  # early versions have none
        return bool(state.sync_with_dataloader)
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
    phases = [loop for loop in outer if is_over_phases(loop)]
    if phases:
        notes.append(f"one of the phases in {phases[0].place} is assumed to train")
    outer = [loop for loop in outer if loop not in phases]
    if outer and all(loop.times is not None for loop in outer):
        first = observed.updates[0].loops[:1] if observed.updates else []  # the first backward pass of any kind
        idle = (first[0].position or 0) if same_loop(first, outer[:1]) else 0
        if idle and len(outer) > 1 and {each.loops[0].position for each in observed.steps if each.loops} == {idle}:
            notes.append(f"pass {idle + 1:,} of {outer[0].place} is the first with a step: which others are is unknown")
            return per_epoch, None
        passes = [max(1, (outer[0].times or 1) - idle), *(loop.times or 1 for loop in outer[1:])]
        epochs = math.prod(passes)
        locations = " and ".join(f"{loop.place}" for loop in outer)
        begin = f", from its pass {idle + 1:,}, the first with a step" if idle else ""
        notes.append(f"{epochs} epochs are read from the loop over {locations}{begin}")
        return per_epoch if per_epoch is not None or loader is not None else 1, epochs
    if any(loop.times is not None for loop in outer):
        unread = next(loop for loop in outer if loop.times is None)
        notes.append(f"the epochs are unknown, as the length of the loop over {unread.place} is")
        return per_epoch, None
    if not outer and (per_epoch is not None if loader is None else step and step.loops):
        return per_epoch, 1
    return _read_options(observed, per_epoch, notes)


def _steps_in_loop(observed: LoopObservations, loop: EnclosingLoop, times: int, accumulation: int) -> Tuple[int, str]:
    """Return the steps of a loop, which need not have one in each pass, and a remark if it has not."""
    steps = [step.loops for step in observed.steps if same_loop(step.loops[-1:], [loop])]
    outer = [[around.position for around in loops[:-1]] for loops in steps]
    places = [loops[-1].position for loops, around in zip(steps, outer) if around == outer[0]]  # noqa: B905
    counted = [place for place in places if place is not None]
    between = (counted[-1] - counted[0]) / (len(counted) - 1) if len(counted) == len(places) > 1 else 1
    if len(counted) > 1 and between == 1 and counted[0] and not outer[0]:  # as after a pass that initializes
        return max(1, times - counted[0]), f", from pass {counted[0] + 1:,}"
    if between > 1:
        gaps = {later - earlier for earlier, later in zip(counted, counted[1:])}  # noqa: B905, RUF007 - Python 3.9
        assumed = "" if len(gaps) == 1 else "assumed: "
        passes = f", {assumed}every {between:g} passes from pass {counted[0] + 1:,}"
        return max(1, math.ceil((times - counted[0]) / between)), passes
    # Backward passes of the same loop accumulate, those of a loop within it are one round of it.
    is_shared = any(same_loop(update.loops[-1:], [loop]) for update in observed.updates)
    return max(1, times // (accumulation if is_shared else 1)), ""


def _steps_of_rarest(observed: LoopObservations, batches: int, notes: List[str]) -> int:
    """Return the steps in some batches of the optimizer that steps most rarely, if there are several."""
    between, first = _period_of_rarest(observed)
    if between < 2:
        return max(1, batches)
    many = len(observed.batches_at) > 1
    notes.append(
        f"one of the optimizers steps every {between} batches, which are one step"
        if many
        else f"each step takes {between} batches of the loader"
    )
    return max(0, batches - first) // between + 1


def _period_of_rarest(observed: LoopObservations) -> Tuple[int, int]:
    """Return the batches between steps of the optimizer that steps most rarely, and those before its first one."""
    drawn = [places for places in observed.batches_at.values() if len(places) > 1]
    rarest = min(drawn, key=len, default=[1, 2])
    between = round((rarest[-1] - rarest[0]) / (len(rarest) - 1))
    is_regular = rarest == [between * number for number in range(1, len(rarest) + 1)] and not observed.framework
    return (between, rarest[0]) if len(drawn) > 1 or is_regular else (1, 1)


def _ends_before(loop: EnclosingLoop, loader: Any, batches: Optional[int]) -> bool:
    """Return whether a loop ends before the last batch of a loader: by a ``break``, or with a shorter one."""
    is_over_batches = loop.iterable is loader or (loop.is_for and not isinstance(loop.iterable, (list, tuple, dict)))
    return loader is not None and is_over_batches and loop.times is not None and loop.times < (batches or 0)


def _is_endless(observed: LoopObservations, loop: EnclosingLoop, loader: Any) -> bool:
    """Return whether the passes of a loop draw batches that go on beyond the end of the loader."""
    if loader is None or loop.iterable is loader:
        return False
    is_iterator = isinstance(loop.iterable, collections.abc.Iterator)
    is_own = is_iterator and not isinstance(loop.iterable, types.GeneratorType)
    if loop.times is not None and (loop.is_drawing or is_own):
        return True
    return id(loader) in observed.endless or "cycle(" in loop.text


def _apply_step_limit(
    per_epoch: Optional[int], epochs: Optional[float], limit: Optional[int]
) -> Tuple[Optional[int], Optional[float]]:
    """Apply a limit on the number of steps."""
    return (per_epoch, epochs) if limit is None else split_steps(per_epoch, limit)


def _read_options(
    observed: LoopObservations, per_epoch: Optional[int], notes: List[str]
) -> Tuple[Optional[int], Optional[float]]:
    """Fall back on the script's own command-line options."""
    for names, is_limit in ((STEP_OPTIONS, True), (EPOCH_OPTIONS, False)):
        for name in names:
            value: Any = observed.options.get(name)
            if is_count(value):
                read = f"{value:g} {'steps' if is_limit else 'epochs'} are read from the option {name}"
                step = observed.typical_step()
                loops = step.loops if step is not None else []
                unread = next((loop for loop in loops if not loop.is_for and loop.times is None), None)
                notes.append(f"{read}, assuming that it ends {unread.place}" if unread else read)
                return _apply_step_limit(per_epoch, None, int(value)) if is_limit else (per_epoch, value)
    notes.append("the number of epochs is unknown: the training step is in no loop with a readable end")
    return per_epoch, None
