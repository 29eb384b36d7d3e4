"""Storage of weights in few bits with their scales, and how products use them.

Sizes follow the checkpoints of bitsandbytes (Dettmers et al. 2022 and 2023), GPTQ (Frantar et al. 2023), AWQ (Lin et
al. 2024), compressed-tensors, and the OCP Microscaling Formats (MX) specification 1.0.
"""

import math
from enum import Enum, auto
from typing import NamedTuple

from leadline.core.workload import Quantization


class ProductKernel(Enum):
    """How a product uses a stored weight."""

    FUSED = auto()  # the kernel unpacks the weight on its way, and multiplies in 16 bits
    UNPACKED = auto()  # the weight is unpacked into a temporary one before the product
    INT8 = auto()  # bitsandbytes quantizes the source too, and the product has integers
    SCALED = auto()  # the source is quantized as the weight is, and the kernel scales the product of both


class ScaleTensor(NamedTuple):
    """Numbers of ``bits`` that a tile of (``rows``, ``columns``) weights shares; 0 is the whole side.

    Without ``by_row``, ``columns`` counts weights of the flattened matrix.
    """

    bits: int
    columns: int
    rows: int = 1
    by_row: bool = True

    def part(self, n: int, k: int) -> tuple[int, str]:
        """Return how many numbers an (n, k) weight has, in bytes if they have fewer bits, and their dtype."""
        rows, columns = math.ceil(n / (self.rows or n)), math.ceil(k / (self.columns or k))
        numbers = rows * columns if self.by_row else math.ceil(n * k / self.columns)
        dtype = {8: "uint8", 16: "float16", 32: "float32"}.get(self.bits)
        return (numbers, dtype) if dtype else (math.ceil(numbers * self.bits / 8), "uint8")


class WeightFormat(NamedTuple):
    """The bits of one weight, its scales and zero points, and the kernel of its products.

    ``saved`` formats are unpacked by plain ops in training, and autograd saves the unpacked weight. The ``product``
    names the arithmetic of a scaled kernel: float8, float8-block, float4 or int8.
    """

    name: str
    bits: int
    scales: tuple[ScaleTensor, ...] = ()
    kernel: ProductKernel = ProductKernel.FUSED
    saved: bool = False
    product: str = ""

    def scaled(self, product: str) -> "WeightFormat":
        """Return the format of weights whose sources are quantized as they are."""
        return self._replace(kernel=ProductKernel.SCALED, product=product)

    def parts(self, n: int, k: int) -> list[tuple[int, str]]:
        """Return elements and dtype of each tensor of an (n, k) weight, or source."""
        packed = (n * k, "int8") if self.bits == 8 else (math.ceil(n * k * self.bits / 8), "uint8")
        return [packed, *(scale.part(n, k) for scale in self.scales)]


def grouped(name: str, bits: int, group: int, *, scale_bits: int = 16, zero_bits: int = 0) -> WeightFormat:
    """Return the format whose scales, and zero points if any, belong to ``group`` weights of a row; 0 for a row."""
    scales = [ScaleTensor(scale_bits, group)]
    if zero_bits:
        scales.append(ScaleTensor(zero_bits, group))
    return WeightFormat(name, bits, tuple(scales))


NF4_BLOCK, SCALE_BLOCK = 64, 256
"""Weights that share a scale in bitsandbytes, and such scales that share one in double quantization."""


def bitsandbytes_4bit(*, double: bool = True) -> WeightFormat:
    """Return bitsandbytes' NF4 or FP4: a float32 scale per block, or one byte each with ``double`` quantization."""
    if not double:
        scales: tuple[ScaleTensor, ...] = (ScaleTensor(32, NF4_BLOCK, by_row=False),)
    else:
        scales = (ScaleTensor(8, NF4_BLOCK, by_row=False), ScaleTensor(32, NF4_BLOCK * SCALE_BLOCK, by_row=False))
    return WeightFormat("bitsandbytes 4-bit", 4, scales, ProductKernel.UNPACKED)


INT8 = WeightFormat("bitsandbytes 8-bit", 8, (ScaleTensor(32, 0),), ProductKernel.INT8)

BY_TENSOR = (ScaleTensor(32, 0, rows=0),)
"""One scale for a whole weight."""
ENGINE_FORMATS = {
    Quantization.INT8: INT8,
    Quantization.NF4: bitsandbytes_4bit(),
    Quantization.AWQ: grouped("4-bit AWQ", 4, 128, zero_bits=4),
    Quantization.GPTQ: grouped("4-bit GPTQ", 4, 128, zero_bits=4),
    Quantization.W8A16: grouped("int8", 8, 0),
    Quantization.W8A8: grouped("int8", 8, 0, scale_bits=32).scaled("int8"),
    Quantization.FP8: WeightFormat("fp8", 8, BY_TENSOR).scaled("float8"),
    Quantization.FP8_BLOCK: WeightFormat("fp8 in blocks of 128 × 128", 8, (ScaleTensor(32, 128, rows=128),)).scaled(
        "float8-block"
    ),
    Quantization.MXFP8: grouped("mxfp8", 8, 32, scale_bits=8).scaled("float8"),
    Quantization.NVFP4: grouped("nvfp4", 4, 16, scale_bits=8).scaled("float4"),
}
"""Formats that are chosen for inference. AWQ and GPTQ are those of most published checkpoints: groups of 128."""
