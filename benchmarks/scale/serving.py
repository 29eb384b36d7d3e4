"""Answers of serving engines by number format, predicted as the command line does, against published ones.

A request of a batch that is always full takes as long as a batch of whole answers: the same prompts and tokens pass
through the same GPUs. So the time to the first token and all further ones is compared with the predicted answer.
"""

import json
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.results import BenchmarkRow, within
from benchmarks.scale.bridge_rows import CONFIGURATIONS
from benchmarks.tables import Columns, read_table
from leadline.app.composition import toolbox
from leadline.app.estimate.step_estimators import select_kernels
from leadline.app.workloads.options import WorkloadOptions
from leadline.app.workloads.read import read_workload
from leadline.catalog.read import TomlCatalog
from leadline.core.estimate import Interval, TokenTimes
from leadline.core.workload import ModelKind
from leadline.estimators.memory.host import host_memory
from leadline.estimators.white_box import WhiteBox

Array = npt.NDArray[np.float64]
Config = Mapping[str, object]


def llama_config(width: int, inner: int, heads: int, kv_heads: int, layers: int, vocabulary: int) -> dict[str, object]:
    """Return the configuration of a Llama of these sizes."""
    return {
        "model_type": "llama", "hidden_size": width, "intermediate_size": inner, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "num_hidden_layers": layers, "vocab_size": vocabulary,
        "max_position_embeddings": 131072,
    }  # fmt: skip


_QWEN3_32B = llama_config(5120, 25600, 64, 8, 64, 151936) | {"model_type": "qwen3", "head_dim": 128}
_LLAMA_8B, _LLAMA_70B = (CONFIGURATIONS[name] | {"max_position_embeddings": 131072}
                         for name in ("LLAMA3_8B", "LLAMA3_70B"))  # fmt: skip
_DEEPSEEK = CONFIGURATIONS["DeepSeekV3 (w/o MTP)"]
MODELS: Mapping[str, Config] = {
    "Qwen/Qwen3-32B": _QWEN3_32B, "nvidia/Qwen3-32B-NVFP4": _QWEN3_32B, "meta-llama/Llama-3.1-70B": _LLAMA_70B,
    "meta-llama/Llama-3.1-8B-Instruct": _LLAMA_8B, "nvidia/Llama-3.1-8B-Instruct-FP8": _LLAMA_8B,
    "LLaMA 7B": llama_config(4096, 11008, 32, 32, 32, 32000), "LLaMA 70B": llama_config(8192, 28672, 64, 8, 80, 32000),
    "Mistral 7B": llama_config(4096, 14336, 32, 8, 32, 32000), "openai/gpt-oss-120b": CONFIGURATIONS["GPT OSS 120B"] | {
        "quantization_config": {"quant_method": "mxfp4"}, "_attn_implementation": None},
    "Qwen/Qwen3-235B-A22B-FP8": CONFIGURATIONS["Qwen3_235B_a22B"], "deepseek-ai/DeepSeek-R1": _DEEPSEEK,
    "deepseek-ai/DeepSeek-V3": _DEEPSEEK,
}  # fmt: skip
BLOCK_SCALED = ("Qwen/Qwen3-235B-A22B-FP8", "deepseek-ai/DeepSeek-R1", "deepseek-ai/DeepSeek-V3")
"""Models whose float8 checkpoints have scales of 128 × 128 weights."""
DEVICES = {
    "b200_sxm": "B200 SXM", "h100_sxm": "H100 SXM5 80GB", "h200_sxm": "H200 SXM", "gb200": "GB200 (per GPU)",
    "H100-SXM-80GB": "H100 SXM5 80GB", "H200-SXM-141GB": "H200 SXM", "A100-SXM-80GB": "A100 SXM4 80GB", "L40S": "L40S",
}  # fmt: skip
FORMATS = {"fp16": "16 bits", "bf16": "16 bits", "": "16 bits", "fp8": "fp8", "fp4": "fp4"}
EXPERTS = ", experts"
ROWS_EACH = 2
"""Rows of each source, engine, model, format, device and number of GPUs."""
FEWEST = 10
"""Fewest rows of a group with a target for its coverage."""


@dataclass(frozen=True, slots=True)
class Served:
    """A published answer: what names its source, the options that describe it, and the seconds of one request."""

    source: str
    bits: str
    config: Config
    device: str
    options: dict[str, Any]
    answer_s: float


def served_answers(data: Path, rows_each: int = ROWS_EACH) -> list[Served]:
    """Return some published answers of each kind in which GPUs hold a model by tensor parallelism alone.

    Raises:
        InvalidInput: the folder lacks the table.
    """
    cells = read_table(data, "llm_serving")
    numbers = {name: np.nan_to_num(cell, nan=-1.0) for name, cell in cells.items() if cell.dtype.kind == "f"}
    groups = defaultdict[tuple[object, ...], list[int]](list)
    for row in np.flatnonzero(_comparable(cells, numbers)).tolist():
        names = ("source_id", "engine", "model", "quant", "device", "tp")
        groups[tuple(str(cells[name][row]) for name in names)].append(row)
    generator = np.random.default_rng(0)
    chosen = [row for key in sorted(groups) for row in generator.permutation(groups[key])[:rows_each].tolist()]
    return [_served(cells, numbers, row) for row in chosen]


def _comparable(cells: Columns, numbers: Columns) -> npt.NDArray[np.bool_]:
    """Return which rows (n,) are full batches on GPUs that share every layer, without queues for a place in it."""
    usual = np.isin(cells["model"], list(MODELS)) & (numbers["osl"] > 1) & np.isin(numbers["pp"], (-1, 1))
    usual &= (numbers["batch"] > 0) & np.isin(cells["device"], list(DEVICES)) & (numbers["tp"] > 0)
    static = np.char.startswith(cells["source_id"], "trtllm-0") & (numbers["tokens_per_s"] > 0)
    shared = np.isin(numbers["attention_dp"], (-1, 1)) & (numbers["moe_ep"] <= 1)
    shared &= (numbers["moe_tp"] <= 1) | (numbers["moe_tp"] == numbers["tp"])
    shared &= (numbers["gpus"] == -1) | (numbers["gpus"] == numbers["tp"])
    steady = (cells["mode"] == "agg") & (numbers["tpot_ms"] > 0)
    steady &= numbers["ttft_ms"] < numbers["osl"] * numbers["tpot_ms"]
    return np.asarray(usual & (static | (steady & shared)))


def _served(cells: Columns, numbers: Columns, row: int) -> Served:
    value = {name: float(column[row]) for name, column in numbers.items()}
    model, quant, batch = str(cells["model"][row]), str(cells["quant"][row]), int(value["batch"])
    tensor, generated = int(value["tp"]), int(value["osl"])
    if str(cells["mode"][row]) == "agg":
        answer_s = (value["ttft_ms"] + (generated - 1) * value["tpot_ms"]) / 1e3
    else:
        gpus = tensor if "per GPU" in str(cells["throughput_scope"][row]) else 1
        answer_s = batch * generated / (value["tokens_per_s"] * gpus)
    own = "quantization_config" in MODELS[model]
    eight = "fp8-block" if model in BLOCK_SCALED else "fp8"
    chosen = None if own else {"fp8": eight, "fp4": "nvfp4"}.get(quant)
    options = {
        "batch": batch, "seq": int(value["isl"]), "generate": generated, "gpus": tensor, "tensor_parallel": tensor,
        "quantize": chosen, "kv_cache_dtype": "fp8" if chosen else None,
    }  # fmt: skip
    source = f"{cells['source_id'][row]}, {cells['engine'][row]}"
    kind = EXPERTS if model in BLOCK_SCALED or own else ""
    return Served(source, FORMATS[quant] + kind, MODELS[model], DEVICES[str(cells["device"][row])], options, answer_s)


def serving_rows(data: Path) -> list[BenchmarkRow]:
    """Return the errors of served answers by number format, and how many intervals hold.

    Each source's intervals are as wide as the errors on the other sources, with experts or without.
    """
    answers = served_answers(data)
    pairs = [(served, *prediction) for served, prediction in zip(answers, _predict(answers), strict=True)]
    logs = np.array([np.log(point / served.answer_s) for served, point, _ in pairs])
    before = np.array([abs(replayed / served.answer_s - 1) for served, _, replayed in pairs])
    sources, bits = np.array([served.source for served in answers]), np.array([served.bits for served in answers])
    inside = np.zeros(len(logs), bool)
    kinds = np.char.endswith(bits, EXPERTS)
    for source, kind in {*zip(sources.tolist(), kinds.tolist(), strict=True)}:
        same, others = ((sources == source) & (kinds == kind), (sources != source) & (kinds == kind))
        if others.any():
            inside[same] = np.abs(logs[same]) <= np.quantile(np.abs(logs[others]), 0.9)
    rows = []
    for name in [*np.unique(bits).tolist(), "all"]:
        chosen = (bits == name) | (name == "all")
        errors = 100 * np.abs(np.expm1(logs[chosen]))
        count, how = int(chosen.sum()), f"median of predicted ÷ published {np.exp(np.median(logs[chosen])):.2f}"
        rows.append(BenchmarkRow(f"serving, {name}: median error", float(np.median(errors)), "%", n=count, how=how,
                                 baseline=_median(100 * before[chosen])))  # fmt: skip
        if count >= FEWEST:
            held = 100 * float(inside[chosen].mean())
            title = f"serving, {name}: 90 % intervals that hold, source left out"
            rows.append(within(title, held, (85.0, 95.0), "%", n=count) if name == "all"
                        else BenchmarkRow(title, held, "%", n=count))  # fmt: skip
    return rows


def _median(errors: Array) -> float | None:
    """Return the median; ``None`` if the estimator refuses some of the rows."""
    return float(np.median(errors)) if np.isfinite(errors).all() else None


def _predict(answers: Sequence[Served]) -> Iterator[tuple[float, float]]:
    """Yield the predicted seconds of each answer, and those of the estimator for eager ops with replayed kernels."""
    catalog, tools = TomlCatalog(), toolbox()
    eager = WhiteBox(host_memory=host_memory, kernels=select_kernels)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        for served in answers:
            path.write_text(json.dumps({**served.config, "dtype": "bfloat16"}), encoding="utf-8")
            options = WorkloadOptions(phase="inference", paged=True, **served.options)
            workload = read_workload([str(path)], options)
            job, device = (
                tools.sources[ModelKind.HF_CONFIG](workload, device_type="cuda"),
                catalog.device(served.device),
            )
            predicted = tools.estimator.estimate(workload, job, device)
            before = eager.estimate(workload, job, device)
            yield _point(predicted.step_s), _replayed(before.token_times)


def _point(interval: Interval | None) -> float:
    return interval.point if interval else float("nan")


def _replayed(times: TokenTimes | None) -> float:
    return _point(times.replayed_answer_s) if times else float("nan")
