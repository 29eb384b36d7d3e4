"""Training steps that were measured for Leadline on one H200 (``benchmarks/gpu_steps``), which no fit has seen."""

import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu_steps.configurations import MODELS
from benchmarks.results import BenchmarkRow, at_most, within
from leadline.app.composition import toolbox
from leadline.app.estimate.estimate import estimate
from leadline.app.workloads.options import WorkloadOptions
from leadline.app.workloads.read import read_workload
from leadline.catalog.read import TomlCatalog
from leadline.core.estimate import Estimate
from leadline.core.units import GB
from leadline.estimators.gpu_memory_interval import context_bytes

STEPS = Path(__file__).parents[1] / "gpu_steps" / "h200.jsonl"
DEVICE = "H200 SXM"
PRECISIONS = {"bf16": "bf16", "amp": "amp-bf16", "fp32": "fp32", "tf32": "tf32"}
OPTIMIZERS = {"adamw": "adamw", "momentum": "momentum", "adamw-8bit": "adamw8bit"}
EAGER_ALONE = ("t5-base",)
"""Models for which transformers 5.17, which ran them, has no other attention."""
IMAGES = 224
"""Length of the models that take images, whose steps other benchmarks judge."""

Measured = Mapping[str, Any]


def own_rows() -> list[BenchmarkRow]:
    """Return the error of time and memory, and the coverage of both intervals."""
    with tempfile.TemporaryDirectory() as folder:
        pairs = [(row, _predict(row["configuration"], Path(folder))) for row in measured_steps()]
    times = [(row["step_ms"] / 1e3, each.step_s) for row, each in pairs if each.step_s]
    memories = [(row["device_bytes"], each.gpu_memory_bytes) for row, each in pairs if each.gpu_memory_bytes]
    rows = []
    for name, limit, values in (("time", 12.0, times), ("GPU memory", 8.0, memories)):
        errors = [100 * abs(interval.point / measured - 1) for measured, interval in values]
        inside = [interval.low <= measured <= interval.high for measured, interval in values]
        above = sum(measured > interval.high for measured, interval in values)
        how = "eager steps on one H200, part of no fit"
        rows += [
            at_most(f"our own steps, {name}: median error", float(np.median(errors)), limit, "%", n=len(values),
                    how=f"{how}; MAPE {np.mean(errors):.1f} %"),
            within(f"our own steps, {name}: 90 % intervals that hold", 100 * float(np.mean(inside)), (85.0, 100.0), "%",
                   n=len(values), how=f"{above} above"),
        ]  # fmt: skip
    return rows


def own_memory() -> list[dict[str, object]]:
    """Return the details of each step: reserved memory in GB, measured and predicted without the driver's context."""
    context = context_bytes(TomlCatalog(None).device(DEVICE))
    details: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as folder:
        for row in measured_steps():
            asked, memory = row["configuration"], _predict(row["configuration"], Path(folder)).gpu_memory_bytes
            if memory:
                details.append({
                    "source": "own", "model": asked["model"], "precision": asked["precision"],
                    "sequence": asked["length"], "measured_gb": row["reserved_bytes"] / GB,
                    "predicted_gb": (memory.point - context.point) / GB,
                    "high_gb": (memory.high - context.high) / GB,
                })  # fmt: skip
    return details


def measured_steps() -> Iterator[Measured]:
    """Yield the measured training steps that run op by op."""
    for line in STEPS.read_text(encoding="utf-8").splitlines()[1:]:
        row = json.loads(line)
        asked = row["configuration"]
        usual = asked["execution"] == "eager" and not asked["weights"]
        text = asked["phase"] == "training" and asked["length"] != IMAGES
        if row["outcome"] == "ok" and usual and text and asked["optimizer"] in OPTIMIZERS:
            yield row


def write_configuration(asked: Measured, folder: Path) -> Path:
    """Write the ``config.json`` of a configuration's model into a folder of its own."""
    path = folder / str(asked["model"]) / "config.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({**MODELS[asked["model"]], "use_cache": asked["phase"] == "decode"}), encoding="utf-8")
    return path


def options_of(asked: Measured) -> WorkloadOptions:
    """Return the options of a configuration."""
    longest = asked["length"]
    # Lengths that vary are drawn from an eighth of the longest on, one for each batch.
    varied = {"seq": longest * 9 // 16, "seq_max": longest} if asked["lengths"] == "varied" else {"seq": longest}
    return WorkloadOptions(
        **varied, batch=asked["batch"], precision=PRECISIONS[asked["precision"]],
        attention=None if asked["model"] in EAGER_ALONE else asked["attention"],
        optimizer=OPTIMIZERS[asked["optimizer"]], accumulate=asked["accumulation"],
        checkpointing=asked["recompute"] or None, lora_targets=asked["adapter"] or None,
        fusion="liger" if asked["fused"] else None, loss="fused" if asked["fused"] is True else None,
        # A plain loop: half precision is that of the weights, without autocast around the adapters.
        peft=f"lora:r={asked['rank']},autocast={asked['precision'] == 'amp'}".lower() if asked["rank"] else None,
    )  # fmt: skip


def _predict(asked: Measured, folder: Path) -> Estimate:
    workload = read_workload([str(write_configuration(asked, folder))], options_of(asked))
    return estimate(workload, toolbox(), on=[DEVICE]).estimates[0]
