"""The sizes that decide a transformer's cost, under names that are the same for all families."""

from typing import NamedTuple


class LatentAttentionShape(NamedTuple):
    """Multi-head latent attention (DeepSeek-V2): queries and keys pass through narrow latents."""

    query_rank: int | None  # width of the queries' latent, or ``None`` if queries are projected directly
    key_value_rank: int  # width of the latent of keys and values
    plain: int  # dimensions of a head's query and key without positions
    rotary: int  # dimensions of a head's query and key with rotary positions
    value: int  # width of a head's value


class RelativeAttentionShape(NamedTuple):
    """Disentangled attention (DeBERTa): the comparisons of contents and positions, and their projections.

    Attributes:
        shared: Positions use the contents' projections.
        fused: The first version: one product for queries, keys and values, and only the distances that occur.
    """

    content_to_position: bool
    position_to_content: bool
    shared: bool = False
    fused: bool = False


class StateSpaceShape(NamedTuple):
    """A Mamba-2 mixer, which has the place of attention."""

    heads: int
    head_dim: int
    state: int  # numbers of the state for each channel
    groups: int  # groups of heads that share their inputs' and outputs' projections
    kernel: int  # tokens that the convolution spans
    chunk: int  # tokens that are mixed by products; states pass between chunks
    bias: bool = False
    kernel_bias: bool = True

    @property
    def inner(self) -> int:
        """Width of the mixed tokens."""
        return self.heads * self.head_dim

    @property
    def convolved(self) -> int:
        """Width of what the convolution passes: tokens, and their inputs' and outputs' projections."""
        return self.inner + 2 * self.groups * self.state

    @property
    def projected(self) -> int:
        """Width of the first projection: a gate, what is convolved, and a step for each head."""
        return self.inner + self.convolved + self.heads

    def chunks(self, sequence: int) -> tuple[int, int]:
        """Return the tokens of a chunk and the number of chunks of a sequence."""
        chunk = min(self.chunk, sequence)
        return chunk, -(-sequence // chunk)


class SelectiveScanShape(NamedTuple):
    """A Mamba mixer, which has the place of attention."""

    inner: int  # width of the mixed tokens
    state: int  # numbers of the state for each channel
    rank: int  # width from which the steps are projected
    kernel: int  # tokens that the convolution spans
    bias: bool = False
    kernel_bias: bool = True
    normed: bool = False  # norms of the steps, and of the inputs' and outputs' projections (Jamba)


class AttentionShape(NamedTuple):
    """One attention block.

    Attributes:
        rotary: Dimensions of a head that are rotated, or 0.
        query_key_norm: Norm of queries and keys: ``head`` (each head, one weight), ``width`` (all heads at once),
            ``each`` (a weight per head), or "". The endings ``-wide`` and ``-written`` are those of ``Norm``.
        fused: One product for queries, keys and values.
        spread: Shared keys and values are repeated for all heads before the kernel.
        sinks: Each head has a learned score beside those of the tokens.
        capped: A tanh bounds the scores.
        written_out: The scores are computed op by op and held, without a fused kernel.
        eager: As transformers' ``eager_attention_forward`` does, with a mask that is added and copies between axes.
        softmax: How such scores become probabilities: ``wide`` (in float32), ``own`` (in the scores' type), or ``bare``
            (the same, without a cast to the values' type).
        dropout: Dropout of such scores.
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
    eager: bool = False
    softmax: str = "wide"
    latent: LatentAttentionShape | None = None
    relative: RelativeAttentionShape | None = None
    state_space: StateSpaceShape | SelectiveScanShape | None = None
    dropout: float = 0.0

    @property
    def key_width(self) -> int:
        """Width of keys, and of values. It is narrower than the queries' under grouped attention."""
        return self.kv_heads * self.head_dim

    @property
    def query_width(self) -> int:
        """Width of the queries."""
        return self.heads * self.head_dim


class FeedForwardShape(NamedTuple):
    """One feed-forward block, or as many as ``experts``."""

    width: int
    gated: bool = False
    bias: bool = True
    activation: str = "gelu"
    fused: bool = False  # gate and up projection are one product
    experts: int = 0
    used: int = 0  # experts of each token
    router_bias: bool = False
    shared: int = 0  # width of a block that every token passes beside its experts, or 0
    shared_gate: bool = False  # the output of that block is weighted
    latent: int = 0  # width of a projection of the tokens that experts work on, or 0
    dropout: float = 0.0  # dropout inside the block


class LayerShape(NamedTuple):
    """One layer.

    Attributes:
        layout: ``pre`` (norms before each half), ``sandwich`` (before and after), ``after`` (only after, inside the
            residual), ``post`` (after the residual, as BERT), ``parallel`` (one norm, both halves at once),
            ``parallel2`` (a norm for each) or ``single`` (one norm and one half: the feed-forward block if there is
            one, else attention).
        wide_residual: The residual stream is in float32.
        norm: One of the kinds of ``Norm``.
        first_norm: False if the layer has no first norm.
    """

    attention: AttentionShape
    feed_forward: FeedForwardShape  # none if it has no width
    layout: str = "pre"
    norm: str = "layer"
    dropout: float = 0.0
    cross: AttentionShape | None = None
    first_norm: bool = True
    wide_residual: bool = False


class HeadShape(NamedTuple):
    """The head of a model: an optional dense ``transform``, and ``outputs`` scores."""

    outputs: int = 0  # number of scores; 0 returns the hidden states
    tied: bool = False  # the embedding's weights are used
    bias: bool = False
    pooled: bool = False  # only one token is scored
    capped: bool = False  # a tanh bounds the scores
    upcast: bool = False  # the loss is computed in float32 from the scores on
    shifted: bool = False  # the loss copies all scores but the last, as transformers did before 4.46
    transform: int = 0
    transform_bias: bool = True
    transform_norm: str = ""  # norm after the transform
    activation: str = "tanh"  # function after the transform


class ImageShape(NamedTuple):
    """Square images of ``side`` pixels in square patches, with ``extra`` learned tokens before them."""

    side: int
    patch: int
    channels: int
    extra: int = 1
    bias: bool = True  # of the patches' product

    @property
    def tokens(self) -> int:
        """Tokens of one image."""
        return (self.side // self.patch) ** 2 + self.extra


class SpeechShape(NamedTuple):
    """Spectra of ``bins`` frequencies. Two convolutions turn twice as many frames into ``tokens``."""

    bins: int
    tokens: int


class StackShape(NamedTuple):
    """One stack of layers with its embedding and head: decoders, BERT and its relatives, vision transformers."""

    family: str
    hidden: int
    layers: tuple[LayerShape, ...]
    max_sequence: int
    vocab: int = 0
    head: HeadShape = HeadShape()
    source: ImageShape | SpeechShape | None = None  # shape of images or speech, or ``None`` for tokens of text
    depth: int = 0  # layers in all if the first ones repeat (ALBERT)
    embedding: int = 0  # width of the embeddings if it is not that of the layers
    project_always: bool = False  # the embeddings are projected to the layers' width even if both are equal
    project_out: bool = False
    project_bias: bool = True
    positions_after: bool = False  # positions are added after that projection (OPT)
    norm: str = "layer"
    final_norm: bool = True
    embedding_norm: bool = False
    positions: int = 0  # learned position embeddings; 0 for rotary, ALiBi or none
    token_types: int = 0  # segment embeddings
    position_buckets: int = 0  # learned distances of a bias that all layers share
    relative_positions: int = 0  # embedded distances of disentangled attention
    relative_norm: bool = False
    dropout: float = 0.0
    final_dropout: float = 0.0
    vision: "VisionShape | None" = None  # images whose tokens take the place of some of the text's


class VisionShape(NamedTuple):
    """A tower of images and the projector of its output into a language model: ``tokens`` for each image.

    The projector is two linear layers around an ``activation``, or without one a mean over patches, an RMS norm and a
    product.
    """

    tower: StackShape
    tokens: int
    activation: str = ""
    bias: bool = False


class EncoderDecoderShape(NamedTuple):
    """An encoder, and a decoder that attends to its output (T5, BART, Whisper). Both share one embedding of tokens.

    ``head`` scores the decoder's output. ``cross_bias`` adds a bias of zeros to the scores against the encoder's
    output, as T5 does.
    """

    family: str
    encoder: StackShape
    decoder: StackShape
    head: HeadShape
    max_sequence: int
    cross_bias: bool = False

    @property
    def source(self) -> ImageShape | SpeechShape | None:
        """Shape of images or speech that the encoder embeds, or ``None`` for tokens of text."""
        return self.encoder.source

    @property
    def positions(self) -> int:
        """Learned positions of the decoder, or 0 for any number."""
        return self.decoder.positions


ModelShape = StackShape | EncoderDecoderShape
