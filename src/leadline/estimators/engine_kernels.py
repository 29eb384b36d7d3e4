"""Kernels of a serving engine: matrix products and attention that were timed, with all other ops fused into them.

Engines such as TensorRT-LLM, vLLM and SGLang replay captured kernels, so their host launches nothing op by op. Each
product is followed by fused ops that pass its output through memory. A constant stands for what an engine does in each
step beside its kernels: scheduling, sampling and preparing the inputs.
"""

import math
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from leadline.core.estimate import Tier
from leadline.core.graph import BYTES_PER_ELEMENT, Op, OpGraph, OpKind
from leadline.core.hardware import Device
from leadline.estimators.parallelism.product_times import (
    ARITHMETIC,
    PARAMETERS,
    ProductCurves,
    product_seconds,
    sustained_peak,
)
from leadline.estimators.ports import Array
from leadline.estimators.step_time.power_limit import power_spread
from leadline.estimators.step_time.roofline import require_bandwidth

# Fits to the attention kernels of aiconfigurator (commit 095f58a51; bfloat16, heads of 64 and 128, no window). Context:
# shares of the dense peak on long sequences. Generation: 0.82 to 0.92 of the bandwidth (A100 to GB200), and 0.5 to 0.86
# with a cache in 8 bits. A call takes at least 9 to 16 µs.
CONTEXT_SHARES = {"Ampere": 0.62, "Hopper": 0.64, "Ada": 0.55, "Blackwell": 0.55}
OTHER_CONTEXT_SHARE = 0.55
CACHE_SHARE, NARROW_CACHE_SHARE = 0.87, 0.7
ATTENTION_S = 11e-6
NARROW_CACHES = ("float8_e4m3fn", "int8")

MEMORY = tuple(PARAMETERS).index("memory")
COLD_SHARE = 0.92  # most of the bandwidth that products of large weights reach
FUSED_PASSES = 3.0  # of a product's output through memory: norms, activations and residuals (an assumption)
FUSED_S = 2e-6  # of a small fused kernel, beside its traffic (an assumption)
MEMORY_SHARE = 0.8
FOUR_BITS, EIGHT_BITS = 6.0, 12.0  # of a weight with its scales: fewer count as 4 or 8 bits
STEP_S = 0.5e-3  # of a step beside its kernels
# Deviations of the logarithm of an answer's time, by the errors on sources of published answers that were left out in
# turn (`python3 dev bench scale`).
SPREAD, EXPERT_SPREAD = 0.20, 0.35


def has_experts(graph: OpGraph) -> bool:
    """Return whether some products are those of experts."""
    batched = (op for op in graph.ops if op.kind is OpKind.GEMM and op.dims.get("b", 1) > 1)
    return any(not op.name.endswith("bmm") for op in batched)


class EngineKernels:
    """A ``KernelModel`` of a serving engine on a GPU; ``reasons`` are those of the output.

    Args:
        curves: Times of matrix products.
        device: The GPU.
        untested: Deviation that comes on top on GPUs whose products were not measured.
        reasons: Sentences for the output.

    Raises:
        InvalidInput: the catalog lacks the bandwidth or the 16-bit peak of the device.
    """

    name = "measured kernels of serving engines"
    tier = Tier.LEARNED
    host_spread = 0.0

    def __init__(
        self, curves: ProductCurves, device: Device, *, untested: float = 0.0, reasons: tuple[str, ...] = ()
    ) -> None:
        self.curves, self.device, self.untested, self.reasons = curves, device, untested, reasons
        self._memory = require_bandwidth(device)
        self._peak = sustained_peak(device, "bfloat16" if "bfloat16" in device.peak_flops_per_s else "float16")

    def spread_of(self, graph: OpGraph) -> float:
        """Return the deviation of published answers, of models with experts or of others."""
        spread = EXPERT_SPREAD if has_experts(graph) else SPREAD
        return math.hypot(spread, self.untested, power_spread(self.device))

    def launch_s(self, op: Op) -> float:  # noqa: ARG002 - part of the protocol
        """Return no time: nothing is launched op by op."""
        return 0.0

    def step_s(self, graph: OpGraph) -> float:
        """Return the seconds of one pass."""
        kernels_s = sum(seconds * op.count for seconds, op in zip(self.ops_s(graph.ops), graph.ops, strict=True))
        return kernels_s + STEP_S

    def ops_s(self, ops: Sequence[Op]) -> list[float]:
        """Return the seconds of one call of each op; 0 for those that are fused into others."""
        seconds = [self._moving_s(op) for op in ops]
        by_dtype = defaultdict[str, list[int]](list)
        for place, op in enumerate(ops):
            if op.kind is OpKind.GEMM:
                by_dtype[self._product_dtype(op)].append(place)
        for dtype, places in by_dtype.items():
            for place, time in zip(places, self._products_s([ops[place] for place in places], dtype), strict=True):
                seconds[place] = float(time)
        return seconds

    def _products_s(self, ops: Sequence[Op], dtype: str) -> Array:
        """Return the seconds of products (n,) and of the fused ops behind each."""
        m, n, k = (np.array([[op.dims[side] for op in ops]], np.float64) for side in "mnk")
        groups = np.array([[op.dims.get("b", 1) for op in ops]], np.float64)
        rates = self.curves.rates([self.device], [dtype])
        # A timed kernel may find its weights in the cache, and a step of a model does not.
        rates.parameters[MEMORY] = np.minimum(rates.parameters[MEMORY], COLD_SHARE)
        product = product_seconds(rates, m, n, k, groups)[0]
        weighs = np.array([op.name != "aten.bmm" for op in ops])
        passes = FUSED_PASSES * 2 * (groups * m * n)[0] / (self._memory * MEMORY_SHARE)
        return np.asarray(product + np.where(weighs, passes + FUSED_S, 0.0))

    def _product_dtype(self, op: Op) -> str:
        """Return the kind of product. A GPU without its arithmetic unpacks the weights, and multiplies in 16 bits."""
        half = "bfloat16" if "bfloat16" in self.device.peak_flops_per_s else "float16"
        if (wanted := op.scaled_dtype) is not None:
            # Products scaled in blocks take 0.7 to 1.3 times those scaled by tensor in TensorRT-LLM and SGLang.
            if ARITHMETIC.get(wanted, wanted) in self.device.peak_flops_per_s:
                return wanted
            return "int4-weights" if wanted == "float4" else "int8-weights"
        if BYTES_PER_ELEMENT.get(op.dtype, 4) > 2 or op.name == "aten.bmm":
            return half
        b, m, n, k = (op.dims.get(side, 1) for side in "bmnk")
        bits = 8 * (op.bytes_read - 2.0 * b * m * k) / (b * n * k)
        if bits > EIGHT_BITS:
            return half
        # On Blackwell, engines multiply experts in MXFP4 by activations in few bits.
        if bits < FOUR_BITS and b > 1 and "float4" in self.device.peak_flops_per_s:
            return "float4"
        return "int4-weights" if bits < FOUR_BITS else "int8-weights"

    def _moving_s(self, op: Op) -> float:
        """Return the seconds of attention, and of ops that gather rows; 0 for others."""
        moved = op.bytes_read + op.bytes_written
        if op.kind is OpKind.ATTENTION:
            architecture = self.device.architecture or ""
            computing = op.flops / (self._peak * CONTEXT_SHARES.get(architecture, OTHER_CONTEXT_SHARE))
            narrow = any(spec.dtype in NARROW_CACHES for spec in op.inputs)
            share = NARROW_CACHE_SHARE if narrow else CACHE_SHARE
            return ATTENTION_S + float(np.hypot(computing, moved / (self._memory * share)))
        if op.kind in (OpKind.INDEX, OpKind.EMBEDDING):
            return moved / (self._memory * MEMORY_SHARE)
        return 0.0
