"""Families of one stack: a reader for those that differ from Llama as a ``FamilyStyle`` says, and more decoders."""

from collections.abc import Mapping
from typing import Any, NamedTuple

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

LONGEST = 2048
"""Longest sequence of a model whose file names none."""
LLAMA_NAMES = {
    "hidden": "hidden_size", "heads": "num_attention_heads", "layers": "num_hidden_layers n_layer",
    "vocab": "vocab_size", "positions": "max_position_embeddings", "width": "intermediate_size",
    "attention_bias": "attention_bias", "mlp_bias": "mlp_bias", "share": "partial_rotary_factor",
    "activation": "hidden_activation hidden_act", "attention_dropout": "attention_dropout",
    "dropout": "resid_pdrop hidden_dropout residual_dropout", "embedding_dropout": "embd_pdrop embedding_dropout",
}  # fmt: skip
"""Fields of Llama's configurations, and their older names."""


class FamilyStyle(NamedTuple):
    """How a family differs from Llama: RMS norms, rotary positions, a gated feed-forward, grouped attention.

    Attributes:
        names: Fields of the family's files where they are not Llama's (``LLAMA_NAMES``); "" if there is none.
        defaults: Published sizes that files may leave out.
        rates: Published rates of dropout that files may leave out.
        switches: Fields that, if they are true, change the style. ``default`` is for a file without the field.
        experts: Published number (``count``), choices of a token (``used``) and width (``size``, ``shared_size``),
            whether they have a ``bias`` and a ``gate`` of the shared one, their ``activation``, and the fields with the
            ``width`` of an expert and of the ``shared`` one.
        kv_heads: Published number, or 0 for as many as there are queries.
        head_dim: Published default, or ``None`` for an equal share of the hidden size.
        multiple: Width of the feed-forward block in hidden sizes if the file names none.
        rotary: Share of a head that is rotated.
        recent: Files may name the width of a head, fewer heads of keys and values, a sliding window, and a cap.
        window: Published sliding window, or 0 without one.
        windowed: False if files must switch their sliding window on.
        pattern: Period of the layers that see all tokens if the others have a window.
        capped: A tanh bounds the scores, which needs unfused attention.
        kernels: Implementations of attention that transformers has for the family.
        eager_until: The last release of transformers that has eager attention alone.
        softmax: That of ``AttentionShape``.
        learned: Offset of learned positions, or ``None`` without them.
        float32: Published checkpoints are mostly in float32, not in 16 bits.
    """

    names: Mapping[str, str] = {}
    defaults: Mapping[str, int] = {"positions": LONGEST}
    rates: Mapping[str, float] = {}
    switches: Mapping[str, Mapping[str, Any]] = {}
    experts: Mapping[str, Any] = {}
    causal: bool = True
    kv_heads: int = 0
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
    multiple: int = 0
    activation: str = "silu"
    rotary: float = 1.0
    recent: bool = True
    window: int = 0
    windowed: bool = True
    pattern: int = 0
    head_bias: bool = False
    sinks: bool = False
    capped: bool = False
    kernels: str = "eager sdpa flash"
    eager_until: str = ""
    softmax: str = "wide"
    written_out: bool = False
    spread: bool = False
    learned: int | None = None
    embedding_norm: bool = False
    float32: bool = False

    def fields(self, name: str) -> list[str]:
        """Return the names in the family's files of what Llama calls ``name``."""
        return self.names.get(name, LLAMA_NAMES.get(name, "")).split()

    def size(self, read: ConfigFields, name: str) -> int:
        """Return a size, or its published default."""
        default = self.defaults.get(name)
        return read.size(*self.fields(name), default=default, least=0 if default == 0 else 1)

    def sizes(self, read: ConfigFields) -> dict[str, int]:
        """Return the sizes with a published default by name. The notes about defaults have this order."""
        return {name: self.size(read, name) for name in self.defaults}

    def longest(self, read: ConfigFields) -> int:
        """Return the longest sequence."""
        if "positions" in self.defaults:
            return self.size(read, "positions")
        return read.optional(*self.fields("positions")) or LONGEST

    def rate(self, read: ConfigFields, name: str) -> float:
        """Return a rate of dropout, or its published default."""
        return read.rate(*self.fields(name), default=self.rates.get(name, 0.0))


def read_stack(read: ConfigFields, style: FamilyStyle) -> StackShape:
    """Read a model that differs from Llama as ``style`` and its switches say."""
    for name, switch in style.switches.items():
        changes = dict(switch)
        if read.flag(name, default=changes.pop("default", False)):
            style = style._replace(**changes)
    hidden, heads = style.size(read, "hidden"), style.size(read, "heads")
    positions = 0 if style.learned is None else style.longest(read) + style.learned
    vocab = style.size(read, "vocab") if style.fields("vocab") else 0
    attention = _attention(read, style, hidden, heads)
    count = style.size(read, "layers")
    feeds = _feed_forwards(read, style, hidden, count)
    windows: list[int | None] = [None] * count
    if style.recent:
        windows = read.windows(count, pattern=style.pattern, default=style.window, used=style.windowed)
    rate = style.rate(read, "dropout")
    layers = tuple(
        LayerShape(attention._replace(window=window), feed, style.layout, style.norm, rate)
        for window, feed in zip(windows, feeds, strict=True)
    )
    return decoder_stack(read, style, layers, vocab)._replace(positions=positions)


def _attention(read: ConfigFields, style: FamilyStyle, hidden: int, heads: int) -> AttentionShape:
    recent = read if style.recent else ConfigFields({}, read.reference)
    head_dim, kv_heads = recent.optional("head_dim"), recent.optional("num_key_value_heads")
    if head_dim is None and style.head_dim is None:
        head_dim = read.per_head(hidden, heads)
    elif head_dim is None:
        head_dim = recent.size("head_dim", default=style.head_dim)
    if kv_heads is None:
        shared = style.kv_heads if style.kv_heads and heads % style.kv_heads == 0 else 0
        kv_heads = recent.size("num_key_value_heads", default=shared) if shared else heads
    if heads % kv_heads:
        raise InvalidInput(f"{read.reference}: {heads} heads cannot share {kv_heads} key-value heads evenly")
    bias = read.flag(*style.fields("attention_bias"), default=style.qkv_bias)
    if style.fields("rotary"):
        rotary = min(head_dim, style.size(read, "rotary"))
    else:
        rotary = 2 * int(head_dim * read.share(*style.fields("share"), default=style.rotary) / 2)
    capped = recent.is_set("attn_logit_softcapping", default=style.capped)
    return AttentionShape(
        hidden, heads, kv_heads, head_dim, causal=style.causal, rotary=rotary, query_bias=bias, key_bias=bias,
        out_bias=bias if style.out_bias is None else style.out_bias, query_key_norm=style.query_key_norm,
        fused=style.fused_qkv, spread=style.spread, sinks=style.sinks, capped=capped,
        written_out=style.written_out, eager=capped or style.sinks, softmax=style.softmax,
        dropout=style.rate(read, "attention_dropout"),
    )  # fmt: skip


def _feed_forwards(read: ConfigFields, style: FamilyStyle, hidden: int, layers: int) -> list[FeedForwardShape]:
    """Return the feed-forward block of each layer: experts if the style has some, unless the file makes it dense."""
    experts = style.experts
    if not experts:
        return [_feed_forward(read, style, hidden)] * layers
    names = experts.get("width", "moe_intermediate_size intermediate_size").split()
    width = read.size(*names, default=experts["size"])
    shared = read.size(experts["shared"], default=experts["shared_size"], least=0) if "shared" in experts else 0
    count = read.size("num_experts", "num_local_experts", "n_routed_experts", default=experts["count"])
    chosen = read.size("num_experts_per_tok", default=experts["used"])
    if chosen > count:
        raise InvalidInput(f"{read.reference}: a token cannot pass {chosen} of {count} experts: correct one of them")
    bias = experts.get("bias", False)
    expert = FeedForwardShape(
        width, gated=True, bias=bias, activation=experts.get("activation") or read.word("hidden_act", default="silu"),
        experts=count, used=chosen, router_bias=bias, shared=shared,
        shared_gate=bool(shared) and experts.get("gate", False),
    )  # fmt: skip
    sparse = _sparse_layers(read, layers)
    dense = expert if all(sparse) else _feed_forward(read, style, hidden)
    return [expert if is_sparse else dense for is_sparse in sparse]


def _feed_forward(read: ConfigFields, style: FamilyStyle, hidden: int) -> FeedForwardShape:
    multiple = style.multiple * hidden
    return FeedForwardShape(
        width=read.optional(*style.fields("width")) or multiple if multiple else style.size(read, "width"),
        gated=style.gated,
        bias=read.flag(*style.fields("mlp_bias"), default=style.mlp_bias),
        activation=read.word(*style.fields("activation"), default=style.activation),
        fused=style.fused_gate,
    )


def _sparse_layers(read: ConfigFields, layers: int) -> list[bool]:
    """Return which layers have experts: all but the file's exceptions."""
    listed = read.config.get("moe_layers")
    if isinstance(listed, list):
        return [layer in listed for layer in range(layers)]
    step = read.optional("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_freq") or 1
    excepted = read.listed("mlp_only_layers")
    return [layer not in excepted and (layer + 1) % step == 0 for layer in range(layers)]


def decoder_stack(read: ConfigFields, style: FamilyStyle, layers: tuple[LayerShape, ...], vocab: int) -> StackShape:
    """Return a decoder of these layers, with the embedding and the head that the file describes."""
    tied = read.flag("tie_word_embeddings", default=style.tied)
    return StackShape(
        family=read.family,
        hidden=layers[0].attention.hidden,
        vocab=vocab,
        layers=layers,
        head=_head(read, vocab, tied=tied, bias=style.head_bias),
        max_sequence=style.longest(read),
        norm=style.norm,
        embedding_norm=style.embedding_norm,
        dropout=style.rate(read, "embedding_dropout"),
    )


def _head(read: ConfigFields, vocab: int, *, tied: bool, bias: bool) -> HeadShape:
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


def deepseek(read: ConfigFields, style: FamilyStyle) -> StackShape:
    """Read DeepSeek V2 and V3: latent attention, dense layers first, then experts and shared ones."""
    layers, hidden, heads = (style.size(read, name) for name in ("layers", "hidden", "heads"))
    experts = style.experts
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
    width = read.size("moe_intermediate_size", default=experts["size"])
    expert = FeedForwardShape(
        width, gated=True, bias=False, activation=read.word("hidden_act", default="silu"),
        experts=read.size("n_routed_experts", "num_local_experts", default=experts["count"]),
        used=read.size("num_experts_per_tok", default=experts["used"]),
        shared=width * (read.size("n_shared_experts", default=experts["shared"], least=0)),
    )  # fmt: skip
    dense = _feed_forward(read, style, hidden)
    first = read.optional("first_k_dense_replace", least=0)
    first = experts["first"] if first is None else first
    feeds = [dense if layer < first else expert for layer in range(layers)]
    stack = tuple(LayerShape(attention, feed, norm="rms") for feed in feeds)
    return decoder_stack(read, style, stack, style.size(read, "vocab"))


def opt(read: ConfigFields, style: FamilyStyle) -> StackShape:
    """Read OPT, whose embeddings may be narrow, and whose norms may come late."""
    shape = read_stack(read, style)
    width = read.optional("word_embed_proj_dim") or shape.hidden
    first = shape.layers[0].layout == "pre"
    return shape._replace(
        embedding=width,
        project_out=width != shape.hidden,
        project_bias=False,
        positions_after=width != shape.hidden,
        final_norm=first and not read.flag("_remove_final_layer_norm", default=False),
    )


def mpt(read: ConfigFields, style: FamilyStyle) -> StackShape:
    """Read MPT, whose files name the width of the feed-forward block in hidden sizes."""
    if not read.flag("no_bias", default=True):
        raise InvalidInput(f"{read.reference}: an MPT model with biases is not expanded: trace it from a script")
    return read_stack(read, style._replace(multiple=read.optional("expansion_ratio") or 4))


def falcon(read: ConfigFields, style: FamilyStyle) -> StackShape:
    """Read Falcon, whose layout and key-value heads depend on several switches."""
    grouped = read.flag("new_decoder_architecture", default=False)
    parallel = grouped or read.flag("parallel_attn", default=True)
    two = (read.optional("num_ln_in_parallel_attn") or (2 if grouped else 1)) == 2
    layout = ("parallel2" if two else "parallel") if parallel else "pre"
    kv_heads = 1 if read.flag("multi_query", default=True) else 0
    if grouped:
        kv_heads = read.optional("num_kv_heads") or 0
    return read_stack(read, style._replace(layout=layout, kv_heads=kv_heads))


def qwen(read: ConfigFields, style: FamilyStyle) -> StackShape:
    """Read Qwen's first generation: files give two halves of the gated block, and its loss is not in float32."""
    shape = read_stack(read, style)
    halves = [layer.feed_forward._replace(width=layer.feed_forward.width // 2) for layer in shape.layers]
    layers = tuple(layer._replace(feed_forward=half) for layer, half in zip(shape.layers, halves, strict=True))
    return shape._replace(layers=layers, head=shape.head._replace(upcast=False, shifted=True))
