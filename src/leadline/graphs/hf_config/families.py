"""Read the shape of a model from a ``config.json``, with the reader of its family."""

import tomllib
from collections.abc import Callable
from pathlib import Path

from leadline.core.errors import InvalidInput, UnknownName, excerpt
from leadline.core.workload import AttentionImplementation
from leadline.graphs.hf_config import decoders, encoders, hybrids
from leadline.graphs.hf_config.decoders import FamilyStyle
from leadline.graphs.hf_config.fields import Config, ConfigFields, model_values
from leadline.graphs.hf_config.shape import AttentionShape, EncoderDecoderShape, ModelShape, StackShape

Reader = Callable[[ConfigFields, FamilyStyle], ModelShape]


LIGER_FAMILIES = (
    "gemma", "gemma2", "gemma3_text", "gpt_oss", "granite", "llama", "mistral", "mixtral", "olmo2", "phi3", "qwen2",
    "qwen3", "qwen3_moe",
)  # fmt: skip
"""Families whose layers Liger Kernel replaces (``MODEL_TYPE_TO_APPLY_LIGER_FN``, August 2026)."""


def read_model_shape(config: Config, reference: str) -> tuple[ModelShape, tuple[str, ...]]:
    """Return the shape of a configuration, and the fields it leaves out. ``reference`` names it in errors.

    Raises:
        UnknownName: The ``model_type`` is not one of the known families.
        InvalidInput: A size is missing, not a number, not positive, or inconsistent with another.
    """
    family = config.get("model_type")
    if family is None:
        raise InvalidInput(f"{reference} has no model_type: it is not a Hugging Face model configuration")
    if not isinstance(family, str) or family not in FAMILIES:
        fix = f"known are {', '.join(sorted(FAMILIES))}; give any other model as a file.py:function or a command"
        raise UnknownName(f"model_type in {reference}", str(family), FAMILIES, fix=fix)
    fields = ConfigFields(config, reference)
    reader, style = FAMILIES[family]
    return reader(fields, style), tuple(dict.fromkeys(fields.assumed))


def read_attention(config: Config, reference: str) -> AttentionImplementation | None:
    """Return the implementation of attention that a configuration names, or ``None`` if it names none.

    Raises:
        InvalidInput: Leadline does not know the implementation.
    """
    named = next(model_values(config, "_attn_implementation", "attn_implementation"), None)
    if isinstance(named, dict):  # one for each part of a multimodal model; "" is all others
        named = named.get("text_config", named.get(""))
    if named is None:
        return None
    if named in ("eager", "sdpa"):
        return AttentionImplementation(named)
    if isinstance(named, str) and ("flash" in named or named == "flex_attention"):
        return AttentionImplementation.FLASH
    raise InvalidInput(
        f"{reference} has the attention {excerpt(repr(named))}, which is not estimated: set --attention eager, sdpa or "
        "flash"
    )


def use_attention(shape: ModelShape, kernel: AttentionImplementation) -> ModelShape:
    """Return the shape with this implementation of attention in all layers.

    Raises:
        InvalidInput: transformers has no such implementation for the family.
    """
    available = FAMILIES[shape.family][1].kernels.split()
    if kernel.value not in available:
        raise InvalidInput(
            f"transformers has no {kernel.value} attention for {shape.family}: use --attention {' or '.join(available)}"
        )
    if isinstance(shape, EncoderDecoderShape):
        encoder, decoder = (_use_in_stack(stack, kernel) for stack in (shape.encoder, shape.decoder))
        return shape._replace(encoder=encoder, decoder=decoder)
    return _use_in_stack(shape, kernel)


def use_engine_attention(shape: ModelShape) -> ModelShape:
    """Return the shape with fused attention, as serving engines have it also where transformers' default is eager."""
    flash = AttentionImplementation.FLASH
    return use_attention(shape, flash) if flash.value in FAMILIES[shape.family][1].kernels.split() else shape


def _use_in_stack(stack: StackShape, kernel: AttentionImplementation) -> StackShape:
    is_eager = kernel is AttentionImplementation.EAGER

    def change(attention: AttentionShape) -> AttentionShape:
        # The implementations that transformers does not share between families are written out already.
        eager = is_eager and not attention.written_out and attention.relative is None
        return attention._replace(eager=eager, written_out=attention.written_out and is_eager)

    vision = stack.vision
    if vision is not None:
        stack = stack._replace(vision=vision._replace(tower=_use_in_stack(vision.tower, kernel)))
    layers = (
        layer._replace(attention=change(layer.attention), cross=None if layer.cross is None else change(layer.cross))
        for layer in stack.layers
    )
    return stack._replace(layers=tuple(layers))


READERS: dict[str, Reader] = {
    "opt": decoders.opt,
    "mpt": decoders.mpt,
    "falcon": decoders.falcon,
    "qwen": decoders.qwen,
    "bert": encoders.bert,
    "albert": encoders.albert,
    "deberta": encoders.deberta,
    "modernbert": encoders.modernbert,
    "vit": encoders.vit,
    "deepseek_v2": decoders.deepseek,
    "t5": encoders.t5,
    "bart": encoders.bart,
    "whisper": encoders.whisper,
    "mamba": hybrids.mamba,
    "mamba2": hybrids.mamba2,
    "jamba": hybrids.jamba,
    "nemotron_h": hybrids.nemotron_h,
}
"""Readers of the families that take more than their style to read."""


def _read_families() -> dict[str, tuple[Reader, FamilyStyle]]:
    """Return the families of ``families.toml``. A family that is ``like`` another has its keys and its reader."""
    tables = tomllib.loads((Path(__file__).parent / "families.toml").read_text(encoding="utf-8"))
    families: dict[str, tuple[Reader, FamilyStyle]] = {}
    for family, table in tables.items():
        like = table.pop("like", "")
        base = tables.get(like, {})
        table["names"] = {**base.get("names", {}), **table.get("names", {})}
        tables[family] = {**base, **table}
        reader = READERS.get(family) or READERS.get(like, decoders.read_stack)
        families[family] = reader, FamilyStyle(**tables[family])
    return families


FAMILIES = _read_families()
"""``model_type`` → reader of its sizes, and its style. Each family has a row in the parameter-count test."""
