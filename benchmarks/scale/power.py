"""Power limits: the rates under a limit and of boards with a low factory limit, against MLPerf Inference.

NVIDIA, Dell and H3C submitted the same systems at their factory limit and with a lower one (``MaxQ``). The table has
the samples/s of both. The limits are in the submissions, ``configs/BENCHMARK/Offline`` of
mlcommons/inference_results_v2.0, v2.1, v3.0 and v4.1. The limits of 3.1 are used where 3.0 and 4.1 have the same. Those
of 4.0 are taken from 4.1, which has the same for the three benchmarks that were compared.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks.results import BenchmarkRow, at_least, at_most
from benchmarks.tables import Columns, read_table
from leadline.app.composition import toolbox
from leadline.core.estimate import NORMAL_90
from leadline.estimators.ports import Array
from leadline.estimators.step_time.power_limit import limited_rates, matrix_share

# System without its suffix: device, release, and watts for each benchmark (`99.9` where they differ).
LIMITS_W: tuple[tuple[str, str, str, dict[str, int]], ...] = (
    ("A100-PCIe-80GB_aarch64x4_TRT", "A100 PCIe 80GB", "v2.0",
     {"3d-unet": 175, "bert": 225, "dlrm": 225, "rnnt": 200}),
    ("A100-PCIe-80GBx8_TRT", "A100 PCIe 80GB", "v2.0", {"3d-unet": 175, "bert": 225, "dlrm": 225, "rnnt": 200}),
    ("A100-PCIe-80GBx8_TRT", "A100 PCIe 80GB", "v2.1",
     {"3d-unet": 165, "bert": 240, "resnet50": 195, "retinanet": 210, "rnnt": 180}),
    ("A100-PCIe-80GBx8_TRT", "A100 PCIe 80GB", "v3.0",
     {"3d-unet": 165, "bert": 240, "dlrm": 225, "resnet50": 195, "retinanet": 210, "rnnt": 180}),
    ("A100-SXM-80GB_aarch64x8_TRT", "A100 SXM4 80GB", "v2.0",
     {"3d-unet": 200, "bert": 250, "dlrm": 250, "rnnt": 250}),
    ("DGX-A100_A100-SXM-80GBx8_TRT", "A100 SXM4 80GB", "v2.0",
     {"3d-unet": 225, "bert": 300, "bert-99.9": 275, "dlrm": 275, "rnnt": 250}),
    ("DGX-A100_A100-SXM-80GBx8_TRT", "A100 SXM4 80GB", "v2.1",
     {"3d-unet": 225, "bert": 275, "dlrm": 275, "resnet50": 250, "retinanet": 250, "rnnt": 225}),
    ("A30x3_R4900G5_TRT", "A30", "v2.1", {"3d-unet": 150, "bert": 150, "resnet50": 150, "rnnt": 150}),
    ("XR4520c_A2x1_TRT", "A2", "v3.0", {"bert": 45, "retinanet": 45}),
    ("H100-PCIe-80GBx8_TRT", "H100 PCIe 80GB", "v3.0",
     {"3d-unet": 200, "bert": 290, "bert-99.9": 300, "dlrm": 275, "resnet50": 215, "retinanet": 215, "rnnt": 200}),
    ("H100-PCIe-80GBx8_TRT", "H100 PCIe 80GB", "v3.1",
     {"3d-unet": 200, "bert": 290, "bert-99.9": 300, "resnet50": 215, "retinanet": 215}),
    ("DGX-H100_H100-SXM-80GBx8_TRT", "H100 SXM5 80GB", "v4.0",
     {"3d-unet": 300, "bert": 400, "bert-99.9": 450, "dlrm-v2": 450, "gptj": 350, "llama2-70b": 450, "resnet50": 300,
      "retinanet": 350, "rnnt": 300, "stable-diffusion-xl": 350}),
    ("H200-SXM-141GBx8_TRT", "H200 SXM", "v4.1",
     {"3d-unet": 350, "bert": 400, "bert-99.9": 450, "dlrm-v2": 500, "gptj": 350, "llama2-70b": 500,
      "mixtral-8x7b": 500, "resnet50": 350, "retinanet": 350, "stable-diffusion-xl": 450}),
)  # fmt: skip
# Transformers compute; the other benchmarks are taken to compute as long as they move data.
TRANSFORMERS = ("bert", "gptj", "llama2-70b", "mixtral-8x7b", "stable-diffusion-xl")
# Boards of one generation, the second with the highest limit: their names in the table and in the catalog.
BOARDS = (
    ("NVIDIA A30", "A30", "NVIDIA A100-SXM-80GB", "A100 SXM4 80GB"),
    ("NVIDIA A100-PCIe-80GB", "A100 PCIe 80GB", "NVIDIA A100-SXM-80GB", "A100 SXM4 80GB"),
    ("NVIDIA L4", "L4", "NVIDIA L40S", "L40S"),
    ("NVIDIA H100-PCIe-80GB", "H100 PCIe 80GB", "NVIDIA H100-SXM-80GB", "H100 SXM5 80GB"),
    ("NVIDIA H100-NVL-94GB", "H100 NVL", "NVIDIA H100-SXM-80GB", "H100 SXM5 80GB"),
)
# Benchmarks that compute on all of these boards. Others generate tokens, which follows the bandwidth.
COMPUTING = ("bert-99", "stable-diffusion-xl")
EXPONENTS = np.arange(0.2, 1.2, 0.01)


class LimitedRate(NamedTuple):
    """Samples/s under a power limit over those at the factory limit; ``share`` is limit ÷ factory limit."""

    device: str
    model: str
    share: float
    rate: float


def power_rows(data: Path) -> list[BenchmarkRow]:
    """Return errors and coverage under power limits, each device left out whole, and of boards with a low limit."""
    table = offline_rates(data)
    return [*_limit_rows(limited_rate_pairs(table)), *_board_rows(table)]


def offline_rates(data: Path) -> Columns:
    """Return the offline samples/s of each accelerator, without slices of them.

    Raises:
        InvalidInput: The folder ``data`` lacks the table.
    """
    table = read_table(data, "mlperf_inference")
    platform, accelerators = table["Platform"], np.array([float(n or 0) for n in table["n_accel"]])
    kept = (table["Scenario"] == "Offline") & (table["Units"] == "Samples/s") & (accelerators > 0)
    kept &= np.char.find(platform, "MIG") < 0
    rates = np.array([float(value or "nan") for value in table["Result"][kept]]) / accelerators[kept]
    names = ("version", "Platform", "Model", "accelerator_model_name")
    return {"rate": rates, **{name: table[name][kept] for name in names}}


def limited_rate_pairs(table: Columns) -> list[LimitedRate]:
    """Return the median of each device, benchmark and limit."""
    catalog = toolbox().catalog
    rates: dict[tuple[str, str, float], list[float]] = {}
    for system, device, release, limits in LIMITS_W:
        here = table["version"] == release
        factory_w = catalog.device(device).tdp_w
        for model in np.unique(table["Model"][here]).tolist():
            name = model.removesuffix(".9").removesuffix("-99")
            watts = limits.get(f"{name}-99.9" if model.endswith("99.9") else name, limits.get(name))
            full, limited = (
                table["rate"][here & (table["Model"] == model) & (table["Platform"] == platform)]
                for platform in (system, _limited(system))
            )
            if watts and factory_w and len(full) and len(limited):
                key = device, name.removesuffix("-v2"), watts / factory_w
                rates.setdefault(key, []).append(float(np.median(limited) / np.median(full)))
    return [LimitedRate(*key, float(np.median(values))) for key, values in rates.items()]


def _limited(system: str) -> str:
    return "XR4520c_MaxQ_A2x1_TRT_MaxQ" if system.startswith("XR4520c") else f"{system}_MaxQ"


def predict_rates(pairs: Sequence[LimitedRate], exponent: float) -> Array:
    """Return the predicted rate of each pair (n,)."""
    rates = []
    for pair in pairs:
        clock, memory = limited_rates(pair.share, exponent)
        rates.append(clock if pair.model in TRANSFORMERS else 2**0.5 / np.hypot(1 / clock, 1 / memory))
    return np.array(rates)


def fit_exponent(pairs: Sequence[LimitedRate]) -> tuple[float, float]:
    """Return the exponent with the least absolute log errors, each device counting the same, and its deviation."""
    measured, shares = np.log([pair.rate for pair in pairs]), np.log([pair.share for pair in pairs])
    devices = np.array([pair.device for pair in pairs])
    weights = 1 / np.array([(devices == device).sum() for device in devices])
    errors = [np.log(predict_rates(pairs, exponent)) - measured for exponent in EXPONENTS]
    best = int(np.argmin([np.abs(error) @ weights for error in errors]))
    return float(EXPONENTS[best]), float(np.sqrt((errors[best] / shares) ** 2 @ weights / weights.sum()))


def _limit_rows(pairs: Sequence[LimitedRate]) -> list[BenchmarkRow]:
    devices = np.array([pair.device for pair in pairs])
    measured, share = np.array([pair.rate for pair in pairs]), np.array([pair.share for pair in pairs])
    predicted, spread = np.empty((2, len(pairs)))
    for device in np.unique(devices):
        exponent, deviation = fit_exponent([pair for pair in pairs if pair.device != device])
        left_out = [pair for pair in pairs if pair.device == device]
        predicted[devices == device] = predict_rates(left_out, exponent)
        spread[devices == device] = deviation
    inside = np.abs(np.log(measured / predicted)) <= NORMAL_90 * spread * np.abs(np.log(share))
    count = len({(pair.device, pair.model) for pair in pairs})
    none, proportional = (_mape(guess, measured) for guess in (np.ones_like(share), share))
    exponent, deviation = fit_exponent(pairs)
    how = (
        f"{len(pairs)} limits on {len(set(devices.tolist()))} devices; no effect {none:.1f} %, proportional to the "
        f"limit {proportional:.1f} %; exponent of all {exponent:.2f} ± {deviation:.2f}"
    )
    return [
        at_most("rate under a power limit: MAPE, device left out", _mape(predicted, measured), 12.0, "%", n=count,
                baseline=min(none, proportional), how=how),
        at_least("rate under a power limit: 90 % intervals that hold", 100 * float(inside.mean()), 85.0, "%", n=count),
    ]  # fmt: skip


def _board_rows(table: Columns) -> list[BenchmarkRow]:
    """Return the errors of boards over the board with the highest limit of their generation."""
    catalog = toolbox().catalog
    predicted, at_peak, measured = [], [], []
    for name, device, reference_name, reference in BOARDS:
        board, other = catalog.device(device), catalog.device(reference)
        peaks = board.peak_flops_per_s["bfloat16"] / other.peak_flops_per_s["bfloat16"]
        for model in COMPUTING:
            rates = _board_rates(table, model, (name, reference_name))
            if rates:
                measured.append(float(np.median(rates)))
                predicted.append(peaks * matrix_share(board) / matrix_share(other))
                at_peak.append(peaks)
    error, baseline = (_mape(np.array(guess), np.array(measured)) for guess in (predicted, at_peak))
    how = f"{len(BOARDS)} boards over the one with the highest limit; part of the fit of the exponent"
    return [
        at_most("rate of boards with a low factory limit: MAPE", error, 12.0, "%", n=len(measured), baseline=baseline,
                how=how)
    ]  # fmt: skip


def _board_rates(table: Columns, model: str, boards: tuple[str, str]) -> list[float]:
    """Return the ratio of the medians of two boards, in each release that has both."""
    asked = (table["Model"] == model) & (np.char.find(table["Platform"], "MaxQ") < 0)
    ratios = []
    for release in np.unique(table["version"][asked]).tolist():
        here = asked & (table["version"] == release)
        one, two = (table["rate"][here & (table["accelerator_model_name"] == board)] for board in boards)
        if len(one) and len(two):
            ratios.append(float(np.median(one) / np.median(two)))
    return ratios


def _mape(predicted: npt.NDArray[np.float64], measured: npt.NDArray[np.float64]) -> float:
    return float(100 * np.mean(np.abs(predicted / measured - 1)))
