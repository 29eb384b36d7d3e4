"""Families of an encoder and a decoder: the names of their sizes."""

from leadline.graphs.hf_config.fields import ConfigFields
from leadline.graphs.hf_config.shape import (
    AttentionShape,
    EncoderDecoderShape,
    FeedForwardShape,
    HeadShape,
    LayerShape,
    SpeechShape,
    StackShape,
)


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
