"""The models in plain torch."""

import importlib
from typing import Any

from leadline.kit.specs import SPECS

MODULES = {
    "resnet": "convolutional", "vgg": "convolutional", "mobilenet": "convolutional", "convnext": "convolutional",
    "unet": "convolutional", "vit": "transformers", "bert": "transformers", "gpt": "transformers",
    "moe": "transformers", "swin": "transformers", "mlp": "simple", "lstm": "simple", "named": "named",
}  # fmt: skip
"""Builder → its module in this package."""


def build_model(name: str, size: int) -> Any:
    """Build a model by name for inputs of that size, with random weights, on torch's default device.

    Raises:
        KeyError: there is no such model.
        ImportError: its package is not installed.
    """
    spec = SPECS[name]
    module = importlib.import_module(f"leadline.kit.zoo.{MODULES[spec.builder]}")
    if spec.builder == "named":
        return module.named(name, size)
    arguments = dict(spec.arguments)
    if spec.builder in ("bert", "gpt", "moe"):
        arguments["positions"] = size + 1
    return getattr(module, spec.builder)(**arguments)


build = build_model
"""Name under which generated workload files import ``build_model``."""
