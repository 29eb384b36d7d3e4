"""Models of timm and transformers by name, with random weights; nothing is downloaded."""

from typing import Any, Dict

import torch
from torch import nn


def named(name: str, size: int) -> nn.Module:
    """Build ``timm:NAME`` or one of the transformers below; ``ImportError`` if the package is not installed."""
    package, _, model = name.partition(":")
    if package == "timm":
        import timm  # noqa: PLC0415 - an optional package, and slow to load

        return timm.create_model(model, pretrained=False)
    return Logits(_transformer(model, size))


class Logits(nn.Module):
    """A model of transformers that takes tokens and returns logits alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor) -> Any:
        """Return batch x time x vocabulary."""
        inputs: Dict[str, Any] = {"input_ids": tokens}
        if self.model.config.is_encoder_decoder:
            inputs["decoder_input_ids"] = tokens
        if getattr(self.model.config, "use_cache", False):
            inputs["use_cache"] = False
        return self.model(**inputs).logits


def _transformer(model: str, size: int) -> Any:
    import transformers as hf  # noqa: PLC0415 - an optional package, and slow to load

    builders = {
        "gpt2": lambda: (hf.AutoModelForCausalLM, hf.GPT2Config(n_positions=max(size, 1024))),
        "bert-base": lambda: (hf.AutoModelForMaskedLM, hf.BertConfig()),
        "llama-mini": lambda: (hf.AutoModelForCausalLM, hf.LlamaConfig(
            hidden_size=768, intermediate_size=2048, num_hidden_layers=12, num_attention_heads=12,
            num_key_value_heads=4, max_position_embeddings=max(size, 2048))),
        "t5-small": lambda: (hf.AutoModelForSeq2SeqLM, hf.T5Config(
            d_model=512, d_kv=64, d_ff=2048, num_layers=6, num_heads=8, decoder_start_token_id=0)),
    }  # fmt: skip
    kind, config = builders[model]()
    return kind.from_config(config)
