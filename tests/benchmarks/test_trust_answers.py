"""The rows about answers: each reproducer meets its target, and published runs are read as workloads."""

import pytest

from benchmarks.trust.answers import rows
from benchmarks.trust.multi_node import published_runs

RUN = {
    "source_id": "made-up", "model": "Llama 3 8B", "layers": 32.0, "hidden": 4096.0, "heads": 32.0, "kv_heads": 8.0,
    "ffn": 14336.0, "vocab": 128256.0, "experts": None, "seq": 8192.0, "device": "A100-SXM-80GB", "gpus": 64,
    "tp": 1.0, "pp": 1, "cp": 1, "ep": 1, "sharding": "fsdp2", "micro_batch": 1.0, "global_batch": 64.0,
    "precision": "bf16", "recompute": "", "status": "ok", "step_time_s": None, "tokens_per_s_per_gpu": 2904.0,
    "mfu_pct": 56.8,
}  # fmt: skip
"""A published run of torchtitan (BSD-3-Clause, docs/performance.md)."""


def test_every_reproducer_of_a_wrong_answer_meets_its_target():
    missed = [row for row in rows() if not row.met]
    assert missed == []


def test_published_runs_on_several_nodes_are_compared_with_the_interval(tmp_path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    others = [{**RUN, "gpus": 8}, {**RUN, "experts": 8.0}, {**RUN, "precision": "fp8"}, {**RUN, "status": "oom"}]
    parquet.write_table(pyarrow.Table.from_pylist([RUN, *others]), tmp_path / "llm_train_scale.parquet")
    coverage, ratio = published_runs(tmp_path)
    assert (coverage.value, coverage.n) == (100.0, 1)
    assert ratio.met
