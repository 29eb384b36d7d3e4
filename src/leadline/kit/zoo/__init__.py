"""The models in plain torch."""

import importlib
from typing import Any

from leadline.kit.specs import SPECS

BUILDERS = {
    "resnet": "convolutional.resnet", "vgg": "convolutional.vgg", "mobilenet": "convolutional.mobilenet",
    "convnext": "convolutional.convnext", "unet": "convolutional.UNet", "vit": "transformers.Vision",
    "bert": "transformers.bert", "gpt": "transformers.gpt", "moe": "transformers.bert", "swin": "transformers.Swin",
    "mlp": "simple.mlp", "lstm": "simple.LSTM",
}  # fmt: skip
"""Family → its module in this package, and the function or class there."""


def build_model(name: str, size: int) -> Any:
    """Build a model by name for inputs of that size, with random weights, on torch's default device.

    ``ImportError`` if the package that has it is not installed.
    """
    spec = SPECS[name]
    module, _, builder = ("named.named" if spec.package else BUILDERS[spec.family]).partition(".")
    construct = getattr(importlib.import_module(f"leadline.kit.zoo.{module}"), builder)
    if spec.package:
        return construct(name, size)
    positions = {"positions": size + 1} if spec.family in ("bert", "gpt", "moe") else {}
    return construct(**spec.arguments, **positions)


build = build_model
"""Name under which generated workload files import ``build_model``."""
