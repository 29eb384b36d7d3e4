"""Configurations that ``measure.py`` measures: one sweep for each axis that moves the time or memory of a step."""

import itertools
import random

SEED = 0

# Published shapes, written as their ``config.json`` has them. The names ending in "-cut" have fewer layers or experts.
MODELS: dict[str, dict[str, object]] = {
    "llama-125m": {"model_type": "llama", "hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12,
        "num_attention_heads": 12, "num_key_value_heads": 12, "vocab_size": 32000},
    "llama-1.1b": {"model_type": "llama", "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22,
        "num_attention_heads": 32, "num_key_value_heads": 4, "vocab_size": 32000},
    "llama-3.2-3b": {"model_type": "llama", "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 28,
        "num_attention_heads": 24, "num_key_value_heads": 8, "vocab_size": 128256, "tie_word_embeddings": True},
    "llama-2-7b": {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 32000},
    "llama-2-13b": {"model_type": "llama", "hidden_size": 5120, "intermediate_size": 13824, "num_hidden_layers": 40,
        "num_attention_heads": 40, "num_key_value_heads": 40, "vocab_size": 32000},
    "llama-8b-cut": {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 8,
        "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256},
    "gpt2": {"model_type": "gpt2"},
    "gpt2-medium": {"model_type": "gpt2", "n_embd": 1024, "n_layer": 24, "n_head": 16, "n_positions": 4096},
    "gpt2-xl": {"model_type": "gpt2", "n_embd": 1600, "n_layer": 48, "n_head": 25},
    "bert-base": {"model_type": "bert"},
    "bert-large": {"model_type": "bert", "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16,
        "intermediate_size": 4096},
    "pythia-410m": {"model_type": "gpt_neox", "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24,
        "num_attention_heads": 16, "vocab_size": 50304},
    "opt-1.3b": {"model_type": "opt", "hidden_size": 2048, "ffn_dim": 8192, "num_hidden_layers": 24,
        "num_attention_heads": 32, "word_embed_proj_dim": 2048, "vocab_size": 50272},
    "qwen2.5-0.5b": {"model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
        "num_attention_heads": 14, "num_key_value_heads": 2, "vocab_size": 151936, "tie_word_embeddings": True},
    "qwen3-1.7b": {"model_type": "qwen3", "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28,
        "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
        "tie_word_embeddings": True},
    "gemma2-2b": {"model_type": "gemma2", "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 256000},
    "gemma3-1b": {"model_type": "gemma3_text", "hidden_size": 1152, "intermediate_size": 6912,
        "num_hidden_layers": 26, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256,
        "vocab_size": 262144, "sliding_window": 512},
    "mistral-7b-cut": {"model_type": "mistral", "hidden_size": 4096, "intermediate_size": 14336,
        "num_hidden_layers": 8, "num_attention_heads": 32, "num_key_value_heads": 8, "sliding_window": 4096,
        "vocab_size": 32000},
    "mixtral-cut": {"model_type": "mixtral", "hidden_size": 2048, "intermediate_size": 7168, "num_hidden_layers": 8,
        "num_attention_heads": 32, "num_key_value_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2,
        "vocab_size": 32000},
    "olmoe-cut": {"model_type": "olmoe", "hidden_size": 2048, "intermediate_size": 1024, "num_hidden_layers": 8,
        "num_attention_heads": 16, "num_key_value_heads": 16, "num_experts": 64, "num_experts_per_tok": 8,
        "vocab_size": 50304},
    "qwen3-moe-cut": {"model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144,
        "num_hidden_layers": 6, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
        "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "vocab_size": 151936},
    "gpt-oss-cut": {"model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 4,
        "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "num_local_experts": 32,
        "num_experts_per_tok": 4, "sliding_window": 128, "vocab_size": 201088},
    "deepseek-v3-cut": {"model_type": "deepseek_v3", "hidden_size": 2048, "intermediate_size": 6144,
        "moe_intermediate_size": 1024, "num_hidden_layers": 6, "first_k_dense_replace": 1, "num_attention_heads": 16,
        "num_key_value_heads": 16, "n_routed_experts": 32, "num_experts_per_tok": 4, "n_group": 4, "topk_group": 2,
        "q_lora_rank": 768, "kv_lora_rank": 512, "vocab_size": 129280},
    "t5-base": {"model_type": "t5", "d_model": 768, "d_ff": 3072, "num_layers": 12, "num_heads": 12, "d_kv": 64,
        "vocab_size": 32128, "decoder_start_token_id": 0},
    "vit-large": {"model_type": "vit", "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16,
        "intermediate_size": 4096, "num_labels": 1000},
    "resnet50": {"model_type": "resnet", "num_labels": 1000},
    "convnext-base": {"model_type": "convnext", "depths": [3, 3, 27, 3], "hidden_sizes": [128, 256, 512, 1024],
        "num_labels": 1000},
}  # fmt: skip

DEFAULTS = {
    "phase": "training", "precision": "bf16", "attention": "sdpa", "optimizer": "adamw", "batch": 8, "length": 1024,
    "recompute": False, "accumulation": 1, "adapter": "", "rank": 0, "weights": "", "execution": "eager",
    "fused": False, "lengths": "fixed",
}  # fmt: skip


def configurations():
    """Return every configuration once, in one seeded order, so that any prefix covers all axes."""
    unique = {tuple(sorted(each.items())): each for each in _sweeps()}
    shuffled = list(unique.values())
    random.Random(SEED).shuffle(shuffled)  # noqa: S311 - an order, no secret
    # Fused kernels stay in the classes of a family, and compiled steps are the slowest to prepare: both are last.
    return sorted(shuffled, key=lambda each: (each["execution"] == "compiled", each["fused"]))


def _sweep(models, **axes):
    """Yield the product of the axes; tuples are values of an axis that joins several by "_x_"."""
    listed = {name: values if isinstance(values, list) else [values] for name, values in axes.items()}
    for model in models:
        for values in itertools.product(*listed.values()):
            chosen = dict(DEFAULTS, model=model)
            for name, value in zip(listed, values, strict=True):
                names = name.split("_x_")
                chosen.update(zip(names, value if len(names) > 1 else [value], strict=True))
            yield chosen


def _sweeps():
    yield from _training()
    yield from _memory()
    yield from _inference()
    yield from _host_bound()


def _training():
    """Precision, attention, shapes and families in training."""
    yield from _sweep(["llama-1.1b"], precision=["fp32", "tf32", "amp", "bf16"], attention=["eager", "sdpa"],
                      batch_x_length=[(1, 512), (8, 512), (4, 2048), (1, 8192)])  # fmt: skip
    yield from _sweep(["llama-1.1b", "llama-8b-cut"], batch_x_length=[(1, 2048), (2, 2048), (16, 1024), (1, 16384)])
    yield from _sweep(["llama-8b-cut"], precision=["bf16", "fp8", "fp8-rowwise"], execution=["eager", "compiled"],
                      batch_x_length=[(2, 2048), (8, 2048)])  # fmt: skip
    yield from _sweep(["gpt2", "bert-base", "pythia-410m", "qwen2.5-0.5b"], precision=["tf32", "amp", "bf16"],
                      batch_x_length=[(4, 512), (32, 512)])  # fmt: skip
    yield from _sweep(["gpt2-medium", "bert-large", "opt-1.3b", "qwen3-1.7b", "gemma3-1b", "llama-3.2-3b", "gpt2-xl",
                       "t5-base"], precision=["amp", "bf16"], batch_x_length=[(2, 512), (8, 512)])  # fmt: skip
    yield from _sweep(["gemma2-2b"], attention="eager", precision=["amp", "bf16"],
                      batch_x_length=[(2, 512), (8, 512), (1, 4096)])  # fmt: skip
    yield from _sweep(["gemma3-1b", "gpt2-medium", "mistral-7b-cut", "qwen3-1.7b"],
                      attention=["eager", "sdpa"], batch_x_length=[(1, 4096)])  # fmt: skip
    yield from _sweep(["mistral-7b-cut"], batch_x_length=[(1, 8192), (1, 16384)])
    yield from _sweep(["mixtral-cut", "olmoe-cut", "qwen3-moe-cut", "deepseek-v3-cut"],
                      batch_x_length=[(1, 512), (4, 1024), (4, 2048)])  # fmt: skip
    yield from _sweep(["gpt-oss-cut"], attention="eager", batch_x_length=[(1, 512), (4, 1024), (1, 4096)])
    yield from _sweep(["resnet50", "vit-large", "convnext-base"], precision=["tf32", "amp", "bf16"], length=224,
                      batch=[8, 64])  # fmt: skip


def _memory():
    """Recompute, accumulation, optimizers, adapters, fused losses and lengths that vary."""
    yield from _sweep(["llama-1.1b", "llama-3.2-3b"], recompute=True, batch_x_length=[(4, 2048), (1, 16384)])
    yield from _sweep(["llama-1.1b"], accumulation=[2, 8], batch_x_length=[(1, 2048)])
    yield from _sweep(["llama-1.1b"], optimizer=["adamw-fused", "adamw-loop", "sgd", "momentum", "adafactor",
                                                 "adamw-8bit"], batch_x_length=[(2, 1024)])  # fmt: skip
    yield from _sweep(["llama-2-7b"], optimizer=["adamw-8bit", "sgd", "adafactor"], recompute=True,
                      batch_x_length=[(1, 2048)])  # fmt: skip
    yield from _sweep(["llama-3.2-3b", "llama-2-7b"], adapter=["q_proj,v_proj", "all-linear"], rank=16,
                      recompute=[False, True], batch_x_length=[(2, 1024), (1, 4096)])  # fmt: skip
    yield from _sweep(["llama-2-7b", "llama-2-13b"], adapter="all-linear", rank=16, recompute=True, weights="nf4",
                      batch_x_length=[(2, 1024), (1, 8192)])  # fmt: skip
    yield from _sweep(["llama-1.1b"], adapter=["q_proj,v_proj", "all-linear", "dora", "ia3", "prompt"], rank=8,
                      batch_x_length=[(4, 1024)])  # fmt: skip
    yield from _sweep(["llama-1.1b", "llama-3.2-3b", "qwen3-1.7b"], fused=True, batch_x_length=[(4, 2048)])
    yield from _sweep(["llama-1.1b", "qwen2.5-0.5b", "gpt2-medium"], lengths="varied",
                      batch_x_length=[(4, 1024), (8, 1024)])  # fmt: skip


def _inference():
    """Prompts and single tokens, quantized and not."""
    yield from _sweep(["llama-1.1b", "llama-2-7b", "llama-2-13b"], phase="prefill",
                      batch_x_length=[(1, 512), (1, 4096), (8, 2048)])  # fmt: skip
    yield from _sweep(["llama-2-7b"], phase="prefill", attention="eager", batch_x_length=[(1, 4096), (8, 2048)])
    yield from _sweep(["llama-1.1b", "llama-2-7b", "llama-2-13b"], phase="decode",
                      batch_x_length=[(1, 512), (16, 512), (16, 4096)])  # fmt: skip
    yield from _sweep(["llama-2-7b"], phase=["prefill", "decode"], weights=["fp8", "int8", "nf4", "llm-int8"],
                      batch_x_length=[(1, 1024), (16, 1024)])  # fmt: skip
    yield from _sweep(["qwen3-moe-cut", "gemma3-1b"], phase=["prefill", "decode"],
                      batch_x_length=[(1, 1024), (16, 1024)])  # fmt: skip
    yield from _sweep(["gpt-oss-cut"], phase=["prefill", "decode"], attention="eager",
                      batch_x_length=[(1, 1024), (16, 1024)])  # fmt: skip
    yield from _sweep(["bert-base", "resnet50", "vit-large"], phase="prefill", precision=["fp32", "tf32", "bf16"],
                      length=224, batch=[1, 32])  # fmt: skip


def _host_bound():
    """Steps that wait for the host: small models, as they are, as CUDA graphs and compiled."""
    yield from _sweep(["llama-125m", "gpt2", "bert-base"], execution=["eager", "graph"], batch_x_length=[(1, 128)])
    yield from _sweep(["llama-125m", "llama-1.1b"], phase=["prefill", "decode"], execution=["eager", "graph"],
                      batch_x_length=[(1, 128)])  # fmt: skip
    yield from _sweep(["llama-125m", "llama-1.1b", "gpt2"], execution="compiled", batch_x_length=[(4, 512)])
    yield from _sweep(["llama-125m"], optimizer=["adamw-fused", "adamw-loop"], batch_x_length=[(1, 128)])
