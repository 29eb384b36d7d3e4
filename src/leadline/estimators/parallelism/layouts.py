"""Candidate layouts of a transformer's training on many GPUs."""

from collections.abc import Iterator
from itertools import product

from leadline.core.frozen import Frozen
from leadline.core.workload import Parallelism, Recompute, Sharding
from leadline.estimators.parallelism.decoder_work import DecoderWork

LONG_SEQUENCE = 16_384
"""Tokens from which on sequences are divided (context parallelism)."""
MOST_STAGES = 64
LARGEST_BATCH = 16
MOST_CHUNKS = 8


class Layout(Frozen):
    """One way to spread a step of ``global_batch`` samples: partitioning, microbatches, recomputation.

    ``batch`` are the samples of a microbatch, and ``microbatches`` those of each replica.
    """

    plan: Parallelism
    batch: int
    microbatches: int
    recompute: Recompute


def candidate_layouts(
    work: DecoderWork, base: Parallelism, *, gpus: int, global_batch: int, island: int
) -> Iterator[Layout]:
    """Yield all sensible layouts of ``gpus`` GPUs; ``base`` gives the fusion, overlap and context method.

    Tensor parallelism stays inside an island and divides the width; pipeline stages have the same number of layers;
    experts are spread over the GPUs of a stage. ``work`` is that of any microbatch.
    """
    layers = round(work.attention_blocks)
    experts = max((item.experts for item in work.products), default=0)
    contexts = [size for size in _powers(16) if size == 1 or work.sequence / size >= LONG_SEQUENCE / 4]
    contexts = contexts if work.sequence >= LONG_SEQUENCE else [1]
    for tensor, pipeline, context in product(_powers(island), range(1, min(layers, MOST_STAGES) + 1), contexts):
        parts = tensor * pipeline * context
        if layers % pipeline or gpus % parts or (tensor > 1 and work.width % (128 * tensor)):
            continue
        replicas = gpus // parts
        if global_batch % replicas:
            continue
        shares = [
            size for size in _powers(experts) if experts % size == 0 and (replicas * context * tensor) % size == 0
        ]
        samples = global_batch // replicas
        for batch, expert in product((size for size in _powers(LARGEST_BATCH) if samples % size == 0), shares or [1]):
            microbatches = samples // batch
            for chunks in _chunks(layers, pipeline, microbatches):
                for sharding, recompute in product(_shardings(pipeline, replicas * context), Recompute):
                    plan = Parallelism(
                        tensor, pipeline, sharding, virtual=chunks, context=context, expert=expert,
                        context_method=base.context_method, fusion=base.fusion, overlap=base.overlap,
                    )  # fmt: skip
                    yield Layout(plan, batch, microbatches, recompute)


def _powers(most: int) -> list[int]:
    """Return the powers of two up to ``most``."""
    return [2**power for power in range(max(most, 0).bit_length())]


def _chunks(layers: int, pipeline: int, microbatches: int) -> list[int]:
    """Return the numbers of chunks of a stage; interleaving needs microbatches that the stages divide."""
    if pipeline == 1 or microbatches % pipeline:
        return [1]
    return [size for size in range(1, MOST_CHUNKS + 1) if layers % (pipeline * size) == 0]


def _shardings(pipeline: int, replicas: int) -> list[Sharding]:
    """Return the shardings worth a try: a pipeline would gather weights in each microbatch again."""
    if replicas == 1:
        return [Sharding.NONE]
    return [Sharding.OPTIMIZER] if pipeline > 1 else [Sharding.OPTIMIZER, Sharding.FULL]


def describe_layout(layout: Layout) -> str:
    """Return a layout in words that are also its options."""
    plan = layout.plan
    sizes = {
        "tensor": plan.tensor, "pipeline": plan.pipeline, "virtual stages": plan.virtual, "context": plan.context,
        "expert": plan.expert,
    }  # fmt: skip
    words = [f"{name} {size}" for name, size in sizes.items() if size > 1] or ["data parallelism alone"]
    return (
        f"{', '.join(words)}; sharding {plan.sharding.value}, {layout.microbatches} microbatches of {layout.batch}, "
        f"recompute {layout.recompute.value}"
    )
