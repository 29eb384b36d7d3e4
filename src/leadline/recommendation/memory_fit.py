"""Fit a job into memory: the risk of running out, the largest batch, and changes that need less memory."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from leadline.core.estimate import Interval
from leadline.core.fit import ChangeCost, MemoryCheck
from leadline.core.frozen import Frozen
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
    Recompute,
    Sharding,
    Workload,
)
from leadline.uncertainty.distributions import HalfLogNormals, quantile

LARGEST = 2**20  # largest batch that is tried
RANK = 16
"""Rank of the proposed adapters: larger ones hardly train better (Hu et al. 2021)."""
MOST_GPUS = 8  # GPUs at most that a job of one GPU is spread over, as many as a node usually has


def check_memory(kind: str, memory: Interval, available_bytes: float | None, risk: float) -> MemoryCheck:
    """Compare the memory that a job needs with the available bytes; ``InvalidInput`` for a risk beyond 0 to 1."""
    needed = quantile(memory, 1 - risk)
    over = None if available_bytes is None else HalfLogNormals.of(memory).above(available_bytes)
    return MemoryCheck(kind, needed, available_bytes, over)


def largest_batch(needed_bytes: Callable[[int], float], available_bytes: float, batch: int) -> int:
    """Return the largest batch that fits; 0 if not even one sample does."""
    # Memory grows almost linearly with the batch. So each guess is on the line through the two tried batches nearest to
    # the limit, and every second step bisects. The search begins at `batch`.
    tried: dict[int, float] = {}

    def fits(size: int) -> bool:
        if size not in tried:
            tried[size] = needed_bytes(size)
        return tried[size] <= available_bytes

    low, high = (batch, None) if fits(batch) else (0, batch)
    while high is None:
        larger = min(max(_guess(tried, available_bytes), 2 * low), LARGEST)
        if not fits(larger):
            high = larger
        elif larger == LARGEST:
            return LARGEST
        else:
            low = larger
    guessing = True
    while high is not None and high - low > 1:
        guess = min(max(_guess(tried, available_bytes), low + 1), high - 1) if guessing else (low + high) // 2
        low, high = (guess, high) if fits(guess) else (low, guess)
        guessing = not guessing  # bisecting in between bounds the number of steps, however wrong the guesses are
    return low


def _guess(tried: dict[int, float], available_bytes: float) -> int:
    """Return the batch where the line through the two tried batches nearest to the limit meets it."""
    if len(tried) < 2:
        return max(tried) // 2 if min(tried.values()) > available_bytes else 2 * max(tried)
    nearest = sorted(tried.items(), key=lambda pair: abs(pair[1] - available_bytes))
    (batch, needed), (second, second_needed) = nearest[:2]
    slope = (second_needed - needed) / (second - batch)
    return int(batch + (available_bytes - needed) / slope) if slope > 0 else max(tried) * 2


class WorkloadVariant(Frozen):
    """A changed workload: the description and the options of the changes, and what they cost the user."""

    workload: Workload
    description: str
    options: tuple[str, ...]
    cost: ChangeCost = ChangeCost.NOTHING

    def changed(
        self, description: str, *options: str, cost: ChangeCost = ChangeCost.NOTHING, **fields: object
    ) -> "WorkloadVariant":
        """Return the variant with one more change of the workload's ``fields``."""
        return WorkloadVariant(
            replace(self.workload, **fields),  # type: ignore[arg-type]
            f"{self.description}, and {description}" if self.description else description,
            (*self.options, *options),
            max(self.cost, cost, key=list(ChangeCost).index),
        )


Change = Callable[[WorkloadVariant], WorkloadVariant]  # function that adds one change to a variant


def can_change(workload: Workload) -> bool:
    """Return whether options can change the workload; a script, an ONNX file or a saved module is fixed."""
    return workload.model.kind in (ModelKind.HF_CONFIG, ModelKind.FUNCTION, ModelKind.JAX_FUNCTION)


def with_batch(workload: Workload, batch: int) -> Workload:
    """Return the workload with another batch, also in the shapes of its inputs."""
    inputs = tuple(InputShape((batch, *shape.shape[1:]), shape.dtype) for shape in workload.inputs)
    return replace(workload, batch=batch, inputs=inputs)


def memory_saving_ladders(workload: Workload, batch: int, dtypes: frozenset[str]) -> Iterator[list[WorkloadVariant]]:
    """Yield lists of variants that each need less memory than the one before; ``dtypes`` are those of the device."""
    if not can_change(workload):
        return
    start = WorkloadVariant(workload, "", ())
    changes = list(_equivalent_changes(workload, dtypes))
    for change in changes:
        variant = change(start)
        yield [variant, *_smaller_passes(variant, batch)]
    combined = None
    if len(changes) > 1:
        combined = start
        for change in changes:
            combined = change(combined)
        yield [combined, *_smaller_passes(combined, batch)]
    yield list(_smaller_passes(start, batch))
    for change in _costly_changes(workload, dtypes):
        yield [change(start)]
    for base in (start, combined):
        if base is not None:
            yield list(_adapters(base, dtypes))
            yield list(_more_gpus(base, batch))


def _equivalent_changes(workload: Workload, dtypes: frozenset[str]) -> Iterator[Change]:
    recomputes = workload.model.kind in (ModelKind.HF_CONFIG, ModelKind.FUNCTION)
    if workload.phase is Phase.TRAINING and not workload.checkpointing and recomputes:
        yield lambda variant: variant.changed("recompute activations", "--checkpointing", recompute=Recompute.FULL)
    if (half := _half_precision(workload, dtypes)) is None:
        return
    if workload.phase is Phase.TRAINING:
        amp = Precision.AMP_BF16 if half is Precision.BF16 else Precision.AMP_FP16
        description = f"compute in {half.value} with float32 weights"
        yield lambda variant: variant.changed(description, "--precision", amp.value, precision=amp)
    else:
        yield lambda variant: variant.changed(f"compute in {half.value}", "--precision", half.value, precision=half)


def _costly_changes(workload: Workload, dtypes: frozenset[str]) -> Iterator[Change]:
    if workload.phase is not Phase.TRAINING:
        return
    precision = _precision(workload)
    if "bfloat16" in dtypes and precision.weights == "float32" and workload.quantization is None:
        yield lambda variant: variant.changed(
            "keep weights in bf16 too", "--precision", "bf16", cost=ChangeCost.RESULTS, precision=Precision.BF16
        )
    current = workload.optimizer or Optimizer.ADAMW
    width = BYTES_PER_ELEMENT["float32" if workload.adapters else precision.weights]
    if current in (Optimizer.ADAM, Optimizer.ADAMW) and workload.model.kind is ModelKind.HF_CONFIG:
        yield _optimizer_change(Optimizer.ADAMW_8BIT, "its state in 8 bits")
    for optimizer in (Optimizer.LION, Optimizer.SGD):
        if optimizer.state_bytes(width) < current.state_bytes(width):
            fewer = current.states - optimizer.states
            yield _optimizer_change(optimizer, f"{fewer} {'copy' if fewer == 1 else 'copies'} of the weights less")


def _optimizer_change(optimizer: Optimizer, saving: str) -> Change:
    description = f"another optimizer, {optimizer.value}: {saving}"
    return lambda variant: variant.changed(
        description, "--optimizer", optimizer.value, cost=ChangeCost.RESULTS, optimizer=optimizer
    )


def _adapters(variant: WorkloadVariant, dtypes: frozenset[str]) -> Iterator[WorkloadVariant]:
    """Yield adapters instead of training all weights, then with frozen weights in eight and in four bits."""
    workload = variant.workload
    if workload.model.kind is not ModelKind.HF_CONFIG or workload.phase is not Phase.TRAINING:
        return
    if workload.parallelism.divides_layers:
        return
    if workload.adapters is None:
        description = f"train adapters of rank {RANK} on frozen weights"
        variant = variant.changed(description, "--lora", str(RANK), cost=ChangeCost.RESULTS, adapters=Adapters(RANK))
        yield variant
    half = next((precision for precision in (Precision.BF16, Precision.FP16) if precision.compute in dtypes), None)
    if workload.quantization is not None or half is None:
        return
    if _half_precision(variant.workload, dtypes) is not None:
        variant = variant.changed(f"compute in {half.value}", "--precision", half.value, precision=half)
    for form in (Quantization.INT8, Quantization.NF4):
        description = f"keep the frozen weights in {form.value.replace('bit', ' bits')}"
        yield variant.changed(description, "--quantize", form.value, cost=ChangeCost.RESULTS, quantization=form)


def _half_precision(workload: Workload, dtypes: frozenset[str]) -> Precision | None:
    """Return the 16-bit format of the device; ``None`` without one, or where it is used already."""
    if _precision(workload).compute not in ("float32", "tf32"):
        return None
    return next((precision for precision in (Precision.BF16, Precision.FP16) if precision.compute in dtypes), None)


def _precision(workload: Workload) -> Precision:
    # A configuration without a precision is read in bfloat16.
    return workload.precision or (Precision.BF16 if workload.model.kind is ModelKind.HF_CONFIG else Precision.FP32)


def _smaller_passes(variant: WorkloadVariant, batch: int) -> Iterator[WorkloadVariant]:
    """Yield the same samples in more and smaller passes: halves, quarters, and so on down to one sample."""
    workload, parts = variant.workload, 2
    while batch % parts == 0:
        size = batch // parts
        inputs = with_batch(workload, size).inputs
        samples = f"{size} sample{'s' if size > 1 else ''}"
        if workload.phase is Phase.TRAINING:
            passes = workload.accumulation * parts
            options = ("--batch", str(size), "--accumulate", str(passes))
            yield variant.changed(
                f"{passes} passes of {samples}", *options, batch=size, inputs=inputs, accumulation=passes
            )
        else:
            yield variant.changed(f"{parts} batches of {samples}", "--batch", str(size), batch=size, inputs=inputs)
        parts *= 2


def _more_gpus(variant: WorkloadVariant, batch: int) -> Iterator[WorkloadVariant]:
    """Yield the same samples on more GPUs, which also share the weights."""
    workload = variant.workload
    if workload.gpus != 1 or workload.parallelism != Parallelism():
        return
    gpus = 2
    while gpus <= MOST_GPUS:
        options: tuple[str, ...] = ("--gpus", str(gpus))
        if workload.phase is Phase.INFERENCE:
            yield variant.changed(
                f"each layer shared by {gpus} GPUs", *options, "--tensor-parallel", str(gpus),
                cost=ChangeCost.HARDWARE, gpus=gpus, parallelism=Parallelism(tensor=gpus),
            )  # fmt: skip
        elif (samples := batch * workload.accumulation) % gpus == 0:
            size = min(batch, samples // gpus)
            accumulation = samples // gpus // size
            options += ("--sharding", "full", "--batch", str(size))
            if workload.accumulation > 1:
                options += ("--accumulate", str(accumulation))
            yield variant.changed(
                f"weights and batch shared by {gpus} GPUs", *options, cost=ChangeCost.HARDWARE, batch=size,
                inputs=with_batch(workload, size).inputs, gpus=gpus, accumulation=accumulation,
                parallelism=Parallelism(sharding=Sharding.FULL),
            )  # fmt: skip
        gpus *= 2
