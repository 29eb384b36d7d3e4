"""Settings of a run of a configuration: what the user asked for, defaults, and sentences about both."""

import math
from collections.abc import Iterator
from typing import Any

from leadline.core.errors import InvalidInput
from leadline.core.frozen import Frozen
from leadline.core.graph import OpGraph
from leadline.core.units import format_bytes
from leadline.core.workload import Optimizer, Phase, Precision, Workload
from leadline.graphs.hf_config.generation import CACHE_BLOCK, require_generator
from leadline.graphs.hf_config.quantization import (
    CheckpointQuantization,
    add_file_beside,
    chosen_quantization,
    read_quantization,
    stored_precision,
)
from leadline.graphs.hf_config.shape import EncoderDecoderShape, ModelShape, StackShape
from leadline.graphs.hf_config.weight_formats import ProductKernel, WeightFormat

DEFAULT_SEQUENCE = 2048
KEPT_IN_16_BITS = ("gptq", "aqlm", "eetq", "torchao", "hqq")
"""Quantizations beside which peft leaves all other weights in 16 bits."""


class RunSettings(Frozen):
    """Settings of a run, with defaults. ``assumed`` names each default.

    ``sequence`` is the tokens of a sample in a mean batch, ``longest`` in the longest batch. ``unnamed_dtype`` is a
    note about a checkpoint whose file names no dtype.
    """

    batch: int
    sequence: int
    longest: int
    precision: Precision
    optimizer: Optimizer
    assumed: tuple[str, ...]
    quantization: CheckpointQuantization | None = None
    unnamed_dtype: str = ""


def choose_settings(workload: Workload, shape: ModelShape, config: dict[str, Any]) -> RunSettings:
    """Fill in what the user left out, and list the assumptions."""
    assumed = []
    training = workload.phase is Phase.TRAINING
    batch, sequence = _batch_and_sequence(workload, shape)
    if batch is None:
        batch = 1
        assumed.append("batch 1")
    if sequence is None:
        sequence = min(shape.max_sequence, DEFAULT_SEQUENCE)
        if workload.generated is not None and shape.positions:
            sequence = max(1, min(sequence, shape.max_sequence - workload.generated + 1))
        assumed.append(f"sequence {sequence}")
    if isinstance(shape, EncoderDecoderShape) and shape.source is None:
        assumed.append("a target as long as the source")
    fed_tokens = sequence + (workload.generated or 1) - 1
    if workload.generated is not None and shape.positions and fed_tokens > shape.max_sequence:
        raise InvalidInput(
            f"--seq {sequence} and --generate {workload.generated} feed {fed_tokens} tokens, but this {shape.family} "
            f"has learned {shape.max_sequence} positions: ask for fewer"
        )
    quantization = _read_quantization(config, workload)
    precision, unnamed_dtype = _precision(workload, config, quantized=quantization is not None)
    if workload.precision is None:
        assumed.append(f"precision {precision.value}")
    optimizer = workload.optimizer or Optimizer.ADAMW
    if workload.optimizer is None and training:
        assumed.append("optimizer adamw")
    longest = max(sequence, workload.longest or 0)
    if shape.positions and longest > shape.max_sequence:
        raise InvalidInput(
            f"--seq-max {longest} is longer than the {shape.max_sequence} positions this {shape.family} has learned"
        )
    return RunSettings(batch, sequence, longest, precision, optimizer, tuple(assumed), quantization, unnamed_dtype)


def _read_quantization(config: dict[str, Any], workload: Workload) -> CheckpointQuantization | None:
    """Return the quantization of the checkpoint, or that which was chosen for inference.

    Refuse to train a checkpoint's quantized weights, or to quantize them once more.
    """
    config, reference = add_file_beside(config, workload.model.reference)
    quantization, chosen = read_quantization(config, reference), workload.quantization
    if quantization is None:
        return chosen_quantization(chosen) if chosen is not None and workload.phase is Phase.INFERENCE else None
    if chosen is not None:
        narrow = workload.precision is not None and workload.precision.is_narrow
        option = f"--precision {workload.precision}" if narrow else "--quantize"
        raise InvalidInput(f"{reference} is quantized already ({quantization.names}): leave {option} out")
    if workload.phase is Phase.TRAINING and workload.adapters is None:
        raise InvalidInput(
            f"{reference} is quantized ({quantization.names}), and such weights cannot be trained: train adapters with "
            "--lora, estimate --phase inference, or remove quantization_config to train unpacked weights"
        )
    return quantization


def _precision(workload: Workload, config: dict[str, Any], *, quantized: bool) -> tuple[Precision, str]:
    """Return the precision, and a note where the checkpoint's dtype decides it and is unknown."""
    if workload.precision is not None:
        return workload.precision, ""
    if workload.phase is Phase.TRAINING:
        return Precision.BF16, ""
    return stored_precision(config, workload.model.reference, quantized=quantized)


def _batch_and_sequence(workload: Workload, shape: ModelShape) -> tuple[int | None, int | None]:
    """Return the given batch and sequence, also from the shape of the first input."""
    batch, sequence = workload.batch, workload.sequence
    if workload.inputs:
        first = workload.inputs[0].shape
        batch = batch or first[0]
        sequence = sequence or (first[1] if len(first) == 2 else None)
    if workload.lengths is not None:
        sequence = math.ceil(workload.lengths.padded_mean(batch or 1))
    if shape.source is not None and workload.longest is not None:
        raise InvalidInput(f"--seq-max is for tokens of text, but this {shape.family} has none: leave it out")
    if isinstance(shape, StackShape) and shape.source is not None:
        return batch, shape.source.tokens
    if workload.generated is not None:
        require_generator(shape, workload.model.reference)
    if sequence is not None and shape.positions and sequence > shape.max_sequence:
        raise InvalidInput(
            f"--seq {sequence} is longer than the {shape.max_sequence} positions this {shape.family} has learned"
        )
    return batch, sequence


def describe_settings(workload: Workload, choices: RunSettings, graph: OpGraph, adapters: str) -> Iterator[str]:
    """Yield notes about assumptions: settings, weights in few bits, adapters, the lengths of batches, the cache."""
    if choices.assumed:
        yield f"assumed: {', '.join(choices.assumed)}"
    if choices.unnamed_dtype:
        yield choices.unnamed_dtype
    yield from _describe_quantization(workload, choices, graph)
    if workload.phase is Phase.TRAINING and choices.optimizer.paged:
        yield "the paged optimizer state is assumed to be on the host; the time to move it is not counted"
    yield from _describe_adapters(workload, choices, adapters)
    if choices.longest > choices.sequence:
        yield (
            f"the time is for batches of {choices.sequence} tokens per sample, the memory for the longest, "
            f"{choices.longest}, after shorter ones"
        )
    elif workload.longest is not None and workload.lengths is None:
        yield f"every batch is assumed to have {choices.longest} tokens per sample: give the mean with --seq"
    if workload.paged and workload.generated is not None:
        numbers = "" if workload.cache_dtype is None else f" in {workload.cache_dtype.value}"
        yield f"the KV cache is paged{numbers}: blocks of {CACHE_BLOCK} tokens, and new tokens are written in place"
    elif workload.generated is not None:
        yield "decoding is that of transformers' generate: eager ops, and a cache that is copied to grow"


def _describe_adapters(workload: Workload, choices: RunSettings, adapters: str) -> Iterator[str]:
    if workload.adapters is None:
        return
    yield adapters
    if workload.quantization is not None or widens_weights(choices.quantization):
        yield "embeddings, norms and the output layer are not quantized but in float32, as peft prepares them"


def _describe_quantization(workload: Workload, choices: RunSettings, graph: OpGraph) -> Iterator[str]:
    """Yield notes about the weights in few bits, and the kernel that is assumed for them."""
    quantization = choices.quantization
    if quantization is None:
        return
    owner = "checkpoint" if workload.quantization is None else "model"
    stored = f"the {owner} has {format_bytes(graph.parameter_bytes)} of weights, {quantization.names}"
    compute = choices.precision.compute
    kernels = {
        ProductKernel.FUSED: f"assumed: kernels unpack them on the way and multiply in {compute}",
        ProductKernel.UNPACKED: f"assumed: each is unpacked before its product in {compute}, as bitsandbytes does",
        ProductKernel.INT8: f"assumed: products of integers, as fast as those in {compute}",
        ProductKernel.SCALED: "activations are quantized as well, and products are in the same format",
    }
    yield f"{stored}; {kernels[quantization.formats[0][0].kernel]}"
    in_engine = workload.paged or quantization.formats[0][0].kernel is ProductKernel.SCALED
    if not in_engine or workload.phase is Phase.TRAINING:
        yield "no measured step has such weights: the interval of the time is wider"
    if quantization.formats[0][0].kernel is ProductKernel.FUSED:
        yield f"engines without such a kernel unpack all weights when loading, to {format_bytes(2 * graph.parameters)}"


def widens_weights(quantization: WeightFormat | CheckpointQuantization | None) -> bool:
    """Return whether peft keeps the other weights in float32 (``prepare_model_for_kbit_training``)."""
    method = quantization.method if isinstance(quantization, CheckpointQuantization) else "bitsandbytes"
    return quantization is not None and method not in KEPT_IN_16_BITS
