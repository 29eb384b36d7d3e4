"""The workload as options: one list with help and defaults, shared by the command line and workload files."""

import re
from typing import Annotated

import msgspec

from leadline.core.errors import InvalidInput, UnknownName
from leadline.core.workload import (
    Adapters,
    ModelKind,
    NetworkRate,
    Optimizer,
    Parallelism,
    Phase,
    Precision,
    Quantization,
)

MODEL, DIVIDED, LENGTH, DATA = "Model", "Model over several GPUs", "Length of the job", "Data"
"""The parts of a workload, in which faces group its options."""


def _option(description: str, *, default: str, form: str = "N", part: str = MODEL) -> msgspec.Meta:
    """Describe an option: its help, its default in words, how its value looks, and its section."""
    return msgspec.Meta(description=description, extra={"default": default, "form": form, "part": part})


_SCRIPT = "the script's own"


class WorkloadOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The options of a workload, for the command line and for workload files; ``None`` means not given.

    Each interface writes the names in its own style and takes the help texts from here.
    """

    phase: Annotated[str | None, _option("Kind of job: training or inference.", default="training", form="PHASE")] = (
        None
    )
    batch: Annotated[
        int | None, _option("Samples per GPU and micro-step.", default=f"{_SCRIPT}, or that of --input; else 1")
    ] = None
    input: Annotated[
        list[str] | str | None,
        _option(
            "Shape of a model input, batch first: 64x3x224x224 or 8x512:int64; once per input.",
            default="none; required for a model function",
            form="SHAPE",
        ),
    ] = None
    seq: Annotated[
        int | None, _option("Tokens per sample.", default="the model's maximum, at most 2,048; else the script's own")
    ] = None
    seq_max: Annotated[
        int | None,
        _option(
            "Tokens of the longest batch of a config.json. It decides the memory; --seq, the mean, decides the time.",
            default="that of --seq",
        ),
    ] = None
    lengths: Annotated[
        str | None,
        _option(
            "File of sample lengths in tokens, one per line or an .npy array; replaces --seq and --seq-max.",
            default="none",
            form="FILE",
        ),
    ] = None
    generate: Annotated[
        int | None,
        _option(
            "Tokens to generate after each prompt of --seq tokens, with a KV cache (inference of a config.json).",
            default="none: one pass over --seq tokens",
        ),
    ] = None
    paged: Annotated[
        bool | None,
        _option(
            "With --generate, keep the KV cache in blocks of 16 tokens, as vLLM does (paged attention).",
            default="no: one tensor per layer, as transformers does",
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
            "Optimizer: sgd, momentum, adam, adamw, adagrad, rmsprop or lion; for a config.json also "
            "bitsandbytes' adamw8bit, paged-adamw or paged-adamw8bit.",
            default=f"{_SCRIPT}; else adamw",
            form="NAME",
        ),
    ] = None
    lora: Annotated[
        int | None,
        _option(
            "Train low-rank adapters of this rank on all linear layers but the output layer (peft's "
            "all-linear); the weights of the config.json are frozen.",
            default="train all weights",
            form="RANK",
        ),
    ] = None
    lora_embeddings: Annotated[
        bool | None,
        _option("With --lora, train the embedding and output layers in full (modules_to_save).", default="no"),
    ] = None
    quantize: Annotated[
        str | None,
        _option(
            "With --lora, keep the frozen weights in 8bit or 4bit, as bitsandbytes does (QLoRA).",
            default="as --precision says",
            form="BITS",
        ),
    ] = None
    accumulate: Annotated[int | None, _option("Micro-steps per optimizer step.", default=f"{_SCRIPT}; else 1")] = None
    checkpointing: Annotated[
        bool | None, _option("Recompute activations in the backward pass.", default=f"{_SCRIPT}; else no")
    ] = None
    compile: Annotated[
        bool | None,
        _option("Compile a JAX function with XLA for each device; the device need not be present.", default="no"),
    ] = None
    gpus: Annotated[
        int | None, _option("GPUs of the whole job.", default="one per process of the launcher; else 1")
    ] = None
    tensor_parallel: Annotated[int | None, _option("GPUs that share each layer.", default="1", part=DIVIDED)] = None
    pipeline_parallel: Annotated[int | None, _option("Stages that share the layers.", default="1", part=DIVIDED)] = None
    sharding: Annotated[
        str | None,
        _option(
            "Shards across replicas: none, optimizer, gradients or full (ZeRO, FSDP).",
            default="none",
            form="WHAT",
            part=DIVIDED,
        ),
    ] = None
    network: Annotated[
        str | None,
        _option(
            "Network bandwidth in one direction, of a node (3200Gb/s, 400GB/s) or of each GPU (400Gb/s/gpu).",
            default="that of the system; else the usual one of the GPU's generation, with a wider interval",
            form="RATE",
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
    load_s: Annotated[
        float | None,
        _option(
            "Seconds in which one loader process makes a batch; 0 if the data is ready.",
            default="measured on this machine while a script is traced; else not counted",
            form="SECONDS",
            part=DATA,
        ),
    ] = None
    held_in_memory: Annotated[
        bool | None, _option("Keep the whole data set in host memory.", default="no", part=DATA)
    ] = None
    name: Annotated[str | None, _option("Job name.", default="the name of the file or script", form="NAME")] = None


def build_adapters(options: WorkloadOptions, kind: ModelKind, phase: Phase, plan: Parallelism) -> Adapters | None:
    """Return the adapters of the options; ``None`` without ``--lora``.

    Raises:
        InvalidInput: the model has no adapters, or another option contradicts them.
    """
    if options.lora is None:
        for name in ("lora_embeddings", "quantize"):
            if getattr(options, name):
                raise InvalidInput(f"--{name.replace('_', '-')} needs adapters: add --lora RANK")
        return None
    if kind is not ModelKind.HF_CONFIG:
        raise InvalidInput(
            f"--lora is {options.lora}, but only a config.json can be adapted: a script or function is traced as it is"
        )
    if phase is not Phase.TRAINING:
        raise InvalidInput("--lora trains adapters: leave it out of inference, where they are merged into the weights")
    if plan.tensor * plan.pipeline > 1:
        raise InvalidInput("--lora does not work with --tensor-parallel or --pipeline-parallel: use --sharding")
    return Adapters(options.lora, embeddings=bool(options.lora_embeddings))


def build_quantization(options: WorkloadOptions, precision: Precision | None) -> Quantization | None:
    """Return the storage format of frozen weights; ``None`` without ``--quantize``.

    Raises:
        InvalidInput: the precision is float32; quantized weights are computed in 16 bits.
        UnknownName: unknown format.
    """
    if options.quantize is None:
        return None
    formats = [quantization.value for quantization in Quantization]
    if options.quantize not in formats:
        raise UnknownName("format", options.quantize, formats, fix="--quantize takes 8bit or 4bit")
    if precision in (Precision.FP32, Precision.TF32):
        raise InvalidInput(
            f"--quantize {options.quantize} computes in 16 bits, but --precision is {precision.value}: "
            "use bf16, or fp16 where the device has no bf16"
        )
    return Quantization(options.quantize)


_RATE = re.compile(
    r"(?P<rate>\d+(?:\.\d+)?)\s*(?P<unit>[GT]b(?:it)?)(?:/s|ps)(?P<scope>\s*(?:/|per)\s*(?:gpu|node))?", re.IGNORECASE
)


def parse_network_rate(text: str) -> NetworkRate:
    """Read ``3200Gb/s`` (or ``Gbps``, ``GB/s``, ``Tb/s``), of a node, or of each GPU with ``/gpu`` behind.

    Raises:
        InvalidInput: not a rate, or one without a unit or that no network has.
    """
    match = _RATE.fullmatch(text.strip())
    fix = "write a rate with its unit, as in 3200Gb/s or 400GB/s of a node, or 400Gb/s/gpu"
    if match is None:
        raise InvalidInput(f"--network {text[:40]!r} is not a bandwidth: {fix}")
    unit = match["unit"]
    scale = (1e12 if unit[0] in "Tt" else 1e9) / (1 if unit.endswith("B") else 8)
    bytes_per_s = float(match["rate"]) * scale
    if not LEAST_NETWORK <= bytes_per_s <= LARGEST_NETWORK:
        raise InvalidInput(f"--network {text[:40]!r} is no bandwidth of a network: {fix}")
    return NetworkRate(bytes_per_s, per_gpu="gpu" in (match["scope"] or "").casefold())


LEAST_NETWORK, LARGEST_NETWORK = 1e6, 1e14  # bytes/s: values outside are typing errors


def check_optimizer(optimizer: Optimizer | None, kind: ModelKind) -> None:
    """Refuse bitsandbytes' optimizers where PyTorch's own are traced.

    Raises:
        InvalidInput: the model is not a ``config.json``.
    """
    if optimizer is not None and optimizer.from_bitsandbytes and kind is not ModelKind.HF_CONFIG:
        raise InvalidInput(
            f"--optimizer {optimizer.value} works for a config.json only: use it in your script, "
            "which is traced as it is"
        )
