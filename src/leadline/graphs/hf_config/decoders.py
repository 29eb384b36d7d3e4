"""Decoder-only families: the names of their sizes, and how they differ from Llama or GPT-2."""

from typing import NamedTuple

from leadline.core.errors import InvalidInput
from leadline.graphs.hf_config.fields import ConfigFields
from leadline.graphs.hf_config.shape import (
    AttentionShape,
    FeedForwardShape,
    HeadShape,
    LatentAttentionShape,
    LayerShape,
    StackShape,
)


class DecoderStyle(NamedTuple):
    """How a family differs from Llama: RMS norms, rotary positions, a gated feed-forward, grouped attention.

    Attributes:
        kv_heads: Published default, or ``None`` for as many as there are queries.
        head_dim: Published default, or ``None`` for an equal share of the hidden size.
        rotary: Share of a head that is rotated.
        pattern: Period of the layers that see all tokens if the others have a window.
        window: Window if the file names none.
        capped: A tanh bounds the scores, which needs unfused attention.
    """

    kv_heads: int | None = None
    head_dim: int | None = None
    tied: bool = False
    qkv_bias: bool = False
    out_bias: bool | None = None
    mlp_bias: bool = False
    query_key_norm: str = ""
    norm: str = "rms"
    layout: str = "pre"
    fused_qkv: bool = False
    fused_gate: bool = False
    gated: bool = True
    activation: str = "silu"
    rotary: float = 1.0
    pattern: int = 0
    window: int | None = None
    head_bias: bool = False
    sinks: bool = False
    capped: bool = False


def llama_like(read: ConfigFields, style: DecoderStyle) -> StackShape:
    """Read a dense decoder like Llama."""
    layers = read.size("num_hidden_layers", "n_layer")
    return decoder_stack(read, style, [_feed_forward(read, style)] * layers)


def mixture_of_experts(
    read: ConfigFields, style: DecoderStyle, *, experts: int, used: int, **fields: str
) -> StackShape:
    """Read a decoder whose layers have experts, except those that the file makes dense.

    ``fields`` are the family's names of its sizes: ``width`` of an expert, ``dense`` of a dense layer, ``shared``.
    """
    layers = read.size("num_hidden_layers")
    width = read.size(*fields.get("width", "moe_intermediate_size,intermediate_size").split(","))
    shared = read.optional(fields["shared"], least=0) or 0 if "shared" in fields else 0
    count = read.size("num_experts", "num_local_experts", "n_routed_experts", default=experts)
    chosen = read.size("num_experts_per_tok", default=used)
    if chosen > count:
        raise InvalidInput(f"{read.reference}: a token cannot pass {chosen} of {count} experts: correct one of them")
    expert = FeedForwardShape(
        width, gated=True, bias=fields.get("bias") == "yes",
        activation=fields.get("activation") or read.word("hidden_act", default="silu"),
        experts=count, used=chosen, router_bias=fields.get("bias") == "yes", shared=shared,
        shared_gate=bool(shared) and fields.get("gate") == "yes",
    )  # fmt: skip
    sparse = _sparse_layers(read, layers)
    if all(sparse):
        return decoder_stack(read, style, [expert] * layers)
    dense = _feed_forward(read, style, fields.get("dense", "intermediate_size"))
    return decoder_stack(read, style, [expert if is_sparse else dense for is_sparse in sparse])


def deepseek(read: ConfigFields, *, first_dense: int, shared: int) -> StackShape:
    """Read DeepSeek V2 and V3: latent attention, dense layers first, then experts and shared ones."""
    layers, hidden, heads = (read.size(name) for name in ("num_hidden_layers", "hidden_size", "num_attention_heads"))
    bias = read.flag("attention_bias", default=False)
    latent = LatentAttentionShape(
        query_rank=read.optional("q_lora_rank") if "q_lora_rank" in read.config else 1536,
        key_value_rank=read.size("kv_lora_rank", default=512),
        plain=read.size("qk_nope_head_dim", default=128),
        rotary=read.size("qk_rope_head_dim", default=64),
        value=read.size("v_head_dim", default=128),
    )
    attention = AttentionShape(
        hidden, heads, heads, latent.plain + latent.rotary, rotary=latent.rotary, query_bias=bias, out_bias=bias,
        latent=latent,
    )  # fmt: skip
    width = read.size("moe_intermediate_size", default=1407)
    expert = FeedForwardShape(
        width, gated=True, bias=False, activation=read.word("hidden_act", default="silu"),
        experts=read.size("n_routed_experts", "num_local_experts", default=64),
        used=read.size("num_experts_per_tok", default=6),
        shared=width * (read.size("n_shared_experts", default=shared, least=0)),
    )  # fmt: skip
    dense = _feed_forward(read, DecoderStyle())
    first = read.optional("first_k_dense_replace", least=0)
    first = first_dense if first is None else first
    feeds = [dense if layer < first else expert for layer in range(layers)]
    return _decoder(read, DecoderStyle(), tuple(LayerShape(attention, feed, norm="rms") for feed in feeds))


def phi(read: ConfigFields) -> StackShape:
    """Read Phi-1 and 2: one norm for parallel attention and feed-forward, biases everywhere."""
    style = DecoderStyle(
        norm="layer", layout="parallel", gated=False, mlp_bias=True, qkv_bias=True, activation="gelu_new",
        rotary=0.5, head_bias=True,
    )  # fmt: skip
    return llama_like(read, style)


def starcoder2(read: ConfigFields) -> StackShape:
    """Read StarCoder2: layer norms, a plain feed-forward, biases by default."""
    bias = read.flag("use_bias", default=True)
    return llama_like(
        read, DecoderStyle(norm="layer", gated=False, mlp_bias=bias, qkv_bias=bias, activation="gelu_pytorch_tanh")
    )


def stablelm(read: ConfigFields) -> StackShape:
    """Read StableLM: layer norms, a quarter of each head rotated, parallel blocks in some files."""
    style = DecoderStyle(
        norm="layer", rotary=0.25, qkv_bias=read.flag("use_qkv_bias", default=False), out_bias=False,
        query_key_norm="each" if read.flag("qk_layernorm", default=False) else "",
        layout="parallel" if read.flag("use_parallel_residual", default=False) else "pre",
    )  # fmt: skip
    return llama_like(read, style)


def cohere(read: ConfigFields) -> StackShape:
    """Read Command R: parallel blocks after one unfused norm without bias, tied embeddings."""
    norm = "each-written" if read.flag("use_qk_norm", default=False) else ""
    return llama_like(read, DecoderStyle(norm="written", layout="parallel", tied=True, query_key_norm=norm))


def decoder_stack(read: ConfigFields, style: DecoderStyle, feeds: list[FeedForwardShape]) -> StackShape:
    """Return a decoder with one layer for each feed-forward block, and attention as the file describes it."""
    hidden, heads = read.size("hidden_size"), read.size("num_attention_heads")
    head_dim = read.optional("head_dim") or style.head_dim or read.per_head(hidden, heads)
    kv_heads = read.optional("num_key_value_heads") or heads
    if "num_key_value_heads" not in read.config and style.kv_heads:
        kv_heads = read.size("num_key_value_heads", default=style.kv_heads)
    if heads % kv_heads:
        raise InvalidInput(f"{read.reference}: {heads} heads cannot share {kv_heads} key-value heads evenly")
    bias = read.flag("attention_bias", default=style.qkv_bias)
    share = read.share("partial_rotary_factor", default=style.rotary)
    attention = AttentionShape(
        hidden, heads, kv_heads, head_dim, rotary=2 * int(head_dim * share / 2), query_bias=bias, key_bias=bias,
        out_bias=bias if style.out_bias is None else style.out_bias, query_key_norm=style.query_key_norm,
        fused=style.fused_qkv, sinks=style.sinks, dropout=read.rate("attention_dropout"),
    )  # fmt: skip
    capped = read.is_set("attn_logit_softcapping", default=style.capped)
    attention = attention._replace(capped=capped, written_out=capped or style.sinks)
    windows = read.windows(len(feeds), pattern=style.pattern, default=style.window)
    rate = read.rate("resid_pdrop", "hidden_dropout", "residual_dropout")
    layers = tuple(
        LayerShape(attention._replace(window=window), feed, style.layout, style.norm, rate)
        for window, feed in zip(windows, feeds, strict=True)
    )
    return _decoder(read, style, layers)


def decoder_head(read: ConfigFields, vocab: int, *, tied: bool, bias: bool = False) -> HeadShape:
    """Return the head of a decoder: scores for the vocabulary, unless the file names another head."""
    architecture = read.architecture()
    if architecture.endswith("ForSequenceClassification"):
        return HeadShape(outputs=read.labels())
    if architecture.endswith("ForTokenClassification"):
        return HeadShape(outputs=read.labels(), bias=True)
    if read.is_bare():
        return HeadShape()
    capped = read.is_set("final_logit_softcapping", default=read.family == "gemma2")
    return HeadShape(outputs=vocab, tied=tied, bias=bias, capped=capped, upcast=True)


def _decoder(read: ConfigFields, style: DecoderStyle, layers: tuple[LayerShape, ...]) -> StackShape:
    return _model(read, layers, read.size("vocab_size"), tied=style.tied, head_bias=style.head_bias)._replace(
        max_sequence=read.size("max_position_embeddings", default=2048),
        norm=style.norm,
        dropout=read.rate("embd_pdrop", "embedding_dropout"),
    )


def _feed_forward(read: ConfigFields, style: DecoderStyle, field: str = "intermediate_size") -> FeedForwardShape:
    return FeedForwardShape(
        width=read.size(field, "intermediate_size"),
        gated=style.gated,
        bias=read.flag("mlp_bias", default=style.mlp_bias),
        activation=read.word("hidden_activation", "hidden_act", default=style.activation),
        fused=style.fused_gate,
    )


def _plain_feed_forward(read: ConfigFields, field: str, hidden: int, activation: str) -> FeedForwardShape:
    """Return a block of two layers, by default four times as wide as the model."""
    width = read.optional(field) or 4 * hidden
    return FeedForwardShape(width, activation=read.word("activation_function", default=activation))


def _sparse_layers(read: ConfigFields, layers: int) -> list[bool]:
    """Return which layers have experts: all but the file's exceptions."""
    listed = read.config.get("moe_layers")
    if isinstance(listed, list):
        return [layer in listed for layer in range(layers)]
    step = read.optional("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_freq") or 1
    excepted = read.listed("mlp_only_layers")
    return [layer not in excepted and (layer + 1) % step == 0 for layer in range(layers)]


def gpt2(read: ConfigFields) -> StackShape:
    """Read GPT-2: learned positions, a fused projection, its own GELU."""
    return _gpt(read, activation="gelu_new", kv_heads=None)


def gpt_bigcode(read: ConfigFields) -> StackShape:
    """Read GPT-BigCode (SantaCoder, StarCoder): GPT-2 with one key-value head."""
    return _gpt(read, activation="gelu_pytorch_tanh", kv_heads=1 if read.flag("multi_query", default=True) else None)


def gptj(read: ConfigFields) -> StackShape:
    """Read GPT-J and CodeGen: one norm for both halves, unfused attention without biases, a biased head."""
    hidden, heads = read.size("n_embd", default=4096), read.size("n_head", default=16)
    head_dim, vocab = read.per_head(hidden, heads), read.size("vocab_size", default=50400)
    fused = read.family == "codegen"
    attention = AttentionShape(
        hidden, heads, heads, head_dim, rotary=min(head_dim, read.size("rotary_dim", default=64)), query_bias=False,
        key_bias=False, out_bias=False, fused=fused, written_out=True, dropout=read.rate("attn_pdrop"),
    )  # fmt: skip
    feed = _plain_feed_forward(read, "n_inner", hidden, "gelu_new")
    layer = LayerShape(attention, feed, "parallel", dropout=read.rate("resid_pdrop"))
    shape = _model(read, (layer,) * read.size("n_layer", default=28), vocab, tied=False, head_bias=True)
    return shape._replace(max_sequence=read.size("n_positions", default=2048), dropout=read.rate("embd_pdrop"))


def gpt_neo(read: ConfigFields) -> StackShape:
    """Read GPT-Neo: learned positions, a window in every second layer, unfused attention."""
    hidden, heads = read.size("hidden_size", default=2048), read.size("num_heads", default=16)
    positions, vocab = read.size("max_position_embeddings", default=2048), read.size("vocab_size", default=50257)
    attention = AttentionShape(
        hidden, heads, heads, read.per_head(hidden, heads), query_bias=False, key_bias=False, written_out=True,
        dropout=read.rate("attention_dropout"),
    )  # fmt: skip
    feed = _plain_feed_forward(read, "intermediate_size", hidden, "gelu_new")
    layer = LayerShape(attention, feed, dropout=read.rate("resid_dropout"))
    shape = _model(read, (layer,) * read.size("num_layers", default=24), vocab)
    return shape._replace(max_sequence=positions, positions=positions, dropout=read.rate("embed_dropout"))


def gpt_neox(read: ConfigFields) -> StackShape:
    """Read GPT-NeoX and Pythia: parallel attention and feed-forward, a quarter of each head rotated."""
    hidden, heads = read.size("hidden_size"), read.size("num_attention_heads")
    bias, head_dim = read.flag("attention_bias", default=True), read.per_head(hidden, heads)
    share = read.config.get("rotary_pct")
    share = read.share("partial_rotary_factor", default=0.25) if share is None else read.share("rotary_pct", default=1)
    attention = AttentionShape(
        hidden, heads, heads, head_dim, rotary=2 * int(head_dim * share / 2), query_bias=bias, out_bias=bias, fused=True
    )
    feed = FeedForwardShape(read.size("intermediate_size"), activation=read.word("hidden_act", default="gelu"))
    layout = "parallel2" if read.flag("use_parallel_residual", default=True) else "pre"
    layer = LayerShape(attention, feed, layout, dropout=read.rate("hidden_dropout"))
    shape = _model(read, (layer,) * read.size("num_hidden_layers"), read.size("vocab_size"), tied=False)
    return shape._replace(dropout=read.rate("hidden_dropout"))


def opt(read: ConfigFields) -> StackShape:
    """Read OPT: learned positions with an offset of two, ReLU. The 350m model has narrow embeddings and late norms."""
    hidden, heads = read.size("hidden_size"), read.size("num_attention_heads")
    positions, bias = read.size("max_position_embeddings", default=2048), read.flag("enable_bias", default=True)
    width = read.optional("word_embed_proj_dim") or hidden
    first = read.flag("do_layer_norm_before", default=True)
    attention = AttentionShape(
        hidden, heads, heads, read.per_head(hidden, heads), query_bias=bias, key_bias=bias, out_bias=bias
    )
    feed = FeedForwardShape(
        read.size("ffn_dim"), bias=bias, activation=read.word("activation_function", default="relu")
    )
    norm = "layer" if read.flag("layer_norm_elementwise_affine", default=True) else "bare"
    layer = LayerShape(attention, feed, "pre" if first else "post", norm, read.rate("dropout", default=0.1))
    narrow = width != hidden
    return _model(read, (layer,) * read.size("num_hidden_layers"), read.size("vocab_size"))._replace(
        embedding=width,
        project_out=narrow,
        project_bias=False,
        positions_after=narrow,
        norm=norm,
        final_norm=first and not read.flag("_remove_final_layer_norm", default=False),
        positions=positions + 2,
    )


def bloom(read: ConfigFields) -> StackShape:
    """Read BLOOM: ALiBi positions as a bias on the scores, and a norm after the embedding."""
    hidden, heads = read.size("hidden_size", "n_embed"), read.size("n_head", "num_attention_heads")
    attention = AttentionShape(hidden, heads, heads, read.per_head(hidden, heads), fused=True, written_out=True)
    feed = FeedForwardShape(4 * hidden, activation="bloom_gelu")
    layer = LayerShape(attention, feed, dropout=read.rate("hidden_dropout"))
    shape = _model(read, (layer,) * read.size("n_layer", "num_hidden_layers"), read.size("vocab_size"))
    return shape._replace(max_sequence=read.size("seq_length", default=2048), embedding_norm=True)


def mpt(read: ConfigFields) -> StackShape:
    """Read MPT: ALiBi positions, no biases, unfused attention."""
    hidden, heads = read.size("d_model"), read.size("n_heads")
    if not read.flag("no_bias", default=True):
        raise InvalidInput(f"{read.reference}: an MPT model with biases is not expanded: trace it from a script")
    attention = AttentionShape(
        hidden, heads, heads, read.per_head(hidden, heads), query_bias=False, out_bias=False, fused=True,
        written_out=True,
    )  # fmt: skip
    feed = FeedForwardShape(hidden * (read.optional("expansion_ratio") or 4), bias=False)
    layer = LayerShape(attention, feed, norm="unbiased", dropout=read.rate("resid_pdrop"))
    shape = _model(read, (layer,) * read.size("n_layers"), read.size("vocab_size"))
    return shape._replace(max_sequence=read.size("max_seq_len", default=2048), norm="unbiased")


def falcon(read: ConfigFields) -> StackShape:
    """Read Falcon: one key-value head (7B) or grouped ones (40B, 180B), parallel blocks, tied embeddings."""
    hidden, heads = read.size("hidden_size"), read.size("num_attention_heads", "n_head")
    grouped = read.flag("new_decoder_architecture", default=False)
    parallel = grouped or read.flag("parallel_attn", default=True)
    bias, head_dim = read.flag("bias", default=False), read.per_head(hidden, heads)
    few = (read.optional("num_kv_heads") or heads) if grouped else 1
    attention = AttentionShape(
        hidden, heads, few if grouped or read.flag("multi_query", default=True) else heads, head_dim,
        rotary=0 if read.flag("alibi", default=False) else head_dim, query_bias=bias, out_bias=bias, fused=True,
        spread=True,
    )  # fmt: skip
    feed = FeedForwardShape(
        read.optional("ffn_hidden_size") or 4 * hidden, bias=bias, activation=read.word("activation", default="gelu")
    )
    two = (read.optional("num_ln_in_parallel_attn") or (2 if grouped else 1)) == 2
    layout = ("parallel2" if two else "parallel") if parallel else "pre"
    layer = LayerShape(attention, feed, layout, dropout=read.rate("hidden_dropout"))
    return _model(read, (layer,) * read.size("num_hidden_layers", "n_layer"), read.size("vocab_size"))


def _gpt(read: ConfigFields, *, activation: str, kv_heads: int | None) -> StackShape:
    """Read GPT-2 and families with its field names. Both leave out published defaults."""
    hidden, heads = read.size("n_embd", default=768), read.size("n_head", default=12)
    positions, vocab = read.size("n_positions", "n_ctx", default=1024), read.size("vocab_size", default=50257)
    attention = AttentionShape(
        hidden, heads, kv_heads or heads, read.per_head(hidden, heads), fused=True,
        dropout=read.rate("attn_pdrop", default=0.1),
    )  # fmt: skip
    feed = _plain_feed_forward(read, "n_inner", hidden, activation)
    layer = LayerShape(attention, feed, dropout=read.rate("resid_pdrop", default=0.1))
    shape = _model(read, (layer,) * read.size("n_layer", default=12), vocab)
    return shape._replace(max_sequence=positions, positions=positions, dropout=read.rate("embd_pdrop", default=0.1))


def _model(
    read: ConfigFields, layers: tuple[LayerShape, ...], vocab: int, *, tied: bool = True, head_bias: bool = False
) -> StackShape:
    """Return a decoder of some layers. ``tied`` and the longest sequence are defaults for the file."""
    return StackShape(
        family=read.family,
        hidden=layers[0].attention.hidden,
        vocab=vocab,
        layers=layers,
        head=decoder_head(read, vocab, tied=read.flag("tie_word_embeddings", default=tied), bias=head_bias),
        max_sequence=read.optional("max_position_embeddings") or 2048,
    )
