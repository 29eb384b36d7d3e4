"""Build a model of timm or torchvision by its name, and tell the shape of its input."""

import difflib
import importlib
from typing import Any, Dict, List, Tuple

import torch

from leadline.graphs.torch.worker.session import ScriptFailure

Shapes = List[Tuple[List[int], str]]
"""Shape and dtype of each input."""
DETECTION, CLIPS, PAIRS = ".detection.", ".video.", ".optical_flow."
"""Parts of torchvision whose models take more than a batch of images."""


def build_library_model(request: Dict[str, Any]) -> Tuple[torch.nn.Module, Shapes]:
    """Return the model of a request and the shapes of its inputs, for a batch of the request's size."""
    package, name = request["library"], request["function"]
    builder = {"timm": _timm_model, "torchvision": _torchvision_model}[package]
    model, size = builder(importlib.import_module(f"{package}.models"), name, request)
    return model, request["inputs"] or [([request["batch"], *size], "float32")]


def _timm_model(models: Any, name: str, _: Dict[str, Any]) -> Tuple[torch.nn.Module, List[int]]:
    if not models.is_model(name):
        raise _unknown_model("timm", name, models.list_models())
    model = models.create_model(name)
    return model, list(model.pretrained_cfg["input_size"])


def _torchvision_model(models: Any, name: str, request: Dict[str, Any]) -> Tuple[torch.nn.Module, List[int]]:
    if name not in models.list_models():
        raise _unknown_model("torchvision", name, models.list_models())
    builder = models.get_model_builder(name)
    if DETECTION in builder.__module__:
        raise ScriptFailure(
            f"torchvision:{name} is a detector, which takes boxes beside images and chooses boxes by their content: "
            "trace your own script, as in -- python train.py"
        )
    if name.startswith("quantized_"):
        raise ScriptFailure(f"torchvision:{name} is quantized for CPUs: name the model without quantized_")
    if not request["inputs"] and (CLIPS in builder.__module__ or PAIRS in builder.__module__):
        example = "--input 8x3x16x112x112" if CLIPS in builder.__module__ else "two times --input 2x3x520x960"
        raise ScriptFailure(f"torchvision:{name} takes more than a batch of images: give its shape, as in {example}")
    crop = models.get_model_weights(name).DEFAULT.transforms()
    size = list(getattr(crop, "crop_size", None) or getattr(crop, "resize_size", None) or [224])
    # The weights of a backbone would be downloaded.
    backbone = {"weights_backbone": None} if ".segmentation." in builder.__module__ else {}
    return builder(weights=None, **backbone), [3, *(size * 2)[:2]]


def _unknown_model(package: str, name: str, names: List[str]) -> ScriptFailure:
    close = ", ".join(difflib.get_close_matches(name, names, 3)) or f"{package}.list_models()"
    return ScriptFailure(f"{package} {importlib.import_module(package).__version__} has no model {name!r}: see {close}")
