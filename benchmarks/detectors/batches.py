"""The size of a configuration's largest batch, from its own data pipeline.

``samples_per_gpu`` is the number of images on a GPU. Segmenters crop, so all batches have one size (mmsegmentation's
``configs/_base_/datasets``: 2 of 512 × 1024 or 769 × 769 for Cityscapes, 4 of 512 × 512 for ADE20K and VOC). Detectors
resize to fit a rectangle and pad to 32 (mmdetection's ``coco_detection.py``: 1333 × 800, 2 on a GPU). They group images
of one orientation, so the largest batch of a training run is 800 × 1344. The tables give the peak of the whole run.
"""

from typing import Any

Step = Any  # a dict, or mmcv's own kind of one


def batch_of(config: Step, package: str) -> tuple[int, int, int]:
    """Return the images on a GPU, and height and width of a configuration's largest batch in pixels."""
    height = width = 0
    for step in _steps(config["data"]["train"]):
        height, width = _after(step, height, width, package)
    return config["data"]["samples_per_gpu"], height, width


def _after(step: Step, height: int, width: int, package: str) -> tuple[int, int]:
    """Return the largest image size after one step of the data pipeline."""
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
    """Return height and width of the largest landscape image after a resize step."""
    scales = _listed(step["img_scale"])
    if not step.get("keep_ratio", True):
        return max((scale[1], scale[0]) for scale in scales)
    return max(min(scale) for scale in scales), max(max(scale) for scale in scales)


def _listed(scales: Any) -> list[Any]:  # noqa: ANN401 - one scale, or a list of them
    return list(scales) if isinstance(scales, list) else [scales]


def _steps(data: Step) -> list[Step]:
    """Return the pipeline's steps, through wrappers that repeat or join data sets."""
    if isinstance(data, list | tuple):
        return _steps(data[0])
    inner = data.get("dataset", data.get("datasets"))
    return (_steps(inner) if inner is not None else []) + list(data.get("pipeline", ()))


def _all(tree: Any, name: str) -> list[Any]:  # noqa: ANN401
    """Return all values of a key anywhere in a tree."""
    if isinstance(tree, dict):
        values = [tree[name]] if name in tree else []
        return values + [value for child in tree.values() for value in _all(child, name)]
    if isinstance(tree, list | tuple):
        return [value for child in tree for value in _all(child, name)]
    return []
