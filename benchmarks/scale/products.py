"""Fit the curves of matrix products to kernels that were timed on data-center GPUs, and score them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.tables import read_table, select_rows
from leadline.catalog.read import TomlCatalog
from leadline.core.hardware import Device
from leadline.estimators.parallelism.product_times import (
    ARITHMETIC,
    OPERAND_BYTES,
    PARAMETERS,
    ProductCurves,
    product_seconds,
)
from leadline.estimators.ports import Array

DEVICES = {
    "a100_sxm": "A100 SXM4 80GB", "l40s": "L40S", "h100_sxm": "H100 SXM5 80GB", "h200_sxm": "H200 SXM",
    "b200_sxm": "B200 SXM", "gb200": "GB200 (per GPU)",
}  # fmt: skip
DTYPES = {
    "bfloat16": "bfloat16", "fp8": "float8", "nvfp4": "float4", "sq": "int8", "int8_wo": "int8-weights",
    "int4_wo": "int4-weights",
}  # fmt: skip
"""Names of the table: per-tensor scales in ``fp8``, blocks of 16 in ``nvfp4``, SmoothQuant's int8 in ``sq``."""
LEAST_M, LEAST_SIDE = 64, 256
"""Products with fewer rows, those of decoding, took no part in a fit. Narrower ones take the time of a launch."""
FITTED_ROWS = 3_000
"""Rows of a curve that the fit draws: more change nothing."""
SCALE = 0.1
"""Log error from which on a row counts less."""
LEAST_TOKENS = 1024
"""Fewer tokens are no microbatch of a training step."""
FEWEST = 30
"""Rows of a kernel of experts that are enough for its median."""
TIGHTNESS = 0.3
"""Weight of the starts of the parameters, in log units against errors of ``SCALE``."""


@dataclass(frozen=True, slots=True)
class ProductRows:
    """Timed products of one device and dtype, (n,) each; ``engine`` is a number below ``engines``."""

    device: Device
    dtype: str
    m: Array
    n: Array
    k: Array
    elapsed_s: Array
    engine: npt.NDArray[np.int64]

    def at(self, rows: npt.NDArray[np.generic]) -> "ProductRows":
        """Return the rows that a mask or positions name."""
        m, n, k, seconds = (part[rows] for part in (self.m, self.n, self.k, self.elapsed_s))
        return ProductRows(self.device, self.dtype, m, n, k, seconds, self.engine[rows])

    @property
    def shapes(self) -> npt.NDArray[np.int64]:
        """A number for each row that is the same where the shape is."""
        return np.unique(np.stack([self.m, self.n, self.k], 1), axis=0, return_inverse=True)[1]


def product_rows(data: Path, least_m: float = LEAST_M, below_m: float = np.inf) -> list[ProductRows]:
    """Return the timed products of each device and dtype, with ``least_m`` rows up to fewer than ``below_m``.

    Raises:
        InvalidInput: the folder lacks the table.
    """
    catalog, cells = TomlCatalog(), read_table(data, "aic_gemm")
    engine = np.unique(cells["engine"], return_inverse=True)[1]
    large = (cells["m"] >= least_m) & (cells["m"] < below_m) & (cells["n"] >= LEAST_SIDE) & (cells["k"] >= LEAST_SIDE)
    parts = []
    for name, device in DEVICES.items():
        for table_dtype, dtype in DTYPES.items():
            chosen = large & (cells["device"] == name) & (cells["gemm_dtype"] == table_dtype)
            if chosen.any():
                m, n, k = (cells[side][chosen].astype(float) for side in "mnk")
                seconds = cells["latency_ms"][chosen] / 1e3
                parts.append(ProductRows(catalog.device(device), dtype, m, n, k, seconds, engine[chosen]))
    return parts


def fit_curve(parts: Sequence[ProductRows], seed: int = 0) -> Array:
    """Return the logarithms of the law's parameters for devices of a generation.

    Engines differ in kernels, and in how hot the GPU was. Each has a constant of its own, and the curve is their mean.
    """
    from scipy.optimize import least_squares  # noqa: PLC0415 - needed to fit alone

    starts, generator = np.log(list(PARAMETERS.values())), np.random.default_rng(seed)
    share = [FITTED_ROWS // len(parts)] * len(parts)
    parts = [part.at(generator.permutation(len(part.m))[:rows]) for part, rows in zip(parts, share, strict=True)]
    engines = np.unique(np.concatenate([part.engine for part in parts]))
    place = np.searchsorted(engines, np.concatenate([part.engine for part in parts]))
    target = np.log(np.concatenate([part.elapsed_s for part in parts]))

    def misfit(theta: Array) -> Array:
        curve, offsets = theta[: len(starts)], theta[len(starts) :]
        errors = (target - predict(curve, parts) - (offsets - offsets.mean())[place]) / SCALE
        return np.concatenate([np.sign(errors) * np.sqrt(np.log1p(errors**2)), TIGHTNESS * (curve - starts), offsets])

    answer = least_squares(misfit, np.append(starts, np.zeros(len(engines))), max_nfev=25)
    return np.asarray(answer.x[: len(starts)], float)


def predict(curve: Array, parts: Sequence[ProductRows]) -> Array:
    """Return the log seconds of all rows of some parts (n,) by one curve."""
    seconds = []
    for part in parts:
        rates = ProductCurves((), curve[None]).rates([part.device], [part.dtype])
        seconds.append(product_seconds(rates, part.m[None], part.n[None], part.k[None])[0])
    return np.asarray(np.log(np.concatenate(seconds)), float)


def curve_name(part: ProductRows) -> str:
    """Return the name of a part's curve."""
    return f"{part.device.compute_capability} {part.dtype}"


def fit_curves(parts: Sequence[ProductRows]) -> ProductCurves:
    """Return a curve for each generation and dtype."""
    names = sorted({curve_name(part) for part in parts})
    logs = [fit_curve([part for part in parts if curve_name(part) == name]) for name in names]
    return ProductCurves(tuple(names), np.array(logs))


def held_out_errors(parts: Sequence[ProductRows], curves: ProductCurves) -> dict[str, dict[str, float]]:
    """Return the errors in percent on shapes, devices and generations that took no part in a fit."""
    figures = {}
    for name in sorted({curve_name(part) for part in parts}):
        alike = [part for part in parts if curve_name(part) == name]
        halves = [_halves(part) for part in alike]
        first, second = [half for half, _ in halves], [half for _, half in halves]
        figures[f"{name}: half of the shapes"] = _figures(fit_curve(first), first, second)
        for part in alike:
            if fitted := [device for device in alike if device is not part]:
                figures[f"{name}: {part.device.name} by the other device"] = _figures(fit_curve(fitted), fitted, [part])
    for place, name in enumerate(curves.names):
        dtype = name.split()[1]
        places = [number for number, each in enumerate(curves.names) if each.endswith(f" {dtype}") and number != place]
        held_out = [part for part in parts if curve_name(part) == name]
        fitted = [part for part in parts if part.dtype == dtype and curve_name(part) != name]
        if places:
            curve = curves.logs[places].mean(axis=0)
            figures[f"{name}: by the other generations"] = _figures(curve, fitted, held_out)
    return figures


def decoding_errors(data: Path, curves: ProductCurves) -> dict[str, dict[str, float]]:
    """Return the errors in percent on products with few rows, which took no part in a fit."""
    parts, figures = product_rows(data, 1, LEAST_M), {}
    for name in sorted({curve_name(part) for part in parts}):
        alike = [part for part in parts if curve_name(part) == name]
        figures[f"{name}: 1 to {LEAST_M} rows"] = _figures(curves.logs[curves.names.index(name)], alike, alike)
    return figures


def _halves(part: ProductRows) -> tuple[ProductRows, ProductRows]:
    """Return the rows of every second shape, in a random order, and the others."""
    shapes = part.shapes
    first = (np.random.default_rng(0).permutation(shapes.max() + 1) % 2 == 0)[shapes]
    return part.at(first), part.at(~first)


def _figures(curve: Array, fitted: Sequence[ProductRows], held_out: Sequence[ProductRows]) -> dict[str, float]:
    """Return the errors of a curve on held-out rows, beside those of the peak with one constant from the others."""
    measured = np.concatenate([part.elapsed_s for part in held_out])
    errors = 100 * np.abs(np.exp(predict(curve, held_out)) / measured - 1)
    constant = np.median(np.concatenate([part.elapsed_s / _peak_seconds(part) for part in fitted]))
    roofline = 100 * np.abs(constant * np.concatenate([_peak_seconds(part) for part in held_out]) / measured - 1)
    values = {"median": np.median(errors), "p90": np.quantile(errors, 0.9), "roofline": np.median(roofline)}
    return {**{name: round(float(value), 2) for name, value in values.items()}, "n": float(len(measured))}


def _peak_seconds(part: ProductRows) -> Array:
    """Return the seconds at the peak, or at the bandwidth where that takes longer (n,)."""
    left, right = OPERAND_BYTES.get(part.dtype, (2.0, 2.0))
    moved = (left * part.m + right * part.n) * part.k + 2 * part.m * part.n
    peak = part.device.peak_flops_per_s[ARITHMETIC.get(part.dtype, part.dtype)]
    computing = 2 * part.m * part.n * part.k / peak
    return np.asarray(np.maximum(computing, moved / (part.device.memory_bytes_per_s or np.nan)))


def expert_ratios(data: Path, curves: ProductCurves) -> dict[str, dict[str, float]]:
    """Return the measured time of fused experts over that of their parts, for each device.

    Their parts are grouped products by the law, and a pass over memory of the tokens that are gathered, the activation
    and the sum. All experts are on one GPU, in bfloat16. Each engine has its median, and the fastest engine counts;
    ``spread`` is half of the range that holds 90 % of its logarithms. Tokens are balanced where a table has such rows.
    """
    cells, catalog, ratios = read_table(data, "aic_moe"), TomlCatalog(), {}
    large = (cells["moe_ep_size"] == 1) & (cells["moe_dtype"] == "bfloat16") & (cells["op_name"] == "moe")
    large &= cells["num_tokens"] >= LEAST_TOKENS
    large &= cells["num_tokens"] * cells["topk"] >= LEAST_M * cells["num_experts"]
    large &= ~np.char.endswith(cells["kernel_source"], "nongated")
    for name, device in DEVICES.items():
        chosen = large & (cells["device"] == name)
        even = chosen & (cells["distribution"] == "balanced")
        rows = select_rows(cells, even if even.any() else chosen)
        m = rows["num_tokens"] * rows["topk"] / rows["num_experts"]
        width, hidden, experts = rows["inter_size"] / rows["moe_tp_size"], rows["hidden_size"], rows["num_experts"]
        rates = curves.rates([catalog.device(device)], ["bfloat16"])
        law = product_seconds(rates, m[None], 2 * width[None], hidden[None], experts[None], busy=True)
        law += product_seconds(rates, m[None], hidden[None], width[None], experts[None], busy=True)
        law += 2 * m * experts * (3 * hidden + 3 * width) / rates.memory
        logs = np.log(rows["latency_ms"] / 1e3 / law[0])
        parts = [logs[rows["kernel_source"] == kernel] for kernel in np.unique(rows["kernel_source"])]
        fastest = min((part for part in parts if len(part) >= FEWEST), key=lambda part: float(np.median(part)))
        spread = np.subtract(*np.quantile(fastest, (0.95, 0.05))) / 2
        values = {"ratio": np.exp(np.median(fastest)), "spread": spread, "n": len(fastest)}
        ratios[device] = {key: round(float(value), 3) for key, value in values.items()}
    return ratios
