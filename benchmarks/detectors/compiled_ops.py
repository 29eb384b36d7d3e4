"""Stand-ins for mmcv's compiled ops: they compute nothing, but allocate the memory that the compiled ops allocate.

mmcv's own Python decides what the backward pass keeps, and mostly allocates the results. The stand-ins add what the
C++ code allocates (``mmcv/ops/csrc/pytorch``: ``deform_conv.cpp``, ``nms.cpp``, ``modulated_deform_conv.cpp``).
Non-maximum suppression drops nothing, so as many proposals remain as the configuration allows.
"""

import sys
import types
from collections.abc import Callable
from typing import Any

import torch

NMS_BLOCK = 64
"""Boxes in one 64-bit word of the suppression mask."""


def install() -> None:
    """Make ``mmcv._ext`` a module with every op."""
    module = types.ModuleType("mmcv._ext")
    ops: dict[str, Callable[..., Any]] = {
        "nms": _nms, "softnms": _soft_nms,
        "deform_conv_forward": _deformed, "deform_conv_backward_input": _deformed_input,
        "deform_conv_backward_parameters": _deformed_weight,
        "modulated_deform_conv_forward": _modulated, "modulated_deform_conv_backward": _modulated_backward,
    }  # fmt: skip
    module.__dict__.update(ops)
    module.__dict__["__getattr__"] = _any_op
    sys.modules["mmcv._ext"] = module


def _any_op(name: str) -> Callable[..., None]:
    """Return an op that changes nothing.

    Raises:
        AttributeError: The name is one of Python's own.
    """
    if name.startswith("__"):
        raise AttributeError(name)
    return _nothing


def _nothing(*_: Any, **__: Any) -> None:
    """Leave the results as they were made by the caller."""


def _nms(boxes: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    """Return all boxes, after allocating the sorted boxes and the mask that compares all pairs."""
    count = boxes.shape[0]
    order = torch.arange(count, device=boxes.device)
    kept = boxes.index_select(0, order)
    mask = torch.empty((count, -(-count // NMS_BLOCK)), dtype=torch.int64, device=boxes.device)
    del kept, mask
    return order


def _soft_nms(boxes: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return torch.arange(boxes.shape[0], device=boxes.device)


def _columns(source: torch.Tensor, result: torch.Tensor, weight: torch.Tensor, images: int) -> torch.Tensor:
    """Return the unfolded input of so many images at a time."""
    height, width = result.shape[-2:]
    rows = source.shape[1] * weight.shape[2] * weight.shape[3]
    return torch.zeros((rows, images * height * width), dtype=source.dtype, device=source.device)


def _deformed(source: Any, weight: Any, offset: Any, output: Any, *_: Any, im2col_step: int = 1, **__: Any) -> None:
    """Take columns of ``im2col_step`` images, and a buffer of the output's size."""
    columns, buffer = _columns(source, output, weight, im2col_step), torch.zeros_like(output)
    output.copy_(buffer)
    del columns


def _deformed_input(
    source: Any, offset: Any, result: Any, for_source: Any, for_offset: Any, weight: Any, *_: Any,
    im2col_step: int = 1, **__: Any,
) -> None:  # fmt: skip
    _columns(source, result, weight, im2col_step)


def _deformed_weight(
    source: Any, offset: Any, result: Any, for_weight: Any, *_: Any, im2col_step: int = 1, **__: Any
) -> None:
    columns, buffer = _columns(source, result, for_weight, im2col_step), torch.zeros_like(result)
    del columns, buffer


def _modulated(
    source: Any, weight: Any, bias: Any, unit: Any, offset: Any, mask: Any, output: Any, *_: Any, **__: Any
) -> None:
    _columns(source, output, weight, 1)


def _modulated_backward(source: Any, weight: Any, *gradients: Any, **_: Any) -> None:
    """Take columns of one image; the gradient of the result is the thirteenth argument."""
    _columns(source, gradients[10], weight, 1)
