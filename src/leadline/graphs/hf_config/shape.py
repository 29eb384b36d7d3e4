"""The few sizes that decide a transformer's cost, whatever its family calls them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TransformerShape:
    """A stack of identical transformer layers with its embeddings and its head.

    ``experts`` is the number of feed-forward networks in a layer and ``experts_used`` how many a token passes.
    ``positions`` counts learned position embeddings (0: rotary, ALiBi or none), ``token_types`` segment embeddings.
    ``head`` is ``lm`` (a product with the vocabulary), ``tied`` (the same with the embedding's weights), ``mlm``
    (BERT's transform and tied decoder), or ``none``.
    ``patches`` is set for vision models: tokens come from a convolution instead of a vocabulary.
    """

    family: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    max_sequence: int
    causal: bool = True
    gated: bool = False
    rms_norm: bool = False
    norms_per_layer: int = 2
    final_norm: bool = True
    embedding_norm: bool = False
    qkv_bias: bool = True
    out_bias: bool = True
    ffn_bias: bool = True
    qk_norm: bool = False
    positions: int = 0
    token_types: int = 0
    head: str = "tied"
    pooler: bool = False
    experts: int = 1
    experts_used: int = 1
    dropout: float = 0.0
    patches: int = 0
    patch: int = 0
    channels: int = 0
    image: int = 0
    labels: int = 0
    activation: str = "gelu"
    rotary: bool = False
    window: int | None = None
    parallel: bool = False
    post_norm: bool = False
    fused_qkv: bool = False
    head_bias: bool = False
    assumed: tuple[str, ...] = ()

    @property
    def kv_width(self) -> int:
        """Width of keys (and of values): fewer heads than the queries' under grouped attention."""
        return self.kv_heads * self.head_dim

    @property
    def q_width(self) -> int:
        """Width of the queries."""
        return self.heads * self.head_dim

    @property
    def norm_width(self) -> int:
        """Parameters of one norm: a weight, and a bias unless it is an RMS norm."""
        return self.hidden * (1 if self.rms_norm else 2)

    def layer_parameters(self) -> int:
        """Return the parameters of one layer."""
        attention = self.hidden * (self.q_width + 2 * self.kv_width) + self.q_width * self.hidden
        attention += (self.q_width + 2 * self.kv_width) * self.qkv_bias + self.hidden * self.out_bias
        attention += 2 * self.head_dim * self.qk_norm
        matrices = 3 if self.gated else 2
        expert = matrices * self.hidden * self.ffn
        expert += self.ffn_bias * ((matrices - 1) * self.ffn + self.hidden)
        router = self.hidden * self.experts if self.experts > 1 else 0
        return attention + self.experts * expert + router + self.norms_per_layer * self.norm_width

    def parameters(self) -> int:
        """Return the parameters of the whole model, tied weights counted once."""
        total = self.layers * self.layer_parameters() + (self.vocab + self.positions + self.token_types) * self.hidden
        total += (self.final_norm + self.embedding_norm) * self.norm_width
        if self.patch:
            total += self.channels * self.patch**2 * self.hidden + 2 * self.hidden + self.labels * (self.hidden + 1)
        if self.pooler:
            total += self.hidden * (self.hidden + 1)
        if self.head == "lm":
            total += self.vocab * self.hidden
        total += self.head_bias * self.vocab
        if self.head == "mlm":
            total += self.hidden * (self.hidden + 1) + self.norm_width + self.vocab
        return total
