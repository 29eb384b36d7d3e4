"""Decoder-only families: what each calls its sizes, and how its layer is laid out."""

from leadline.core.errors import InvalidInput
from leadline.graphs.hf_config.fields import Fields
from leadline.graphs.hf_config.shape import TransformerShape


def llama_like(
    read: Fields, *, qkv_bias: bool = False, tied: bool = False, qk_norm: bool = False, experts: int = 1,
    post_norms: bool = False, fused_qkv: bool = False,
) -> TransformerShape:  # fmt: skip
    """Read Llama's family: RMS norms, rotary positions, a gated feed-forward, grouped attention."""
    hidden, heads = read.size("hidden_size"), read.size("num_attention_heads")
    attention_bias = read.flag("attention_bias", default=qkv_bias)
    return TransformerShape(
        family=read.config["model_type"],
        layers=read.size("num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=read.size("num_key_value_heads", default=heads) if "num_key_value_heads" in read.config else heads,
        head_dim=read.config.get("head_dim") or hidden // heads,
        ffn=read.size("moe_intermediate_size", "intermediate_size") if experts > 1 else read.size("intermediate_size"),
        vocab=read.size("vocab_size"),
        max_sequence=read.size("max_position_embeddings", default=2048),
        gated=True,
        rms_norm=True,
        rotary=True,
        activation=read.word("hidden_act", "hidden_activation", default="silu"),
        window=read.window(),
        qkv_bias=attention_bias,
        out_bias=attention_bias and read.config["model_type"] not in ("qwen2", "qwen2_moe"),
        ffn_bias=read.flag("mlp_bias", default=False),
        qk_norm=qk_norm,
        norms_per_layer=4 if post_norms else 2,
        fused_qkv=fused_qkv,
        head="tied" if read.flag("tie_word_embeddings", default=tied) else "lm",
        experts=experts,
        experts_used=read.size("num_experts_per_tok", default=2) if experts > 1 else 1,
        dropout=read.rate("attention_dropout"),
        assumed=tuple(read.assumed),
    )


def gpt2(read: Fields) -> TransformerShape:
    """Read GPT-2: learned positions, a fused projection, its own GELU."""
    hidden, heads = read.size("n_embd", default=768), read.size("n_head", default=12)
    positions = read.size("n_positions", "n_ctx", default=1024)
    return TransformerShape(
        family="gpt2",
        layers=read.size("n_layer", default=12),
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        ffn=read.config.get("n_inner") or 4 * hidden,
        vocab=read.size("vocab_size", default=50257),
        max_sequence=positions,
        positions=positions,
        activation=read.word("activation_function", default="gelu_new"),
        fused_qkv=True,
        dropout=read.rate("resid_pdrop", default=0.1),
        assumed=tuple(read.assumed),
    )


def gpt_neox(read: Fields) -> TransformerShape:
    """Read GPT-NeoX and Pythia: parallel attention and feed-forward."""
    hidden, heads = read.size("hidden_size"), read.size("num_attention_heads")
    bias = read.flag("attention_bias", default=True)
    return TransformerShape(
        family="gpt_neox",
        layers=read.size("num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        ffn=read.size("intermediate_size"),
        vocab=read.size("vocab_size"),
        max_sequence=read.size("max_position_embeddings", default=2048),
        qkv_bias=bias,
        out_bias=bias,
        rotary=True,
        fused_qkv=True,
        parallel=read.flag("use_parallel_residual", default=True),
        activation=read.word("hidden_act", default="gelu"),
        head="tied" if read.flag("tie_word_embeddings", default=False) else "lm",
        dropout=read.rate("hidden_dropout"),
        assumed=tuple(read.assumed),
    )


def opt(read: Fields) -> TransformerShape:
    """Read OPT: learned positions with an offset of two, ReLU."""
    hidden, heads = read.size("hidden_size"), read.size("num_attention_heads")
    if read.size("word_embed_proj_dim", default=hidden) != hidden:
        raise InvalidInput(f"{read.what}: an OPT model with a projected embedding (350m) is not expanded: trace it")
    positions = read.size("max_position_embeddings", default=2048)
    bias = read.flag("enable_bias", default=True)
    return TransformerShape(
        family="opt",
        layers=read.size("num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        ffn=read.size("ffn_dim"),
        vocab=read.size("vocab_size"),
        max_sequence=positions,
        positions=positions + 2,
        qkv_bias=bias,
        out_bias=bias,
        ffn_bias=bias,
        activation=read.word("activation_function", default="relu"),
        dropout=read.rate("dropout", default=0.1),
        assumed=tuple(read.assumed),
    )


def bloom(read: Fields) -> TransformerShape:
    """Read BLOOM: ALiBi positions and a norm after the embedding."""
    hidden, heads = read.size("hidden_size", "n_embed"), read.size("n_head", "num_attention_heads")
    return TransformerShape(
        family="bloom",
        layers=read.size("n_layer", "num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        ffn=4 * hidden,
        vocab=read.size("vocab_size"),
        max_sequence=read.size("seq_length", default=2048),
        embedding_norm=True,
        activation="gelu_new",
        fused_qkv=True,
        dropout=read.rate("hidden_dropout"),
        assumed=tuple(read.assumed),
    )


def phi(read: Fields) -> TransformerShape:
    """Read Phi-1 and 2: one norm for parallel attention and feed-forward, biases everywhere."""
    hidden, heads = read.size("hidden_size"), read.size("num_attention_heads")
    return TransformerShape(
        family="phi",
        layers=read.size("num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=read.config.get("num_key_value_heads") or heads,
        head_dim=hidden // heads,
        ffn=read.size("intermediate_size"),
        vocab=read.size("vocab_size"),
        max_sequence=read.size("max_position_embeddings", default=2048),
        norms_per_layer=1,
        parallel=True,
        rotary=True,
        activation=read.word("hidden_act", default="gelu_new"),
        head="tied" if read.flag("tie_word_embeddings", default=False) else "lm",
        head_bias=True,
        dropout=read.rate("resid_pdrop"),
        assumed=tuple(read.assumed),
    )


def falcon(read: Fields) -> TransformerShape:
    """Read Falcon: one key-value head (7B) or grouped ones (40B, 180B), parallel blocks, tied embeddings."""
    hidden = read.size("hidden_size")
    heads = read.size("num_attention_heads", "n_head")
    grouped = read.flag("new_decoder_architecture", default=False)
    shared = read.flag("multi_query", default=True)
    parallel = grouped or read.flag("parallel_attn", default=True)
    bias = read.flag("bias", default=False)
    return TransformerShape(
        family="falcon",
        layers=read.size("num_hidden_layers", "n_layer"),
        hidden=hidden,
        heads=heads,
        kv_heads=(read.config.get("num_kv_heads") or heads) if grouped else 1 if shared else heads,
        head_dim=hidden // heads,
        ffn=read.config.get("ffn_hidden_size") or 4 * hidden,
        vocab=read.size("vocab_size"),
        max_sequence=read.size("max_position_embeddings", default=2048),
        norms_per_layer=read.config.get("num_ln_in_parallel_attn") or (1 if parallel and not grouped else 2),
        parallel=parallel,
        fused_qkv=True,
        rotary=not read.flag("alibi", default=False),
        qkv_bias=bias,
        out_bias=bias,
        ffn_bias=bias,
        activation=read.word("activation", default="gelu"),
        head="tied" if read.flag("tie_word_embeddings", default=True) else "lm",
        dropout=read.rate("hidden_dropout"),
        assumed=tuple(read.assumed),
    )
