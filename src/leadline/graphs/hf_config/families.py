"""Read the shape of a model from a ``config.json``, with the reader of its family."""

from collections.abc import Callable

from leadline.core.errors import InvalidInput, UnknownName
from leadline.graphs.hf_config import decoders, encoder_decoders, encoders
from leadline.graphs.hf_config.decoders import DecoderStyle
from leadline.graphs.hf_config.fields import Config, ConfigFields
from leadline.graphs.hf_config.shape import ModelShape

Reader = Callable[[ConfigFields], ModelShape]


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
    shape = FAMILIES[family](fields)
    return shape, tuple(dict.fromkeys(fields.assumed))


def _dense(style: DecoderStyle) -> Reader:
    return lambda read: decoders.llama_like(read, style)


def _experts(style: DecoderStyle, experts: int, used: int, **fields: str) -> Reader:
    return lambda read: decoders.mixture_of_experts(read, style, experts=experts, used=used, **fields)


GEMMA = DecoderStyle(tied=True, activation="gelu_pytorch_tanh", norm="rms-wide")

FAMILIES: dict[str, Reader] = {
    "llama": _dense(DecoderStyle()),
    "mistral": _dense(DecoderStyle()),
    "granite": _dense(DecoderStyle()),
    "qwen2": _dense(DecoderStyle(qkv_bias=True, out_bias=False)),
    "qwen3": _dense(DecoderStyle(query_key_norm="head", head_dim=128)),
    "gemma": _dense(GEMMA),
    "gemma2": _dense(GEMMA._replace(layout="sandwich", pattern=2, capped=True)),
    "gemma3_text": _dense(GEMMA._replace(layout="sandwich", pattern=6, query_key_norm="head-wide")),
    "phi3": _dense(DecoderStyle(fused_qkv=True, fused_gate=True)),
    "olmo": _dense(DecoderStyle(norm="bare")),
    "olmo2": _dense(DecoderStyle(layout="after", norm="rms-wide", query_key_norm="width-wide")),
    "phi": decoders.phi,
    "starcoder2": decoders.starcoder2,
    "stablelm": decoders.stablelm,
    "cohere": decoders.cohere,
    "mixtral": _experts(DecoderStyle(), 8, 2, width="intermediate_size"),
    "qwen2_moe": _experts(
        DecoderStyle(qkv_bias=True, out_bias=False), 60, 4, shared="shared_expert_intermediate_size", gate="yes"
    ),
    "qwen3_moe": _experts(DecoderStyle(query_key_norm="head"), 128, 8),
    "olmoe": _experts(DecoderStyle(query_key_norm="width"), 64, 8, width="intermediate_size"),
    "gpt_oss": _experts(
        DecoderStyle(qkv_bias=True, sinks=True, head_dim=64, pattern=2, norm="rms-wide"),
        128,
        4,
        width="intermediate_size",
        bias="yes",
        activation="clamped_swiglu",
    ),
    "deepseek_v2": lambda read: decoders.deepseek(read, first_dense=0, shared=2),
    "deepseek_v3": lambda read: decoders.deepseek(read, first_dense=3, shared=1),
    "falcon": decoders.falcon,
    "gpt2": decoders.gpt2,
    "gpt_bigcode": decoders.gpt_bigcode,
    "gptj": decoders.gptj,
    "codegen": decoders.gptj,
    "gpt_neo": decoders.gpt_neo,
    "gpt_neox": decoders.gpt_neox,
    "opt": decoders.opt,
    "bloom": decoders.bloom,
    "mpt": decoders.mpt,
    "bert": encoders.bert,
    "roberta": encoders.bert,
    "xlm-roberta": encoders.bert,
    "camembert": encoders.bert,
    "distilbert": encoders.bert,
    "electra": encoders.bert,
    "albert": encoders.albert,
    "mpnet": encoders.mpnet,
    "deberta": encoders.deberta,
    "deberta-v2": encoders.deberta,
    "modernbert": encoders.modernbert,
    "vit": encoders.vit,
    "deit": encoders.vit,
    "t5": encoder_decoders.t5,
    "mt5": encoder_decoders.t5,
    "bart": encoder_decoders.bart,
    "mbart": encoder_decoders.bart,
    "whisper": encoder_decoders.whisper,
}
"""``model_type`` → reader of its sizes. A new family is one row here and one in the parameter-count test."""
