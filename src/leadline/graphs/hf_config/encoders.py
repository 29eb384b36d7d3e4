"""Encoders for text and images, and families of an encoder and a decoder: the names of their sizes."""

from leadline.core.errors import InvalidInput
from leadline.graphs.hf_config.decoders import FamilyStyle, read_stack
from leadline.graphs.hf_config.fields import ConfigFields
from leadline.graphs.hf_config.shape import (
    EncoderDecoderShape,
    HeadShape,
    ImageShape,
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
    kinds = read.config.get("pos_att_type")
    # Older files join them by a bar.
    kinds = kinds.lower().split("|") if isinstance(kinds, str) else [*map(str, read.listed("pos_att_type"))]
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


def t5(read: ConfigFields, style: FamilyStyle) -> EncoderDecoderShape | StackShape:
    """Read T5 and mT5: RMS norms, no biases, and a bias on the scores for each distance that all layers share."""
    sizes, rate = style.sizes(read), style.rate(read, "dropout")
    kind = read.word("feed_forward_proj", default=style.activation)
    activation = "gelu_new" if kind == "gated-gelu" else kind.removeprefix("gated-")
    style = style._replace(gated=kind.startswith("gated-"), activation=activation, head_dim=sizes["head"])
    encoder = read_stack(read, style)
    layer = encoder.layers[0]
    layer = layer._replace(feed_forward=layer.feed_forward._replace(dropout=rate))
    encoder = encoder._replace(
        layers=(layer,) * sizes["layers"], head=HeadShape(), position_buckets=sizes["buckets"], final_dropout=rate
    )
    if read.architecture().endswith("EncoderModel"):
        return encoder
    attention = layer.attention._replace(causal=True)
    count = read.optional("num_decoder_layers") or sizes["layers"]
    decoder = encoder._replace(layers=(layer._replace(attention=attention, cross=attention),) * count)
    return _join(read, style, encoder, decoder)._replace(cross_bias=True)


def bart(read: ConfigFields, style: FamilyStyle) -> EncoderDecoderShape:
    """Read BART and mBART. A decoder's layers attend to the encoder's output too."""
    encoder, decoder = (_read_side(read, style, side) for side in ("encoder", "decoder"))
    cross = tuple(layer._replace(cross=layer.attention) for layer in decoder.layers)
    return _join(read, style, encoder, decoder._replace(layers=cross))


def whisper(read: ConfigFields, style: FamilyStyle) -> EncoderDecoderShape:
    """Read Whisper, BART with convolutions over a spectrum of fixed length."""
    shape = bart(read, style)
    sound = SpeechShape(style.size(read, "bins"), style.size(read, "frames"))
    return shape._replace(encoder=shape.encoder._replace(max_sequence=sound.tokens, source=sound, vocab=0, positions=0))


def _read_side(read: ConfigFields, style: FamilyStyle, side: str) -> StackShape:
    """Read the stack of one ``side``, which is a part of some names. Norms before each half also end the stack."""
    names = {name: fields.format(side=side) for name, fields in style.names.items()}
    style = style._replace(names=names, causal=side == "decoder")
    style.sizes(read)
    shape, rate = read_stack(read, style), read.rate("activation_dropout")
    layer = shape.layers[0]
    attention = layer.attention._replace(key_bias=read.family != "whisper")
    layer = layer._replace(attention=attention, feed_forward=layer.feed_forward._replace(dropout=rate))
    return shape._replace(layers=(layer,) * len(shape.layers), head=HeadShape(), final_norm=style.layout == "pre")


def _join(read: ConfigFields, style: FamilyStyle, encoder: StackShape, decoder: StackShape) -> EncoderDecoderShape:
    """Return both stacks with the scores of the vocabulary, or no head for a file of a model without one."""
    tied = read.flag("tie_word_embeddings", default=style.tied)
    head = HeadShape() if read.is_bare() else HeadShape(outputs=decoder.vocab, tied=tied)
    return EncoderDecoderShape(read.family, encoder, decoder, head, decoder.max_sequence)
