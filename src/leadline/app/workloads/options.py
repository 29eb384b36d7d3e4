"""The workload as options: one list with help and defaults, shared by the command line and workload files."""

import re
from pathlib import Path

import msgspec

from leadline.core.errors import InvalidInput, UnknownName
from leadline.core.frozen import Frozen
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


class OptionSpec(Frozen):
    """Help of an option, its default in words, the form of its value, and the part of the workload that it belongs to.

    The interfaces group the options by these parts. Values above ``most`` are typing errors: no job comes near them.
    """

    help: str
    default: str
    form: str = "N"
    part: str = "Model"
    least: int | None = None
    most: float | None = None


class OptionTables(Frozen):
    """What ``options.json`` says: each option, and kind of model → options without effect, and what to use instead."""

    options: dict[str, OptionSpec]
    without_effect: dict[ModelKind, tuple[tuple[str, ...], str]]


class WorkloadOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The options of a workload, for the command line and for workload files; ``None`` means not given.

    Each interface writes the names in its own style and takes the help texts from ``OPTION_TABLES``.
    """

    phase: str | None = None
    batch: int | None = None
    input: list[str] | str | None = None
    seq: int | None = None
    seq_max: int | None = None
    lengths: str | None = None
    generate: int | None = None
    paged: bool | None = None
    precision: str | None = None
    optimizer: str | None = None
    lora: int | None = None
    lora_embeddings: bool | None = None
    quantize: str | None = None
    accumulate: int | None = None
    checkpointing: bool | None = None
    compile: bool | None = None
    gpus: int | None = None
    tensor_parallel: int | None = None
    pipeline_parallel: int | None = None
    sharding: str | None = None
    network: str | None = None
    epochs: float | None = None
    steps: int | None = None
    samples: int | None = None
    bytes_per_sample: int | str | None = None
    workers: int | None = None
    load_s: float | None = None
    held_in_memory: bool | None = None
    name: str | None = None


OPTION_TABLES = msgspec.json.decode(Path(__file__).with_suffix(".json").read_bytes(), type=OptionTables)


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
