"""Encoder families for text and images: the names of their sizes, and how they differ from BERT."""

from typing import Any

from leadline.core.errors import InvalidInput
from leadline.graphs.hf_config.fields import ConfigFields
from leadline.graphs.hf_config.shape import (
    AttentionShape,
    FeedForwardShape,
    HeadShape,
    ImageShape,
    LayerShape,
    RelativeAttentionShape,
    StackShape,
)

OFFSET = ("roberta", "xlm-roberta", "camembert", "mpnet")
"""Families whose first two positions are never used."""

POOLED = ("bert", "roberta", "xlm-roberta", "camembert", "albert", "mpnet")
"""Families whose bare model ends in a dense layer over the first token."""


def bert(read: ConfigFields) -> StackShape:
    """Read BERT, RoBERTa, DistilBERT and ELECTRA: norms after each half layer, a tied decoder with a transform."""
    family = read.family
    hidden = read.size("hidden_size", "dim", default=256 if family == "electra" else 768)
    positions = read.size("max_position_embeddings", default=512)
    width = read.size("embedding_size", default=128) if family == "electra" else hidden
    layer = _layer(read, hidden, default=1024 if family == "electra" else 3072)
    types = 0 if family == "distilbert" else read.size("type_vocab_size", default=2)
    return _encoder(read, layer, 12, width, positions, token_types=types)


def mpnet(read: ConfigFields) -> StackShape:
    """Read MPNet: BERT without segments, with a learned bias for distances that all layers share."""
    hidden = read.size("hidden_size", default=768)
    layer = _layer(read, hidden, written_out=True)
    positions = read.size("max_position_embeddings", default=512)
    buckets = read.size("relative_attention_num_buckets", default=32)
    return _encoder(read, layer, 12, hidden, positions, position_buckets=buckets)


def albert(read: ConfigFields) -> StackShape:
    """Read ALBERT: one layer repeated, and narrow embeddings."""
    if read.size("inner_group_num", default=1) != 1:
        raise InvalidInput(f"{read.reference}: an ALBERT model with groups of layers is not expanded: trace it")
    hidden = read.size("hidden_size", default=4096)
    width = read.size("embedding_size", default=128)
    layer = _layer(read, hidden, heads=64, default=16384, activation="gelu_new")
    layers, depth = read.size("num_hidden_groups", default=1), read.size("num_hidden_layers", default=12)
    positions, types = read.size("max_position_embeddings", default=512), read.size("type_vocab_size", default=2)
    return _encoder(read, layer, layers, width, positions, depth=depth, project_always=True, token_types=types)


def deberta(read: ConfigFields) -> StackShape:
    """Read DeBERTa, all versions: scores add comparisons of contents and distances."""
    first = read.family == "deberta"
    hidden = read.size("hidden_size", default=768 if first else 1536)
    if (read.optional("embedding_size") or hidden) != hidden or read.flag("talking_head", default=False):
        raise InvalidInput(f"{read.reference}: a DeBERTa model with narrow embeddings or talking heads is not expanded")
    if read.optional("conv_kernel_size", least=0):
        raise InvalidInput(f"{read.reference}: conv_kernel_size is set, but convolutions are not expanded: trace it")
    kinds = _comparisons(read)
    relative = RelativeAttentionShape(
        "c2p" in kinds, "p2c" in kinds, read.flag("share_att_key", default=False) and not first, first
    )
    layer = _layer(read, hidden, heads=12 if first else 24, default=3072 if first else 6144, relative=relative)
    positions = read.size("max_position_embeddings", default=512)
    farthest = read.optional("max_relative_positions", least=-1) or -1
    span = farthest if farthest > 0 else positions
    buckets = read.optional("position_buckets", least=-1) or -1
    span = buckets if not first and buckets > 0 else span
    return _encoder(
        read, layer, 12 if first else 24, hidden, positions,
        token_types=read.size("type_vocab_size", default=0, least=0),
        relative_positions=2 * span if read.flag("relative_attention", default=False) else 0,
        relative_norm="layer_norm" in str(read.config.get("norm_rel_ebd", "none")),
    )._replace(positions=positions if read.flag("position_biased_input", default=True) else 0)  # fmt: skip


def modernbert(read: ConfigFields) -> StackShape:
    """Read ModernBERT: norms before each half, rotary positions, every third layer sees all tokens."""
    hidden, heads = read.size("hidden_size", default=768), read.size("num_attention_heads", default=12)
    layers = read.size("num_hidden_layers", default=22)
    bias, head_dim = read.flag("attention_bias", default=False), read.per_head(hidden, heads)
    norm = "layer" if read.flag("norm_bias", default=False) else "unbiased"
    feed = FeedForwardShape(
        read.size("intermediate_size", default=1152), gated=True, bias=read.flag("mlp_bias", default=False),
        activation=read.word("hidden_activation", default="gelu"), fused=True, dropout=read.rate("mlp_dropout"),
    )  # fmt: skip
    window, every = read.size("local_attention", default=128), read.size("global_attn_every_n_layers", default=3)
    stack = tuple(
        LayerShape(
            AttentionShape(
                hidden, heads, heads, head_dim, causal=False, window=window if place % every else None,
                rotary=head_dim, query_bias=bias, out_bias=bias, fused=True,
            ),
            feed, norm=norm, first_norm=place > 0,
        )
        for place in range(layers)
    )  # fmt: skip
    vocab = read.size("vocab_size", default=50368)
    head = encoder_head(read, hidden, vocab, hidden, read.word("classifier_activation", default="gelu"))
    if head.transform:
        bias = read.flag("classifier_bias", default=False)
        head = head._replace(upcast=not head.pooled, transform_bias=bias, transform_norm=norm)
    return StackShape(
        family=read.family,
        hidden=hidden,
        vocab=vocab,
        layers=stack,
        head=head,
        max_sequence=read.size("max_position_embeddings", default=8192),
        norm=norm,
        embedding_norm=True,
        dropout=read.rate("embedding_dropout"),
    )


def vit(read: ConfigFields) -> StackShape:
    """Read ViT and DeiT: patches and a class token in place of words. DeiT has a second such token."""
    hidden, heads = read.size("hidden_size", default=768), read.size("num_attention_heads", default=12)
    side, patch = read.size("image_size", default=224), read.size("patch_size", default=16)
    if patch > side:
        raise InvalidInput(f"{read.reference}: an image of {side} pixels has no patches of {patch}: correct one")
    image = ImageShape(side, patch, read.size("num_channels", default=3), extra=2 if read.family == "deit" else 1)
    bias, rate = read.flag("qkv_bias", default=True), read.rate("hidden_dropout_prob")
    attention = AttentionShape(
        hidden, heads, heads, read.per_head(hidden, heads), causal=False, query_bias=bias, key_bias=bias
    )
    feed = FeedForwardShape(
        read.size("intermediate_size", default=3072), activation=read.word("hidden_act", default="gelu")
    )
    architecture = read.architecture()
    outputs = read.labels() * (2 if architecture.endswith("WithTeacher") else 1)
    head = HeadShape(outputs=outputs, bias=True, pooled=True)
    if architecture.endswith("Model"):
        head = HeadShape(pooled=True, transform=hidden)
    return StackShape(
        family=read.family,
        hidden=hidden,
        layers=(LayerShape(attention, feed, dropout=rate),) * read.size("num_hidden_layers", default=12),
        head=head,
        max_sequence=image.tokens,
        source=image,
        dropout=rate,
    )


def encoder_head(read: ConfigFields, hidden: int, vocab: int, width: int, activation: str) -> HeadShape:
    """Return the head of an encoder: scores of masked words, unless the file names another head."""
    architecture = read.architecture()
    if architecture.endswith("ForSequenceClassification"):
        kind = {"distilbert": "relu", "electra": "gelu", "deberta": "gelu", "deberta-v2": "gelu"}
        return HeadShape(
            read.labels(), bias=True, pooled=True, transform=hidden, activation=kind.get(read.family, "tanh")
        )
    if architecture.endswith(("ForTokenClassification", "ForQuestionAnswering")):
        return HeadShape(read.labels(), bias=True)
    if architecture == "ElectraForPreTraining":
        return HeadShape(1, bias=True, transform=hidden, activation=activation)
    if architecture.endswith("Model"):
        return HeadShape(pooled=True, transform=hidden) if read.family in POOLED else HeadShape()
    tied = read.flag("tie_word_embeddings", default=True)
    activation = "gelu" if read.family == "electra" else activation
    return HeadShape(vocab, tied=tied, bias=True, transform=width, transform_norm="layer", activation=activation)


def _encoder(
    read: ConfigFields,
    layer: LayerShape,
    layers: int,
    width: int,
    positions: int,
    **fields: Any,  # noqa: ANN401 - any
) -> StackShape:
    """Return an encoder of equal layers, with further ``fields`` of its shape.

    ``layers`` is the default, or the number of distinct layers of a deeper model. ``width`` is that of the embeddings,
    which are normalized.
    """
    vocab, hidden = read.size("vocab_size", default=30522), layer.attention.hidden
    count = layers if "depth" in fields else read.size("num_hidden_layers", "n_layers", default=layers)
    shape = StackShape(
        family=read.family,
        hidden=hidden,
        vocab=vocab,
        layers=(layer,) * count,
        head=encoder_head(read, hidden, vocab, width, layer.feed_forward.activation),
        max_sequence=positions - 2 * (read.family in OFFSET),
        embedding=width,
        final_norm=False,
        embedding_norm=True,
        positions=positions,
        dropout=layer.dropout,
    )
    return shape._replace(**fields)


def _layer(
    read: ConfigFields, hidden: int, *, heads: int = 12, default: int = 3072, activation: str = "gelu",
    written_out: bool = False, relative: RelativeAttentionShape | None = None,
) -> LayerShape:  # fmt: skip
    """Return BERT's layer. ``heads`` and ``default``, the feed-forward width, are defaults for the file."""
    many = read.size("num_attention_heads", "n_heads", default=4 if read.family == "electra" else heads)
    attention = AttentionShape(
        hidden, many, many, read.per_head(hidden, many), causal=False, written_out=written_out, relative=relative,
        dropout=read.rate("attention_probs_dropout_prob", "attention_dropout", default=0.1),
    )  # fmt: skip
    feed = FeedForwardShape(
        read.size("intermediate_size", "hidden_dim", default=default),
        activation=read.word("hidden_act", "activation", default=activation),
    )
    silent = 0.0 if read.family == "albert" else 0.1
    return LayerShape(attention, feed, "post", dropout=read.rate("hidden_dropout_prob", "dropout", default=silent))


def _comparisons(read: ConfigFields) -> tuple[str, ...]:
    """Return the comparisons that DeBERTa adds to the scores. Older files join them by a bar."""
    kinds = read.config.get("pos_att_type")
    return tuple(kinds.lower().split("|") if isinstance(kinds, str) else map(str, read.listed("pos_att_type")))
