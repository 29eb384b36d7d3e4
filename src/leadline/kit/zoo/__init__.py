"""The models, in plain torch."""

import importlib
from typing import Any

from leadline.kit.specs import SPECS

HOMES = {
    "resnet": "convolutional", "vgg": "convolutional", "mobilenet": "convolutional", "convnext": "convolutional",
    "unet": "convolutional", "vit": "attention", "bert": "attention", "gpt": "attention", "moe": "attention",
    "swin": "windows", "mlp": "simple", "lstm": "simple", "named": "named",
}  # fmt: skip
"""Builder → the module beside this one that has it."""


def build_model(name: str, size: int) -> Any:
    """Build the model of that name for inputs of that size, with random weights, on torch's default device.

    ``KeyError`` if there is no such model; ``ImportError`` if its package is not installed.
    """
    spec = SPECS[name]
    module = importlib.import_module(f"leadline.kit.zoo.{HOMES[spec.builder]}")
    if spec.builder == "named":
        return module.named(name, size)
    given = dict(spec.arguments)
    if spec.builder in ("bert", "gpt", "moe"):
        given["positions"] = size + 1
    return getattr(module, spec.builder)(**given)
