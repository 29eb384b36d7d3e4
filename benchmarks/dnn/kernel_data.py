"""Public timings of single kernels as ops, devices and seconds."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.dnn.splits import Array
from benchmarks.tables import Columns, read_table, select_rows
from leadline.catalog.read import TomlCatalog
from leadline.core.graph import Op, OpKind, Stage, TensorSpec
from leadline.core.hardware import Device
from leadline.estimators.step_time.swept_kernels import KernelSample

DEVICES = {
    "AMD Instinct MI100": "MI100", "NVIDIA A100-PCIE-40GB": "A100 PCIe 40GB", "Tesla P100-PCIE-16GB": "P100 PCIe 16GB",
    "Tesla P4": "P4", "Tesla T4": "T4", "Tesla V100-PCIE-32GB": "V100 PCIe 32GB",
    "a40": "A40", "a100": "A100 SXM4 80GB", "h100": "H100 SXM5 80GB",
}  # fmt: skip
"""Device of the tables → device of the catalog."""

STREAMS = {
    "add": "aten.add.Tensor", "addu": "aten.add.Scalar", "div": "aten.div.Tensor", "divu": "aten.div.Scalar",
    "mul": "aten.mul.Tensor", "mulu": "aten.mul.Scalar", "pow": "aten.pow.Tensor_Tensor",
    "powu": "aten.pow.Tensor_Scalar", "gelu": "aten.gelu", "relu": "aten.relu", "tanh": "aten.tanh",
}  # fmt: skip
"""Tables of element-wise kernels → their operators; a ``u`` means that one operand is a scalar."""

NAMES = (*STREAMS.values(), "aten._softmax", "aten.native_layer_norm", "aten.addmm", "aten.bmm", "aten.convolution")

FAMILIES = {
    "bmm": ("bmm",), "linear": ("linear",), "conv": ("conv",), "norm": ("ln",), "softmax": ("softmax",),
    "pointwise": tuple(STREAMS),
}  # fmt: skip
"""Families of kernels → their tables."""


DRIFTING = ("conv",)
"""Tables whose timings drift, as the calls of their process became slower with each kernel.

A row's excess grows with its position by 0.06 to 0.16 µs a row on all devices (residuals correlate 0.9). That is up to
ten times the kernel's own time, and no feature of a kernel or a device predicts it."""
PARTS, LOWEST = 20, 0.05
"""The drift is fitted to the quantile ``LOWEST`` of so many parts of a device's rows."""


def timings(data: Path, table: str, most: int, seed: int = 0, *, raw: bool = False) -> list[KernelSample]:
    """Return at most ``most`` kernels of each device of a table published with NeuSight.

    Of a drifting table these are the first rows, whose sizes are random too, minus the drift and without rows that were
    drift by more than half. ``raw`` keeps the published values.
    """
    columns = read_table(data / "neusight_kernels", table)
    latency_ms = columns["Latency"].copy()
    rng = np.random.default_rng(seed)
    positions = []
    for device in np.unique(columns["Device"]):
        of_device = np.flatnonzero(columns["Device"] == device)
        if table in DRIFTING and not raw:
            latency_ms[of_device] -= drift(latency_ms[of_device])
            of_device = of_device[latency_ms[of_device] > columns["Latency"][of_device] / 2]
        positions.append(of_device[:most] if table in DRIFTING else rng.permutation(of_device)[:most])
    chosen = select_rows({**columns, "Latency": latency_ms}, np.concatenate(positions))
    make = _MAKERS.get(table, _streamed)
    devices = {name: _device(DEVICES[name]) for name in np.unique(chosen["Device"]).tolist()}
    return [
        KernelSample(op, devices[str(name)], float(elapsed_ms) / 1e3)
        for op, name, elapsed_ms in zip(make(table, chosen), chosen["Device"], chosen["Latency"], strict=True)
    ]


def drift(latency: Array) -> Array:
    """Return the drift of each row: a straight line through the low quantiles (Theil and Sen)."""
    from scipy.stats import theilslopes  # noqa: PLC0415 - only benches need it

    parts = np.array_split(np.arange(len(latency)), PARTS)
    low = [float(np.quantile(latency[part], LOWEST)) for part in parts]
    slope = float(theilslopes(low, [float(part.mean()) for part in parts])[0])
    added: Array = max(slope, 0.0) * np.arange(len(latency), dtype=np.float64)
    return added


def half_timings(data: Path, most: int, seed: int = 0) -> list[KernelSample]:
    """Return at most ``most`` half-precision products of each device, without launches, from Vidur's profiles."""
    columns = read_table(data, "vidur_llm_layers")
    rng = np.random.default_rng(seed)
    samples: list[KernelSample] = []
    for name in np.unique(columns["device"]).tolist():
        sampled_rows = rng.permutation(np.flatnonzero(columns["device"] == name))[: max(most // 4, 1)]
        chosen = select_rows(columns, sampled_rows)
        device = _device(DEVICES[name])
        for part, sizes in layer_products(chosen).items():
            elapsed_ms = chosen[f"time_stats.{part}.median"]
            for m, n, k, latency_ms in zip(chosen["num_tokens"], *sizes, elapsed_ms, strict=True):
                samples.append(
                    KernelSample(
                        product_op(int(m), int(n), int(k), "float16"), device, latency_ms / 1e3, launched=False
                    )
                )
    return samples


def product_op(m: int, n: int, k: int, dtype: str = "float32", b: int = 1) -> Op:
    """Return the product of two matrices as an op: ``aten.addmm``, or ``aten.bmm`` of a batch."""
    width = 2 if dtype in ("float16", "bfloat16") else 4
    name = "aten.bmm" if b > 1 else "aten.addmm"
    return Op(
        name,
        OpKind.GEMM,
        Stage.FORWARD,
        dtype,
        2.0 * b * m * n * k,
        float(width) * b * (m * k + n * k),
        float(width) * b * m * n,
        dims={"b": b, "m": m, "n": n, "k": k},
    )


def streamed_op(name: str, kind: OpKind, shape: tuple[int, ...], operands: int) -> Op:
    """Return a kernel that reads ``operands`` tensors of a shape and writes one."""
    size = float(np.prod(shape))
    spec = TensorSpec(shape, "float32")
    return Op(
        name, kind, Stage.FORWARD, "float32", size, 4 * operands * size, 4 * size, (spec,) * operands, (spec,)
    )  # fmt: skip


def _products(_: str, columns: Columns) -> Iterator[Op]:
    """Yield products of (m, k) and (k, n); the tables call the inner dimension N, as the traced ops show."""
    for b, m, k, n in zip(*(columns[name].tolist() for name in "BMNK"), strict=True):
        yield product_op(int(m), int(n), int(k), b=int(b))


def _convolutions(_: str, columns: Columns) -> Iterator[Op]:
    names = ("B", "Input_Channel", "Output_Channel", "Input_Size")
    for n, c, k, side in zip(*(columns[name].tolist() for name in names), strict=True):
        pixels = n * side * side
        dims = {"n": n, "c": c, "k": k, "h": side, "w": side, "r": 3, "s": 3, "groups": 1, "stride": 1, "dilation": 1}
        yield Op(
            "aten.convolution",
            OpKind.CONV,
            Stage.FORWARD,
            "float32",
            18.0 * pixels * c * k,
            4.0 * (pixels * c + 9 * c * k),
            4.0 * pixels * k,
            dims={name: int(value) for name, value in dims.items()},
        )


def _streamed(table: str, columns: Columns) -> Iterator[Op]:
    operands = 2 if table in ("add", "div", "mul", "pow") else 1
    for rows_, length in zip(columns["B"].tolist(), columns["H"].tolist(), strict=True):
        yield streamed_op(STREAMS[table], OpKind.ELEMENTWISE, (int(rows_), int(length)), operands)


def _by_rows(table: str, columns: Columns) -> Iterator[Op]:
    name, kind = ("aten._softmax", OpKind.SOFTMAX) if table == "softmax" else ("aten.native_layer_norm", OpKind.NORM)
    for rows_, length in zip(columns["B"].tolist(), columns["H"].tolist(), strict=True):
        yield streamed_op(name, kind, (int(rows_), int(length)), 1)


_MAKERS: dict[str, Callable[[str, Columns], Iterator[Op]]] = {
    "bmm": _products, "linear": _products, "conv": _convolutions, "softmax": _by_rows, "ln": _by_rows,
}  # fmt: skip


def layer_products(columns: Columns) -> dict[str, tuple[Any, Any]]:
    """Return columns and inner dimension of a layer's four products, as tensor parallelism splits them."""
    ways, width, inner = columns["num_tensor_parallel_workers"], columns["n_embd"], columns["n_expanded_embd"]
    heads = width / columns["n_head"]
    gates = np.where(columns["use_gated_mlp"].astype(str) == "True", 2, 1)
    return {
        "attn_pre_proj": ((width + 2 * columns["n_kv_head"] * heads) / ways, width),
        "attn_post_proj": (width, width / ways),
        "mlp_up_proj": (gates * inner / ways, width),
        "mlp_down_proj": (width, inner / ways),
    }


def _device(name: str) -> Device:
    return TomlCatalog().device(name)
