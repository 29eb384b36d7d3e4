"""Build the timm model and image size that the environment names."""

import os

import timm
import torch


def build() -> torch.nn.Module:
    """Return the model; a model with a fixed input size is built for the given one."""
    name, _, size = os.environ["LEADLINE_TIMM_MODEL"].partition("@")
    config = timm.get_pretrained_cfg(name)
    fixed = config is not None and config.fixed_input_size and config.input_size[-1] != int(size)
    try:
        return timm.create_model(name, pretrained=False, **({"img_size": int(size)} if fixed else {}))
    except TypeError:
        return timm.create_model(name, pretrained=False)
