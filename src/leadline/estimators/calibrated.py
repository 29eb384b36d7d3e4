"""Price kernels on a calibrated device by its nearest measured ones."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from leadline.core.errors import InvalidInput
from leadline.core.estimate import Tier
from leadline.core.graph import BYTES_PER_ELEMENT, Op, OpGraph, OpKind, Stage
from leadline.core.hardware import Device, DeviceKind, KernelTiming
from leadline.estimators.families import family_of
from leadline.estimators.heap import fresh_bytes

SPREAD = 0.2
"""Standard deviation of ln(true ÷ predicted) of a step assumed for a device whose sweep was just made."""

NEIGHBOURS = 4


class CalibratedKernels:
    """A ``KernelModel`` that interpolates the sweep of ``leadline calibrate``.

    A kernel is compared with the measured ones of its family in the logarithms of its sizes; their ratios to a
    roofline, weighted by nearness, correct the kernel's own roofline. Families whose time follows one size only are
    interpolated along it.

    Raises:
        InvalidInput: the device has no calibration.
    """

    def __init__(self, device: Device) -> None:
        if device.calibration is None or not device.calibration.timings:
            raise InvalidInput(f"{device.name} is not calibrated: run leadline calibrate on it")
        self.tier = Tier.CALIBRATED
        self.spread = SPREAD
        self._device = device
        self._figures = device.calibration.figures
        self._call_s = self._figures.get("call_s", 0.0)
        self._peaks = device.peak_flops_per_s
        self._bytes_per_s = self._figures.get("copy_bytes_per_s") or device.memory_bytes_per_s or 1e10
        self._families = self._by_family(device.calibration.timings)
        self._price = lru_cache(maxsize=4096)(self._priced)

    def op_s(self, op: Op) -> float:
        """Return the seconds one call of ``op`` takes once it runs, launch excluded."""
        if op.bytes_read + op.bytes_written == 0 and not op.flops:
            return 0.0
        if op.kind is OpKind.RNN and not op.name.rpartition(".")[2].startswith(("lstm", "mkldnn")):
            return self._unrolled_s(op)
        family = family_of(op, self._families)
        return self._price(family, op.dtype, tuple(_sizes(op, family)), op.flops, op.bytes_read + op.bytes_written)

    def launch_s(self, op: Op) -> float:
        """Return the seconds the host needs for one call of ``op``: dispatch, module, autograd node."""
        if op.bytes_read + op.bytes_written == 0 and not op.flops:
            return self._figures.get("view_s", self._call_s)
        return self._figures.get(f"launch_{op.stage.value}_s", self._figures.get("launch_s", self._call_s))

    def step_s(self, graph: OpGraph) -> float:
        """Return the seconds of the whole graph.

        A CPU runs one op after the other, and pays for memory fresh from the kernel; a GPU hides launches behind
        kernels or the other way round.
        """
        training = any(op.stage is not Stage.FORWARD for op in graph.ops)
        kernels_s = sum(self.op_s(op) * op.count for op in graph.ops)
        launches_s = sum(self._launch_in(op, training=training) * op.count * max(op.kernels, 1) for op in graph.ops)
        if self._device.kind is DeviceKind.GPU:
            return max(kernels_s, launches_s)
        return kernels_s + launches_s + fresh_bytes(graph) * self._figures.get("fresh_s_per_byte", 0.0)

    def _launch_in(self, op: Op, *, training: bool) -> float:
        """Return the launch cost, which is less for a forward pass that builds no autograd graph."""
        if not training and (op.flops or op.bytes_written):
            return self._figures.get("launch_inference_s", self.launch_s(op))
        return self.launch_s(op)

    def _by_family(self, timings: Iterable[KernelTiming]) -> dict[tuple[str, str], list["_Point"]]:
        families: dict[tuple[str, str], list[_Point]] = {}
        for timing in timings:
            seconds = max(timing.elapsed_s - self._call_s, timing.elapsed_s * 0.1, 1e-8)
            roofline = self._roofline_s(timing.dtype, timing.flops, timing.bytes_moved)
            features = tuple(_features(timing.kind, timing.dims))
            families.setdefault((timing.kind, timing.dtype), []).append(
                _Point(features, math.log(seconds), math.log(seconds / roofline))
            )
        for points in families.values():
            points.sort(key=lambda point: point.features)
        return families

    def _roofline_s(self, dtype: str, flops: float, moved: float) -> float:
        peak = self._peaks.get(dtype) or self._peaks.get("float32") or 1e11
        return flops / peak + moved / self._bytes_per_s + 1e-7

    def _priced(self, family: str, dtype: str, sizes: tuple[tuple[str, int], ...], flops: float, moved: float) -> float:
        points = self._families.get((family, dtype))
        dims = dict(sizes)
        if points is None:
            points = self._families.get((family, "float32"))
            if points is not None and flops <= 0:
                dims["elements"] = max(dims.get("elements", 1) * BYTES_PER_ELEMENT.get(dtype, 4) // 4, 1)
        if points is None:
            return self._roofline_s(dtype, flops, moved)
        features = tuple(_features(family, dims))
        if len(features) == 1:
            return math.exp(_along(points, features[0]))
        if family.endswith("_backward") and "gradients" in dims and dims["gradients"] == 1:
            flops *= 2  # the neighbours made both gradients; halve their time rather than their sizes
            return 0.5 * self._roofline_s(dtype, flops, moved) * math.exp(_nearby(points, features))
        if flops > 0 and not (family.startswith("_") or "norm" in family):
            return self._roofline_s(dtype, flops, moved) * math.exp(_nearby(points, features))
        moved = 8.0 * dims.get("elements", 1)
        return self._roofline_s(dtype, 0.0, moved) * math.exp(_nearby(points, features))

    def _unrolled_s(self, op: Op) -> float:
        """Return the seconds of a recurrent layer that the framework runs step by step on this device.

        Each step is one product and about ten small pointwise kernels on the gates (GRU: Cho et al. 2014), each with
        its own launch; the products over the inputs run at once before the steps.
        """
        b, steps, c, h = _recurrent(op)
        gates = 3 if "gru" in op.name else 1
        layers = max(op.dims.get("layers", 1) * op.dims.get("directions", 1), 1)
        backward = "backward" in op.name
        passes = 2 if backward else 1
        each = 9 * gates // 3 + (10 if backward else 3)
        product = Op("aten.addmm", OpKind.GEMM, op.stage, op.dtype, 2.0 * b * gates * h * h,
                     4.0 * (b * h + gates * h * h), 4.0 * b * gates * h,
                     dims={"b": 1, "m": b, "n": gates * h, "k": h})  # fmt: skip
        inputs = Op("aten.addmm", OpKind.GEMM, op.stage, op.dtype, 2.0 * b * steps * gates * h * c,
                    4.0 * b * steps * c, 4.0 * b * steps * gates * h,
                    dims={"b": 1, "m": b * steps, "n": gates * h, "k": c})  # fmt: skip
        gate_s = self._price("add", op.dtype, (("elements", b * h),), 1.0, 12.0 * b * h)
        step_s = passes * self.op_s(product) + each * (gate_s + self._call_s * 3)
        return layers * (steps * step_s + passes * self.op_s(inputs))


@dataclass(frozen=True, slots=True)
class _Point:
    """A measured kernel: logarithms of its sizes, of its seconds, and of its seconds over its roofline."""

    features: tuple[float, ...]
    log_s: float
    log_ratio: float


def _sizes(op: Op, family: str) -> list[tuple[str, int]]:
    """Return the sizes of an op as the sweep names them."""
    if op.kind is OpKind.RNN:
        b, steps, c, h = _recurrent(op)
        return [("b", b), ("q", steps), ("c", c), ("k", h)]
    if op.dims and op.kind in (OpKind.GEMM, OpKind.CONV, OpKind.ATTENTION):
        return sorted(op.dims.items())
    gather = op.kind in (OpKind.EMBEDDING, OpKind.INDEX)
    shapes = [spec.shape for spec in (*op.inputs, *op.outputs)]
    if gather and "backward" not in op.name:
        scatters = family in ("index_put_", "index_add_", "scatter_add_")
        shapes = [spec.shape for spec in (op.inputs[1:] if scatters else op.outputs[:1])]
    elements = max((math.prod(shape) for shape in shapes), default=0)
    if not shapes:
        elements = int((op.bytes_read + op.bytes_written) / 2 / BYTES_PER_ELEMENT.get(op.dtype, 4))
    first = max(shapes, key=math.prod, default=())
    columns = math.prod(first[2:]) if len(first) == 4 and not family.startswith("_") else (first[-1] if first else 1)
    return [("columns", max(columns, 1)), ("elements", max(elements, 1)), ("rows", max(elements // max(columns, 1), 1))]


def _recurrent(op: Op) -> tuple[int, int, int, int]:
    """Return batch, steps, features in and features held of a recurrent layer."""
    dims = op.dims
    if dims:
        return dims["batch"], dims["seq"], dims["input"], dims["hidden"]
    shape = max((spec.shape for spec in op.inputs if len(spec.shape) == 3), key=math.prod, default=(1, 1, 1))
    hidden = op.outputs[0].shape[-1] if op.outputs and op.outputs[0].shape else shape[-1]
    return shape[1], shape[0], shape[2], hidden


def _features(family: str, dims: dict[str, int]) -> list[float]:
    """Return the logarithms that decide the efficiency of a family's kernels."""
    log = math.log2
    if family in ("addmm", "mm", "bmm"):
        return [log(max(dims.get(name, 1), 1)) for name in ("b", "m", "n", "k")]
    if family.startswith("convolution"):
        groups = max(dims.get("groups", 1), 1)
        return [
            log(dims["n"] * dims["h"] * dims["w"]) * 0.5,
            log(max(dims["c"] // groups, 1)),
            log(max(dims["k"] // groups, 1)),
            log(groups),
            2.0 * log(dims["r"] * dims["s"]) / 2,
            3.0 * (dims.get("stride", 1) > 1),
            6.0 * dims.get("transposed", 0),
            6.0 * (dims["w"] == 1 or dims["h"] == 1),
        ]
    if family.startswith("attention"):
        return [log(dims["b"] * dims["h"]), log(dims["q"]), log(dims["kv"]), log(dims["d"])]
    if family.startswith("lstm"):
        return [log(dims[name]) for name in ("b", "q", "c", "k")]
    if "rows" in dims and ("norm" in family or "soft" in family):
        return [log(dims["elements"]), 0.5 * log(dims["columns"])]
    return [log(max(dims.get("elements", 1), 1))]


def _along(points: list[_Point], x: float) -> float:
    """Interpolate ln(seconds) along one size; beyond the largest, time grows with the size."""
    first, last = points[0], points[-1]
    if x <= first.features[0]:
        return first.log_s
    if x >= last.features[0]:
        return last.log_s + (x - last.features[0]) * math.log(2)
    for left, right in pairwise(points):
        if x <= right.features[0]:
            width = right.features[0] - left.features[0]
            share = (x - left.features[0]) / width if width else 0.0
            return left.log_s + share * (right.log_s - left.log_s)
    return last.log_s


def _nearby(points: list[_Point], features: tuple[float, ...]) -> float:
    """Return the mean ln(time ÷ roofline) of the nearest kernels, weighted by inverse squared distance."""
    ranked = sorted((math.dist(point.features, features), point.log_ratio) for point in points)[:NEIGHBOURS]
    weights = [1.0 / (distance**2 + 0.05) for distance, _ in ranked]
    return sum(w * ratio for w, (_, ratio) in zip(weights, ranked, strict=True)) / sum(weights)
