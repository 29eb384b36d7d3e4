"""Multimodal pairs: the tower of images beside a language model (LLaVA, Gemma 3)."""

from leadline.core.errors import InvalidInput
from leadline.graphs.hf_config.fields import Config, ConfigFields
from leadline.graphs.hf_config.shape import (
    AttentionShape,
    FeedForwardShape,
    ImageShape,
    LayerShape,
    StackShape,
    VisionShape,
)

PATCH = {"clip_vision_model": 32, "siglip_vision_model": 16}
"""Towers that are expanded, and the published side of their patches in pixels."""
PAIRS = ("llava", "gemma3")
"""Families of pairs whose projectors are expanded."""


def read_vision(config: Config, reference: str) -> tuple[VisionShape | None, str]:
    """Return the images of a multimodal configuration, with a note; no images for one of text alone.

    A note says so where a tower is not expanded.

    Raises:
        InvalidInput: A size is missing or inconsistent.
    """
    section = config.get("vision_config")
    if not isinstance(section, dict) or not isinstance(config.get("text_config"), dict):
        return None, ""
    family, kind = str(config.get("model_type")), str(section.get("model_type"))
    if (
        family not in PAIRS
        or kind not in PATCH
        or section.get("vision_use_head", family == "llava" and "siglip" in kind)
    ):
        return None, f"the vision tower of {family} ({kind}) is not counted: the numbers are for its language model"
    fields, tower = ConfigFields(config, reference), _tower(ConfigFields(section, reference), kind)
    if family == "gemma3":
        shape = VisionShape(tower, fields.size("mm_tokens_per_image", default=256))
    else:
        shape = VisionShape(
            tower, fields.size("image_seq_length", default=576),
            activation=fields.word("projector_hidden_act", default="gelu"),
            bias=fields.flag("multimodal_projector_bias", default=True),
        )  # fmt: skip
    if shape.tokens > tower.max_sequence:
        raise InvalidInput(
            f"{reference}: an image of {tower.max_sequence} patches cannot give {shape.tokens} tokens: correct one"
        )
    return shape, f"assumed: one image in each sample, {shape.tokens} of its tokens"


def _tower(read: ConfigFields, kind: str) -> StackShape:
    """Read CLIP, which has a class token and a norm before its layers, or SigLIP without them."""
    is_clip = kind == "clip_vision_model"
    hidden, heads = read.size("hidden_size", default=768), read.size("num_attention_heads", default=12)
    side, patch = read.size("image_size", default=224), read.size("patch_size", default=PATCH[kind])
    if patch > side:
        raise InvalidInput(f"{read.reference}: an image of {side} pixels has no patches of {patch}: correct one")
    image = ImageShape(side, patch, read.size("num_channels", default=3), extra=int(is_clip), bias=not is_clip)
    attention = AttentionShape(hidden, heads, heads, read.per_head(hidden, heads), causal=False)
    default = "quick_gelu" if is_clip else "gelu_pytorch_tanh"
    feed_forward = FeedForwardShape(
        read.size("intermediate_size", default=3072), activation=read.word("hidden_act", default=default)
    )
    layers = (LayerShape(attention, feed_forward),) * read.size("num_hidden_layers", default=12)
    return StackShape(kind, hidden, layers, image.tokens, source=image, embedding_norm=is_clip)
