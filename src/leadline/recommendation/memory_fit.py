"""How likely a job runs out of memory, and the largest batch that does not."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from leadline.core.estimate import Interval
from leadline.core.fit import ChangeCost, MemoryCheck
from leadline.core.graph import BYTES_PER_ELEMENT
from leadline.core.workload import (
    Adapters,
    InputShape,
    ModelKind,
    Optimizer,
    Parallelism,
    Phase,
    Precision,
    Quantization,
    Sharding,
    Workload,
)
from leadline.uncertainty.distributions import HalfLogNormals, quantile

LARGEST = 2**20
"""No larger batch is asked about."""


def check_memory(kind: str, memory: Interval, there_bytes: float | None, risk: float) -> MemoryCheck:
    """Return the check of a memory of ``there_bytes``, of which the job needs ``memory``.

    Raises:
        InvalidInput: the risk is not between 0 and 1.
    """
    needed = quantile(memory, 1 - risk)
    over = None if there_bytes is None else HalfLogNormals.of(memory).above(there_bytes)
    return MemoryCheck(kind, needed, there_bytes, over)


def largest_batch(needed_bytes: Callable[[int], float], there_bytes: float, batch: int) -> int:
    """Return the largest batch whose ``needed_bytes`` are there; 0 if that of one sample are not.

    Memory grows nearly in a straight line with the batch, so each batch is guessed by the line through the two nearest
    known ones, and bisected where the guess does not help. ``batch`` is where to begin.
    """
    known: dict[int, float] = {}

    def fits(size: int) -> bool:
        if size not in known:
            known[size] = needed_bytes(size)
        return known[size] <= there_bytes

    low, high = (batch, None) if fits(batch) else (0, batch)
    while high is None:
        more = min(max(_guess(known, there_bytes), 2 * low), LARGEST)
        if not fits(more):
            high = more
        elif more == LARGEST:
            return LARGEST
        else:
            low = more
    guessing = True
    while high is not None and high - low > 1:
        guess = min(max(_guess(known, there_bytes), low + 1), high - 1) if guessing else (low + high) // 2
        low, high = (guess, high) if fits(guess) else (low, guess)
        guessing = not guessing  # every second step halves what is left, whatever the guesses are
    return low


def _guess(known: dict[int, float], there_bytes: float) -> int:
    """Return the batch at which the line through the two known batches nearest to the limit meets it."""
    if len(known) < 2:
        return max(known) // 2 if min(known.values()) > there_bytes else 2 * max(known)
    (one, at_one), (other, at_other) = sorted(known.items(), key=lambda item: abs(item[1] - there_bytes))[:2]
    slope = (at_other - at_one) / (other - one)
    return int(one + (there_bytes - at_one) / slope) if slope > 0 else max(known) * 2


RANK = 16
"""The rank of the adapters that are proposed: large ones train little better (Hu et al. 2021)."""
MOST_GPUS = 8
"""A job of one GPU is shared out over at most so many, as a node usually has."""


@dataclass(frozen=True, slots=True)
class WorkloadVariant:
    """A workload with changes, the options that make them, what they are, and what they ask of the user."""

    workload: Workload
    description: str
    options: tuple[str, ...]
    cost: ChangeCost = ChangeCost.NOTHING


Move = Callable[[WorkloadVariant], WorkloadVariant | None]
"""Returns a variant with one more change; ``None`` where it does not apply."""


def can_change(workload: Workload) -> bool:
    """Tell whether options change the workload: a script, an ONNX file or a saved module is as it stands."""
    return workload.model.kind in (ModelKind.HF_CONFIG, ModelKind.FUNCTION, ModelKind.JAX_FUNCTION)


def with_batch(workload: Workload, batch: int) -> Workload:
    """Return the workload with another batch, its inputs with it."""
    inputs = tuple(InputShape((batch, *one.shape[1:]), one.dtype) for one in workload.inputs)
    return replace(workload, batch=batch, inputs=inputs)


def memory_saving_ladders(workload: Workload, batch: int, dtypes: frozenset[str]) -> Iterator[list[WorkloadVariant]]:
    """Yield lists of variants, in each of which every variant needs less memory than the one before.

    The first that fits is enough of each list. ``batch`` is that of ``workload``, ``dtypes`` those that the device
    computes in.
    """
    if not can_change(workload):
        return
    start = WorkloadVariant(workload, "", ())
    singles = list(_free(workload, dtypes))
    for move in singles:
        if (one := move(start)) is not None:
            yield [one, *_split(one, batch)]
    if (both := _joined(start, singles)) is not None:
        yield [both, *_split(both, batch)]
    yield list(_split(start, batch))
    for move in _costly(workload, dtypes):
        if (one := move(start)) is not None:
            yield [one]
    for base in (start, both):
        if base is not None:
            yield list(_adapted(base, dtypes))
            yield list(_shared_out(base, batch))


def _free(workload: Workload, dtypes: frozenset[str]) -> Iterator[Move]:
    """Yield changes after which the same numbers come out, but for rounding."""
    recomputes = workload.model.kind in (ModelKind.HF_CONFIG, ModelKind.FUNCTION)
    if workload.phase is Phase.TRAINING and not workload.checkpointing and recomputes:
        yield lambda one: _with(one, "recompute activations", ("--checkpointing",), checkpointing=True)
    if (half := _half(workload, dtypes)) is None:
        return
    if workload.phase is Phase.TRAINING:
        amp = Precision.AMP_BF16 if half is Precision.BF16 else Precision.AMP_FP16
        words = f"compute in {half.value} beside float32 weights"
        yield lambda one: _with(one, words, ("--precision", amp.value), precision=amp)
    else:
        yield lambda one: _with(one, f"answer in {half.value}", ("--precision", half.value), precision=half)


def _costly(workload: Workload, dtypes: frozenset[str]) -> Iterator[Move]:
    """Yield changes after which other numbers come out."""
    if workload.phase is not Phase.TRAINING:
        return
    precision = _precision(workload)
    if "bfloat16" in dtypes and precision.weights == "float32" and workload.quantization is None:
        yield lambda one: _with(
            one, "keep weights in bf16, too", ("--precision", "bf16"), asks=ChangeCost.RESULTS, precision=Precision.BF16
        )
    rule = workload.optimizer or Optimizer.ADAMW
    width = BYTES_PER_ELEMENT["float32" if workload.adapters else precision.weights]
    if rule in (Optimizer.ADAM, Optimizer.ADAMW) and workload.model.kind is ModelKind.HF_CONFIG:
        yield _other_rule(Optimizer.ADAMW_8BIT, "its state in 8 bits")
    for optimizer in (Optimizer.LION, Optimizer.SGD):
        if optimizer.state_bytes(width) < rule.state_bytes(width):
            fewer = rule.states - optimizer.states
            yield _other_rule(optimizer, f"{fewer} {'copy' if fewer == 1 else 'copies'} of the weights less")


def _other_rule(optimizer: Optimizer, saved: str) -> Move:
    what = f"another update rule, {optimizer.value}: {saved}"
    return lambda one: _with(one, what, ("--optimizer", optimizer.value), asks=ChangeCost.RESULTS, optimizer=optimizer)


def _adapted(one: WorkloadVariant, dtypes: frozenset[str]) -> Iterator[WorkloadVariant]:
    """Yield adapters in place of all weights, then beside weights in eight and in four bits."""
    work = one.workload
    if work.model.kind is not ModelKind.HF_CONFIG or work.phase is not Phase.TRAINING:
        return
    if work.parallelism.tensor * work.parallelism.pipeline > 1:
        return
    if work.adapters is None:
        words = f"train adapters of rank {RANK} beside frozen weights"
        one = _with(one, words, ("--lora", str(RANK)), asks=ChangeCost.RESULTS, adapters=Adapters(RANK))
        yield one
    half = next((form for form in (Precision.BF16, Precision.FP16) if form.compute in dtypes), None)
    if work.quantization is not None or half is None:
        return
    if _half(one.workload, dtypes) is not None:
        one = _with(one, f"compute in {half.value}", ("--precision", half.value), precision=half)
    for form in (Quantization.INT8, Quantization.NF4):
        words, options = f"keep the frozen weights in {form.value.replace('bit', ' bits')}", ("--quantize", form.value)
        yield _with(one, words, options, asks=ChangeCost.RESULTS, quantization=form)


def _half(workload: Workload, dtypes: frozenset[str]) -> Precision | None:
    """Return the 16-bit format that the device computes in; ``None`` where it is used already, or there is none."""
    if _precision(workload).compute not in ("float32", "tf32"):
        return None
    return next((one for one in (Precision.BF16, Precision.FP16) if one.compute in dtypes), None)


def _precision(workload: Workload) -> Precision:
    """Return the number format of a workload; a configuration is read in bfloat16 where none is given."""
    usual = Precision.BF16 if workload.model.kind is ModelKind.HF_CONFIG else Precision.FP32
    return workload.precision or usual


def _split(one: WorkloadVariant, batch: int) -> Iterator[WorkloadVariant]:
    """Yield the same samples in more, smaller passes: halves, quarters and so on, down to one sample."""
    work, parts = one.workload, 2
    while batch % parts == 0:
        smaller = with_batch(work, batch // parts)
        if work.phase is Phase.TRAINING:
            passes = work.accumulation * parts
            what = f"{passes} passes of {_samples(batch // parts)}"
            options: tuple[str, ...] = ("--batch", str(batch // parts), "--accumulate", str(passes))
            smaller = replace(smaller, accumulation=passes)
        else:
            what, options = f"{parts} batches of {_samples(batch // parts)}", ("--batch", str(batch // parts))
        yield _and(one, smaller, what, options)
        parts *= 2


def _shared_out(one: WorkloadVariant, batch: int) -> Iterator[WorkloadVariant]:
    """Yield the same samples on more GPUs, which share out the weights, too."""
    work = one.workload
    if work.gpus != 1 or work.parallelism != Parallelism():
        return
    gpus = 2
    options: tuple[str, ...]
    while gpus <= MOST_GPUS:
        if work.phase is Phase.INFERENCE:
            options = ("--gpus", str(gpus), "--tensor-parallel", str(gpus))
            spread = replace(work, gpus=gpus, parallelism=Parallelism(tensor=gpus))
            yield _and(one, spread, f"each layer shared by {gpus} GPUs", options, ChangeCost.HARDWARE)
        elif (whole := batch * work.accumulation) % gpus == 0:
            each = min(batch, whole // gpus)
            spread = replace(
                with_batch(work, each), gpus=gpus, accumulation=whole // gpus // each,
                parallelism=Parallelism(sharding=Sharding.FULL),
            )  # fmt: skip
            options = ("--gpus", str(gpus), "--sharding", "full", "--batch", str(each))
            if work.accumulation > 1:
                options += ("--accumulate", str(spread.accumulation))
            yield _and(one, spread, f"weights and batch shared by {gpus} GPUs", options, ChangeCost.HARDWARE)
        gpus *= 2


def _joined(start: WorkloadVariant, moves: list[Move]) -> WorkloadVariant | None:
    """Return all of several changes together; ``None`` where there are not several."""
    found: WorkloadVariant | None = start
    for move in moves:
        found = found and move(found)
    return found if len(moves) > 1 else None


def _with(
    one: WorkloadVariant,
    what: str,
    options: tuple[str, ...],
    *,
    asks: ChangeCost = ChangeCost.NOTHING,
    **fields: object,
) -> WorkloadVariant:
    changed: Workload = replace(one.workload, **fields)  # type: ignore[arg-type]
    return _and(one, changed, what, options, asks)


def _and(
    one: WorkloadVariant, workload: Workload, what: str, options: tuple[str, ...], asks: ChangeCost = ChangeCost.NOTHING
) -> WorkloadVariant:
    more = f"{one.description}, and {what}" if one.description else what
    most = max(one.cost, asks, key=list(ChangeCost).index)
    return WorkloadVariant(workload, more, (*one.options, *options), most)


def _samples(count: int) -> str:
    return f"{count} sample{'s' if count > 1 else ''}"
