"""The workload as options: one list with help and defaults, shared by the command line and workload files.

Several options together give one part of a workload: its quantization, and its sequence lengths.
"""

import re
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from leadline.core.errors import InvalidInput, UnknownName
from leadline.core.frozen import Frozen
from leadline.core.workload import (
    CacheDtype,
    Launch,
    Lengths,
    ModelKind,
    NetworkRate,
    Optimizer,
    Phase,
    Precision,
    Quantization,
)
from leadline.files.read import read_input, read_input_text

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


T = TypeVar("T", bound=StrEnum)


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
    kv_cache_dtype: str | None = None
    precision: str | None = None
    attention: str | None = None
    loss: str | None = None
    launch: str | None = None
    optimizer: str | None = None
    lora: int | None = None
    lora_targets: str | None = None
    lora_embeddings: bool | None = None
    peft: str | None = None
    quantize: str | None = None
    accumulate: int | None = None
    checkpointing: bool | None = None
    recompute: str | None = None
    compile: bool | None = None
    trace_limit: int | None = None
    gpus: int | None = None
    power_limit: str | None = None
    tensor_parallel: int | None = None
    no_sequence_parallel: bool | None = None
    pipeline_parallel: int | None = None
    virtual_stages: int | None = None
    context_parallel: int | None = None
    context_method: str | None = None
    expert_parallel: int | None = None
    sharding: str | None = None
    shard_group: int | None = None
    fusion: str | None = None
    overlap: str | None = None
    layout: str | None = None
    global_batch: int | None = None
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


def parse_choice(kind: type[T], text: str | None, option: str) -> T | None:
    """Return the member of an enumeration that a word names; ``None`` without a word.

    Raises:
        UnknownName: no member has this name.
    """
    if text is None:
        return None
    try:
        return kind(text.lower())
    except ValueError as error:
        names = [member.value for member in kind]
        raise UnknownName(option, text, names, fix=f"--{option} takes {', '.join(names)}") from error


def build_quantization(
    options: WorkloadOptions, precision: Precision | None, kind: ModelKind, phase: Phase
) -> Quantization | None:
    """Return the storage format of the weights; ``None`` without ``--quantize``.

    In inference, a ``--precision`` in 8 bits or fewer is the format of that name.

    Raises:
        InvalidInput: the precision is float32; quantized weights are computed in 16 bits. Or the format is one of
            inference, and this is training.
        UnknownName: unknown format.
    """
    narrow = precision is not None and precision.is_narrow and phase is Phase.INFERENCE
    if options.quantize is None:
        return Quantization(precision.value) if narrow and precision is not None else None
    training = phase is Phase.TRAINING
    formats = [each.value for each in Quantization if each.is_for_adapters or not training]
    if options.quantize not in formats:
        where = "to train adapters" if training else "in inference"
        raise UnknownName("format", options.quantize, formats, fix=f"--quantize takes {', '.join(formats)} {where}")
    if kind is not ModelKind.HF_CONFIG:
        raise InvalidInput(f"--quantize {options.quantize} works for a config.json only: leave it out")
    if narrow or precision in (Precision.FP32, Precision.TF32):
        raise InvalidInput(
            f"--quantize {options.quantize} computes in 16 bits, but --precision is {precision}: "
            "use bf16, or fp16 where the device has no bf16"
        )
    return Quantization(options.quantize)


def read_cache_dtype(options: WorkloadOptions) -> CacheDtype | None:
    """Return the number format of the KV cache; ``None`` for that of the keys and values.

    Raises:
        InvalidInput: the cache is not in blocks.
        UnknownName: unknown format.
    """
    if options.kv_cache_dtype in (None, "auto"):
        return None
    if not options.paged:
        raise InvalidInput(
            f"--kv-cache-dtype {options.kv_cache_dtype} is for the cache of a serving engine: add --paged"
        )
    return parse_choice(CacheDtype, options.kv_cache_dtype, "kv-cache-dtype")


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


_LAUNCH = re.compile(r"(?P<time>\d{1,9}(?:\.\d{1,9})?)\s*(?P<unit>us|µs|μs|ms)")
LONGEST_LAUNCH_S = 0.01


def parse_launch(text: str | None) -> tuple[Launch, float | None]:
    """Read ``eager``, ``graphs``, or a time such as ``25us``; return how kernels are launched, and the time in seconds.

    Raises:
        InvalidInput: another word, or a time that no host takes.
    """
    words = [launch.value for launch in Launch]
    if text is None or text in words:
        return Launch(text or Launch.EAGER), None
    match = _LAUNCH.fullmatch(text.strip())
    seconds = float(match["time"]) * (1e-3 if match["unit"] == "ms" else 1e-6) if match else 0.0
    if not 0 < seconds <= LONGEST_LAUNCH_S:
        raise InvalidInput(
            f"--launch {text[:40]!r} cannot be used: write {' or '.join(words)}, or the host's time for an op, as in "
            "25us"
        )
    return Launch.EAGER, seconds


_POWER = re.compile(r"(?P<value>\d+(?:\.\d+)?)\s*(?P<unit>k?W)", re.IGNORECASE)


def parse_power_limit(text: str) -> float:
    """Read the power limit of each GPU, ``300W`` or ``0.7kW``, in W.

    Raises:
        InvalidInput: not a power with its unit, or 0.
    """
    match = _POWER.fullmatch(text.strip())
    limit_w = float(match["value"]) * (1e3 if match["unit"][0] in "kK" else 1) if match else 0.0
    if not 0 < limit_w < LARGEST_POWER_W:
        raise InvalidInput(f"--power-limit {text[:40]!r} is no power limit: write the watts of each GPU, as in 300W")
    return limit_w


LARGEST_POWER_W = 1e5  # more is a typing error
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


QUANTILES = 200
"""Number of quantiles that summarize the lengths of a data set."""
LONGEST = 10**9
"""Upper limit of a sample's length; more is a typing error."""


def read_lengths(path: Path) -> Lengths:
    """Read the tokens of each sample: one number per line, or a one-dimensional numpy array.

    Raises:
        InvalidInput: the file is missing, or holds anything but positive whole numbers.
    """
    label = f"--lengths {path}"
    if path.suffix == ".npy":
        # Every command that takes a workload imports this module, and few read a file of lengths.
        from leadline.files.arrays import read_array  # noqa: PLC0415 - numpy loads on use

        values: NDArray[Any] = read_array(read_input(path, label=label), label)
    else:
        values = _numbers(read_input_text(path, label=label), label)
    if values.ndim != 1 or not values.size or values.dtype.kind not in "iu":
        raise InvalidInput(
            f"--lengths {path} must be one-dimensional and hold whole numbers, the tokens of each sample"
        )
    if not 0 < int(values.min()) <= int(values.max()) <= LONGEST:
        raise InvalidInput(
            f"--lengths {path} has lengths from {int(values.min())} to {int(values.max())}, but each "
            f"must be between 1 and {LONGEST:,}"
        )
    return length_quantiles(values)


def length_quantiles(values: "NDArray[np.integer]") -> Lengths:
    """Return the midpoints of ``QUANTILES`` even parts of sample lengths (n,); all of them if there are fewer."""
    import numpy as np  # noqa: PLC0415 - numpy loads on use

    ordered = np.sort(values)
    parts = min(QUANTILES, ordered.size)
    middles = ((np.arange(parts) + 0.5) / parts * ordered.size).astype(int)
    return Lengths(tuple(int(length) for length in ordered[middles]), int(ordered[-1]))


def _numbers(content: str, label: str) -> "NDArray[np.integer]":
    import numpy as np  # noqa: PLC0415 - numpy loads on use

    lengths: list[int] = []
    for number, line in enumerate(content.splitlines(), 1):
        text = line.strip()
        if text and not text.isdecimal():
            raise InvalidInput(f"{label} line {number} is {text[:20]!r}: write the tokens of one sample")
        if text:
            # Python refuses to convert thousands of digits
            digits = text.lstrip("0") or "0"
            lengths.append(2 * LONGEST if len(digits) > len(str(LONGEST)) else min(int(digits), 2 * LONGEST))
    return np.array(lengths, dtype=np.int64)


class BatchLengths(Frozen):
    """Tokens of the mean and the longest batch, and the lengths of the samples; ``None`` where not given."""

    sequence: int | None
    longest: int | None
    lengths: Lengths | None = None


def read_batch_lengths(options: WorkloadOptions, kind: ModelKind) -> BatchLengths:
    """Return the batch lengths that the options give.

    Raises:
        InvalidInput: the model is no ``config.json``, options contradict each other, or the file cannot be used.
    """
    for name in ("seq_max", "lengths"):
        if getattr(options, name) is not None:
            _require_use(name, options, kind)
    if options.lengths is None:
        if options.seq_max is not None and options.seq is not None and options.seq_max < options.seq:
            raise InvalidInput(
                f"--seq-max is {options.seq_max}, but it must be at least --seq ({options.seq}), the mean"
            )
        return BatchLengths(options.seq or options.seq_max, options.seq_max)
    if options.seq is not None:
        raise InvalidInput("--seq and --lengths both give the batch lengths: leave one out")

    lengths = read_lengths(Path(options.lengths))
    if options.seq_max is not None:
        lengths = lengths.truncated(options.seq_max)
    return BatchLengths(None, lengths.longest, lengths)


def _require_use(name: str, options: WorkloadOptions, kind: ModelKind) -> None:
    option = f"--{name.replace('_', '-')} is {getattr(options, name)}"
    if kind is ModelKind.COMMAND:
        raise InvalidInput(f"{option}, but the batches of a script are measured: leave it out")
    if kind is not ModelKind.HF_CONFIG:
        raise InvalidInput(
            f"{option}, but it works for a config.json only: give the shape of the longest batch with --input"
        )
    if options.generate is not None:
        raise InvalidInput(f"{option}, but --generate uses prompts of one length: give the longest with --seq")
