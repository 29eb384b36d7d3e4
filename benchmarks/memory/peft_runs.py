"""Fine-tunes with the methods of peft, as the project measured them, beside those of Qwen in ``bench fine-tunes``.

The folder ``peft_metamathqa`` has the files of ``method_comparison/MetaMathQA/results`` in huggingface/peft
(Apache-2.0): Llama 3.2 3B on an L40S with PyTorch 2.13, batches of 4 and up to 768 tokens, bfloat16 without autocast,
AdamW. Each file has the method's configuration and the most memory that the allocator reserved.

Left out are methods that Leadline does not know, OSF, whose rank differs by layer, and full fine-tuning.
"""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.results import BenchmarkRow, at_most
from leadline.app.estimate.estimate import Toolbox, estimate
from leadline.app.workloads.options import WorkloadOptions
from leadline.app.workloads.read import read_workload
from leadline.catalog.read import TomlCatalog
from leadline.core.errors import InvalidInput
from leadline.core.units import GB
from leadline.core.workload import Adapters, Optimizer, Precision
from leadline.estimators.gpu_memory_interval import context_bytes

FOLDER, DEVICE = "peft_metamathqa", "L40S"
MEDIAN, UNDER = 8.0, 6.0
"""Targets in percent, as of the fine-tunes of Qwen."""
LEFT_OUT = ("OSF",)
LLAMA = {
    "model_type": "llama", "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 28,
    "num_attention_heads": 24, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256,
    "max_position_embeddings": 131072, "tie_word_embeddings": True,
}  # fmt: skip


def predict_peft_runs(data: Path, tools: Toolbox, folder: Path) -> list[dict[str, object]]:
    """Return the details of the runs in ``data``: reserved memory in GB, measured and predicted.

    Runs that differ in nothing but a learning rate or a start value count once. ``folder`` is for temporary files.
    """
    context = context_bytes(TomlCatalog(None).device(DEVICE))
    config = folder / "config.json"
    config.write_text(json.dumps(LLAMA), encoding="utf-8")
    details: list[dict[str, object]] = []
    counted: set[Adapters] = set()
    for path in sorted((data / FOLDER).glob("*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        method, run = content["run_info"]["peft_config"], content["run_info"]["train_config"]
        if method is None or method["peft_type"] in LEFT_OUT:
            continue
        adapter = folder / "adapter_config.json"
        adapter.write_text(json.dumps({**method, "lora_fa": run["optimizer_type"] == "lora-fa"}), encoding="utf-8")
        try:
            workload = read_workload([str(config)], WorkloadOptions(peft=str(adapter), batch=run["batch_size"],
                                                                    seq=run["max_seq_length"]))  # fmt: skip
        except InvalidInput:
            continue  # a method that is not estimated
        settings = (("autocast", run["use_amp"]), ("autocast_adapter_dtype", run["autocast_adapter_dtype"]))
        adapters = workload.adapters or Adapters()
        adapters = replace(adapters, settings=(*adapters.settings, *settings))
        if adapters in counted:
            continue
        counted.add(adapters)
        workload = replace(workload, adapters=adapters, precision=Precision.BF16, optimizer=Optimizer.ADAMW)
        memory = estimate(workload, tools, on=[DEVICE]).estimates[0].gpu_memory_bytes
        if memory is None:
            raise InvalidInput(f"no prediction of memory for {path.name}")
        details.append({
            "source": "peft", "run": path.stem, "method": adapters.method, "sequence": workload.sequence,
            "measured_gb": content["train_info"]["accelerator_memory_max"] / GB,
            "predicted_gb": (memory.point - context.point) / GB, "high_gb": (memory.high - context.high) / GB,
        })  # fmt: skip
    return details


def peft_rows(details: list[dict[str, object]]) -> list[BenchmarkRow]:
    """Return the errors of the runs, and the share above an interval whose source is another."""
    measured, predicted, high = (
        np.array([run[key] for run in details], float) for key in ("measured_gb", "predicted_gb", "high_gb")
    )
    errors, n = 100 * np.abs(predicted - measured) / measured, len(details)
    how = f"{len({str(run['method']) for run in details})} methods of peft; reserved memory; no point is fitted"
    return [
        at_most("peft: memory, median error", float(np.median(errors)), MEDIAN, "%", n=n, how=how),
        at_most("peft: above the interval", 100 * float(np.mean(measured > high)), UNDER, "%", n=n),
        BenchmarkRow("peft: memory, largest error", float(np.max(errors)), "%", n=n),
    ]
