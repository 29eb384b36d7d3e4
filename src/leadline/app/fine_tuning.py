"""How a workload is fine-tuned: adapters, frozen weights in few bits; what does not go together is refused."""

from leadline.app.workload_options import WorkloadOptions
from leadline.core.errors import InvalidInput, UnknownName
from leadline.core.workload import Adapters, ModelKind, Optimizer, Parallelism, Phase, Precision, Quantization


def adapters_of(given: WorkloadOptions, kind: ModelKind, phase: Phase, plan: Parallelism) -> Adapters | None:
    """Return the adapters that the options ask for.

    Raises:
        InvalidInput: nothing adapts such a model, or another option contradicts it.
    """
    if given.lora is None:
        for name in ("lora_embeddings", "quantize"):
            if getattr(given, name):
                raise InvalidInput(f"--{name.replace('_', '-')} belongs to adapters: add their rank, as in --lora 16")
        return None
    if kind is not ModelKind.HF_CONFIG:
        raise InvalidInput(
            f"--lora is {given.lora}, but only a config.json is adapted: what a script or function does with its "
            "weights is traced as it is, so leave it out"
        )
    if phase is not Phase.TRAINING:
        raise InvalidInput("--lora trains adapters: leave it out of inference, where they are merged into the weights")
    if plan.tensor * plan.pipeline > 1:
        raise InvalidInput(
            "--lora goes with neither --tensor-parallel nor --pipeline-parallel, which do not divide adapters: "
            "share out by --sharding"
        )
    return Adapters(given.lora, embeddings=bool(given.lora_embeddings))


def quantization_of(given: WorkloadOptions, precision: Precision | None) -> Quantization | None:
    """Return how frozen weights are stored.

    Raises:
        InvalidInput: the arithmetic is in float32, for which they are not unpacked.
        UnknownName: no such format.
    """
    if given.quantize is None:
        return None
    known = [one.value for one in Quantization]
    if given.quantize not in known:
        raise UnknownName("format", given.quantize, known, fix="--quantize takes 8bit or 4bit")
    if precision in (Precision.FP32, Precision.TF32):
        raise InvalidInput(
            f"--quantize {given.quantize} computes in 16 bits, but --precision is {precision.value}: "
            "take bf16, or fp16 where the device has no bf16"
        )
    return Quantization(given.quantize)


def require_rule(optimizer: Optimizer | None, kind: ModelKind) -> None:
    """Refuse bitsandbytes' update rules where a step is traced with PyTorch's own.

    Raises:
        InvalidInput: the model is not a ``config.json``.
    """
    if optimizer is not None and optimizer.from_bitsandbytes and kind is not ModelKind.HF_CONFIG:
        raise InvalidInput(
            f"--optimizer {optimizer.value} is known for a config.json only: write it into your script, "
            "which is traced as it is"
        )
