"""What a user could change about a workload so that it needs less memory, for the same samples a step."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from leadline.core.fit import Cost
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

RANK = 16
"""The rank of the adapters that are proposed: large ones train little better (Hu et al. 2021)."""
MOST_GPUS = 8
"""A job of one GPU is shared out over at most so many, as a node usually has."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A workload with changes, the options that make them, what they are, and what they ask of the user."""

    workload: Workload
    what: str
    options: tuple[str, ...]
    asks: Cost = Cost.NOTHING


Move = Callable[[Variant], Variant | None]
"""Returns a variant with one more change; ``None`` where it does not apply."""


def can_change(workload: Workload) -> bool:
    """Tell whether options change the workload: a script, an ONNX file or a saved module is as it stands."""
    return workload.model.kind in (ModelKind.HF_CONFIG, ModelKind.FUNCTION, ModelKind.JAX_FUNCTION)


def at_batch(workload: Workload, batch: int) -> Workload:
    """Return the workload with another batch, its inputs with it."""
    inputs = tuple(InputShape((batch, *one.shape[1:]), one.dtype) for one in workload.inputs)
    return replace(workload, batch=batch, inputs=inputs)


def ladders(workload: Workload, batch: int, dtypes: frozenset[str]) -> Iterator[list[Variant]]:
    """Yield lists of variants, in each of which every variant needs less memory than the one before.

    The first that fits is enough of each list. ``batch`` is that of ``workload``, ``dtypes`` those that the device
    computes in.
    """
    if not can_change(workload):
        return
    start = Variant(workload, "", ())
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
            one, "keep weights in bf16, too", ("--precision", "bf16"), asks=Cost.RESULTS, precision=Precision.BF16
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
    return lambda one: _with(one, what, ("--optimizer", optimizer.value), asks=Cost.RESULTS, optimizer=optimizer)


def _adapted(one: Variant, dtypes: frozenset[str]) -> Iterator[Variant]:
    """Yield adapters in place of all weights, then beside weights in eight and in four bits."""
    work = one.workload
    if work.model.kind is not ModelKind.HF_CONFIG or work.phase is not Phase.TRAINING:
        return
    if work.parallelism.tensor * work.parallelism.pipeline > 1:
        return
    if work.adapters is None:
        words = f"train adapters of rank {RANK} beside frozen weights"
        one = _with(one, words, ("--lora", str(RANK)), asks=Cost.RESULTS, adapters=Adapters(RANK))
        yield one
    half = next((form for form in (Precision.BF16, Precision.FP16) if form.compute in dtypes), None)
    if work.quantization is not None or half is None:
        return
    if _half(one.workload, dtypes) is not None:
        one = _with(one, f"compute in {half.value}", ("--precision", half.value), precision=half)
    for form in (Quantization.INT8, Quantization.NF4):
        words, options = f"keep the frozen weights in {form.value.replace('bit', ' bits')}", ("--quantize", form.value)
        yield _with(one, words, options, asks=Cost.RESULTS, quantization=form)


def _half(workload: Workload, dtypes: frozenset[str]) -> Precision | None:
    """Return the 16-bit format that the device computes in; ``None`` where it is used already, or there is none."""
    if _precision(workload).compute not in ("float32", "tf32"):
        return None
    return next((one for one in (Precision.BF16, Precision.FP16) if one.compute in dtypes), None)


def _precision(workload: Workload) -> Precision:
    """Return the number format of a workload; a configuration is read in bfloat16 where none is given."""
    usual = Precision.BF16 if workload.model.kind is ModelKind.HF_CONFIG else Precision.FP32
    return workload.precision or usual


def _split(one: Variant, batch: int) -> Iterator[Variant]:
    """Yield the same samples in more, smaller passes: halves, quarters and so on, down to one sample."""
    work, parts = one.workload, 2
    while batch % parts == 0:
        smaller = at_batch(work, batch // parts)
        if work.phase is Phase.TRAINING:
            passes = work.accumulation * parts
            what = f"{passes} passes of {_samples(batch // parts)}"
            options: tuple[str, ...] = ("--batch", str(batch // parts), "--accumulate", str(passes))
            smaller = replace(smaller, accumulation=passes)
        else:
            what, options = f"{parts} batches of {_samples(batch // parts)}", ("--batch", str(batch // parts))
        yield _and(one, smaller, what, options)
        parts *= 2


def _shared_out(one: Variant, batch: int) -> Iterator[Variant]:
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
            yield _and(one, spread, f"each layer shared by {gpus} GPUs", options, Cost.HARDWARE)
        elif (whole := batch * work.accumulation) % gpus == 0:
            each = min(batch, whole // gpus)
            spread = replace(
                at_batch(work, each), gpus=gpus, accumulation=whole // gpus // each,
                parallelism=Parallelism(sharding=Sharding.FULL),
            )  # fmt: skip
            options = ("--gpus", str(gpus), "--sharding", "full", "--batch", str(each))
            if work.accumulation > 1:
                options += ("--accumulate", str(spread.accumulation))
            yield _and(one, spread, f"weights and batch shared by {gpus} GPUs", options, Cost.HARDWARE)
        gpus *= 2


def _joined(start: Variant, moves: list[Move]) -> Variant | None:
    """Return all of several changes together; ``None`` where there are not several."""
    found: Variant | None = start
    for move in moves:
        found = found and move(found)
    return found if len(moves) > 1 else None


def _with(one: Variant, what: str, options: tuple[str, ...], *, asks: Cost = Cost.NOTHING, **fields: object) -> Variant:
    changed: Workload = replace(one.workload, **fields)  # type: ignore[arg-type]
    return _and(one, changed, what, options, asks)


def _and(one: Variant, workload: Workload, what: str, options: tuple[str, ...], asks: Cost = Cost.NOTHING) -> Variant:
    more = f"{one.what}, and {what}" if one.what else what
    most = max(one.asks, asks, key=list(Cost).index)
    return Variant(workload, more, (*one.options, *options), most)


def _samples(count: int) -> str:
    return f"{count} sample{'s' if count > 1 else ''}"
