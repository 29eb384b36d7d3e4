"""``python -m benchmarks.scale.ship DATA FOLDER``: fit the shipped model of training steps, and write it."""

import platform
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from benchmarks.scale.fit import fit_step_model, left_out_errors
from benchmarks.scale.products import (
    LEAST_M,
    LEAST_SIDE,
    ProductRows,
    decoding_errors,
    expert_ratios,
    fit_curves,
    held_out_errors,
    product_rows,
)
from benchmarks.scale.rows import SLOWEST_SWEPT_MFU, SWEEP, ScaleRow, scale_rows
from benchmarks.shipped.cards import ProductTimesCard, StepModelCard, write_card
from leadline.core.errors import InvalidInput, LeadlineError
from leadline.estimators.parallelism.product_times import PARAMETERS, ProductCurves
from leadline.estimators.parallelism.step_parts import NAMES
from leadline.training.array_files import write_arrays
from leadline.training.decoder_steps import MAGNITUDES, STEP_MODEL_CARD_FILE, STEP_MODEL_FILE, DecoderStepModel

SOURCES = (
    "llm-foundry's tables of training throughput (mosaicml/llm-foundry, scripts/train/benchmarking)",
    "nanotron's ultra-scale playbook, NeMo 24.07, torchtitan, Megatron-LM's README, calculon's validation",
    "BigScience's search for a topology (bigscience-workshop/bigscience, train/tr11-176B-ml)",
    "performance summaries of NVIDIA-NeMo/Megatron-Bridge and NVIDIA-NeMo/Automodel",
    "times of matrix products: ai-dynamo/aiconfigurator at 095f58a51, its card is product_times.json",
)
PRODUCTS_CARD_FILE = "product_times.json"
REFUSED = (
    "inference, adapters, single precision, steps that XLA compiles",
    "graphs without attention, and devices that are no GPU or lack a bandwidth or a half-precision peak",
)
LIMITS = (
    f"{SWEEP}'s runs below {SLOWEST_SWEPT_MFU:g} % of the peak took no part: most are pipelines, 2 to 10 times slower",
    "steps with experts add 35 % uncertainty, the errors on frameworks that were left out of the fit",
    "an unmeasured GPU generation adds 15 % uncertainty, and another kind of board or vendor 35 %, assumptions",
    "each e-fold outside the ranges adds 20 % uncertainty, an assumption",
    "data loading, checkpoints, failures and congestion of a shared network are not included",
)


def fitted_rows(data: Path) -> list[ScaleRow]:
    """Return the rows that the shipped model is fitted on."""
    return [row for row in scale_rows(data) if row.source != SWEEP or row.mfu >= SLOWEST_SWEPT_MFU]


def errors_by_source(rows: Sequence[ScaleRow], curves: ProductCurves) -> dict[str, dict[str, float]]:
    """Return the errors in percent on each source, by a fit without it."""
    sources = np.array([row.source for row in rows])
    errors = 100 * np.abs(np.expm1(-left_out_errors(rows, sources.tolist(), curves)[0]))
    figures = {}
    for source in np.unique(sources).tolist():
        part = errors[sources == source]
        values = {"mape": part.mean(), "median": np.median(part), "p90": np.quantile(part, 0.9), "n": len(part)}
        figures[f"without {source}"] = {name: round(float(value), 2) for name, value in values.items()}
    return figures


def card_of(rows: Sequence[ScaleRow], model: DecoderStepModel) -> StepModelCard:
    """Return the card of a model fitted on rows."""
    ranges = zip(MAGNITUDES, np.exp(model.least).tolist(), np.exp(model.most).tolist(), strict=True)
    return StepModelCard(
        schema="leadline.llm-training/3",
        made_on=datetime.now(UTC).date().isoformat(),
        sources=SOURCES,
        licence="Apache-2.0 and BSD-3-Clause, as the tables it was fitted on",
        rows=len(rows),
        devices=tuple(sorted({row.step.device.name for row in rows})),
        ranges={name: (float(f"{low:.6g}"), float(f"{high:.6g}")) for name, low, high in ranges},
        errors=errors_by_source(rows, model.curves),
        coefficients={name: float(f"{value:.4g}") for name, value in zip(NAMES, np.exp(model.theta), strict=True)},
        refused=REFUSED,
        limits=LIMITS,
        versions={"python": platform.python_version(), "numpy": np.__version__},
    )


def products_card(data: Path, parts: Sequence[ProductRows], curves: ProductCurves) -> ProductTimesCard:
    """Return the card of the curves of matrix products."""
    return ProductTimesCard(
        schema="leadline.product-times/1",
        made_on=datetime.now(UTC).date().isoformat(),
        sources=(
            "ai-dynamo/aiconfigurator at 095f58a51: matrix products and fused experts in TensorRT-LLM, vLLM and SGLang",
        ),
        licence="Apache-2.0",
        rows=sum(len(part.m) for part in parts),
        devices=tuple(dict.fromkeys(part.device.name for part in parts)),
        curves={
            name: {key: float(f"{value:.4g}") for key, value in zip(PARAMETERS, np.exp(logs), strict=True)}
            for name, logs in zip(curves.names, curves.logs, strict=True)
        },
        errors={**held_out_errors(parts, curves), **decoding_errors(data, curves)},
        experts=expert_ratios(data, curves),
        limits=(
            f"products of at least {LEAST_M} rows, with other sides of at least {LEAST_SIDE}, alone on the GPU",
            "engines differ by up to 7 % on the same product; a curve is their mean",
            "generations that were not measured have the mean of the curves",
        ),
        versions={"python": platform.python_version(), "numpy": np.__version__},
    )


def main(arguments: list[str]) -> int:
    """Fit the model and write both files; return the exit status."""
    try:
        if len(arguments) != 2:
            raise InvalidInput(f"{len(arguments)} arguments: give a folder of data and a folder to fill")
        data, folder = (Path(argument) for argument in arguments)
        rows, products = fitted_rows(data), product_rows(data)
        curves = fit_curves(products)
        model = fit_step_model(rows, curves)
        write_arrays(folder / STEP_MODEL_FILE, model.dump())
        write_card(folder / STEP_MODEL_CARD_FILE, card_of(rows, model))
        write_card(folder / PRODUCTS_CARD_FILE, products_card(data, products, curves))
    except LeadlineError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
