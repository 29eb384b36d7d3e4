"""Adapters of frozen weights, and weights in few bits, as peft and inference kernels run them on a tape.

Hu et al. 2021 (LoRA), Dettmers et al. 2022 (LLM.int8) and 2023 (QLoRA).
"""

import math
from collections.abc import Sequence
from functools import partial, reduce

from leadline.core.graph import OpKind, StorageCategory
from leadline.graphs.hf_config import ops
from leadline.graphs.hf_config.peft_weights import Factor, Parts, Use
from leadline.graphs.hf_config.tape import Tape, TapeTensor
from leadline.graphs.hf_config.weight_formats import ProductKernel, WeightFormat

TEMPORARY = StorageCategory.TEMPORARY


class AdapterWeights:
    """Makes the weights of adapters in their ``dtype``. Layers may share some."""

    def __init__(self, tape: Tape, dtype: str) -> None:
        self.tape, self.dtype = tape, dtype
        self.shared: dict[str, TapeTensor] = {}

    def make(self, *shape: int, trained: bool = True) -> TapeTensor:
        """Make a weight."""
        return self.tape.parameter(*shape, dtype=self.dtype, trained=trained)

    def share(self, name: str, shape: tuple[int, ...], *, trained: bool = True) -> TapeTensor:
        """Return the shared weight of a name, made on first use."""
        if name not in self.shared:
            self.shared[name] = self.make(*shape, trained=trained)
        return self.shared[name]

    def factor(self, factor: Factor, shape: tuple[int, int]) -> TapeTensor | None:
        """Return a factor of a low-rank product that is stored; ``None`` for one that is not."""
        if factor is Factor.SHARED:
            return self.share(f"frozen {shape}", shape, trained=False)
        stored = factor in (Factor.TRAINED, Factor.FROZEN)
        return self.make(*shape, trained=factor is Factor.TRAINED) if stored else None


class Adapter:
    """The weights that a method of peft adds to an (n, k) product.

    They are multiplied in autocast's type.

    Args:
        tape: Where they are recorded.
        parts: The weights.
        shape: Outputs n and inputs k of the product.
        weights: Maker of the weights.
        dropout: Share of the source that a low-rank product drops.
    """

    def __init__(
        self, tape: Tape, parts: Parts, shape: tuple[int, int], weights: "AdapterWeights", dropout: float = 0.0
    ) -> None:
        self.tape, self.parts, self.shape, self.dropout, self.dtype = tape, parts, shape, dropout, weights.dtype
        (n, k), r = shape, parts.inner
        self.trained = [weights.make(*sizes) for sizes in parts.trained]
        self.sources = [*self.trained, *(weights.share(name, sizes) for name, sizes in parts.shared)]
        for sizes in parts.frozen:
            weights.make(*sizes, trained=False)
        low_rank = parts.use is Use.LOW_RANK
        self.down = weights.factor(parts.down, (r, k)) if low_rank else None
        self.up = weights.factor(parts.up, (n, r)) if low_rank else None
        self.scales = [weights.make(size) for size in ((r, n) if parts.scales else (n,) if parts.rescales else ())]

    def prepare(self, source: TapeTensor) -> TapeTensor:
        """Return the source (…, k) that the frozen weight multiplies."""
        tape, parts = self.tape, self.parts
        if parts.use is Use.SCALE_INPUT:
            return tape.cast(ops.multiply(tape, tape.cast(source, self.dtype), self.trained[0]), source.dtype)
        if parts.use is not Use.ROTATE:
            return source
        size = parts.inner
        blocks = self.shape[1] // size
        rotation = form(tape, (blocks, size, size), self.trained)
        wide = tape.cast(source, self.dtype).view(blocks, source.elements // (blocks * size), size)
        rotated = ops.linear(tape, wide, rotation, cast=False)
        return tape.cast(rotated.view(*source.shape), source.dtype)

    def replacement(self, frozen: TapeTensor) -> TapeTensor | None:
        """Return a new (n, k) weight in place of the frozen one, if the method makes one."""
        if self.parts.use is not Use.WEIGHT:
            return None
        weight = form(self.tape, self.shape, self.sources, forming=self.parts.forming)
        return self.tape.cast(weight, frozen.dtype) if self.parts.narrow else weight

    def add(self, source: TapeTensor, result: TapeTensor, *, widen: bool) -> TapeTensor:
        """Return ``result`` (…, n) with the adapter's part for ``source`` (…, k).

        With ``widen``, the source is first converted to the adapter's type and cast from there, so that it is saved
        once more. peft leaves that out for a quantized weight.
        """
        tape, use, dtype = self.tape, self.parts.use, result.dtype
        if use is Use.SHIFT:
            result = ops.add(tape, result, self.trained[0])
        if use is Use.SCALE_OUTPUT:
            result = reduce(partial(ops.multiply, tape), self.trained, result)
        if use in (Use.LOW_RANK, Use.UPDATE, Use.WEIGHT):
            update = self._update(tape.cast(source, self.dtype) if widen else source)
            if self.parts.rescales:
                form(tape, self.shape, [], forming=self.parts.inner)  # for the norm, which has no gradient
                update, result = (ops.multiply(tape, tensor, self.scales[0]) for tensor in (update, result))
            elif not self.parts.scales:
                update = ops.scale_tensor(tape, update)
            result = ops.add(tape, result, update)
        return tape.cast(result, dtype)

    def _update(self, source: TapeTensor) -> TapeTensor:
        tape, parts = self.tape, self.parts
        if parts.use is not Use.LOW_RANK:
            return ops.linear(tape, source, form(tape, self.shape, self.sources, forming=parts.forming))
        r, (n, k) = parts.inner, self.shape
        source = ops.dropout(tape, source, self.dropout)
        if parts.down is Factor.SUMMED:
            reduced = tape.sum_to(source, (*source.shape[:-1], r), source.dtype)
            saved = [source] if parts.saves else []
            inner = tape.node_op(reduced, source, "expand", OpKind.COPY, saved)
        else:
            inner = ops.linear(tape, source, self.down or form(tape, (r, k), self.sources))
        if parts.mixes:
            inner = ops.linear(tape, inner, form(tape, (r, r), self.sources))
        elif self.sources and Factor.FORMED not in (parts.down, parts.up):
            inner = ops.multiply(tape, inner, form(tape, (r,), self.sources))
        if parts.scales:
            inner = ops.multiply(tape, inner, self.scales[0])
        update = ops.linear(tape, inner, self.up or form(tape, (n, r), self.sources))
        return ops.multiply(tape, update, self.scales[1]) if parts.scales else update


def form(tape: Tape, shape: tuple[int, ...], sources: Sequence[TapeTensor], *, forming: int = 0) -> TapeTensor:
    """Compute a weight from trained ones, by a product over ``forming`` elements if that is not 0."""
    result = tape.new(shape, sources[0].dtype if sources else "float32")
    sizes = {"b": 1, "m": shape[0], "n": shape[-1], "k": forming}
    kind, flops = (OpKind.GEMM, _flops(sizes)) if forming else (OpKind.ELEMENTWISE, 2.0 * result.elements)
    tape.op("adapter_weight", kind, sources, [result], flops=flops, dims=sizes if forming else None)

    def backward(gradient: TapeTensor) -> None:
        for source in sources:
            back = tape.new(source.shape, source.dtype, StorageCategory.GRADIENT)
            tape.op("adapter_weight_backward", kind, [gradient], [back], flops=flops, dims=sizes if forming else None)
            tape.send(source.slot, back)

    return tape.node(result, backward, *sources) if sources else result


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
        """Return (…, n) for (…, k) in autocast's type. The backward pass unpacks the weight again, or has it saved."""
        tape, (n, k) = self.tape, self.shape[-2:]
        source = tape.cast(source, tape.autocast or source.dtype)
        cast_bias = tape.cast_weight(bias) if bias is not None else None
        b = source.shape[0] if len(self.shape) > 2 else 1
        sizes = {"b": b, "m": source.elements // (k * b), "n": n, "k": k}
        slot, shape, dtype = source.slot, source.shape, source.dtype
        saved = [self._unpack(dtype, b)] if tape.training and self.form.saved else []
        if self.form.kernel is ProductKernel.INT8:
            result = self._int8_product(source, cast_bias, sizes)
        elif self.form.kernel is ProductKernel.SCALED:
            result = self._scaled_product(source, cast_bias, sizes)
        else:
            result = self._product(source, cast_bias, sizes, saved)

        def backward(gradient: TapeTensor) -> None:
            weight = saved.pop() if saved else self._unpack(dtype, b)
            back = tape.new(shape, dtype, TEMPORARY)
            tape.op("mm", OpKind.GEMM, [gradient, weight], [back], flops=_flops(sizes),
                    dims={**sizes, "n": k, "k": n})  # fmt: skip
            del weight
            tape.send(slot, back)

        return tape.node(result, backward, source)

    def _product(
        self, source: TapeTensor, bias: TapeTensor | None, sizes: dict[str, int], unpacked: list[TapeTensor]
    ) -> TapeTensor:
        """Multiply in a kernel that reads the packed weight (of the experts that got tokens), or unpack it before."""
        # bitsandbytes has a fused kernel for a single row (gemv_4bit).
        is_fused = self.form.kernel is ProductKernel.FUSED or (sizes["m"] == 1 and not self.tape.training)
        weights = unpacked or (self._read_parts(sizes["b"]) if is_fused else [self._unpack(source.dtype, sizes["b"])])
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

    def _scaled_product(self, source: TapeTensor, bias: TapeTensor | None, sizes: dict[str, int]) -> TapeTensor:
        """Quantize the source as the weight is, and multiply both."""
        tape, rows = self.tape, sizes["b"] * sizes["m"]
        parts = [tape.new((size,), dtype, TEMPORARY) for size, dtype in self.form.parts(rows, sizes["k"])]
        tape.op("scaled_quant", OpKind.ELEMENTWISE, [source], parts, flops=2.0 * source.elements)
        result = tape.new((*source.shape[:-1], sizes["n"]), source.dtype)
        inputs = [*([] if bias is None else [bias]), *parts, *self._read_parts(sizes["b"])]
        tape.op(f"{self.form.product}_scaled_mm", OpKind.GEMM, inputs, [result], flops=_flops(sizes), dims=sizes,
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
