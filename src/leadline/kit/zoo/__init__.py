"""The models in plain torch."""

import importlib
from typing import Any

from leadline.kit.specs import SPECS


def build(name: str, size: int) -> Any:
    """Build a model by name for inputs of that size, with random weights, on torch's default device.

    ``ImportError`` if the package that has it is not installed. Generated workload files import this function.
    """
    spec = SPECS[name]
    module, _, builder = spec.builder.partition(".")
    construct = getattr(importlib.import_module(f"leadline.kit.zoo.{module}"), builder)
    if spec.package:
        return construct(name, size)
    positions = {"positions": size + 1} if spec.family in ("bert", "gpt", "moe") else {}
    return construct(**spec.arguments, **positions)
