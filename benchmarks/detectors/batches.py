"""How large the largest batch of a configuration is, as its own steps of loading say.

Images on a GPU are ``samples_per_gpu``. Segmenters crop, so that every batch is as large (mmsegmentation's
``configs/_base_/datasets``: 2 of 512 × 1024 or 769 × 769 for Cityscapes, 4 of 512 × 512 for ADE20K and VOC). Detectors
resize to fit a rectangle and pad to 32 (mmdetection's ``coco_detection.py``: 1333 × 800, 2 on a GPU), and images of one
orientation go together: over a whole training the largest batch is one of 800 × 1344, and what the tables tell is the
most that was held.
"""

from typing import Any

Step = Any  # a dict, or mmcv's own kind of one


def batch_of(config: Step, package: str) -> tuple[int, int, int]:
    """Return images on a GPU, and height and width of the largest batch of a configuration in pixels."""
    height = width = 0
    for step in _steps(config["data"]["train"]):
        height, width = _after(step, height, width, package)
    return config["data"]["samples_per_gpu"], height, width


def _after(step: Step, height: int, width: int, package: str) -> tuple[int, int]:
    """Return the largest size that images have after one step of loading."""
    kind, padded = step["type"], step.get("size_divisor")
    if kind == "Resize" and package == "mmdet" and step.get("img_scale") is not None:
        return _resized(step)
    if kind in ("AutoAugment", "RandomChoice"):
        return _resized({"img_scale": [scale for scales in _all(step, "img_scale") for scale in _listed(scales)]})
    if kind in ("RandomCrop", "RandomCenterCropPad") and step.get("crop_size") is not None:
        return step["crop_size"][0], step["crop_size"][1]
    if kind == "Pad" and step.get("size") is not None:
        return step["size"][0], step["size"][1]
    if kind == "Pad" and padded:
        return -(-height // padded) * padded, -(-width // padded) * padded
    return height, width


def _resized(step: Step) -> tuple[int, int]:
    """Return height and width of the largest image that lies across, after a step of resizing."""
    scales = _listed(step["img_scale"])
    if not step.get("keep_ratio", True):
        return max((scale[1], scale[0]) for scale in scales)
    return max(min(scale) for scale in scales), max(max(scale) for scale in scales)


def _listed(scales: Any) -> list[Any]:  # noqa: ANN401 - one scale, or a list of them
    return list(scales) if isinstance(scales, list) else [scales]


def _steps(data: Step) -> list[Step]:
    """Return the steps of loading within whatever repeats or joins data sets."""
    if isinstance(data, list | tuple):
        return _steps(data[0])
    inner = data.get("dataset", data.get("datasets"))
    return (_steps(inner) if inner is not None else []) + list(data.get("pipeline", ()))


def _all(tree: Any, name: str) -> list[Any]:  # noqa: ANN401
    """Return whatever bears a name anywhere in a tree."""
    if isinstance(tree, dict):
        return ([tree[name]] if name in tree else []) + [one for value in tree.values() for one in _all(value, name)]
    if isinstance(tree, list | tuple):
        return [one for value in tree for one in _all(value, name)]
    return []
