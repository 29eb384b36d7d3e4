"""Read a ``config.json`` into the few sizes that decide a transformer's cost, whatever its family calls them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from leadline.core.errors import InvalidInput, UnknownName

Config = dict[str, Any]


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
        if self.head == "mlm":
            total += self.hidden * (self.hidden + 1) + self.norm_width + self.vocab
        return total


def read_shape(config: Config, what: str) -> TransformerShape:
    """Return the shape that a configuration describes; ``what`` names the file in errors.

    Raises:
        UnknownName: the ``model_type`` is not one of the known families.
        InvalidInput: a size is missing, not a number, or not positive.
    """
    family = config.get("model_type")
    if family is None:
        raise InvalidInput(f"{what} has no model_type: it is not a Hugging Face model configuration")
    if family not in FAMILIES:
        raise UnknownName(
            f"model_type in {what}", str(family), FAMILIES, fix=f"known are {', '.join(sorted(FAMILIES))}"
        )
    reader = _Reader(config, what)
    shape = FAMILIES[family](reader)
    if shape.heads % shape.kv_heads:
        raise InvalidInput(f"{what}: {shape.heads} heads cannot share {shape.kv_heads} key-value heads evenly")
    return shape


class _Reader:
    """Reads sizes out of one configuration, and remembers which it had to assume."""

    def __init__(self, config: Config, what: str) -> None:
        self.config, self.what, self.assumed = config, what, list[str]()

    def size(self, *names: str, default: int | None = None) -> int:
        """Return the first of ``names`` that is set; else the architecture's published default, noted."""
        for name in names:
            value = self.config.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
                raise InvalidInput(f"{self.what}: {name} is {value!r}, but it must be a positive whole number")
            return value
        if default is None:
            raise InvalidInput(f"{self.what} has no {names[0]}, which this model_type needs: add it")
        self.assumed.append(f"{names[0]} = {default}")
        return default

    def flag(self, name: str, *, default: bool) -> bool:
        """Return a boolean field."""
        return bool(self.config.get(name, default))

    def word(self, *names: str, default: str) -> str:
        """Return the first text field that is set."""
        return str(next((self.config[name] for name in names if self.config.get(name)), default))

    def window(self) -> int | None:
        """Return the sliding window of attention, if it is in use."""
        if self.config.get("use_sliding_window") is False or self.config.get("sliding_window") is None:
            return None
        return self.size("sliding_window")

    def rate(self, *names: str, default: float = 0.0) -> float:
        """Return the first dropout rate that is set."""
        return float(next((self.config[name] for name in names if self.config.get(name) is not None), default))


def _llama_like(
    read: _Reader, *, qkv_bias: bool = False, tied: bool = False, qk_norm: bool = False, experts: int = 1
) -> TransformerShape:
    hidden, heads = read.size("hidden_size"), read.size("num_attention_heads")
    attention_bias = read.flag("attention_bias", default=qkv_bias)
    return TransformerShape(
        family=read.config["model_type"],
        layers=read.size("num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=read.size("num_key_value_heads", default=heads) if "num_key_value_heads" in read.config else heads,
        head_dim=read.config.get("head_dim") or hidden // heads,
        ffn=read.size("moe_intermediate_size", "intermediate_size") if experts > 1 else read.size("intermediate_size"),
        vocab=read.size("vocab_size"),
        max_sequence=read.size("max_position_embeddings", default=2048),
        gated=True,
        rms_norm=True,
        rotary=True,
        activation=read.word("hidden_act", "hidden_activation", default="silu"),
        window=read.window(),
        qkv_bias=attention_bias,
        out_bias=attention_bias and read.config["model_type"] not in ("qwen2", "qwen2_moe"),
        ffn_bias=read.flag("mlp_bias", default=False),
        qk_norm=qk_norm,
        head="tied" if read.flag("tie_word_embeddings", default=tied) else "lm",
        experts=experts,
        experts_used=read.size("num_experts_per_tok", default=2) if experts > 1 else 1,
        dropout=read.rate("attention_dropout"),
        assumed=tuple(read.assumed),
    )


def _gpt2(read: _Reader) -> TransformerShape:
    hidden, heads = read.size("n_embd", default=768), read.size("n_head", default=12)
    positions = read.size("n_positions", "n_ctx", default=1024)
    return TransformerShape(
        family="gpt2",
        layers=read.size("n_layer", default=12),
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        ffn=read.config.get("n_inner") or 4 * hidden,
        vocab=read.size("vocab_size", default=50257),
        max_sequence=positions,
        positions=positions,
        activation=read.word("activation_function", default="gelu_new"),
        fused_qkv=True,
        dropout=read.rate("resid_pdrop", default=0.1),
        assumed=tuple(read.assumed),
    )


def _gpt_neox(read: _Reader) -> TransformerShape:
    hidden, heads = read.size("hidden_size"), read.size("num_attention_heads")
    bias = read.flag("attention_bias", default=True)
    return TransformerShape(
        family="gpt_neox",
        layers=read.size("num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        ffn=read.size("intermediate_size"),
        vocab=read.size("vocab_size"),
        max_sequence=read.size("max_position_embeddings", default=2048),
        qkv_bias=bias,
        out_bias=bias,
        rotary=True,
        fused_qkv=True,
        parallel=read.flag("use_parallel_residual", default=True),
        activation=read.word("hidden_act", default="gelu"),
        head="tied" if read.flag("tie_word_embeddings", default=False) else "lm",
        dropout=read.rate("hidden_dropout"),
        assumed=tuple(read.assumed),
    )


def _opt(read: _Reader) -> TransformerShape:
    hidden, heads = read.size("hidden_size"), read.size("num_attention_heads")
    if read.size("word_embed_proj_dim", default=hidden) != hidden:
        raise InvalidInput(f"{read.what}: an OPT model with a projected embedding (350m) is not expanded: trace it")
    positions = read.size("max_position_embeddings", default=2048)
    bias = read.flag("enable_bias", default=True)
    return TransformerShape(
        family="opt",
        layers=read.size("num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        ffn=read.size("ffn_dim"),
        vocab=read.size("vocab_size"),
        max_sequence=positions,
        positions=positions + 2,
        qkv_bias=bias,
        out_bias=bias,
        ffn_bias=bias,
        activation=read.word("activation_function", default="relu"),
        dropout=read.rate("dropout", default=0.1),
        assumed=tuple(read.assumed),
    )


def _bloom(read: _Reader) -> TransformerShape:
    hidden, heads = read.size("hidden_size", "n_embed"), read.size("n_head", "num_attention_heads")
    return TransformerShape(
        family="bloom",
        layers=read.size("n_layer", "num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        ffn=4 * hidden,
        vocab=read.size("vocab_size"),
        max_sequence=read.size("seq_length", default=2048),
        embedding_norm=True,
        activation="gelu_new",
        fused_qkv=True,
        dropout=read.rate("hidden_dropout"),
        assumed=tuple(read.assumed),
    )


def _bert(read: _Reader) -> TransformerShape:
    hidden, heads = (
        read.size("hidden_size", "dim", default=768),
        read.size("num_attention_heads", "n_heads", default=12),
    )
    family = read.config["model_type"]
    positions = read.size("max_position_embeddings", default=512)
    return TransformerShape(
        family=family,
        layers=read.size("num_hidden_layers", "n_layers", default=12),
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        ffn=read.size("intermediate_size", "hidden_dim", default=3072),
        vocab=read.size("vocab_size", default=30522),
        max_sequence=positions - 2 * (family == "roberta"),
        causal=False,
        final_norm=False,
        embedding_norm=True,
        positions=positions,
        token_types=0 if family == "distilbert" else read.size("type_vocab_size", default=2),
        head="mlm",
        post_norm=True,
        activation=read.word("hidden_act", "activation", default="gelu"),
        dropout=read.rate("hidden_dropout_prob", "dropout", default=0.1),
        assumed=tuple(read.assumed),
    )


def _vit(read: _Reader) -> TransformerShape:
    hidden, heads = read.size("hidden_size", default=768), read.size("num_attention_heads", default=12)
    image, patch = read.size("image_size", default=224), read.size("patch_size", default=16)
    tokens = (image // patch) ** 2 + 1
    labels = read.config.get("id2label")
    return TransformerShape(
        family="vit",
        layers=read.size("num_hidden_layers", default=12),
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        ffn=read.size("intermediate_size", default=3072),
        vocab=0,
        max_sequence=tokens,
        causal=False,
        positions=tokens,
        qkv_bias=read.flag("qkv_bias", default=True),
        head="none",
        activation=read.word("hidden_act", default="gelu"),
        dropout=read.rate("hidden_dropout_prob"),
        patches=tokens - 1,
        patch=patch,
        channels=read.size("num_channels", default=3),
        image=image,
        labels=len(labels) if labels else read.size("num_labels", default=2),
        assumed=tuple(read.assumed),
    )


FAMILIES: dict[str, Callable[[_Reader], TransformerShape]] = {
    "llama": _llama_like,
    "mistral": _llama_like,
    "qwen2": lambda read: _llama_like(read, qkv_bias=True),
    "qwen3": lambda read: _llama_like(read, qk_norm=True),
    "gemma": lambda read: _llama_like(read, tied=True),
    "mixtral": lambda read: _llama_like(read, experts=read.size("num_local_experts", default=8)),
    "gpt2": _gpt2,
    "gpt_neox": _gpt_neox,
    "opt": _opt,
    "bloom": _bloom,
    "bert": _bert,
    "roberta": _bert,
    "distilbert": _bert,
    "vit": _vit,
}
"""``model_type`` → reader of its sizes. A new family is one function here and a row in the parameter-count test."""
