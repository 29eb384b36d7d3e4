"""Expand a transformer's configuration into the ops and storage events of one step."""

import json
from dataclasses import replace
from pathlib import Path

from leadline.core.errors import InvalidInput
from leadline.core.graph import BYTES_PER_ELEMENT, LoopFacts, OpGraph, TracedJob
from leadline.core.workload import Optimizer, Phase, Precision, Workload
from leadline.graphs.hf_config.layers import StepBuilder, StepSizes
from leadline.graphs.hf_config.memory import step_events
from leadline.graphs.hf_config.shape import TransformerShape, read_shape

DEFAULT_SEQUENCE = 2048


def expand(workload: Workload, *, device_type: str = "cuda") -> TracedJob:
    """Expand the ``config.json`` that ``workload`` names (implements ``GraphSource``).

    Defaults, each named in a note: one sample a batch, a sequence of the model's maximum up to 2,048 tokens, bf16
    with AdamW in training, the configuration's own dtype in inference.

    Raises:
        InvalidInput: the file is no model configuration, or a value does not fit the model.
        UnknownName: a ``model_type`` that is not known.
    """
    path = Path(workload.model.reference)
    config = _read(path)
    shape = read_shape(_text_part(config), str(path))
    sizes, assumed = _sizes(workload, config, shape, device_type)
    step = _graph(shape, sizes, device_type)
    notes = [f"assumed: {', '.join(assumed)}"] if assumed else []
    if shape.assumed:
        notes.append(f"{path} leaves out {', '.join(shape.assumed)}: the published defaults were taken")
    return TracedJob(
        step=step,
        loop=LoopFacts(
            batch=sizes.batch,
            accumulation=sizes.accumulation,
            precision=sizes.precision.value,
            optimizer=sizes.optimizer.value if sizes.training else None,
        ),
        notes=tuple(notes),
    )


def _graph(shape: TransformerShape, sizes: StepSizes, device_type: str) -> OpGraph:
    parameters = shape.parameters()
    return OpGraph(
        ops=tuple(StepBuilder(shape, sizes).build()),
        events=tuple(step_events(shape, sizes)),
        parameters=parameters,
        parameter_bytes=parameters * BYTES_PER_ELEMENT[sizes.precision.weights],
        device_type=device_type,
        source="config.json by formula",
    )


def _read(path: Path) -> dict[str, object]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path} cannot be read: {error}") from error
    except json.JSONDecodeError as error:
        raise InvalidInput(f"{path} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise InvalidInput(f"{path} holds no model configuration: a JSON object is expected")
    return config


def _text_part(config: dict[str, object]) -> dict[str, object]:
    """Return the configuration of the language model inside a wrapped one (``text_config``)."""
    inner = config.get("text_config")
    return inner if "model_type" in config and isinstance(inner, dict) and "model_type" in inner else config


def _sizes(
    workload: Workload, config: dict[str, object], shape: TransformerShape, device_type: str
) -> tuple[StepSizes, list[str]]:
    """Fill in what the user left out, and say what was filled in."""
    assumed = []
    training = workload.phase is Phase.TRAINING
    batch, sequence = workload.batch, workload.sequence
    if workload.inputs:
        first = workload.inputs[0].shape
        batch = batch or first[0]
        sequence = sequence or (first[1] if len(first) == 2 else None)
    if batch is None:
        batch = 1
        assumed.append("batch 1")
    if shape.patches:
        sequence = shape.patches + 1
    elif sequence is None:
        sequence = min(shape.max_sequence, DEFAULT_SEQUENCE)
        assumed.append(f"sequence {sequence}")
    elif shape.positions and sequence > shape.max_sequence:
        raise InvalidInput(
            f"--seq {sequence} is longer than the {shape.max_sequence} positions this {shape.family} has learned"
        )
    precision = workload.precision
    if precision is None:
        precision = Precision.BF16 if training else _stored_precision(config)
        assumed.append(f"precision {precision.value}")
    optimizer = workload.optimizer
    if optimizer is None:
        optimizer = Optimizer.ADAMW
        if training:
            assumed.append("optimizer adamw")
    sizes = StepSizes(
        batch=batch,
        sequence=sequence,
        precision=precision,
        optimizer=optimizer,
        training=training,
        accumulation=workload.accumulation if training else 1,
        checkpointing=workload.checkpointing and training,
        activation=str(config.get("hidden_act") or config.get("activation_function") or config.get("activation") or ""),
    )
    return replace(sizes, fused_attention=device_type == "cuda"), assumed


def _stored_precision(config: dict[str, object]) -> Precision:
    stored = str(config.get("dtype") or config.get("torch_dtype") or "float32").removeprefix("torch.")
    return {"float16": Precision.FP16, "bfloat16": Precision.BF16}.get(stored, Precision.FP32)
