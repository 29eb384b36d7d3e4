"""Decoder-only families with a layout of their own: GPT-2's, NeoX's, OPT's, BLOOM's, Falcon's, MPT's."""

from leadline.core.errors import InvalidInput
from leadline.graphs.hf_config.decoders import decoder_head
from leadline.graphs.hf_config.fields import Fields
from leadline.graphs.hf_config.shape import AttentionShape, FeedForwardShape, LayerShape, StackShape


def gpt2(read: Fields) -> StackShape:
    """Read GPT-2: learned positions, a fused projection, its own GELU."""
    return _gpt(read, activation="gelu_new", kv_heads=None)


def gpt_bigcode(read: Fields) -> StackShape:
    """Read GPT-BigCode (SantaCoder, StarCoder): GPT-2 with one key-value head."""
    return _gpt(read, activation="gelu_pytorch_tanh", kv_heads=1 if read.flag("multi_query", default=True) else None)


def gptj(read: Fields) -> StackShape:
    """Read GPT-J and CodeGen: one norm for both halves, attention without biases and written out, a biased head."""
    hidden, heads = read.size("n_embd", default=4096), read.size("n_head", default=16)
    head_dim, vocab = read.per_head(hidden, heads), read.size("vocab_size", default=50400)
    fused = read.family == "codegen"
    attention = AttentionShape(
        hidden, heads, heads, head_dim, rotary=min(head_dim, read.size("rotary_dim", default=64)), query_bias=False,
        key_bias=False, out_bias=False, fused=fused, written_out=True, dropout=read.rate("attn_pdrop"),
    )  # fmt: skip
    feed = FeedForwardShape(
        read.optional("n_inner") or 4 * hidden, activation=read.word("activation_function", default="gelu_new")
    )
    layer = LayerShape(attention, feed, "parallel", dropout=read.rate("resid_pdrop"))
    shape = _model(read, layer, read.size("n_layer", default=28), vocab, tied=False, head_bias=True)
    return shape._replace(max_sequence=read.size("n_positions", default=2048), dropout=read.rate("embd_pdrop"))


def gpt_neo(read: Fields) -> StackShape:
    """Read GPT-Neo: learned positions, every second layer with a window, attention written out."""
    hidden, heads = read.size("hidden_size", default=2048), read.size("num_heads", default=16)
    positions, vocab = read.size("max_position_embeddings", default=2048), read.size("vocab_size", default=50257)
    attention = AttentionShape(
        hidden, heads, heads, read.per_head(hidden, heads), query_bias=False, key_bias=False, written_out=True,
        dropout=read.rate("attention_dropout"),
    )  # fmt: skip
    feed = FeedForwardShape(
        read.optional("intermediate_size") or 4 * hidden,
        activation=read.word("activation_function", default="gelu_new"),
    )
    layer = LayerShape(attention, feed, dropout=read.rate("resid_dropout"))
    shape = _model(read, layer, read.size("num_layers", default=24), vocab)
    return shape._replace(max_sequence=positions, positions=positions, dropout=read.rate("embed_dropout"))


def gpt_neox(read: Fields) -> StackShape:
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
    shape = _model(read, layer, read.size("num_hidden_layers"), read.size("vocab_size"), tied=False)
    return shape._replace(dropout=read.rate("hidden_dropout"))


def opt(read: Fields) -> StackShape:
    """Read OPT: learned positions with an offset of two, ReLU; the 350m model has narrow embeddings and late norms."""
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
    return _model(read, layer, read.size("num_hidden_layers"), read.size("vocab_size"))._replace(
        embedding=width,
        project_out=narrow,
        project_bias=False,
        positions_after=narrow,
        norm=norm,
        final_norm=first and not read.flag("_remove_final_layer_norm", default=False),
        positions=positions + 2,
    )


def bloom(read: Fields) -> StackShape:
    """Read BLOOM: ALiBi positions as a bias on the scores, and a norm after the embedding."""
    hidden, heads = read.size("hidden_size", "n_embed"), read.size("n_head", "num_attention_heads")
    attention = AttentionShape(hidden, heads, heads, read.per_head(hidden, heads), fused=True, written_out=True)
    feed = FeedForwardShape(4 * hidden, activation="bloom_gelu")
    layer = LayerShape(attention, feed, dropout=read.rate("hidden_dropout"))
    shape = _model(read, layer, read.size("n_layer", "num_hidden_layers"), read.size("vocab_size"))
    return shape._replace(max_sequence=read.size("seq_length", default=2048), embedding_norm=True)


def mpt(read: Fields) -> StackShape:
    """Read MPT: ALiBi, no biases anywhere, attention written out."""
    hidden, heads = read.size("d_model"), read.size("n_heads")
    if not read.flag("no_bias", default=True):
        raise InvalidInput(f"{read.what}: an MPT model with biases is not expanded: trace it from a script")
    attention = AttentionShape(
        hidden, heads, heads, read.per_head(hidden, heads), query_bias=False, out_bias=False, fused=True,
        written_out=True,
    )  # fmt: skip
    feed = FeedForwardShape(hidden * (read.optional("expansion_ratio") or 4), bias=False)
    layer = LayerShape(attention, feed, norm="unbiased", dropout=read.rate("resid_pdrop"))
    shape = _model(read, layer, read.size("n_layers"), read.size("vocab_size"))
    return shape._replace(max_sequence=read.size("max_seq_len", default=2048), norm="unbiased")


def falcon(read: Fields) -> StackShape:
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
    return _model(read, layer, read.size("num_hidden_layers", "n_layer"), read.size("vocab_size"))


def _gpt(read: Fields, *, activation: str, kv_heads: int | None) -> StackShape:
    """Read GPT-2 and what keeps its names; both leave out what is as published."""
    hidden, heads = read.size("n_embd", default=768), read.size("n_head", default=12)
    positions, vocab = read.size("n_positions", "n_ctx", default=1024), read.size("vocab_size", default=50257)
    attention = AttentionShape(
        hidden, heads, kv_heads or heads, read.per_head(hidden, heads), fused=True,
        dropout=read.rate("attn_pdrop", default=0.1),
    )  # fmt: skip
    feed = FeedForwardShape(
        read.optional("n_inner") or 4 * hidden, activation=read.word("activation_function", default=activation)
    )
    layer = LayerShape(attention, feed, dropout=read.rate("resid_pdrop", default=0.1))
    shape = _model(read, layer, read.size("n_layer", default=12), vocab)
    return shape._replace(max_sequence=positions, positions=positions, dropout=read.rate("embd_pdrop", default=0.1))


def _model(
    read: Fields, layer: LayerShape, layers: int, vocab: int, *, tied: bool = True, head_bias: bool = False
) -> StackShape:
    """Return a decoder of equal layers; ``tied`` and the longest sequence are what holds where the file is silent."""
    return StackShape(
        family=read.family,
        hidden=layer.attention.hidden,
        vocab=vocab,
        layers=(layer,) * layers,
        head=decoder_head(read, vocab, tied=read.flag("tie_word_embeddings", default=tied), bias=head_bias),
        max_sequence=read.optional("max_position_embeddings") or 2048,
    )
