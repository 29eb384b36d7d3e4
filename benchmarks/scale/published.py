"""Training steps of large models as their papers report them, predicted by the command line's own path."""

import json
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.results import BenchmarkRow, within
from benchmarks.scale.bridge_rows import CONFIGURATIONS
from leadline.app.composition import toolbox
from leadline.app.estimate.estimate import estimate
from leadline.app.estimate.fit import fit
from leadline.app.workloads.options import WorkloadOptions
from leadline.app.workloads.read import read_workload
from leadline.core.units import GIB, HOUR_S

LLAMA_405B = CONFIGURATIONS["LLAMA3.1_405B"]
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

    def command(self) -> str:
        """Return the command that predicts the step from the model's published ``config.json``."""
        flags = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in self.options.items())
        return f'leadline estimate config.json {flags} --on "{self.device}"'


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
    # NVIDIA-NeMo/Automodel docs/performance-summary.mdx at 36044ad3, its layout from examples/llm_benchmark.
    PublishedStep(
        "Llama 3 70B on 64 H100", CONFIGURATIONS["LLAMA3_70B"], "H100 SXM5 80GB", 18.90, "NeMo AutoModel",
        {"gpus": 64, "context_parallel": 2, "sharding": "full", "batch": 1, "accumulate": 4, "seq": 8192,
         "precision": "bf16", "recompute": "full", "fusion": "library"},
    ),
    # DeepSeek-V3 Technical Report (2024), sections 3.1, 4.2 and table 1: 180,000 GPU hours for 1e12 tokens, 15,360
    # sequences of 4,096 tokens a step, 16 stages, experts on 64 GPUs, ZeRO-1. DualPipe counts as two chunks a stage.
    PublishedStep(
        "DeepSeek-V3 on 2,048 H800", CONFIGURATIONS["DeepSeekV3"], "H800 SXM5 80GB",
        180e3 * HOUR_S / 1e12 * 15360 * 4096 / 2048, "DeepSeek-V3 Technical Report, table 1",
        {"gpus": 2048, "pipeline_parallel": 16, "virtual_stages": 2, "expert_parallel": 64, "sharding": "optimizer",
         "batch": 1, "accumulate": 120, "seq": 4096, "precision": "fp8", "overlap": "all"},
    ),
)  # fmt: skip
# gpt-oss-120b & gpt-oss-20b Model Card (2025), table 1: the checkpoints; openai/gpt-oss README: one GPU of 80 GB, and
# 16 GB of memory.
GPT_OSS = (("GPT OSS 120B", 60.8, "H100 SXM5 80GB"), ("GPT OSS 20B", 12.8, "RTX 4080"))


def published_rows() -> list[BenchmarkRow]:
    """Return predicted ÷ published seconds of each step, and the memory of GPT-OSS on one GPU."""
    return [*(_row(step) for step in STEPS), *(_memory_row(*each) for each in GPT_OSS)]


def _memory_row(model: str, checkpoint_gib: float, device: str) -> BenchmarkRow:
    """Return the predicted memory of inference with experts in MXFP4 over the published size of the checkpoint."""
    config = CONFIGURATIONS[model] | {"quantization_config": {"quant_method": "mxfp4"}}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(config), encoding="utf-8")
        workload = read_workload([str(path)], WorkloadOptions(phase="inference", batch=1, seq=2048))
        report = fit(workload, toolbox(), on=[device], risk=0.05, changes=False)[0]
    memory = report.estimate.gpu_memory_bytes
    name = f"{model} on one {device}: memory predicted ÷ published checkpoint"
    if memory is None:
        return BenchmarkRow(name, None, "ratio", how="no prediction")
    how = f"{checkpoint_gib} GiB by OpenAI; predicted {memory.point / GIB:.1f} GiB, fits: {report.fits}"
    return within(name, memory.point / (checkpoint_gib * GIB), DEVICE_CLOSE, "ratio", how=how)


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
    how += f", holds: {inside}); `{step.command()}`"
    return within(name, found.point / step.elapsed_s, DEVICE_CLOSE, "ratio", how=how)
