"""Encoder families for text and images: what each calls its sizes."""

from leadline.graphs.hf_config.fields import Fields
from leadline.graphs.hf_config.shape import TransformerShape

ROBERTA = ("roberta", "xlm-roberta", "camembert")
"""Families whose first two positions are never used."""


def bert(read: Fields) -> TransformerShape:
    """Read BERT, RoBERTa and DistilBERT: norms after each half layer, a tied decoder with a transform."""
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
        max_sequence=positions - 2 * (family in ROBERTA),
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


def vit(read: Fields) -> TransformerShape:
    """Read ViT: patches and a class token instead of words."""
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
