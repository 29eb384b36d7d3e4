"""Read a ``config.json``: its family's reader knows what the sizes are called."""

from collections.abc import Callable

from leadline.core.errors import InvalidInput, UnknownName
from leadline.graphs.hf_config import decoders, encoders
from leadline.graphs.hf_config.fields import Config, Fields
from leadline.graphs.hf_config.shape import TransformerShape


def read_shape(config: Config, what: str) -> TransformerShape:
    """Return the shape that a configuration describes; ``what`` names the file in errors.

    Raises:
        UnknownName: the ``model_type`` is not one of the known families.
        InvalidInput: a size is missing, not a number, or not positive.
    """
    family = config.get("model_type")
    if family is None:
        raise InvalidInput(f"{what} has no model_type: it is not a Hugging Face model configuration")
    if family not in FAMILIES:
        raise UnknownName(
            f"model_type in {what}", str(family), FAMILIES, fix=f"known are {', '.join(sorted(FAMILIES))}"
        )
    reader = Fields(config, what)
    shape = FAMILIES[family](reader)
    if shape.heads % shape.kv_heads:
        raise InvalidInput(f"{what}: {shape.heads} heads cannot share {shape.kv_heads} key-value heads evenly")
    return shape


FAMILIES: dict[str, Callable[[Fields], TransformerShape]] = {
    "llama": decoders.llama_like,
    "mistral": decoders.llama_like,
    "qwen2": lambda read: decoders.llama_like(read, qkv_bias=True),
    "qwen3": lambda read: decoders.llama_like(read, qk_norm=True),
    "gemma": lambda read: decoders.llama_like(read, tied=True),
    "mixtral": lambda read: decoders.llama_like(read, experts=read.size("num_local_experts", default=8)),
    "qwen3_moe": lambda read: decoders.llama_like(
        read, qk_norm=True, experts=read.size("num_experts", "num_local_experts", default=128)
    ),
    "gemma2": lambda read: decoders.llama_like(read, tied=True, post_norms=True),
    "gemma3_text": lambda read: decoders.llama_like(read, tied=True, post_norms=True, qk_norm=True),
    "phi3": lambda read: decoders.llama_like(read, fused_qkv=True),
    "phi": decoders.phi,
    "falcon": decoders.falcon,
    "gpt2": decoders.gpt2,
    "gpt_neox": decoders.gpt_neox,
    "opt": decoders.opt,
    "bloom": decoders.bloom,
    "bert": encoders.bert,
    "roberta": encoders.bert,
    "xlm-roberta": encoders.bert,
    "camembert": encoders.bert,
    "distilbert": encoders.bert,
    "vit": encoders.vit,
}
"""``model_type`` → reader of its sizes. A new family is one function here and a row in the parameter-count test."""
