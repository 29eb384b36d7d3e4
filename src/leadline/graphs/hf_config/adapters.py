"""Low-rank adapters of frozen weights, and weights in few bits, as peft and inference kernels run them on a tape.

Hu et al. 2021 (LoRA), Dettmers et al. 2022 (LLM.int8) and 2023 (QLoRA).
"""

import math

from leadline.core.graph import OpKind, StorageCategory
from leadline.graphs.hf_config import ops
from leadline.graphs.hf_config.tape import Tape, TapeTensor
from leadline.graphs.hf_config.weight_formats import ProductKernel, WeightFormat

TEMPORARY = StorageCategory.TEMPORARY


class LowRankAdapter:
    """Products with (rank, k) and (n, rank), whose scaled result is added to that of a frozen (n, k) weight.

    They are stored in float32, as by peft (``autocast_adapter_dtype``), and multiplied in autocast's type.
    """

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
    """A frozen (n, k) weight in few bits with its scales, or one (experts, n, k) for all experts of a block."""

    def __init__(self, tape: Tape, form: WeightFormat, *shape: int) -> None:
        self.tape, self.form, self.shape = tape, form, shape
        times = shape[0] if len(shape) > 2 else 1
        parts = form.parts(*shape[-2:])
        self.parts = [tape.parameter(times * size, dtype=dtype, trained=False) for size, dtype in parts]

    @property
    def elements(self) -> int:
        """Number of weights."""
        return math.prod(self.shape)

    def product(self, source: TapeTensor, bias: TapeTensor | None) -> TapeTensor:
        """Return (…, n) for (…, k) in autocast's type. The backward pass unpacks the weight again."""
        tape, (n, k) = self.tape, self.shape[-2:]
        source = tape.cast(source, tape.autocast or source.dtype)
        cast_bias = tape.cast_weight(bias) if bias is not None else None
        b = source.shape[0] if len(self.shape) > 2 else 1
        sizes = {"b": b, "m": source.elements // (k * b), "n": n, "k": k}
        slot, shape, dtype = source.slot, source.shape, source.dtype
        product = self._int8_product if self.form.kernel is ProductKernel.INT8 else self._product
        result = product(source, cast_bias, sizes)

        def backward(gradient: TapeTensor) -> None:
            weight = self._unpack(dtype, b)
            back = tape.new(shape, dtype, TEMPORARY)
            tape.op("mm", OpKind.GEMM, [gradient, weight], [back], flops=_flops(sizes),
                    dims={**sizes, "n": k, "k": n})  # fmt: skip
            del weight
            tape.send(slot, back)

        return tape.node(result, backward, source)

    def _product(self, source: TapeTensor, bias: TapeTensor | None, sizes: dict[str, int]) -> TapeTensor:
        """Multiply in a kernel that reads the packed weight (of the experts that got tokens), or unpack it before."""
        # bitsandbytes has a fused kernel for a single row (gemv_4bit).
        is_fused = self.form.kernel is ProductKernel.FUSED or (sizes["m"] == 1 and not self.tape.training)
        weights = self._read_parts(sizes["b"]) if is_fused else [self._unpack(source.dtype, sizes["b"])]
        inputs = [*([] if bias is None else [bias]), source, *weights]
        result = self.tape.new((*source.shape[:-1], sizes["n"]), source.dtype)
        self.tape.op("mm" if bias is None else "addmm", OpKind.GEMM, inputs, [result], flops=_flops(sizes), dims=sizes,
                     dtype=source.dtype)  # fmt: skip
        return result

    def _int8_product(self, source: TapeTensor, bias: TapeTensor | None, sizes: dict[str, int]) -> TapeTensor:
        """Multiply a source quantized to int8, into int32; assumed to be as fast as a product in autocast's type."""
        tape, rows, n = self.tape, sizes["b"] * sizes["m"], sizes["n"]
        int8_source = [tape.new((rows, sizes["k"]), "int8", TEMPORARY), tape.new((rows,), "float32", TEMPORARY)]
        weight, *scales = self._read_parts(sizes["b"])
        tape.op("int8_vectorwise_quant", OpKind.ELEMENTWISE, [source], int8_source, flops=2.0 * source.elements)
        product = tape.new((rows, n), "int32", TEMPORARY)
        tape.op("int8_linear_matmul", OpKind.GEMM, [int8_source[0], weight], [product], flops=_flops(sizes),
                dims=sizes, dtype=source.dtype)  # fmt: skip
        result = tape.new((*source.shape[:-1], n), source.dtype)
        inputs = [int8_source[1], *scales, *([bias] if bias is not None else [])]
        tape.op("int8_mm_dequant", OpKind.ELEMENTWISE, [product, *inputs], [result], flops=3.0 * result.elements,
                dtype=source.dtype)  # fmt: skip
        return result

    def _read_parts(self, experts: int) -> list[TapeTensor]:
        """Return the parts, or those of so many experts."""
        if len(self.shape) == 2 or experts == self.shape[0]:
            return self.parts
        share = experts / self.shape[0]
        return [TapeTensor((round(part.elements * share),), part.dtype, part.storage) for part in self.parts]

    def _unpack(self, dtype: str, experts: int) -> TapeTensor:
        shape = (experts, *self.shape[1:]) if len(self.shape) > 2 else self.shape
        weight = self.tape.new(shape, dtype, TEMPORARY)
        self.tape.op("dequantize", OpKind.ELEMENTWISE, self._read_parts(experts), [weight],
                     flops=2.0 * weight.elements, dtype=dtype)  # fmt: skip
        return weight


def _flops(sizes: dict[str, int]) -> float:
    return 2.0 * math.prod(sizes.values())
