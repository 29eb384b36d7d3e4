"""Published training steps on many GPUs as rows of ``bench scale``."""

import pytest

from benchmarks.scale.bridge_rows import automodel_steps, bridge_steps
from leadline.core.workload import Precision, Sharding

PAGE = """
## 26.06 NeMo Container

### Pre-Training Performance

#### Model: LLAMA3_70B

| System | #-GPUs | Precision | GBS | MBS | Sequence Length | FSDP | TP | PP | CP | VP | EP | Tokens / sec / GPU |
|--------|--------|-----------|-----|-----|-----------------|------|----|----|----|----|----|--------------------|
| DGX-GB300 | 64 | NVFP4 | 256 | 1 | 8192 | 0 | 1 | 4 | 1 | 5 | n/a | 7296 |
| DGX-GB200 | 64 | FP8-CS (FP8-MX) | 256 | 2 | 8192 | 64 | 1 | 1 | 1 | n/a | n/a | 4224[^slow] (4000) |
| DGX-Unknown | 64 | BF16 | 256 | 1 | 8192 | 0 | 1 | 4 | 1 | 5 | n/a | 7296 |

#### System: DGX-H100

| Model | #-GPUs | Precision | GBS | MBS | Sequence Length | TP | PP | CP | VP | EP | Tokens / sec / GPU |
|-------|--------|-----------|-----|-----|-----------------|----|----|----|----|----|--------------------|
| Qwen3_235B_a22B | 256 | FP8 | 8192 | 1 | 4096 | 2 | 8 | 1 | 4 | 32 | 1712 |
| Another Model | 256 | FP8 | 8192 | 1 | 4096 | 2 | 8 | 1 | 4 | 32 | 1712 |

### LoRA Performance

#### Model: LLAMA3_70B

| System | #-GPUs | Precision | GBS | MBS | Sequence Length | TP | PP | CP | VP | EP | Tokens / sec / GPU |
|--------|--------|-----------|-----|-----|-----------------|----|----|----|----|----|--------------------|
| DGX-H100 | 8 | FP8 | 32 | 1 | 4096 | 2 | 4 | 1 | 20 | n/a | 2643 |
"""


@pytest.fixture
def steps(tmp_path):
    (tmp_path / "a-performance-summary.md").write_text(PAGE)
    return bridge_steps(tmp_path)


def test_only_pre_training_of_models_on_systems_that_are_described_is_read(steps):
    assert [(step.model, step.device) for step in steps] == [
        ("LLAMA3_70B", "GB300 (per GPU)"), ("LLAMA3_70B", "GB200 (per GPU)"), ("Qwen3_235B_a22B", "H100 SXM5 80GB"),
    ]  # fmt: skip


def test_a_step_takes_its_tokens_by_the_tokens_a_second(steps):
    assert [step.elapsed_s for step in steps] == pytest.approx(
        [256 * 8192 / (7296 * 64), 256 * 8192 / (4224 * 64), 8192 * 4096 / (1712 * 256)]
    )


def test_the_layout_of_a_step_is_that_of_its_row(steps):
    pipeline, sharded, experts = (step.workload for step in steps)
    assert (pipeline.precision, pipeline.parallelism.virtual, pipeline.accumulation) == (Precision.NVFP4, 5, 16)
    assert (sharded.precision, sharded.parallelism.sharding) == (Precision.FP8, Sharding.FULL)
    assert (experts.parallelism.expert, experts.parallelism.tensor, experts.accumulation) == (32, 2, 512)


def test_a_folder_without_pages_has_no_steps(tmp_path):
    assert bridge_steps(tmp_path) == []


def test_each_step_of_automodel_has_all_its_samples():
    for step in automodel_steps():
        work = step.workload
        samples = work.batch * work.accumulation * work.parallelism.copies(work.gpus)
        assert samples in (128, 256, 512), step.model
