"""The workload as options: what each is and what holds without it, in one list for every face."""

from typing import Annotated

import msgspec

from leadline.core.errors import InvalidInput, UnknownName
from leadline.core.workload import Adapters, ModelKind, Optimizer, Parallelism, Phase, Precision, Quantization

MODEL, DIVIDED, LENGTH, DATA = "Model", "Model over several GPUs", "Length of the job", "Data"
"""The parts of a workload, in which faces group its options."""


def _option(what: str, *, default: str, form: str = "N", part: str = MODEL) -> msgspec.Meta:
    """Describe an option for every face: what it is, what holds without it, how its value looks, where it belongs."""
    return msgspec.Meta(description=what, extra={"default": default, "form": form, "part": part})


_SCRIPT = "the script's own"


class WorkloadOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The workload as options: the one list of them, for the command line and for workload files.

    Each face writes the names with its own punctuation and takes the descriptions from here. ``None`` is not given.
    """

    phase: Annotated[
        str | None, _option("What the job does: training or inference.", default="training", form="PHASE")
    ] = None
    batch: Annotated[
        int | None, _option("Samples per GPU and micro-step.", default=f"{_SCRIPT}, or of --input; else 1")
    ] = None
    input: Annotated[
        list[str] | str | None,
        _option(
            "Shape of an input of the model, batch first: 64x3x224x224 or 8x512:int64; once for each input.",
            default="none; a model function needs it",
            form="SHAPE",
        ),
    ] = None
    seq: Annotated[
        int | None, _option("Tokens per sample.", default="the model's maximum, at most 2,048; else the script's own")
    ] = None
    seq_max: Annotated[
        int | None,
        _option(
            "Tokens of the longest batch of a config.json, where each is padded to its longest sample: it decides the "
            "memory, and --seq, the tokens of a mean batch, the time.",
            default="that of --seq: all batches are as long",
        ),
    ] = None
    lengths: Annotated[
        str | None,
        _option(
            "Tokens of the samples of your data set, one number a line or an .npy array: they say --seq and --seq-max.",
            default="none",
            form="FILE",
        ),
    ] = None
    generate: Annotated[
        int | None,
        _option(
            "Tokens to generate after each prompt of --seq tokens, with a KV cache; inference of a config.json.",
            default="none: one pass over --seq tokens",
        ),
    ] = None
    paged: Annotated[
        bool | None,
        _option(
            "Beside --generate, keep the KV cache in blocks of 16 tokens, as vLLM does (paged attention).",
            default="no: one tensor a layer, as transformers does",
        ),
    ] = None
    precision: Annotated[
        str | None,
        _option(
            "Number format: fp32, tf32, fp16, bf16, amp-fp16 or amp-bf16.",
            default=f"bf16 for a configuration; {_SCRIPT}; else fp32",
            form="FORMAT",
        ),
    ] = None
    optimizer: Annotated[
        str | None,
        _option(
            "Update rule: sgd, momentum, adam, adamw, adagrad, rmsprop or lion; for a config.json also bitsandbytes' "
            "adamw8bit, paged-adamw or paged-adamw8bit.",
            default=f"{_SCRIPT}; else adamw",
            form="NAME",
        ),
    ] = None
    lora: Annotated[
        int | None,
        _option(
            "Train low-rank adapters of this rank on all linear layers but the output layer (peft's all-linear), the "
            "weights of a config.json frozen.",
            default="all weights are trained",
            form="RANK",
        ),
    ] = None
    lora_embeddings: Annotated[
        bool | None,
        _option("Beside --lora, train the embedding and the output layer whole (modules_to_save).", default="no"),
    ] = None
    quantize: Annotated[
        str | None,
        _option(
            "Beside --lora, keep the frozen weights in 8bit or 4bit, as bitsandbytes does (QLoRA).",
            default="as --precision says",
            form="BITS",
        ),
    ] = None
    accumulate: Annotated[int | None, _option("Micro-steps per optimizer step.", default=f"{_SCRIPT}; else 1")] = None
    checkpointing: Annotated[
        bool | None, _option("Recompute activations in backward.", default=f"{_SCRIPT}; else no")
    ] = None
    compile: Annotated[
        bool | None, _option("Compile a JAX function with XLA for each device, which need not be here.", default="no")
    ] = None
    gpus: Annotated[int | None, _option("GPUs of the whole job.", default="one a process of the launcher; else 1")] = (
        None
    )
    tensor_parallel: Annotated[int | None, _option("GPUs that share each layer.", default="1", part=DIVIDED)] = None
    pipeline_parallel: Annotated[int | None, _option("Stages that share the layers.", default="1", part=DIVIDED)] = None
    sharding: Annotated[
        str | None,
        _option(
            "What copies of the model share out: none, optimizer, gradients or full (ZeRO, FSDP).",
            default="none",
            form="WHAT",
            part=DIVIDED,
        ),
    ] = None
    epochs: Annotated[float | None, _option("Passes over the data set.", default=f"{_SCRIPT}; else 1", part=LENGTH)] = (
        None
    )
    steps: Annotated[
        int | None, _option("Optimizer steps of the whole job.", default="from epochs and samples; else 1", part=LENGTH)
    ] = None
    samples: Annotated[int | None, _option("Samples in the data set.", default=_SCRIPT, part=LENGTH)] = None
    bytes_per_sample: Annotated[
        int | str | None,
        _option(
            "Stored size of a sample, such as 110KB.", default=f"{_SCRIPT}; else not counted", form="SIZE", part=DATA
        ),
    ] = None
    workers: Annotated[int | None, _option("Processes that load data.", default=f"{_SCRIPT}; else 0", part=DATA)] = None
    held_in_memory: Annotated[
        bool | None, _option("The whole data set is kept in host memory.", default="no", part=DATA)
    ] = None
    name: Annotated[
        str | None,
        _option("What the job is called.", default="its file's or its script's", form="NAME"),
    ] = None


def build_adapters(given: WorkloadOptions, kind: ModelKind, phase: Phase, plan: Parallelism) -> Adapters | None:
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


def build_quantization(given: WorkloadOptions, precision: Precision | None) -> Quantization | None:
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


def check_optimizer(optimizer: Optimizer | None, kind: ModelKind) -> None:
    """Refuse bitsandbytes' update rules where a step is traced with PyTorch's own.

    Raises:
        InvalidInput: the model is not a ``config.json``.
    """
    if optimizer is not None and optimizer.from_bitsandbytes and kind is not ModelKind.HF_CONFIG:
        raise InvalidInput(
            f"--optimizer {optimizer.value} is known for a config.json only: write it into your script, "
            "which is traced as it is"
        )
