"""Build one training step of the OpenMMLab configuration that the environment names.

``LEADLINE_MODEL`` is ``PACKAGE:FILE``. The module takes images and returns the package's own loss; it makes the labels
itself, on the device, as a loader would.
"""

import os
import types
from typing import Any

import numpy as np
import torch

OBJECTS = 93
"""Most objects in an image of COCO's training set (issue 499 of YOLOX mentions more than 90)."""


class OpenMMLabStep(torch.nn.Module):  # type: ignore[misc]
    """The model on one batch: images in, its loss out."""

    def __init__(self, model: Any, package: str, keys: set[str]) -> None:
        super().__init__()
        self.model = model
        self.package = package
        self.keys = keys
        self.batch: Any = None

    def forward(self, images: torch.Tensor) -> Any:
        """Return an object with the ``loss`` of the images; keep the batch until the next, as a runner does."""
        labels = _segmenter_labels(images) if self.package == "mmseg" else _detector_labels(self, images)
        self.batch = (images, labels)
        losses = self.model(img=images, img_metas=_about(images), return_loss=True, **labels)
        loss, _ = self.model._parse_losses(losses)
        return types.SimpleNamespace(loss=loss)


def build() -> torch.nn.Module:
    """Return the model of the configuration, without pretrained weights."""
    package, _, file = os.environ["LEADLINE_MODEL"].partition(":")
    from mmcv import Config

    config = Config.fromfile(file)
    without_weights(config.model)
    _as_first_named(config.model)
    if package == "mmdet":
        _make_any_true()
        _limit_refined_images()
    return OpenMMLabStep(_builder(package)(config), package, collected_keys(config.data.train))


def collected_keys(data: Any) -> set[str]:
    """Return the keys that the last step of the data pipeline collects, images included."""
    if isinstance(data, dict):
        keys = set(data.get("keys", ())) if data.get("type") == "Collect" else set()
        return keys.union(*map(collected_keys, data.values()))
    return set().union(*map(collected_keys, data)) if isinstance(data, list | tuple) else set()


def without_weights(config: Any) -> None:
    """Remove every reference to pretrained weights from a configuration."""
    if isinstance(config, dict):
        for name in list(config):
            if name == "pretrained":
                config[name] = None
            elif name == "init_cfg":
                config.pop(name)
            else:
                without_weights(config[name])
    elif isinstance(config, list | tuple):
        for child in config:
            without_weights(child)


def _as_first_named(config: Any) -> None:
    """Rename settings of later releases to those of mmdetection 2.11: the loss of HTC's semantic branch."""
    if isinstance(config, dict):
        loss = config.pop("loss_seg", None)
        if loss is not None:
            config["ignore_label"], config["loss_weight"] = loss["ignore_index"], loss["loss_weight"]
    for child in config.values() if isinstance(config, dict) else config if isinstance(config, list | tuple) else ():
        _as_first_named(child)


def _make_any_true() -> None:
    """Make ``any`` true, except for ``isnan``.

    Anchors are inside the image and boxes have weights; otherwise losses would be left out.
    """
    torch.isnan = _marked(torch.isnan, "_nowhere", of="_")
    for place in (torch, torch.Tensor):
        place.any = _marked(place.any, "_truth", of="_nowhere")


def _limit_refined_images() -> None:
    """Make a cascade's refined boxes belong to as many images as the batch has, which it asserts."""
    from mmdet.models.roi_heads.bbox_heads.bbox_head import BBoxHead

    refine_bboxes, distinct = BBoxHead.refine_bboxes, torch.Tensor.unique

    def refine(head: Any, rois: Any, labels: Any, changes: Any, are_objects: Any, about: Any) -> Any:
        torch.Tensor.unique = lambda values, *_, **__: values[: len(about)]
        try:
            return refine_bboxes(head, rois, labels, changes, are_objects, about)
        finally:
            torch.Tensor.unique = distinct

    BBoxHead.refine_bboxes = refine


def _marked(op: Any, mark: str, *, of: str) -> Any:
    """Return the op with marked results, unless its tensor has the mark ``of``."""

    def marked(tensor: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        result = op(tensor, *args, **kwargs)
        result.__dict__[mark] = of not in tensor.__dict__
        return result

    return marked


def _builder(package: str) -> Any:
    if package == "mmseg":
        from mmseg.models import build_segmentor

        return lambda config: build_segmentor(
            config.model, train_cfg=config.get("train_cfg"), test_cfg=config.get("test_cfg")
        )
    from mmdet.models import build_detector

    return lambda config: build_detector(
        config.model, train_cfg=config.get("train_cfg"), test_cfg=config.get("test_cfg")
    )


def _about(images: torch.Tensor) -> list[dict[str, Any]]:
    """Return a loader's metadata of each image; one of 1333 × 800 is padded to 1344 columns."""
    height, width = images.shape[-2:]
    shape = (height, min(width, 1333), 3) if width == 1344 else (height, width, 3)
    return [
        {
            "img_shape": shape, "pad_shape": (height, width, 3), "ori_shape": shape, "flip": False, "filename": "",
            "scale_factor": np.ones(4, dtype=np.float32), "batch_input_shape": (height, width),
            "img_norm_cfg": {"mean": np.zeros(3), "std": np.ones(3), "to_rgb": True},
        }
        for _ in range(images.shape[0])
    ]  # fmt: skip


def _segmenter_labels(images: torch.Tensor) -> dict[str, Any]:
    batch, _, height, width = images.shape
    return {"gt_semantic_seg": torch.zeros((batch, 1, height, width), dtype=torch.int64, device=images.device)}


def _detector_labels(step: OpenMMLabStep, images: torch.Tensor) -> dict[str, Any]:
    """Return boxes and classes of the image with most objects, and bitmaps on the host if masks are trained."""
    batch, _, height, width = images.shape
    labels: dict[str, Any] = {
        "gt_bboxes": [torch.zeros((OBJECTS, 4), device=images.device) for _ in range(batch)],
        "gt_labels": [torch.zeros((OBJECTS,), dtype=torch.int64, device=images.device) for _ in range(batch)],
    }
    if "gt_masks" in step.keys:
        from mmdet.core import BitmapMasks

        bitmaps = np.zeros((OBJECTS, height, width), dtype=np.uint8)
        labels["gt_masks"] = [BitmapMasks(bitmaps, height, width) for _ in range(batch)]
    if "gt_semantic_seg" in step.keys:
        labels["gt_semantic_seg"] = torch.zeros(
            (batch, 1, height // 8, width // 8), dtype=torch.int64, device=images.device
        )
    return {key: value for key, value in labels.items() if key in step.keys}
