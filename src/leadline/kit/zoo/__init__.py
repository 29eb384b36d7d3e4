"""The models in plain torch."""

import importlib
from typing import Any

from leadline.kit.specs import SPECS

MODULES = {
    "resnet": "convolutional", "vgg": "convolutional", "mobilenet": "convolutional", "convnext": "convolutional",
    "unet": "convolutional", "vit": "transformers", "bert": "transformers", "gpt": "transformers",
    "moe": "transformers", "swin": "transformers", "mlp": "simple", "lstm": "simple",
}  # fmt: skip
"""Family → its module in this package."""


def build_model(name: str, size: int) -> Any:
    """Build a model by name for inputs of that size, with random weights, on torch's default device.

    Raises:
        KeyError: there is no such model.
        ImportError: its package is not installed.
    """
    spec = SPECS[name]
    module = importlib.import_module(f"leadline.kit.zoo.{'named' if spec.package else MODULES[spec.family]}")
    if spec.package:
        return module.named(name, size)
    positions = {"positions": size + 1} if spec.family in ("bert", "gpt", "moe") else {}
    return getattr(module, spec.family)(**spec.arguments, **positions)


build = build_model
"""Name under which generated workload files import ``build_model``."""
