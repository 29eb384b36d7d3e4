"""Peak memory of inference with weights and caches in few bits, against published peaks."""

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from benchmarks.results import BenchmarkRow, at_most
from benchmarks.scale.serving import MODELS, llama_config
from benchmarks.tables import read_table
from leadline.app.workloads.options import WorkloadOptions
from leadline.app.workloads.read import read_workload
from leadline.catalog.read import TomlCatalog
from leadline.core.hardware import Device
from leadline.estimators.memory.device import job_peak
from leadline.graphs.hf_config.expand import expand

_LLAMA_7B, _MISTRAL = MODELS["LLaMA 7B"], MODELS["Mistral 7B"]
CONFIGURATIONS: Mapping[str, Mapping[str, object]] = {
    "Vicuna 7B": _LLAMA_7B, "Llama 2 7B": _LLAMA_7B, "Mistral 7B": _MISTRAL,
    "Llama 2 13B": llama_config(5120, 13824, 40, 40, 40, 32000), "Llama 2 70B": MODELS["LLaMA 70B"],
    "TinyLlama 1B": llama_config(2048, 5632, 32, 4, 22, 32000),
    "CodeLlama 34B": llama_config(8192, 22016, 64, 8, 48, 32000),
    "DeepSeek 33B": llama_config(7168, 19200, 56, 8, 62, 32256),
    "Mixtral 46.7B": {**_MISTRAL, "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2},
    "Qwen-7B-Chat": llama_config(4096, 11008, 32, 32, 32, 151936),
}  # fmt: skip
FORMATS = {"bf16": (None, "bf16"), "bnb.nf4-dq": ("4bit", "NF4"), "awq int4 g128 gemm": ("awq", "AWQ"),
           "awq int4 g128 gemv": ("awq", "AWQ")}  # fmt: skip
"""Name in the table → option, and name of the row."""
PROMPT, GENERATED = 32, 64
"""Tokens where the table names none: they hardly matter to a batch of 1."""
DEVICE = "A100 SXM4 80GB"
LIMIT = 10.0


def memory_rows(data: Path) -> list[BenchmarkRow]:
    """Return the median error of peak memory for each format of weights and cache.

    Raises:
        InvalidInput: the folder lacks the table.
    """
    cells = read_table(data, "llm_quant_memory")
    usual = (cells["kind"] == "peak memory, generate") & np.isin(cells["model"], list(CONFIGURATIONS))
    usual &= np.isin(cells["quant"], list(FORMATS)) & (np.nan_to_num(cells["value_gb"]) > 0)
    usual &= cells["unit"] == "GB (as told)"
    errors: dict[str, list[float]] = {}
    device = TomlCatalog().device(DEVICE)
    for row in np.flatnonzero(usual).tolist():
        option, name = FORMATS[str(cells["quant"][row])]
        narrow = str(cells["kv_cache_quant"][row]) == "int8"
        sizes = [float(np.nan_to_num(cells[column][row])) for column in ("batch", "isl", "osl")]
        options = WorkloadOptions(
            phase="inference", batch=int(sizes[0] or 1), seq=int(sizes[1] or PROMPT), quantize=option,
            generate=int(sizes[2] or GENERATED), paged=narrow or None, kv_cache_dtype="int8" if narrow else None,
        )  # fmt: skip
        size = _peak_bytes(CONFIGURATIONS[str(cells["model"][row])], options, device)
        ratio = size / (1e9 * float(cells["value_gb"][row]))
        errors.setdefault(f"{name}, int8 cache" if narrow else name, []).append(ratio - 1)
    return [
        at_most(f"serving memory, {name}: median error", 100 * float(np.median(np.abs(each))), LIMIT, "%", n=len(each),
                how=f"tensors alone; median of predicted ÷ published {1 + np.median(each):.2f}")
        for name, each in sorted(errors.items())
    ]  # fmt: skip


def _peak_bytes(config: Mapping[str, object], options: WorkloadOptions, device: Device) -> int:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps({**config, "dtype": "bfloat16"}), encoding="utf-8")
        return job_peak(expand(read_workload([str(path)], options)), device).allocated_bytes
