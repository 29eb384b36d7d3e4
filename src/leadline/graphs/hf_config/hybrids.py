"""Families with state-space layers: Mamba, Mamba-2, Jamba, and Nemotron-H with one mixer or one block a layer."""

from leadline.core.errors import InvalidInput, excerpt
from leadline.graphs.hf_config.decoders import FamilyStyle, decoder_stack, read_stack
from leadline.graphs.hf_config.fields import ConfigFields
from leadline.graphs.hf_config.shape import (
    AttentionShape,
    FeedForwardShape,
    LayerShape,
    SelectiveScanShape,
    StackShape,
    StateSpaceShape,
)

LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
"""Letters of ``hybrid_override_pattern``."""
NOTHING = FeedForwardShape(0)
NAMES = {"linear_attention": "mamba", "full_attention": "attention"}
"""Newer names of kinds of layers."""


def mamba2(read: ConfigFields, style: FamilyStyle) -> StackShape:
    """Read Mamba-2: a mixer and its norm in each layer, and a residual stream in float32."""
    hidden = style.size(read, "hidden")
    bias = read.flag("use_bias", default=False)
    mixer = StateSpaceShape(
        heads=read.size("num_heads", default=128), head_dim=read.size("head_dim", default=64),
        state=read.size("state_size", default=128), groups=read.size("n_groups", default=8),
        kernel=read.size("conv_kernel", default=4), chunk=read.size("chunk_size", default=256), bias=bias,
        kernel_bias=read.flag("use_conv_bias", default=True),
    )  # fmt: skip
    expanded = read.size("expand", default=2) * hidden
    if mixer.inner != expanded:
        raise InvalidInput(
            f"{read.reference}: {mixer.heads} heads of {mixer.head_dim} are not the expanded width {expanded}: "
            "correct num_heads, head_dim or expand"
        )
    layer = LayerShape(
        AttentionShape(hidden, mixer.heads, mixer.heads, mixer.head_dim, state_space=mixer), NOTHING, "single", "rms",
        wide_residual=read.flag("residual_in_fp32", default=True),
    )  # fmt: skip
    return decoder_stack(read, style, (layer,) * style.size(read, "layers"), style.size(read, "vocab"))


def mamba(read: ConfigFields, style: FamilyStyle) -> StackShape:
    """Read Mamba: a mixer and its norm in each layer, and a residual stream in float32."""
    hidden = style.size(read, "hidden")
    mixer = SelectiveScanShape(
        read.size("expand", default=2) * hidden, read.size("state_size", default=16),
        _rank(read, "time_step_rank", hidden), read.size("conv_kernel", default=4),
        bias=read.flag("use_bias", default=False), kernel_bias=read.flag("use_conv_bias", default=True),
    )  # fmt: skip
    layer = LayerShape(
        AttentionShape(hidden, 1, 1, mixer.inner, state_space=mixer), NOTHING, "single", "rms",
        wide_residual=read.flag("residual_in_fp32", default=True),
    )  # fmt: skip
    return decoder_stack(read, style, (layer,) * style.size(read, "layers"), style.size(read, "vocab"))


def jamba(read: ConfigFields, style: FamilyStyle) -> StackShape:
    """Read Jamba: Mamba or attention, then a feed-forward block or experts, each at its period of layers."""
    shape = read_stack(read, style)
    mixer = SelectiveScanShape(
        read.size("mamba_expand", default=2) * shape.hidden, read.size("mamba_d_state", default=16),
        _rank(read, "mamba_dt_rank", shape.hidden), read.size("mamba_d_conv", default=4),
        bias=read.flag("mamba_proj_bias", default=False), kernel_bias=read.flag("mamba_conv_bias", default=True),
        normed=True,
    )  # fmt: skip
    dense = shape.layers[0].feed_forward
    experts = dense._replace(
        experts=read.size("num_experts", default=16), used=read.size("num_experts_per_tok", default=2)
    )
    if experts.used > experts.experts:
        raise InvalidInput(
            f"{read.reference}: a token cannot pass {experts.used} of {experts.experts} experts: correct one of them"
        )
    periods = [
        (read.size(f"{name}_layer_period", default=period), read.size(f"{name}_layer_offset", default=offset, least=0))
        for name, period, offset in (("attn", 8, 4), ("expert", 2, 1))
    ]
    layers = []
    for number, layer in enumerate(shape.layers):
        attends, routes = (number % period == offset for period, offset in periods)
        attention = layer.attention if attends else layer.attention._replace(state_space=mixer)
        feed_forward = experts if routes and experts.experts > 1 else dense
        layers.append(layer._replace(attention=attention, feed_forward=feed_forward))
    return shape._replace(layers=tuple(layers))


def _rank(read: ConfigFields, name: str, hidden: int) -> int:
    """Return the width that the steps are projected from: by default, and for "auto", a sixteenth of ``hidden``."""
    return -(-hidden // 16) if read.config.get(name, "auto") == "auto" else read.size(name)


def nemotron_h(read: ConfigFields, style: FamilyStyle) -> StackShape:
    """Read Nemotron-H: one mixer, attention, feed-forward block or mixture of experts in each layer."""
    hidden, heads = style.size(read, "hidden"), style.size(read, "heads")
    kv_heads = read.size("num_key_value_heads", default=8)
    if heads % kv_heads:
        raise InvalidInput(f"{read.reference}: {heads} heads cannot share {kv_heads} key-value heads evenly")
    attention = AttentionShape(
        hidden, heads, kv_heads, read.size("head_dim", "attention_head_dim", default=128), query_bias=False,
        key_bias=False, out_bias=False, dropout=style.rate(read, "attention_dropout"),
    )  # fmt: skip
    bias = read.flag("use_bias", "mamba_proj_bias", default=False)
    mixer = StateSpaceShape(
        heads=read.size("mamba_num_heads", default=128), head_dim=read.size("mamba_head_dim", default=64),
        state=read.size("ssm_state_size", default=128), groups=read.size("n_groups", "mamba_n_groups", default=8),
        kernel=read.size("conv_kernel", "mamba_d_conv", default=4),
        chunk=read.size("chunk_size", "mamba_chunk_size", default=128), bias=bias,
        kernel_bias=read.flag("use_conv_bias", "mamba_conv_bias", default=True),
    )  # fmt: skip
    mamba = attention._replace(state_space=mixer)
    wide = read.flag("residual_in_fp32", default=False)
    kinds = _kinds(read)
    layers = {
        "mamba": LayerShape(mamba, NOTHING), "attention": LayerShape(attention, NOTHING),
        "mlp": LayerShape(attention, _feed_forward(read, style)),
        "moe": LayerShape(attention, _experts(read, style)) if "moe" in kinds else LayerShape(attention, NOTHING),
    }  # fmt: skip
    stack = tuple(layers[kind]._replace(layout="single", norm="rms-wide", wide_residual=wide) for kind in kinds)
    return decoder_stack(read, style, stack, style.size(read, "vocab"))


def _kinds(read: ConfigFields) -> list[str]:
    """Return the kind of each layer, by ``layers_block_type`` or the letters of ``hybrid_override_pattern``."""
    listed = read.listed("layers_block_type") or read.listed("layer_types")
    kinds = [NAMES.get(str(kind), str(kind)) for kind in listed]
    if not kinds:
        pattern = read.word("hybrid_override_pattern", default="ME*-")
        kinds = [LETTERS.get(letter, letter) for letter in pattern]
    unknown = next((kind for kind in kinds if kind not in LETTERS.values()), None)
    if unknown is not None:
        raise InvalidInput(
            f"{read.reference}: {excerpt(repr(unknown))} is no kind of layer: write M, *, - or E in "
            "hybrid_override_pattern"
        )
    return kinds


def _feed_forward(read: ConfigFields, style: FamilyStyle) -> FeedForwardShape:
    return FeedForwardShape(
        style.size(read, "width"), bias=read.flag("mlp_bias", default=False),
        activation=read.word("mlp_hidden_act", default="relu2"),
    )  # fmt: skip


def _experts(read: ConfigFields, style: FamilyStyle) -> FeedForwardShape:
    experts = style.experts
    return _feed_forward(read, style)._replace(
        width=read.size("moe_intermediate_size", default=experts["size"]),
        experts=read.size("n_routed_experts", "num_local_experts", default=experts["count"]),
        used=read.size("num_experts_per_tok", default=experts["used"]),
        shared=read.size("moe_shared_expert_intermediate_size", default=experts["shared_size"]),
        latent=read.optional("moe_latent_size") or 0,
    )
