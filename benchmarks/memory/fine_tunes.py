"""``bench fine-tunes``: the memory of fine-tuning runs as the Qwen team published it, compared with predictions.

The runs are of four models (1.8B to 72B) with LoRA, LoRA with embedding and output layer, Q-LoRA and all parameters,
on sequences of 256 to 8,192 tokens (Qwen's README, Apache-2.0). According to the README and its scripts they used an
A100 SXM4 80GB, batch 1, 8 micro-steps, flash attention, checkpointing, adapters of rank 64 on all linear layers, AdamW.

As in the scripts (``finetune/*.sh``), LoRA runs under autocast, Q-LoRA with DeepSpeed's ZeRO-2 in float16 on GPTQ's
four bits, and full fine-tunes with its ZeRO-3, as LoRA where the table names it. Dropout is 0.05.

Assumptions:
    - A GB is 10⁹ bytes, as in the README's table of inference, where 72B in bfloat16 takes 144.69 GB.
    - Memory of several GPUs is their sum.

The full fine-tunes use DeepSpeed with bfloat16 and float32 weights; the nearest option keeps float32 weights alone.
"""

import json
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.memory.bound import ENOUGH, exceeded_left_out, transfer_bounds
from benchmarks.memory.peft_runs import peft_rows, predict_peft_runs
from benchmarks.results import BenchmarkResult, BenchmarkRow, at_most
from benchmarks.scale.own_steps import own_memory
from benchmarks.tables import Columns, read_table
from leadline.app.composition import toolbox
from leadline.app.estimate.estimate import Toolbox, estimate
from leadline.catalog.read import TomlCatalog
from leadline.core.errors import InvalidInput
from leadline.core.estimate import Estimate
from leadline.core.units import GB
from leadline.core.workload import (
    Adapters,
    ModelKind,
    ModelSource,
    Optimizer,
    Parallelism,
    Precision,
    Recompute,
    Sharding,
    Workload,
)
from leadline.estimators.gpu_memory_interval import context_bytes

DEVICE = "A100 SXM4 80GB"
RANK, MICRO_STEPS = 64, 8
MEDIAN, UNDER = 8.0, 6.0
"""Targets in percent: median error of memory, and share of runs above the interval."""

SIZES = {
    "1.8B": (2048, 5504, 24, 16, 151936),
    "7B": (4096, 11008, 32, 32, 151936),
    "14B": (5120, 13696, 40, 40, 152064),
    "72B": (8192, 24576, 80, 64, 152064),
}
"""Model → hidden size, width of the feed-forward, layers, heads, vocabulary (from their ``config.json``)."""
LORA = Adapters(RANK, settings=(("lora_dropout", 0.05),))
ZERO_2 = replace(LORA, settings=(*LORA.settings, ("deepspeed", True), ("reduce_bucket_size", 200_000_000)))
ZERO_3 = replace(LORA, settings=(*LORA.settings, ("deepspeed", True), ("reduce_bucket_size", 8192 * 8192)))
"""Buckets as in ``ds_config_zero2.json``; ``auto`` in ``ds_config_zero3.json`` is the square of the hidden size."""
METHODS: dict[str, Workload] = {
    "LoRA": Workload(ModelSource(ModelKind.HF_CONFIG, ""), precision=Precision.BF16, adapters=LORA),
}
METHODS |= {
    "LoRA (emb)": replace(METHODS["LoRA"], adapters=replace(LORA, embeddings=True)),
    "LoRA (multinode)": METHODS["LoRA"],
    "LoRA + Deepspeed Zero3": replace(METHODS["LoRA"], adapters=ZERO_3),
    "Q-LoRA": replace(METHODS["LoRA"], precision=Precision.FP16, adapters=ZERO_2),
    "Full-parameter": replace(METHODS["LoRA"], precision=Precision.AMP_BF16, adapters=None),
}


def run(*, quick: bool = False, data: Path | None = None) -> BenchmarkResult:
    """Predict every run, or every sixth if ``quick``; nothing is fitted to them.

    Raises:
        InvalidInput: No folder was given, or it lacks the table.
    """
    if data is None:
        raise InvalidInput("bench fine-tunes needs measured data: give their folder with --data")
    columns = read_table(data, "qwen_finetune_memory")
    measured_rows = np.flatnonzero(np.isfinite(columns["gpu_mem_gb"]))[:: 6 if quick else 1]
    tools = toolbox()
    with tempfile.TemporaryDirectory() as folder:
        details = [_predicted(columns, place, tools, Path(folder)) for place in measured_rows]
        more = predict_peft_runs(data, tools, Path(folder))[:: 6 if quick else 1]
    rows = [*_rows(details), *(peft_rows(more) if more else [])]
    own = [] if quick else own_memory()
    if more and own:
        rows += _sources_held_out([*details, *more, *own])
    return BenchmarkResult("fine-tunes", tuple(rows), details=(*details, *more, *own))


def config_of(model: str, method: str = "") -> dict[str, object]:
    """Return the configuration of a Qwen model, with four-bit weights for Q-LoRA."""
    hidden, width, layers, heads, vocabulary = SIZES[model]
    quantized = {"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128}}
    return {
        "model_type": "qwen", "hidden_size": hidden, "intermediate_size": 2 * width, "num_hidden_layers": layers,
        "num_attention_heads": heads, "vocab_size": vocabulary, "seq_length": 8192, "tie_word_embeddings": False,
        **(quantized if method == "Q-LoRA" else {}),
    }  # fmt: skip


def workload_of(columns: Columns, place: int, folder: Path) -> Workload:
    """Return the workload of one measured run; write its configuration into ``folder``."""
    model, method = str(columns["Model Size"][place]), str(columns["Method"][place])
    path = folder / f"{model} {method}.json"
    path.write_text(json.dumps(config_of(model, method)), encoding="utf-8")
    gpus = int(columns["#Nodes"][place] * columns["#GPUs per node"][place])
    whole = "Zero3" in method or method == "Full-parameter"
    sharding = Sharding.FULL if whole and gpus > 1 else Sharding.NONE
    return replace(
        METHODS[method], model=ModelSource(ModelKind.HF_CONFIG, str(path)), batch=1,
        sequence=int(columns["seq_len"][place]), accumulation=MICRO_STEPS, recompute=Recompute.FULL, gpus=gpus,
        optimizer=Optimizer.ADAMW, parallelism=Parallelism(sharding=sharding),
    )  # fmt: skip


def base_method(method: str) -> str:
    """Return the method without the remark on its GPUs."""
    return method.removesuffix(" (multinode)").removesuffix(" + Deepspeed Zero3")


def _predicted(columns: Columns, place: int, tools: Toolbox, folder: Path) -> dict[str, object]:
    """Return the details of one run: measured and predicted memory of each GPU in GB, and seconds."""
    workload = workload_of(columns, place, folder)
    predicted: Estimate = estimate(workload, tools, on=[DEVICE]).estimates[0]
    memory, step = predicted.gpu_memory_bytes, predicted.step_s
    if memory is None or step is None:
        raise InvalidInput(f"no prediction for row {place}: {predicted.unknown}")
    return {
        "source": "Qwen", "model": str(columns["Model Size"][place]), "method": str(columns["Method"][place]),
        "gpus": workload.gpus, "sequence": workload.sequence,
        "measured_gb": float(columns["gpu_mem_gb"][place]) / workload.gpus,
        "predicted_gb": memory.point / GB, "high_gb": memory.high / GB,
        "measured_s": float(columns["s_per_iter"][place]), "predicted_s": step.point,
        "parts_gb": {name: size / GB for name, size in predicted.basis.memory_breakdown_bytes.items()},
    }  # fmt: skip


def _rows(details: list[dict[str, object]]) -> list[BenchmarkRow]:
    """Return the errors of all runs, of those in the interval's training data, and by method."""
    how = "no point is fitted; above the interval: runs that need more than the high end of the 90 % interval"
    rows = _metrics("all", details, how, targets=True)
    adapted = [run for run in details if run["method"] != "Full-parameter"]
    for name, runs in (("all", details), ("adapters", adapted)):
        most = max(Counter(str(run["model"]) for run in runs).values(), default=0)
        if len(runs) - most >= ENOUGH:
            rows.append(_models_held_out(name, runs))
    for method in dict.fromkeys(base_method(str(run["method"])) for run in details):
        runs = [run for run in details if base_method(str(run["method"])) == method]
        rows += _metrics(method, runs, ", ".join(dict.fromkeys(str(run["method"]) for run in runs)), targets=False)
    return rows


def _models_held_out(name: str, details: list[dict[str, object]]) -> BenchmarkRow:
    """Return the share of runs above an interval fitted on the other models, as the shipped interval is fitted."""
    exceeded = 100 * exceeded_left_out(reserved_ratios(details), [str(run["model"]) for run in details])
    how = "factor on reserved memory that 5 % of the other models' runs exceed, plus the context's uncertainty"
    return at_most(f"{name}: above the interval, models held out", exceeded, UNDER, "%", n=len(details), how=how)


def reserved_ratios(details: list[dict[str, object]], end: str = "high") -> list[float]:
    """Return measured over predicted reserved memory, without the context at that ``end`` of its interval."""
    context = context_bytes(TomlCatalog(None).device(DEVICE)).scaled(1 / GB)
    measured, predicted = (np.array([run[key] for run in details], float) for key in ("measured_gb", "predicted_gb"))
    ratios: list[float] = ((measured - getattr(context, end)) / (predicted - context.point)).tolist()
    return ratios


def source_ratios(details: Sequence[dict[str, Any]], end: str = "high") -> dict[str, list[float]]:
    """Return measured over predicted reserved memory of the runs of each source; ``end`` as for ``reserved_ratios``."""
    qwen = [run for run in details if run["source"] == "Qwen"]
    ratios = {"Qwen": reserved_ratios(qwen, end)}
    for run in details:
        if run["source"] != "Qwen":
            ratios.setdefault(run["source"], []).append(run["measured_gb"] / run["predicted_gb"])
    return ratios


def _sources_held_out(details: list[dict[str, object]]) -> list[BenchmarkRow]:
    """Return the share of each source's runs above a bound fitted on the other sources, as the shipped one is."""
    ratios = source_ratios(details)
    how = "the widest bound of the others, widened by how much the second widest was too narrow for it"
    return [
        at_most(f"{name}: above the bound, source held out", 100 * share, UNDER, "%", n=len(ratios[name]), how=how)
        for name, share in transfer_bounds(ratios)[1].items()
    ]


def _metrics(name: str, details: list[dict[str, object]], how: str, *, targets: bool) -> list[BenchmarkRow]:
    measured, predicted, high, measured_s, predicted_s = (
        np.array([run[key] for run in details], dtype=float)
        for key in ("measured_gb", "predicted_gb", "high_gb", "measured_s", "predicted_s")
    )
    errors, seconds = (100 * np.abs(b - a) / a for a, b in ((measured, predicted), (measured_s, predicted_s)))
    median, above = float(np.median(errors)), 100 * float(np.mean(measured > high))
    n = len(details)
    rows = (
        [at_most(f"{name}: memory, median error", median, MEDIAN, "%", n=n, how=how),
         at_most(f"{name}: above the interval", above, UNDER, "%", n=n)]
        if targets
        else [BenchmarkRow(f"{name}: memory, median error", median, "%", n=n, how=how),
              BenchmarkRow(f"{name}: above the interval", above, "%", n=n)]
    )  # fmt: skip
    return [
        *rows,
        BenchmarkRow(f"{name}: memory, MAPE", float(np.mean(errors)), "%", n=n),
        BenchmarkRow(f"{name}: under-estimated", 100 * float(np.mean(predicted < measured)), "%", n=n),
        BenchmarkRow(f"{name}: step, median error", float(np.median(seconds)), "%", n=n),
    ]
