"""Training steps of large models as their papers report them, predicted by the command line's own path."""

import json
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.results import BenchmarkRow, within
from leadline.app.composition import toolbox
from leadline.app.estimate.estimate import estimate
from leadline.app.workloads.options import WorkloadOptions
from leadline.app.workloads.read import read_workload

LLAMA_405B = {
    "model_type": "llama", "hidden_size": 16384, "num_hidden_layers": 126, "intermediate_size": 53248,
    "num_attention_heads": 128, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,
}  # fmt: skip
LLAMA_70B = {
    "model_type": "llama", "hidden_size": 8192, "num_hidden_layers": 80, "intermediate_size": 28672,
    "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,
}  # fmt: skip
DEVICE_CLOSE = (0.75, 1.25)


@dataclass(frozen=True, slots=True)
class PublishedStep:
    """A step of a paper: its seconds, or what they follow from, and the options that describe it."""

    name: str
    config: dict[str, object]
    device: str
    elapsed_s: float
    source: str
    options: dict[str, object] = field(default_factory=dict)


def _step_s(parameters: float, tokens: float, flops_per_gpu: float, gpus: int, attention: float = 0.0) -> float:
    """Return the seconds of a step from its model FLOP/s: 6 a weight and token, and attention's."""
    return (6 * parameters + attention) * tokens / (flops_per_gpu * gpus)


# Attention's FLOPs a token at a sequence of s tokens: 12·L·h·s for all pairs, half of it if only causal ones count.
_405B_ATTENTION = 6.0 * 126 * 16384
STEPS = (
    # The Llama 3 Herd of Models (2024), table 4: 16 M tokens a step; BF16 at 400 TFLOP/s a GPU (41 % of the peak).
    PublishedStep(
        "Llama 3 405B on 16,384 H100", LLAMA_405B, "H100 SXM5 80GB",
        _step_s(405.9e9, 2048 * 8192, 400e12, 16384, _405B_ATTENTION * 8192), "The Llama 3 Herd of Models, table 4",
        {"gpus": 16384, "tensor_parallel": 8, "pipeline_parallel": 16, "virtual_stages": 7, "sharding": "optimizer",
         "batch": 1, "accumulate": 16, "seq": 8192, "precision": "bf16"},
    ),
    PublishedStep(
        "Llama 3 405B on 8,192 H100", LLAMA_405B, "H100 SXM5 80GB",
        _step_s(405.9e9, 2048 * 8192, 430e12, 8192, _405B_ATTENTION * 8192), "The Llama 3 Herd of Models, table 4",
        {"gpus": 8192, "tensor_parallel": 8, "pipeline_parallel": 16, "virtual_stages": 7, "sharding": "optimizer",
         "batch": 1, "accumulate": 32, "seq": 8192, "precision": "bf16"},
    ),
    PublishedStep(
        "Llama 3 405B on 16,384 H100, 128k tokens", LLAMA_405B, "H100 SXM5 80GB",
        _step_s(405.9e9, 128 * 131072, 380e12, 16384, _405B_ATTENTION * 131072), "The Llama 3 Herd of Models, table 4",
        {"gpus": 16384, "tensor_parallel": 8, "context_parallel": 16, "pipeline_parallel": 16, "virtual_stages": 7,
         "sharding": "optimizer", "batch": 1, "accumulate": 16, "seq": 131072, "precision": "bf16"},
    ),
)  # fmt: skip


def published_rows() -> list[BenchmarkRow]:
    """Return predicted ÷ published seconds of each step."""
    return [_row(step) for step in STEPS]


def _row(step: PublishedStep) -> BenchmarkRow:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(step.config), encoding="utf-8")
        workload = read_workload([str(path)], WorkloadOptions(**step.options))  # type: ignore[arg-type]
        found = estimate(workload, toolbox(), on=[step.device]).estimates[0].step_s
    name = f"{step.name}: predicted ÷ published"
    if found is None:
        return BenchmarkRow(name, None, "ratio", how="no prediction")
    inside = found.low <= step.elapsed_s <= found.high
    how = f"{step.elapsed_s:.1f} s by {step.source}; predicted {found.point:.1f} s ({found.low:.1f} to {found.high:.1f}"
    return within(name, found.point / step.elapsed_s, DEVICE_CLOSE, "ratio", how=f"{how}, holds: {inside})")
