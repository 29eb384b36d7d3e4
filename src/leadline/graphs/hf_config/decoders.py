"""Decoder-only families whose layers are laid out as Llama's: what each calls its sizes, and where it differs."""

from typing import NamedTuple

from leadline.core.errors import InvalidInput
from leadline.graphs.hf_config.fields import Fields
from leadline.graphs.hf_config.shape import (
    AttentionShape,
    FeedForwardShape,
    HeadShape,
    Latent,
    LayerShape,
    StackShape,
)


class Style(NamedTuple):
    """How a family differs from Llama: RMS norms, rotary positions, a gated feed-forward, grouped attention.

    ``kv_heads`` and ``head_dim`` are the published defaults where a file is silent (``None``: as many heads as queries,
    the hidden size shared among them). ``rotary`` is the share of a head that is rotated, ``pattern`` the period of
    layers that see all tokens where the others have a window, ``window`` the window where the file names none;
    ``capped`` bounds scores by a tanh, and so writes attention out.
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


def decoder(read: Fields, style: Style) -> StackShape:
    """Read a dense decoder of Llama's kind."""
    layers = read.size("num_hidden_layers", "n_layer")
    feed = _feed_forward(read, style)
    return stack(read, style, [feed] * layers)


def mixture(read: Fields, style: Style, *, experts: int, used: int, **fields: str) -> StackShape:
    """Read a decoder whose layers have experts, but for those that the file makes dense.

    ``fields`` say what the family calls its sizes: ``width`` of an expert, ``dense`` of a dense layer, ``shared``.
    """
    layers = read.size("num_hidden_layers")
    width = read.size(*fields.get("width", "moe_intermediate_size,intermediate_size").split(","))
    shared = read.optional(fields["shared"], least=0) or 0 if "shared" in fields else 0
    count = read.size("num_experts", "num_local_experts", "n_routed_experts", default=experts)
    chosen = read.size("num_experts_per_tok", default=used)
    if chosen > count:
        raise InvalidInput(f"{read.what}: a token cannot pass {chosen} of {count} experts: correct one of them")
    expert = FeedForwardShape(
        width, gated=True, bias=fields.get("bias") == "yes",
        activation=fields.get("activation") or read.word("hidden_act", default="silu"),
        experts=count, used=chosen, router_bias=fields.get("bias") == "yes", shared=shared,
        shared_gate=bool(shared) and fields.get("gate") == "yes",
    )  # fmt: skip
    sparse = _sparse_layers(read, layers)
    if all(sparse):
        return stack(read, style, [expert] * layers)
    dense = _feed_forward(read, style, fields.get("dense", "intermediate_size"))
    return stack(read, style, [expert if here else dense for here in sparse])


def deepseek(read: Fields, *, first_dense: int, shared: int) -> StackShape:
    """Read DeepSeek V2 and V3: latent attention, dense layers first, then experts beside shared ones."""
    layers, hidden, heads = (read.size(name) for name in ("num_hidden_layers", "hidden_size", "num_attention_heads"))
    bias = read.flag("attention_bias", default=False)
    config = read.config
    rank = read.optional("q_lora_rank") if "q_lora_rank" in config else 1536
    latent = Latent(
        query_rank=rank,
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
    dense = _feed_forward(read, Style())
    first = read.optional("first_k_dense_replace", least=0)
    first = first_dense if first is None else first
    feeds = [dense if place < first else expert for place in range(layers)]
    return _wrap(read, Style(), hidden, tuple(LayerShape(attention, feed, norm="rms") for feed in feeds))


def phi(read: Fields) -> StackShape:
    """Read Phi-1 and 2: one norm for parallel attention and feed-forward, biases everywhere."""
    return decoder(
        read,
        Style(
            norm="layer", layout="parallel", gated=False, mlp_bias=True, qkv_bias=True, activation="gelu_new",
            rotary=0.5, head_bias=True,
        ),
    )  # fmt: skip


def starcoder2(read: Fields) -> StackShape:
    """Read StarCoder2: layer norms, a plain feed-forward, biases unless the file says no."""
    bias = read.flag("use_bias", default=True)
    return decoder(read, Style(norm="layer", gated=False, mlp_bias=bias, qkv_bias=bias, activation="gelu_pytorch_tanh"))


def stablelm(read: Fields) -> StackShape:
    """Read StableLM: layer norms, a quarter of each head rotated, parallel blocks where the file says so."""
    style = Style(
        norm="layer", rotary=0.25, qkv_bias=read.flag("use_qkv_bias", default=False), out_bias=False,
        query_key_norm="each" if read.flag("qk_layernorm", default=False) else "",
        layout="parallel" if read.flag("use_parallel_residual", default=False) else "pre",
    )  # fmt: skip
    return decoder(read, style)


def cohere(read: Fields) -> StackShape:
    """Read Command R: parallel blocks behind one norm without bias, written out; tied embeddings."""
    norm = "each-written" if read.flag("use_qk_norm", default=False) else ""
    return decoder(read, Style(norm="written", layout="parallel", tied=True, query_key_norm=norm))


def stack(read: Fields, style: Style, feeds: list[FeedForwardShape]) -> StackShape:
    """Return the model of one layer for each feed-forward block, with attention as the file has it."""
    hidden, heads = read.size("hidden_size"), read.size("num_attention_heads")
    head_dim = read.optional("head_dim") or style.head_dim or read.per_head(hidden, heads)
    kv_heads = read.optional("num_key_value_heads") or heads
    if "num_key_value_heads" not in read.config and style.kv_heads:
        kv_heads = read.size("num_key_value_heads", default=style.kv_heads)
    if heads % kv_heads:
        raise InvalidInput(f"{read.what}: {heads} heads cannot share {kv_heads} key-value heads evenly")
    bias = read.flag("attention_bias", default=style.qkv_bias)
    share = read.share("partial_rotary_factor", default=style.rotary)
    attention = AttentionShape(
        hidden, heads, kv_heads, head_dim, rotary=2 * int(head_dim * share / 2), query_bias=bias, key_bias=bias,
        out_bias=bias if style.out_bias is None else style.out_bias, query_key_norm=style.query_key_norm,
        fused=style.fused_qkv, sinks=style.sinks, dropout=read.rate("attention_dropout"),
    )  # fmt: skip
    capped = read.given("attn_logit_softcapping", default=style.capped)
    attention = attention._replace(capped=capped, written_out=capped or style.sinks)
    windows = read.windows(len(feeds), pattern=style.pattern, default=style.window)
    rate = read.rate("resid_pdrop", "hidden_dropout", "residual_dropout")
    layers = tuple(
        LayerShape(attention._replace(window=window), feed, style.layout, style.norm, rate)
        for window, feed in zip(windows, feeds, strict=True)
    )
    return _wrap(read, style, hidden, layers)


def decoder_head(read: Fields, vocab: int, *, tied: bool, bias: bool = False) -> HeadShape:
    """Return the head of a decoder: scores for the vocabulary, unless the file names another one."""
    architecture = read.architecture()
    if architecture.endswith("ForSequenceClassification"):
        return HeadShape(outputs=read.labels())
    if architecture.endswith("ForTokenClassification"):
        return HeadShape(outputs=read.labels(), bias=True)
    if architecture.endswith("Model") and not architecture.endswith("LMHeadModel"):
        return HeadShape()
    capped = read.given("final_logit_softcapping", default=read.family == "gemma2")
    return HeadShape(outputs=vocab, tied=tied, bias=bias, capped=capped, upcast=True)


def _wrap(read: Fields, style: Style, hidden: int, layers: tuple[LayerShape, ...]) -> StackShape:
    vocab = read.size("vocab_size")
    return StackShape(
        family=read.family,
        hidden=hidden,
        vocab=vocab,
        layers=layers,
        head=decoder_head(read, vocab, tied=read.flag("tie_word_embeddings", default=style.tied), bias=style.head_bias),
        max_sequence=read.size("max_position_embeddings", default=2048),
        norm=style.norm,
        dropout=read.rate("embd_pdrop", "embedding_dropout"),
    )


def _feed_forward(read: Fields, style: Style, field: str = "intermediate_size") -> FeedForwardShape:
    return FeedForwardShape(
        width=read.size(field, "intermediate_size"),
        gated=style.gated,
        bias=read.flag("mlp_bias", default=style.mlp_bias),
        activation=read.word("hidden_activation", "hidden_act", default=style.activation),
        fused=style.fused_gate,
    )


def _sparse_layers(read: Fields, layers: int) -> list[bool]:
    """Return which layers have experts: all, but for those that the file excepts."""
    listed = read.config.get("moe_layers")
    if isinstance(listed, list):
        return [place in listed for place in range(layers)]
    step = read.optional("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_freq") or 1
    excepted = read.config.get("mlp_only_layers") or []
    return [place not in excepted and (place + 1) % step == 0 for place in range(layers)]
