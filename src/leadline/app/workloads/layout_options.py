"""Options of a workload that divide a training step over GPUs, and of what it computes again or in 8 bits."""

from leadline.app.workloads.options import WorkloadOptions, parse_choice
from leadline.core.errors import InvalidInput, UnknownName
from leadline.core.workload import (
    ContextMethod,
    Fusion,
    ModelKind,
    Overlap,
    Parallelism,
    Phase,
    Precision,
    Recompute,
    Sharding,
)

TRAINING_ONLY = ("sharding", "context_parallel", "expert_parallel", "recompute", "virtual_stages", "layout")


def read_parallelism(options: WorkloadOptions) -> Parallelism:
    """Return how the options divide the model over GPUs.

    Raises:
        InvalidInput: two options contradict each other.
        UnknownName: unknown word of an option.
    """
    needs = (
        ("virtual_stages", "pipeline_parallel"), ("no_sequence_parallel", "tensor_parallel"),
        ("context_method", "context_parallel"), ("shard_group", "sharding"),
    )  # fmt: skip
    for name, other in needs:
        if getattr(options, name) is not None and getattr(options, other) in (None, 1, "none"):
            option, needed = (f"--{word.replace('_', '-')}" for word in (name, other))
            raise InvalidInput(f"{option} has no effect without {needed}: add it or leave {option} out")
    return Parallelism(
        tensor=options.tensor_parallel or 1,
        pipeline=options.pipeline_parallel or 1,
        sharding=parse_choice(Sharding, options.sharding, "sharding") or Sharding.NONE,
        sequence=not options.no_sequence_parallel,
        virtual=options.virtual_stages or 1,
        context=options.context_parallel or 1,
        context_method=parse_choice(ContextMethod, options.context_method, "context method") or ContextMethod.RING,
        expert=options.expert_parallel or 1,
        shard_group=options.shard_group or 0,
        fusion=parse_choice(Fusion, options.fusion, "fusion"),
        overlap=parse_choice(Overlap, options.overlap, "overlap"),
    )


def check_layout(options: WorkloadOptions, kind: ModelKind, phase: Phase) -> None:
    """Refuse layouts of training in inference, and an automatic layout beside options that it chooses.

    Refuse Liger Kernel where no op graph by formula shows it.

    Raises:
        InvalidInput: two options contradict each other.
        UnknownName: unknown word of ``--layout``.
    """
    for name in TRAINING_ONLY if phase is not Phase.TRAINING else ():
        if getattr(options, name) is not None:
            raise InvalidInput(f"--{name.replace('_', '-')} is for training: leave it out of inference")
    if options.fusion == Fusion.LIGER and (kind is not ModelKind.HF_CONFIG or phase is not Phase.TRAINING):
        raise InvalidInput("--fusion liger is for the training of a config.json: leave it out")
    if options.layout not in (None, "auto"):
        raise UnknownName("layout", options.layout, ["auto"])
    if options.layout is None and options.global_batch is not None:
        raise InvalidInput("--global-batch is for --layout auto: add it, or give --batch and --accumulate")
    chosen = ("tensor_parallel", "pipeline_parallel", "virtual_stages", "context_parallel", "expert_parallel",
              "sharding", "recompute", "checkpointing")  # fmt: skip
    for name in chosen if options.layout else ():
        if getattr(options, name) is not None:
            raise InvalidInput(f"--layout auto chooses --{name.replace('_', '-')}: leave one of them out")


def read_recompute(options: WorkloadOptions) -> Recompute:
    """Return the activations that are computed again.

    Raises:
        InvalidInput: ``--checkpointing`` and ``--recompute`` contradict each other.
        UnknownName: unknown word of ``--recompute``.
    """
    recompute = parse_choice(Recompute, options.recompute, "recompute")
    if options.checkpointing and recompute not in (None, Recompute.FULL):
        raise InvalidInput(
            f"--checkpointing computes all activations again, but --recompute is {recompute.value}: leave one out"
        )
    return recompute or (Recompute.FULL if options.checkpointing else Recompute.NONE)


def check_narrow_products(precision: Precision | None, kind: ModelKind, options: WorkloadOptions) -> None:
    """Refuse products in 8 bits or fewer where no prediction covers them.

    Raises:
        InvalidInput: not the inference of a ``config.json``, or the training of all its weights.
    """
    if precision is None or not precision.is_narrow:
        return
    option = f"--precision {precision.value}"
    if options.lora is not None:
        raise InvalidInput(f"{option} trains all weights, but --lora trains adapters: leave one out")
    if kind is not ModelKind.HF_CONFIG:
        raise InvalidInput(f"{option} covers the model of a config.json: give another --precision")
