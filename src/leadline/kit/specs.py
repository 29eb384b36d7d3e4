"""The measured models: names, sizes, and work per sample."""

from dataclasses import dataclass
from typing import Any, Dict, Tuple

TRAINING, INFERENCE, PREFILL, DECODE = "training", "inference", "prefill", "decode"


@dataclass(frozen=True)
class Spec:
    """One model."""

    name: str
    family: str
    kind: str
    """Input: ``image`` (batch x 3 x size x size), ``tokens`` or ``vector`` (batch x size)."""
    arguments: Dict[str, Any]
    """Arguments of the function of the zoo that has the family's name."""
    work: Dict[int, float]
    """Floating-point operations of a forward pass per sample, by size; a multiply-add counts as two."""
    max_batch: int = 1024
    quick: bool = False
    package: str = ""
    """Required package, if any."""
    traits: Tuple[str, ...] = ()

    @property
    def phases(self) -> Tuple[str, ...]:
        """The measured phases; inference of a decoder has two."""
        return (TRAINING, PREFILL, DECODE) if self.family == "gpt" else (TRAINING, INFERENCE)


CONV = ("channels_last",)
BLOCKS = ("checkpointing",)


def _conv(name: str, family: str, work: Dict[int, float], **arguments: Any) -> Spec:
    return Spec(name, family, "image", arguments, work, traits=CONV)


def _blocks(name: str, family: str, kind: str, work: Dict[int, float], **arguments: Any) -> Spec:
    return Spec(name, family, kind, arguments, work, traits=BLOCKS)


def _quick(name: str, family: str, kind: str, work: Dict[int, float], **arguments: Any) -> Spec:
    traits: Tuple[str, ...] = {"image": CONV, "tokens": BLOCKS, "vector": ()}[kind]
    traits = {"vit": BLOCKS, "swin": (), "lstm": ()}.get(family, traits)
    return Spec(name, family, kind, arguments, work, max_batch=4096, quick=True, traits=traits)


def _named(name: str, family: str, kind: str, work: Dict[int, float]) -> Spec:
    traits = CONV if family == "timm-conv" else ()
    return Spec(name, family, kind, {}, work, max_batch=512, package=name.partition(":")[0], traits=traits)


BUILT_IN = (
    _quick("resnet-mini", "resnet", "image", {32: 3.43e6}, blocks=(1, 1, 1, 1), width=16),
    _conv("resnet18", "resnet", {64: 2.97e8, 224: 3.63e9}, blocks=(2, 2, 2, 2)),
    _conv("resnet34", "resnet", {224: 7.33e9}, blocks=(3, 4, 6, 3)),
    _conv("resnet50", "resnet", {128: 2.67e9, 224: 8.18e9}, blocks=(3, 4, 6, 3), bottleneck=True),
    _conv("resnet101", "resnet", {224: 1.56e10}, blocks=(3, 4, 23, 3), bottleneck=True),
    _conv("resnet50-wide", "resnet", {224: 2.28e10}, blocks=(3, 4, 6, 3), bottleneck=True, inner=128),
    _quick("vgg-mini", "vgg", "image", {32: 5.96e6}, stages=((1, 16), (1, 32), (1, 64)), hidden=128),
    _conv("vgg11", "vgg", {64: 1.47e9, 224: 1.52e10}, stages=((1, 64), (1, 128), (2, 256), (2, 512), (2, 512))),
    _conv("vgg16", "vgg", {224: 3.09e10}, stages=((2, 64), (2, 128), (3, 256), (3, 512), (3, 512))),
    _quick("mobilenet-mini", "mobilenet", "image", {32: 9.6e5}, width=0.25, depth=1),
    _conv("mobilenet-1.0", "mobilenet", {128: 1.02e8, 224: 3.07e8}, width=1.0, depth=2),
    _conv("mobilenet-1.4", "mobilenet", {224: 7.91e8}, width=1.4, depth=3),
    _quick("convnext-mini", "convnext", "image", {32: 2.07e6}, depths=(1, 1, 2, 1), dims=(16, 32, 64, 128)),
    _conv("convnext-t", "convnext", {128: 2.91e9, 224: 8.91e9}, depths=(3, 3, 9, 3), dims=(96, 192, 384, 768)),
    _conv("convnext-s", "convnext", {224: 1.74e10}, depths=(3, 3, 27, 3), dims=(96, 192, 384, 768)),
    _conv("convnext-b", "convnext", {224: 3.07e10}, depths=(3, 3, 27, 3), dims=(128, 256, 512, 1024)),
    _quick("unet-mini", "unet", "image", {32: 1.31e7}, width=8, levels=3),
    _conv("unet-32", "unet", {64: 1.16e9, 256: 1.85e10}, width=32, levels=4),
    _conv("unet-64", "unet", {128: 2.41e10, 256: 9.65e10}, width=64, levels=5),
    _quick("vit-mini", "vit", "image", {32: 3.8e6}, layers=2, dim=64, heads=2, patch=8, image=32),
    _blocks("vit-s", "vit", "image", {224: 9.15e9}, layers=12, dim=384, heads=6),
    _blocks("vit-b", "vit", "image", {224: 3.49e10}, layers=12, dim=768, heads=12),
    _blocks("vit-l", "vit", "image", {224: 1.22e11}, layers=24, dim=1024, heads=16),
    _quick("swin-mini", "swin", "image", {32: 7.27e6}, depths=(2, 2), dim=32, window=4, image=32),
    Spec("swin-t", "swin", "image", {"depths": (2, 2, 6, 2), "dim": 96}, {224: 8.98e9}),
    Spec("swin-s", "swin", "image", {"depths": (2, 2, 18, 2), "dim": 96}, {224: 1.75e10}),
    _quick("mlp-mini", "mlp", "vector", {64: 3.05e5}, features=64, width=128, layers=2),
    Spec("mlp-4x2048", "mlp", "vector", {"features": 512, "width": 2048, "layers": 4}, {512: 3.14e7}, 16384),
    Spec("mlp-8x4096", "mlp", "vector", {"features": 1024, "width": 4096, "layers": 8}, {1024: 2.51e8}, 16384),
    Spec("mlp-24x1024", "mlp", "vector", {"features": 784, "width": 1024, "layers": 24}, {784: 5.19e7}, 16384),
    _quick("lstm-mini", "lstm", "tokens", {16: 3.1e6}, width=64, layers=1, vocabulary=1000),
    Spec("lstm-2x512", "lstm", "tokens", {"width": 512, "layers": 2}, {64: 1.19e9, 256: 4.77e9}, 512),
    Spec("lstm-3x1024", "lstm", "tokens", {"width": 1024, "layers": 3}, {128: 9.06e9}, 512),
    _quick("gpt-mini", "gpt", "tokens", {32: 1.09e7}, layers=2, dim=64, heads=2, vocabulary=1000),
    _blocks("gpt-6x384", "gpt", "tokens", {256: 1.59e10, 1024: 7.1e10}, layers=6, dim=384, heads=6),
    _blocks("gpt-12x768", "gpt", "tokens", {512: 1.36e11, 1024: 2.92e11, 2048: 6.61e11}, layers=12, dim=768, heads=12),
    _blocks("gpt-24x1024", "gpt", "tokens", {1024: 8.27e11, 2048: 1.86e12}, layers=24, dim=1024, heads=16),
    _blocks("gpt-24x2048", "gpt", "tokens", {1024: 2.89e12, 4096: 1.4e13}, layers=24, dim=2048, heads=16),
    _quick("bert-mini", "bert", "tokens", {32: 1.09e7}, layers=2, dim=64, heads=2, vocabulary=1000),
    _blocks("bert-6x512", "bert", "tokens", {128: 9.03e9, 512: 3.86e10}, layers=6, dim=512, heads=8),
    _blocks("bert-12x768", "bert", "tokens", {128: 2.83e10, 384: 8.87e10}, layers=12, dim=768, heads=12),
    _blocks("bert-24x1024", "bert", "tokens", {128: 8.69e10, 512: 3.67e11}, layers=24, dim=1024, heads=16),
    _quick("moe-mini", "moe", "tokens", {32: 1.51e7}, layers=2, dim=64, heads=2, experts=4, vocabulary=1000),
    _blocks("moe-6x512", "moe", "tokens", {256: 2.49e10}, layers=6, dim=512, heads=8, experts=8),
    _blocks("moe-12x768", "moe", "tokens", {512: 1.79e11}, layers=12, dim=768, heads=12, experts=16),
)
"""Models of the kit itself, in plain torch. The names indicate the architecture; published weights do not fit."""
NAMED = (
    _named("timm:resnet50", "timm-conv", "image", {224: 8.2e9}),
    _named("timm:efficientnet_b0", "timm-conv", "image", {224: 8e8}),
    _named("timm:mobilenetv3_large_100", "timm-conv", "image", {224: 4.4e8}),
    _named("timm:regnety_032", "timm-conv", "image", {224: 6.4e9}),
    _named("timm:densenet121", "timm-conv", "image", {224: 5.7e9}),
    _named("timm:convnext_tiny", "timm-conv", "image", {224: 8.9e9}),
    _named("timm:vit_base_patch16_224", "timm-attention", "image", {224: 3.5e10}),
    _named("timm:swin_tiny_patch4_window7_224", "timm-attention", "image", {224: 9e9}),
    _named("timm:mixer_b16_224", "timm-attention", "image", {224: 2.5e10}),
    _named("transformers:gpt2", "transformers", "tokens", {512: 1.36e11}),
    _named("transformers:bert-base", "transformers", "tokens", {128: 2.85e10}),
    _named("transformers:llama-mini", "transformers", "tokens", {512: 1.1e11}),
    _named("transformers:t5-small", "transformers", "tokens", {128: 1.61e10}),
)
"""Models measured only if the package is installed, with random weights: nothing is downloaded."""
LARGE = frozenset(("gpt-24x2048", "moe-12x768"))
"""Models of about a billion parameters, too slow to initialize on a CPU."""
SPECS = {spec.name: spec for spec in (*BUILT_IN, *NAMED)}
PACKAGES = tuple(sorted({spec.package for spec in NAMED}))
