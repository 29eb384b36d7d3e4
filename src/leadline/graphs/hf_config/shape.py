"""The sizes that decide a transformer's cost, whatever its family calls them."""

from typing import NamedTuple


class LatentAttentionShape(NamedTuple):
    """Multi-head latent attention (DeepSeek-V2): queries and keys pass through narrow latents.

    ``query_rank`` is ``None`` where queries are projected directly; a head's query and key are ``plain`` dimensions
    without positions and ``rotary`` ones with, its value is ``value`` wide.
    """

    query_rank: int | None
    key_value_rank: int
    plain: int
    rotary: int
    value: int


class RelativeAttentionShape(NamedTuple):
    """Disentangled attention (DeBERTa): which of contents and positions are compared, and with whose projections.

    ``shared`` reuses the contents' projections for positions; ``fused`` is the first version, with one product for
    queries, keys and values and only the distances that occur.
    """

    content_to_position: bool
    position_to_content: bool
    shared: bool = False
    fused: bool = False


class AttentionShape(NamedTuple):
    """One attention block.

    ``rotary`` counts the dimensions of a head that are rotated (0: none). ``query_key_norm`` says what is normalised:
    ``head`` (each head, one weight), ``head-layer`` (the same with a layer norm), ``width`` (all heads at once),
    ``each`` (a weight for each head), ``bare`` (no weight), or nothing; ``-wide`` and ``-written`` as for ``Norm``.
    ``spread`` says that shared keys and values are repeated for all heads before the kernel takes them.
    ``sinks`` adds a learned score for each head, ``capped`` bounds the scores by a tanh. ``written_out`` blocks compute
    the scores op by op, holding all of them, where others take a fused kernel; ``dropout`` is that of the scores there.
    """

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    causal: bool = True
    window: int | None = None
    rotary: int = 0
    query_bias: bool = True
    key_bias: bool = True
    out_bias: bool = True
    query_key_norm: str = ""
    fused: bool = False
    spread: bool = False
    sinks: bool = False
    capped: bool = False
    written_out: bool = False
    latent: LatentAttentionShape | None = None
    relative: RelativeAttentionShape | None = None
    dropout: float = 0.0

    @property
    def key_width(self) -> int:
        """Width of keys (and of values): fewer heads than the queries' under grouped attention."""
        return self.kv_heads * self.head_dim

    @property
    def query_width(self) -> int:
        """Width of the queries."""
        return self.heads * self.head_dim


class FeedForwardShape(NamedTuple):
    """One feed-forward block; with ``experts``, that many of them, of which a token passes ``used``.

    ``shared`` is the width of a block every token passes beside its experts (0: none), ``shared_gate`` whether its
    answer is weighed. ``fused`` makes gate and up projection one product. ``dropout`` is that inside the block.
    """

    width: int
    gated: bool = False
    bias: bool = True
    activation: str = "gelu"
    fused: bool = False
    experts: int = 0
    used: int = 0
    router_bias: bool = False
    shared: int = 0
    shared_gate: bool = False
    dropout: float = 0.0


class LayerShape(NamedTuple):
    """One layer.

    ``layout`` is ``pre`` (norms before each half), ``sandwich`` (before and after), ``after`` (only after, inside the
    residual), ``post`` (after the residual, as BERT), ``parallel`` (one norm, both halves at once) or ``parallel2``
    (a norm for each). ``norm`` is one of the kinds that ``Norm`` knows. ``first_norm`` is off where a layer skips its
    first norm.
    """

    attention: AttentionShape
    feed_forward: FeedForwardShape
    layout: str = "pre"
    norm: str = "layer"
    dropout: float = 0.0
    cross: AttentionShape | None = None
    first_norm: bool = True


class HeadShape(NamedTuple):
    """What turns hidden states into the answer: an optional dense ``transform`` and ``outputs`` scores.

    ``outputs`` of 0 returns the hidden states. ``pooled`` looks at one token only. ``tied`` scores with the embedding's
    weights, ``capped`` bounds the scores by a tanh. ``transform_norm`` names the norm behind the transform,
    ``activation`` its function. ``upcast`` says whether the loss is computed in float32 from the scores on.
    """

    outputs: int = 0
    tied: bool = False
    bias: bool = False
    pooled: bool = False
    capped: bool = False
    upcast: bool = False
    transform: int = 0
    transform_bias: bool = True
    transform_norm: str = ""
    activation: str = "tanh"


class ImageShape(NamedTuple):
    """Square images of ``side`` pixels cut into square patches, with ``extra`` learned tokens before them."""

    side: int
    patch: int
    channels: int
    extra: int = 1

    @property
    def tokens(self) -> int:
        """Tokens that one image makes."""
        return (self.side // self.patch) ** 2 + self.extra


class SpeechShape(NamedTuple):
    """Spectra of ``bins`` frequencies; two convolutions make ``tokens`` of twice as many frames."""

    bins: int
    tokens: int


class StackShape(NamedTuple):
    """One stack of layers with what feeds it and its head: decoders, BERT and its relatives, vision transformers.

    ``source`` says what is embedded where it is not words. ``embedding`` is the width of the embeddings where it is not
    that of the layers; ``project_always`` adds a projection to the layers' width even where both are equal;
    ``positions_after`` adds positions behind the projection (OPT). ``positions`` counts learned position embeddings (0:
    rotary, ALiBi or none), ``token_types`` segment embeddings, ``position_buckets`` the learned distances of a bias
    that all layers share, ``relative_positions`` the embedded distances of disentangled attention. Layers from
    ``len(layers)`` on repeat the first ones up to ``depth`` (ALBERT).
    """

    family: str
    hidden: int
    layers: tuple[LayerShape, ...]
    max_sequence: int
    vocab: int = 0
    head: HeadShape = HeadShape()
    source: ImageShape | SpeechShape | None = None
    depth: int = 0
    embedding: int = 0
    project_always: bool = False
    project_out: bool = False
    project_bias: bool = True
    positions_after: bool = False
    norm: str = "layer"
    final_norm: bool = True
    embedding_norm: bool = False
    positions: int = 0
    token_types: int = 0
    position_buckets: int = 0
    relative_positions: int = 0
    relative_norm: bool = False
    dropout: float = 0.0
    final_dropout: float = 0.0


class EncoderDecoderShape(NamedTuple):
    """An encoder and a decoder that looks at what it made (T5, BART, Whisper); both embed words with one table.

    ``head`` scores what the decoder made. ``cross_bias`` adds a bias of zeros to the scores against the encoder's
    answer, as T5 does.
    """

    family: str
    encoder: StackShape
    decoder: StackShape
    head: HeadShape
    max_sequence: int
    cross_bias: bool = False

    @property
    def source(self) -> ImageShape | SpeechShape | None:
        """What the encoder embeds where it is not words."""
        return self.encoder.source

    @property
    def positions(self) -> int:
        """Positions that the decoder has learned (0: any number)."""
        return self.decoder.positions


ModelShape = StackShape | EncoderDecoderShape
