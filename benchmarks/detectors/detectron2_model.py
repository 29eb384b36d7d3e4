"""Builds the detector of a configuration of detectron2 that the environment names, as one training step.

``LEADLINE_MODEL`` is ``detectron2:NAME``, the configuration's name in the model zoo. A module takes the images and
returns the sum of the losses, as detectron2's trainer does; what a loader would have given beside them is made here.
torchvision's pooled regions keep what the package's own op of 2019 kept. Of the regions that sampling leaves of an
image, as many have an object as the configuration lets (a quarter of 512).
"""

import os
import sys
import types
from typing import Any

import numpy as np
import torch

OBJECTS = 93
"""Objects in the fullest image of COCO's training set (issue 499 of YOLOX speaks of more than 90)."""
KEYPOINTS = 17
PROPOSALS = 1000
"""Proposals of an image that are computed ahead for Fast R-CNN (``PRECOMPUTED_PROPOSAL_TOPK_TRAIN`` keeps 2000)."""


class RoiAlign(torch.autograd.Function):  # type: ignore[misc]
    """Pooled regions, for which only the regions are kept."""

    @staticmethod
    def forward(ctx: Any, source: Any, regions: Any, size: Any, scale: Any, ratio: Any, aligned: Any) -> Any:
        ctx.save_for_backward(regions)
        ctx.shape = source.shape
        return source.new_zeros((regions.shape[0], source.shape[1], *size))

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient.new_zeros(ctx.shape), None, None, None, None, None


class DetectronStep(torch.nn.Module):  # type: ignore[misc]
    """The model on one batch: images in, the sum of its losses out."""

    def __init__(self, model: Any, config: Any) -> None:
        super().__init__()
        self.model, self.config = model, config

    def forward(self, images: torch.Tensor) -> Any:
        """Return an object with the ``loss`` of the images."""
        from detectron2.utils.events import EventStorage

        batch = [_example(self.config, image) for image in images.unbind()]
        with EventStorage():
            losses = self.model(batch)
        return types.SimpleNamespace(loss=sum(losses.values()))


def install() -> None:
    """Stand in for compiled ops, and let the assertions of a matcher hold."""
    module = types.ModuleType("detectron2._C")
    module.__dict__.update(
        deform_conv_forward=_deformed, deform_conv_backward_input=_deformed_input,
        deform_conv_backward_filter=_deformed_weight, modulated_deform_conv_forward=_modulated,
        modulated_deform_conv_backward=_modulated_backward, get_cuda_version=lambda: "9.2",
        get_compiler_version=lambda: "", has_cuda=lambda: True,
    )  # fmt: skip
    sys.modules["detectron2._C"] = module
    import torchvision

    torchvision.ops.roi_align = RoiAlign.apply
    torchvision.ops.boxes.batched_nms = lambda boxes, *_: torch.arange(boxes.shape[0], device=boxes.device)


def build() -> torch.nn.Module:
    """Return the model of the configuration, without the weights that it would fetch."""
    from detectron2.modeling import META_ARCH_REGISTRY
    from detectron2.modeling.roi_heads import roi_heads

    config = configured(os.environ["LEADLINE_MODEL"].partition(":")[2])
    for place in (torch, torch.Tensor):
        place.all = _told_true(place.all)
    heads = config.MODEL.ROI_HEADS
    most = int(heads.BATCH_SIZE_PER_IMAGE * heads.POSITIVE_FRACTION)
    roi_heads.select_foreground_proposals = _at_most(roi_heads.select_foreground_proposals, most)
    return DetectronStep(META_ARCH_REGISTRY.get(config.MODEL.META_ARCHITECTURE)(config), config)


def configured(name: str) -> Any:
    """Return the configuration by its name in the zoo."""
    from detectron2 import model_zoo

    config = model_zoo.get_config(name)
    config.MODEL.DEVICE = "cpu"
    return config


def size_of(config: Any) -> tuple[int, int, int]:
    """Return images on a GPU, and height and width of the largest of them.

    The table's runs have 16 images on 8 GPUs, those of the largest models as many on each of more GPUs.
    """
    short, long = max(config.INPUT.MIN_SIZE_TRAIN), config.INPUT.MAX_SIZE_TRAIN
    return min(2, config.SOLVER.IMS_PER_BATCH // 8), short, long


def _example(config: Any, image: torch.Tensor) -> dict[str, Any]:
    """Return what a loader gives of one image: boxes, classes, and what else the configuration learns."""
    from detectron2.structures import Boxes, Instances, Keypoints, PolygonMasks

    height, width = image.shape[-2:]
    told = Instances((height, width))
    told.gt_boxes = Boxes(torch.zeros((OBJECTS, 4)))
    told.gt_classes = torch.zeros((OBJECTS,), dtype=torch.int64)
    if config.MODEL.MASK_ON:
        square = np.array([0.0, 0.0, 8.0, 0.0, 8.0, 8.0, 0.0, 8.0])
        told.gt_masks = PolygonMasks([[square] for _ in range(OBJECTS)])
    if config.MODEL.KEYPOINT_ON:
        told.gt_keypoints = Keypoints(np.ones((OBJECTS, KEYPOINTS, 3), dtype=np.float32))
    found: dict[str, Any] = {"image": image, "height": height, "width": width, "instances": told}
    if config.MODEL.META_ARCHITECTURE == "PanopticFPN":
        found["sem_seg"] = torch.zeros((height, width), dtype=torch.int64)
    if config.MODEL.LOAD_PROPOSALS:
        ahead = Instances((height, width))
        ahead.proposal_boxes = Boxes(torch.zeros((PROPOSALS, 4)))
        ahead.objectness_logits = torch.zeros((PROPOSALS,))
        found["proposals"] = ahead
    return found


def _at_most(own: Any, most: int) -> Any:
    """Return the choice of regions with an object, of which sampling has left so many of an image at most."""

    def select(proposals: Any, background: int) -> Any:
        _, masks = own(proposals, background)
        chosen = [torch.arange(most, device=mask.device) for mask in masks]
        return [one[places] for one, places in zip(proposals, chosen, strict=True)], chosen

    return select


def _told_true(own: Any) -> Any:
    def asked(*args: Any, **kwargs: Any) -> torch.Tensor:
        found = own(*args, **kwargs)
        found.__dict__["_truth"] = True
        return found

    return asked


def _columns(source: Any, result: Any, weight: Any, images: int) -> torch.Tensor:
    height, width = result.shape[-2:]
    rows = source.shape[1] * weight.shape[2] * weight.shape[3]
    return torch.zeros((rows, images * height * width), dtype=source.dtype, device=source.device)


def _deformed(source: Any, weight: Any, offset: Any, output: Any, *rest: Any) -> None:
    columns, buffer = _columns(source, output, weight, rest[-1]), torch.zeros_like(output)
    output.copy_(buffer)
    del columns


def _deformed_input(
    source: Any, offset: Any, result: Any, for_source: Any, for_offset: Any, weight: Any, *rest: Any
) -> None:
    _columns(source, result, weight, rest[-1])


def _deformed_weight(source: Any, offset: Any, result: Any, for_weight: Any, *rest: Any) -> None:
    columns, buffer = _columns(source, result, for_weight, rest[-1]), torch.zeros_like(result)
    del columns, buffer


def _modulated(source: Any, weight: Any, bias: Any, ones: Any, offset: Any, mask: Any, output: Any, *_: Any) -> None:
    _columns(source, output, weight, 1)


def _modulated_backward(source: Any, weight: Any, *rest: Any) -> None:
    _columns(source, rest[10], weight, 1)
