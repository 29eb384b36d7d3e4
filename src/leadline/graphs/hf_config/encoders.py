"""Encoders for text and images, and families of an encoder and a decoder: the names of their sizes."""

from leadline.core.errors import InvalidInput
from leadline.graphs.hf_config.decoders import FamilyStyle, read_stack
from leadline.graphs.hf_config.fields import ConfigFields
from leadline.graphs.hf_config.shape import (
    AttentionShape,
    EncoderDecoderShape,
    FeedForwardShape,
    HeadShape,
    ImageShape,
    LayerShape,
    RelativeAttentionShape,
    SpeechShape,
    StackShape,
)

OFFSET = ("roberta", "xlm-roberta", "camembert", "mpnet")
"""Families whose first two positions are never used."""

POOLED = ("bert", "roberta", "xlm-roberta", "camembert", "albert", "mpnet")
"""Families whose bare model ends in a dense layer over the first token."""


def bert(read: ConfigFields, style: FamilyStyle) -> StackShape:
    """Read BERT and its relatives, with a head that scores masked words."""
    sizes = style.sizes(read)
    shape = read_stack(read, style)
    width = sizes.get("embedding", shape.hidden)
    return shape._replace(
        head=encoder_head(read, shape.hidden, shape.vocab, width, shape.layers[0].feed_forward.activation),
        max_sequence=shape.max_sequence - 2 * (read.family in OFFSET),
        depth=sizes.get("depth", 0),
        embedding=width,
        final_norm=False,
        token_types=sizes.get("types", 0),
        position_buckets=sizes.get("buckets", 0),
    )


def albert(read: ConfigFields, style: FamilyStyle) -> StackShape:
    """Read ALBERT, whose embeddings are projected."""
    if read.size("inner_group_num", default=1) != 1:
        raise InvalidInput(f"{read.reference}: an ALBERT model with groups of layers is not expanded: trace it")
    return bert(read, style)._replace(project_always=True)


def deberta(read: ConfigFields, style: FamilyStyle) -> StackShape:
    """Read DeBERTa, all versions: scores add comparisons of contents and distances."""
    first = read.family == "deberta"
    hidden = style.size(read, "hidden")
    if (read.optional("embedding_size") or hidden) != hidden or read.flag("talking_head", default=False):
        raise InvalidInput(f"{read.reference}: a DeBERTa model with narrow embeddings or talking heads is not expanded")
    if read.optional("conv_kernel_size", least=0):
        raise InvalidInput(f"{read.reference}: conv_kernel_size is set, but convolutions are not expanded: trace it")
    kinds = _comparisons(read)
    relative = RelativeAttentionShape(
        "c2p" in kinds, "p2c" in kinds, read.flag("share_att_key", default=False) and not first, first
    )
    shape = bert(read, style)
    farthest = read.optional("max_relative_positions", least=-1) or -1
    span = farthest if farthest > 0 else shape.positions
    buckets = read.optional("position_buckets", least=-1) or -1
    span = buckets if not first and buckets > 0 else span
    return shape._replace(
        layers=tuple(layer._replace(attention=layer.attention._replace(relative=relative)) for layer in shape.layers),
        positions=shape.positions if read.flag("position_biased_input", default=True) else 0,
        relative_positions=2 * span if read.flag("relative_attention", default=False) else 0,
        relative_norm="layer_norm" in str(read.config.get("norm_rel_ebd", "none")),
    )


def modernbert(read: ConfigFields, style: FamilyStyle) -> StackShape:
    """Read ModernBERT: every third layer sees all tokens, and the first has no first norm."""
    sizes = style.sizes(read)
    shape, rate = read_stack(read, style), read.rate("mlp_dropout")
    layers = tuple(
        layer._replace(
            attention=layer.attention._replace(window=sizes["window"] if place % sizes["every"] else None),
            feed_forward=layer.feed_forward._replace(dropout=rate),
            first_norm=place > 0,
        )
        for place, layer in enumerate(shape.layers)
    )
    activation = read.word("classifier_activation", default="gelu")
    head = encoder_head(read, shape.hidden, shape.vocab, shape.hidden, activation)
    if head.transform:
        bias = read.flag("classifier_bias", default=False)
        head = head._replace(upcast=not head.pooled, transform_bias=bias, transform_norm=shape.norm)
    return shape._replace(layers=layers, head=head)


def vit(read: ConfigFields, style: FamilyStyle) -> StackShape:
    """Read ViT and DeiT: patches and a class token in place of words. DeiT has a second such token."""
    sizes = style.sizes(read)
    side, patch = sizes["side"], sizes["patch"]
    if patch > side:
        raise InvalidInput(f"{read.reference}: an image of {side} pixels has no patches of {patch}: correct one")
    image = ImageShape(side, patch, sizes["channels"], extra=2 if read.family == "deit" else 1)
    architecture = read.architecture()
    outputs = read.labels() * (2 if architecture.endswith("WithTeacher") else 1)
    head = HeadShape(outputs=outputs, bias=True, pooled=True)
    if architecture.endswith("Model"):
        head = HeadShape(pooled=True, transform=sizes["hidden"])
    return read_stack(read, style)._replace(head=head, max_sequence=image.tokens, source=image)


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


def _comparisons(read: ConfigFields) -> tuple[str, ...]:
    """Return the comparisons that DeBERTa adds to the scores. Older files join them by a bar."""
    kinds = read.config.get("pos_att_type")
    return tuple(kinds.lower().split("|") if isinstance(kinds, str) else map(str, read.listed("pos_att_type")))


def t5(read: ConfigFields) -> EncoderDecoderShape | StackShape:
    """Read T5 and mT5: RMS norms, no biases, and a bias on the scores for each distance that all layers share."""
    multilingual = read.family == "mt5"
    hidden, heads = read.size("d_model", default=512), read.size("num_heads", default=6 if multilingual else 8)
    rate, vocab = read.rate("dropout_rate", default=0.1), read.size("vocab_size", default=32128)
    kind = read.word("feed_forward_proj", default="gated-gelu" if multilingual else "relu")
    gated = kind.startswith("gated-")
    activation = "gelu_new" if kind == "gated-gelu" else kind.removeprefix("gated-")
    feed = FeedForwardShape(
        read.size("d_ff", default=1024 if multilingual else 2048), gated, bias=False, activation=activation,
        dropout=rate,
    )  # fmt: skip
    buckets, layers = read.size("relative_attention_num_buckets", default=32), read.size("num_layers", default=6)
    longest = read.size("n_positions", default=512)

    def tower(count: int, *, decoder: bool) -> StackShape:
        attention = AttentionShape(
            hidden, heads, heads, read.size("d_kv", default=64), causal=decoder, query_bias=False, key_bias=False,
            out_bias=False,
        )  # fmt: skip
        layer = LayerShape(attention, feed, norm="rms", dropout=rate, cross=attention if decoder else None)
        return StackShape(
            family=read.family,
            hidden=hidden,
            vocab=vocab,
            layers=(layer,) * count,
            max_sequence=longest,
            norm="rms",
            position_buckets=buckets,
            dropout=rate,
            final_dropout=rate,
        )

    encoder = tower(layers, decoder=False)
    if read.architecture().endswith("EncoderModel"):
        return encoder
    decoder = tower(read.optional("num_decoder_layers") or layers, decoder=True)
    tied = read.flag("tie_word_embeddings", default=not multilingual)
    return EncoderDecoderShape(read.family, encoder, decoder, _head(read, vocab, tied=tied), longest, cross_bias=True)


def bart(read: ConfigFields) -> EncoderDecoderShape:
    """Read BART and mBART: learned positions with an offset of two. mBART has norms before each half layer."""
    first = read.family == "mbart"
    vocab = read.size("vocab_size", default=50265)
    longest = read.size("max_position_embeddings", default=1024)
    encoder, decoder = (
        StackShape(
            family=read.family,
            hidden=read.size("d_model", default=1024),
            vocab=vocab,
            layers=_layers(read, side, "pre" if first else "post", 12),
            max_sequence=longest,
            final_norm=first,
            embedding_norm=True,
            positions=longest + 2,
            dropout=read.rate("dropout", default=0.1),
        )
        for side in ("encoder", "decoder")
    )
    head = _head(read, vocab, tied=read.flag("tie_word_embeddings", default=True))
    return EncoderDecoderShape(read.family, encoder, decoder, head, longest)


def whisper(read: ConfigFields) -> EncoderDecoderShape:
    """Read Whisper: convolutions over a spectrum of fixed length, keys without biases."""
    hidden, vocab = read.size("d_model", default=384), read.size("vocab_size", default=51865)
    rate, longest = read.rate("dropout"), read.size("max_target_positions", default=448)
    sound = SpeechShape(read.size("num_mel_bins", default=80), read.size("max_source_positions", default=1500))
    sides = (_layers(read, side, "pre", 4, key_bias=False) for side in ("encoder", "decoder"))
    encoder, decoder = (StackShape(read.family, hidden, layers, longest, dropout=rate) for layers in sides)
    encoder = encoder._replace(max_sequence=sound.tokens, source=sound)
    decoder = decoder._replace(vocab=vocab, positions=longest)
    head = _head(read, vocab, tied=read.flag("tie_word_embeddings", default=True))
    return EncoderDecoderShape(read.family, encoder, decoder, head, longest)


def _layers(read: ConfigFields, side: str, layout: str, count: int, *, key_bias: bool = True) -> tuple[LayerShape, ...]:
    """Return the layers of one side of BART or Whisper. A decoder's layers attend to the encoder's output too."""
    whispered = read.family == "whisper"
    hidden = read.size("d_model", default=384 if whispered else 1024)
    heads = read.size(f"{side}_attention_heads", default=6 if whispered else 16)
    head_dim = read.per_head(hidden, heads)
    decoder = side == "decoder"
    attention = AttentionShape(hidden, heads, heads, head_dim, causal=decoder, key_bias=key_bias)
    feed = FeedForwardShape(
        read.size(f"{side}_ffn_dim", default=1536 if whispered else 4096),
        activation=read.word("activation_function", default="gelu"),
        dropout=read.rate("activation_dropout"),
    )
    rate = read.rate("dropout", default=0.0 if whispered else 0.1)
    layer = LayerShape(attention, feed, layout, dropout=rate, cross=attention if decoder else None)
    return (layer,) * read.size(f"{side}_layers", default=count)


def _head(read: ConfigFields, vocab: int, *, tied: bool) -> HeadShape:
    """Return the scores of the vocabulary, or no head for a file of a model without one."""
    return HeadShape() if read.is_bare() else HeadShape(outputs=vocab, tied=tied)
