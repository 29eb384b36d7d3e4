"""Expand a configuration file into a traced job: read sizes, fill in defaults, run the model on a tape."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from leadline.core.documents import parse_json
from leadline.core.errors import InvalidInput
from leadline.core.frozen import Frozen
from leadline.core.graph import LoopFacts, OpGraph, OpKind, Stage, TracedJob
from leadline.core.workload import (
    AttentionImplementation,
    Fusion,
    LossKernel,
    Phase,
    Precision,
    Quantization,
    Workload,
)
from leadline.files.read import read_input_text
from leadline.graphs.hf_config.families import (
    FAMILIES,
    LIGER_FAMILIES,
    read_attention,
    read_model_shape,
    use_attention,
    use_engine_attention,
)
from leadline.graphs.hf_config.fields import model_values
from leadline.graphs.hf_config.generation import CACHE_BLOCK, CacheLayout, cache_layout, expand_decode_steps
from leadline.graphs.hf_config.model import TransformerModel
from leadline.graphs.hf_config.modules import ModelBuilder
from leadline.graphs.hf_config.optimizer import hold_states, update_weights
from leadline.graphs.hf_config.peft_methods import AdapterPlan
from leadline.graphs.hf_config.quantization import MOST_CONFIG_BYTES, CheckpointQuantization
from leadline.graphs.hf_config.run_settings import RunSettings, choose_settings, describe_settings, widens_weights
from leadline.graphs.hf_config.shape import ModelShape, StackShape
from leadline.graphs.hf_config.tape import Tape
from leadline.graphs.hf_config.vision import read_vision
from leadline.graphs.hf_config.weight_formats import INT8, WeightFormat, bitsandbytes_4bit


def expand(workload: Workload, *, device_type: str = "cuda") -> TracedJob:
    """Expand a Hugging Face ``config.json`` into one step: ops with counts, and the memory they hold.

    In inference, the step is one forward pass over the whole sequence (a prefill). If tokens are generated, it scores
    the last token alone, and the decode steps come with it. Neither torch nor transformers is needed. Layers run one
    after the other on a tape, so that memory events keep the order of the eager model.

    Defaults, each named in a note: one sample per batch, a sequence of the model's maximum up to 2,048 tokens, bf16
    with AdamW in training, the configuration's own dtype in inference. The ``quantization_config`` of a checkpoint
    holds in inference and under adapters. Training keeps keys and values unless the file has ``"use_cache": false``.

    Raises:
        InvalidInput: The file cannot be read, a size is not usable, the sequence is longer than the model's, a model
            cannot generate, adapters are for a model of images or sounds, or the quantization is unknown.
        UnknownName: The ``model_type`` is unknown.
    """
    config = read_config(workload.model.reference)
    shape, shape_notes = _read_shape(workload, config)
    choices = choose_settings(workload, shape, config)
    _check_shape(workload, shape, config, choices)
    caching = workload.phase is Phase.INFERENCE or next(model_values(config, "use_cache"), True) is not False
    run = _Run(workload, shape, choices, cuda=device_type == "cuda", caching=caching)
    graph, layout, adapters = run.prefill(choices.sequence)
    between = (choices.sequence + choices.longest) // 2
    longer = [run.prefill(length)[0] for length in (between, choices.longest) if length > choices.sequence]
    loop = LoopFacts(
        batch=choices.batch,
        accumulation=workload.accumulation,
        bytes_per_sample=None if shape.source is not None else 8 * choices.sequence,
        precision=choices.precision.value,
        optimizer=choices.optimizer.value if workload.phase is Phase.TRAINING else None,
    )
    notes = (*describe_settings(workload, choices, graph, adapters), *shape_notes)
    has_states = isinstance(shape, StackShape) and any(layer.attention.state_space for layer in shape.layers)
    unmeasured = choices.quantization is not None or has_states
    if workload.generated is None:
        return TracedJob(graph, loop, notes=notes, low_confidence=unmeasured, longer=tuple(longer))
    generation = expand_decode_steps(run.decode, layout, choices.sequence, workload.generated)
    return TracedJob(graph, loop, notes=notes, low_confidence=unmeasured, generation=generation)


def _read_shape(workload: Workload, config: dict[str, Any]) -> tuple[ModelShape, list[str]]:
    """Return the shape with its images and its attention, and notes about what was assumed or left out."""
    reference = workload.model.reference
    shape, missing_fields = read_model_shape(_language_model_config(config), reference)
    vision, vision_note = read_vision(config, reference)
    if isinstance(shape, StackShape):
        shape = shape._replace(vision=vision)
    named, eager_until = read_attention(config, reference), FAMILIES[shape.family][1].eager_until
    kernel = workload.attention or named or (AttentionImplementation.EAGER if eager_until else None)
    if kernel is not None:
        shape = use_attention(shape, kernel)
    if workload.paged and kernel is None:
        shape = use_engine_attention(shape)
    notes = [vision_note] if vision_note else []
    if missing_fields:
        notes.append(f"{reference} leaves out {', '.join(missing_fields)}: published defaults are used")
    if workload.parallelism.fusion is Fusion.LIGER and shape.family in ("mixtral", "qwen3_moe"):
        notes.append("Liger Kernel's experts hold less for the backward pass than is counted")
    if config.get("num_nextn_predict_layers"):
        notes.append("the layers for multi-token prediction are not counted: transformers does not load them")
    if workload.attention is None and kernel is not None:
        reason = f"the attention is {kernel.value}, as {reference} says"
        if named is None:
            reason = (
                f"assumed: eager attention, as in transformers up to {eager_until}; with sdpa, which newer releases "
                f"have for {shape.family}, it needs less memory"
            )
        notes.append(f"{reason}; set it with --attention")
    if isinstance(shape, StackShape) and any(layer.attention.state_space for layer in shape.layers):
        notes.append("assumed: state-space layers run the kernels of mamba-ssm; no measured step has such layers")
    return shape, notes


def _check_shape(workload: Workload, shape: ModelShape, config: dict[str, Any], choices: RunSettings) -> None:
    """Refuse options that the model has no use for, or no room."""
    if workload.adapters is not None and shape.source is not None:
        raise InvalidInput(f"--lora adapts language models, not this {shape.family}: leave it out")
    head = shape.head
    if workload.loss is LossKernel.FUSED and (not head.outputs or head.transform or head.pooled or head.bias):
        raise InvalidInput(f"--loss fused is for models that predict the next token, not this {shape.family}")
    if workload.parallelism.fusion is Fusion.LIGER and shape.family not in LIGER_FAMILIES:
        raise InvalidInput(f"Liger Kernel has no kernels for {shape.family}: leave out --fusion liger")
    vision = shape.vision if isinstance(shape, StackShape) else None
    if vision is not None and choices.sequence < vision.tokens:
        raise InvalidInput(f"--seq {choices.sequence} is shorter than one image, which has {vision.tokens} tokens")
    attention = workload.attention or read_attention(config, workload.model.reference)
    if attention is AttentionImplementation.FLASH and choices.precision.compute in ("float32", "tf32"):
        raise InvalidInput(
            f"flash attention computes in 16 bits, but --precision is {choices.precision.value}: use --attention sdpa"
        )


def read_config(reference: str) -> dict[str, Any]:
    """Read a configuration by its path, or by the folder that holds it.

    Raises:
        InvalidInput: There is no such file, or it is not a JSON object.
    """
    path = Path(reference)
    if path.is_dir():
        path /= "config.json"
    config = parse_json(read_input_text(path, most=MOST_CONFIG_BYTES), label=reference)
    if not isinstance(config, dict):
        raise InvalidInput(f"{reference} is not a model configuration: its JSON is no object")
    return config


def _language_model_config(config: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration of the language model within a multimodal one (``text_config``)."""
    inner = config.get("text_config")
    return inner if "model_type" in config and isinstance(inner, dict) and "model_type" in inner else config


class _Run(Frozen):
    """One model, built on a tape of its own for each pass."""

    workload: Workload
    shape: ModelShape
    choices: RunSettings
    cuda: bool
    caching: bool

    def prefill(self, sequence: int) -> tuple[OpGraph, CacheLayout, str]:
        """Return a training step or the pass over whole sequences, the layout of its cache, and a note on adapters."""
        workload, choices = self.workload, self.choices
        builder = self._build()
        model, tape = TransformerModel(builder, self.shape), builder.tape
        note = _note_adapters(builder, workload.model.reference)
        bucket = builder.adapters.bucket if builder.adapters is not None else 0
        states = hold_states(tape, choices.optimizer, bucket=bucket) if tape.training else []
        _micro_steps(model, choices.batch, sequence, workload.accumulation if tape.training else 1)
        if tape.training:
            update_weights(tape, choices.optimizer, scaled=tape.autocast == "float16", deepspeed=bool(bucket))
        layout = cache_layout(builder.cache, CACHE_BLOCK if workload.paged else 1)
        graph = self._graph(builder, layout)
        del states
        return graph, layout, note

    def decode(self, layout: CacheLayout, length: int) -> OpGraph:
        """Return the pass that adds token number ``length`` to the cache of the tokens before it."""
        builder = self._build()
        model = TransformerModel(builder, self.shape)
        builder.past = layout.hold(builder.tape, length - 1)
        answer = model(self.choices.batch, 1)
        builder.tape.end_forward()
        graph = self._graph(builder, layout)
        del answer
        return graph

    def _build(self) -> ModelBuilder:
        workload, precision = self.workload, self.choices.precision
        training = workload.phase is Phase.TRAINING
        half = precision.compute not in ("float32", "tf32")
        plan = None if workload.adapters is None else AdapterPlan(workload.adapters)
        autocast = precision.autocast or (plan is not None and plan.autocast and half)
        if plan is not None and not plan.widened:
            plan.dtype = precision.weights
        tape = Tape(training=training, autocast=precision.compute if autocast else None)
        saving = workload.checkpointing and training
        quantization: WeightFormat | CheckpointQuantization | None = self.choices.quantization
        if workload.quantization is not None and training:
            quantization = INT8 if workload.quantization is Quantization.INT8 else bitsandbytes_4bit()
        dtype = "float32" if training and widens_weights(quantization) else precision.weights
        return ModelBuilder(tape, dtype, cuda=self.cuda, checkpointing=saving,
                     caching=self.caching and not saving,
                     last_only=workload.generated is not None,
                     fused_loss=workload.loss is LossKernel.FUSED,
                     liger=workload.parallelism.fusion is Fusion.LIGER, paged=workload.paged, adapters=plan,
                     cache_dtype=workload.cache_dtype.stored if workload.cache_dtype else None,
                     quantization=quantization)  # fmt: skip

    def _graph(self, builder: ModelBuilder, layout: CacheLayout) -> OpGraph:
        tape = builder.tape
        ops = tape.ops()
        if self.choices.precision is Precision.TF32:
            ops = tuple(replace(op, dtype="tf32") if op.kind is OpKind.GEMM else op for op in ops)
        weights = (*tape.parameters, *tape.frozen)
        parts = sum(part.elements for quantized in builder.quantized for part in quantized.parts)
        stored = sum(quantized.elements for quantized in builder.quantized)
        return OpGraph(
            ops=ops,
            events=tuple(tape.events),
            parameters=sum(weight.elements for weight in weights) - parts + stored,
            parameter_bytes=sum(weight.bytes for weight in weights),
            trained_bytes=sum(weight.bytes for weight in tape.parameters) if tape.frozen else None,
            device_type="cuda" if self.cuda else "cpu",
            source="config.json by formula",
            cache_heads=layout.heads,
        )


def _note_adapters(builder: ModelBuilder, reference: str) -> str:
    """Return a note on the adapters of the model that was made, or nothing without them."""
    if builder.adapters is None:
        return ""
    builder.adapters.require_layers(reference)
    trained = sum(weight.elements for weight in builder.tape.parameters)
    return builder.adapters.describe(trained)


def _micro_steps(model: TransformerModel, batch: int, sequence: int, accumulation: int) -> None:
    """Run forward and backward. Further micro-steps repeat the second one, which finds gradients held already."""
    tape = model.builder.tape
    for position in range(min(accumulation, 2)):
        tape.stage = Stage.FORWARD
        tape.weight = max(1, accumulation - 1) if position else 1
        answer = model(batch, sequence)
        tape.end_forward()
        if tape.training:
            tape.backward(answer)
        del answer
        model.builder.inputs.clear()
    tape.weight = 1
