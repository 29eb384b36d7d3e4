"""Build one training step of the detectron2 configuration that the environment names.

``LEADLINE_MODEL`` is ``detectron2:NAME``, the configuration's name in the model zoo. The module takes images and
returns the sum of the losses, as detectron2's trainer does; it makes the labels itself. torchvision's pooled regions
keep what the package's own op of 2019 kept. Of the sampled regions of an image, as many have an object as the
configuration allows (a quarter of 512).
"""

import os
import sys
import types
from typing import Any

import numpy as np
import torch

OBJECTS = 93
"""Most objects in an image of COCO's training set (issue 499 of YOLOX mentions more than 90)."""
KEYPOINTS = 17
PROPOSALS = 1000
"""Precomputed proposals of an image for Fast R-CNN (``PRECOMPUTED_PROPOSAL_TOPK_TRAIN`` keeps 2000)."""


class RoiAlign(torch.autograd.Function):  # type: ignore[misc]
    """Pooled regions; keeps only the regions."""

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
    """Replace compiled ops, and make the assertions of the matcher hold."""
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
    """Return the model of the configuration, without pretrained weights."""
    from detectron2.modeling import META_ARCH_REGISTRY
    from detectron2.modeling.roi_heads import roi_heads

    config = configured(os.environ["LEADLINE_MODEL"].partition(":")[2])
    for place in (torch, torch.Tensor):
        place.all = _always_true(place.all)
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
    """Return the images on a GPU, and height and width of the largest.

    The table's runs have 16 images on 8 GPUs; the largest models have as many on each of more GPUs.
    """
    short, long = max(config.INPUT.MIN_SIZE_TRAIN), config.INPUT.MAX_SIZE_TRAIN
    return min(2, config.SOLVER.IMS_PER_BATCH // 8), short, long


def _example(config: Any, image: torch.Tensor) -> dict[str, Any]:
    """Return a loader's output for one image: boxes, classes, and the other labels of the configuration."""
    from detectron2.structures import Boxes, Instances, Keypoints, PolygonMasks

    height, width = image.shape[-2:]
    instances = Instances((height, width))
    instances.gt_boxes = Boxes(torch.zeros((OBJECTS, 4)))
    instances.gt_classes = torch.zeros((OBJECTS,), dtype=torch.int64)
    if config.MODEL.MASK_ON:
        square = np.array([0.0, 0.0, 8.0, 0.0, 8.0, 8.0, 0.0, 8.0])
        instances.gt_masks = PolygonMasks([[square] for _ in range(OBJECTS)])
    if config.MODEL.KEYPOINT_ON:
        instances.gt_keypoints = Keypoints(np.ones((OBJECTS, KEYPOINTS, 3), dtype=np.float32))
    example: dict[str, Any] = {"image": image, "height": height, "width": width, "instances": instances}
    if config.MODEL.META_ARCHITECTURE == "PanopticFPN":
        example["sem_seg"] = torch.zeros((height, width), dtype=torch.int64)
    if config.MODEL.LOAD_PROPOSALS:
        ahead = Instances((height, width))
        ahead.proposal_boxes = Boxes(torch.zeros((PROPOSALS, 4)))
        ahead.objectness_logits = torch.zeros((PROPOSALS,))
        example["proposals"] = ahead
    return example


def _at_most(select_regions: Any, most: int) -> Any:
    """Return the selection of regions with an object, limited to ``most`` of an image, as sampling leaves them."""

    def select(proposals: Any, background: int) -> Any:
        _, masks = select_regions(proposals, background)
        chosen = [torch.arange(most, device=mask.device) for mask in masks]
        return [boxes[places] for boxes, places in zip(proposals, chosen, strict=True)], chosen

    return select


def _always_true(op: Any) -> Any:
    """Return the op with results that the tracer takes for true; asserts would fail on fake values."""

    def marked(*args: Any, **kwargs: Any) -> torch.Tensor:
        result = op(*args, **kwargs)
        result.__dict__["_truth"] = True
        return result

    return marked


def _columns(source: Any, result: Any, weight: Any, images: int) -> torch.Tensor:
    height, width = result.shape[-2:]
    rows = source.shape[1] * weight.shape[2] * weight.shape[3]
    return torch.zeros((rows, images * height * width), dtype=source.dtype, device=source.device)


def _deformed(source: Any, weight: Any, offset: Any, output: Any, *sizes: Any) -> None:
    columns, buffer = _columns(source, output, weight, sizes[-1]), torch.zeros_like(output)
    output.copy_(buffer)
    del columns


def _deformed_input(
    source: Any, offset: Any, result: Any, for_source: Any, for_offset: Any, weight: Any, *sizes: Any
) -> None:
    _columns(source, result, weight, sizes[-1])


def _deformed_weight(source: Any, offset: Any, result: Any, for_weight: Any, *sizes: Any) -> None:
    columns, buffer = _columns(source, result, for_weight, sizes[-1]), torch.zeros_like(result)
    del columns, buffer


def _modulated(source: Any, weight: Any, bias: Any, unit: Any, offset: Any, mask: Any, output: Any, *_: Any) -> None:
    _columns(source, output, weight, 1)


def _modulated_backward(source: Any, weight: Any, *gradients: Any) -> None:
    _columns(source, gradients[10], weight, 1)
