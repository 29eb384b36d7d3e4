"""Low-rank adapters of frozen weights, and weights in few bits, as peft and bitsandbytes run them on a tape.

Hu et al. 2021 (LoRA), Dettmers et al. 2022 (LLM.int8) and 2023 (QLoRA).
"""

import math

from leadline.core.graph import OpKind, StorageCategory
from leadline.core.workload import Quantization
from leadline.graphs.hf_config import ops
from leadline.graphs.hf_config.tape import Tape, TapeTensor

TEMPORARY = StorageCategory.TEMPORARY
NF4_BLOCK = 64
"""Weights that share a one-byte scale (bitsandbytes' default)."""
SCALE_BLOCK = 256
"""Such scales that share a float32 scale in double quantization."""


class LowRankAdapter:
    """Products with (rank, k) and (n, rank), whose scaled result is added to that of a frozen (n, k) weight.

    They are stored in float32, as by peft (``autocast_adapter_dtype``), and multiplied in autocast's type.
    """

    __slots__ = ("down", "tape", "up")

    def __init__(self, tape: Tape, rank: int, n: int, k: int) -> None:
        self.tape = tape
        self.down, self.up = tape.parameter(rank, k, dtype="float32"), tape.parameter(n, rank, dtype="float32")

    def __call__(self, source: TapeTensor, result: TapeTensor, *, widen: bool) -> TapeTensor:
        """Return ``result`` (…, n) plus the adapter's result for ``source`` (…, k).

        With ``widen``, the source is first converted to the adapter's type and cast from there, so that it is saved
        once more. peft leaves that out for a quantized weight.
        """
        tape, dtype = self.tape, result.dtype
        inner = ops.linear(tape, tape.cast(source, "float32") if widen else source, self.down)
        update = ops.linear(tape, inner, self.up)
        del inner
        update = ops.scale_tensor(tape, update)
        return tape.cast(ops.add(tape, result, update), dtype)


class QuantizedWeight:
    """A frozen (n, k) weight in four or eight bits, with its scales. Eight bits have a float32 scale per row."""

    __slots__ = ("bits", "parts", "shape", "tape")

    def __init__(self, tape: Tape, quantization: Quantization, n: int, k: int) -> None:
        self.tape, self.shape = tape, (n, k)
        self.bits = 4 if quantization is Quantization.NF4 else 8
        blocks = math.ceil(n * k / NF4_BLOCK)
        nf4 = ((math.ceil(n * k / 2), "uint8"), (blocks, "uint8"), (math.ceil(blocks / SCALE_BLOCK), "float32"))
        sizes = nf4 if self.bits == 4 else ((n * k, "int8"), (n, "float32"))
        self.parts = [tape.parameter(size, dtype=dtype, trained=False) for size, dtype in sizes]

    @property
    def elements(self) -> int:
        """Number of weights."""
        return math.prod(self.shape)

    def product(self, source: TapeTensor, bias: TapeTensor | None) -> TapeTensor:
        """Return (…, n) for (…, k) in autocast's type. The backward pass dequantizes the weight again.

        Four bits are dequantized into a temporary weight. Eight bits are multiplied by a source quantized to int8, into
        int32. That product is assumed to be as fast as one in autocast's type.
        """
        tape, (n, k) = self.tape, self.shape
        source = tape.cast(source, tape.autocast or source.dtype)
        cast_bias = tape.cast_weight(bias) if bias is not None else None
        m, slot, shape, dtype = source.elements // k, source.slot, source.shape, source.dtype
        forward = self._nf4_product if self.bits == 4 else self._int8_product
        result = forward(source, cast_bias, m)

        def backward(gradient: TapeTensor) -> None:
            weight = self._dequantize(dtype)
            back = tape.new(shape, dtype, TEMPORARY)
            tape.op("mm", OpKind.GEMM, [gradient, weight], [back], flops=2.0 * m * n * k,
                    dims={"b": 1, "m": m, "n": k, "k": n})  # fmt: skip
            del weight
            tape.send(slot, back)

        return tape.node(result, backward, source)

    def _nf4_product(self, source: TapeTensor, bias: TapeTensor | None, m: int) -> TapeTensor:
        n, k = self.shape
        weight = self._dequantize(source.dtype)
        result = self.tape.new((*source.shape[:-1], n), source.dtype)
        inputs = [source, weight] if bias is None else [bias, source, weight]
        self.tape.op("mm" if bias is None else "addmm", OpKind.GEMM, inputs, [result], flops=2.0 * m * n * k,
                     dims={"b": 1, "m": m, "n": n, "k": k}, dtype=source.dtype)  # fmt: skip
        return result

    def _int8_product(self, source: TapeTensor, bias: TapeTensor | None, m: int) -> TapeTensor:
        (n, k), tape = self.shape, self.tape
        int8_source = [tape.new((m, k), "int8", TEMPORARY), tape.new((m,), "float32", TEMPORARY)]
        tape.op("int8_vectorwise_quant", OpKind.ELEMENTWISE, [source], int8_source, flops=2.0 * source.elements)
        product = tape.new((m, n), "int32", TEMPORARY)
        tape.op("int8_linear_matmul", OpKind.GEMM, [int8_source[0], self.parts[0]], [product], flops=2.0 * m * n * k,
                dims={"b": 1, "m": m, "n": n, "k": k}, dtype=source.dtype)  # fmt: skip
        result = tape.new((*source.shape[:-1], n), source.dtype)
        scales = [int8_source[1], self.parts[1], *([bias] if bias is not None else [])]
        tape.op("int8_mm_dequant", OpKind.ELEMENTWISE, [product, *scales], [result], flops=3.0 * result.elements,
                dtype=source.dtype)  # fmt: skip
        return result

    def _dequantize(self, dtype: str) -> TapeTensor:
        weight = self.tape.new(self.shape, dtype, TEMPORARY)
        self.tape.op("dequantize", OpKind.ELEMENTWISE, self.parts, [weight], flops=2.0 * self.elements,
                     dtype=dtype)  # fmt: skip
        return weight
