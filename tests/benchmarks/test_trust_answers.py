"""The rows about answers: each reproducer meets its target, and published runs are read as workloads."""

import tempfile

import pytest

from benchmarks.trust import answers
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


def test_every_reproducer_of_a_wrong_answer_meets_its_target_and_leaves_no_files(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    missed = [row for row in rows() if not row.met]
    assert missed == []
    assert list(tmp_path.iterdir()) == []


def test_a_row_that_fails_leaves_no_files_either(tmp_path, monkeypatch):
    def fail():
        raise OSError("no space left")

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(answers, "orders_by_name", fail)
    with pytest.raises(OSError, match="no space left"):
        rows()
    assert list(tmp_path.iterdir()) == []
    assert tempfile.gettempdir() == str(tmp_path)


def test_published_runs_on_several_nodes_are_compared_with_the_interval(tmp_path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    others = [{**RUN, "gpus": 8}, {**RUN, "experts": 8.0}, {**RUN, "precision": "fp8"}, {**RUN, "status": "oom"}]
    parquet.write_table(pyarrow.Table.from_pylist([RUN, *others]), tmp_path / "llm_train_scale.parquet")
    coverage, ratio = published_runs(tmp_path)
    assert (coverage.value, coverage.n) == (100.0, 1)
    assert ratio.met
