"""The rows of ``bench local``: promised errors beside what simpler predictions reach on the same runs."""

from dataclasses import replace

import pytest

from benchmarks.local.run import MODELS_FILE, SHAPES, LocalPoint, measure, rows
from leadline.core.errors import JobFailed

POINTS = [
    LocalPoint("mlp", "training", 32, 1.1, 0.5, 2.0e8, measured_s=1.0, measured_bytes=2.0e8, noise=0.02),
    LocalPoint("mlp", "inference", 32, 0.7, 0.5, 1.0e8, measured_s=1.0, measured_bytes=2.0e8, noise=0.04),
]


def test_the_rows_are_the_means_of_the_points_errors():
    by_name = {row.name: row for row in rows(POINTS)}
    assert pytest.approx(by_name["step time MAPE"].value) == 20
    assert pytest.approx(by_name["step time MAPE, training"].value) == 10
    assert pytest.approx(by_name["step time MAPE, inference"].value) == 30
    assert pytest.approx(by_name["host memory MAPE"].value) == 25
    assert by_name["host memory MAPE"].met is False
    assert pytest.approx(by_name["plain roofline MAPE"].value) == 50
    assert pytest.approx(by_name["best constant MAPE"].value) == 0
    assert pytest.approx(by_name["noise floor"].value) == 3
    assert "roofline × 2.00" in by_name["best constant MAPE"].how


def test_each_sweep_counts_alike_and_a_step_once():
    later = [replace(POINTS[0], predicted_s=1.3), replace(POINTS[1], predicted_s=1.0)]
    row = rows([*POINTS, *later])[0]
    assert (pytest.approx(row.value), row.n) == (17.5, 2)
    assert "mean of 2 sweeps of this machine (15.0 to 20.0 % on all steps)" in row.how


def test_a_model_is_run_in_a_process_of_its_own():
    pytest.importorskip("torch")
    point = measure(LocalPoint("mlp", "inference", SHAPES["mlp"][1][0], 1.0, 1.0, 1.0), budget_s=0.05)
    assert 0 < point.measured_s < 10
    assert 2**25 < point.measured_bytes < 2**34


def test_a_model_that_does_not_run_is_named_with_what_it_said(tmp_path):
    (tmp_path / "models.py").write_text("def build_mlp(): raise ValueError('no such layer')\n")
    pytest.importorskip("torch")
    with pytest.raises(JobFailed, match=r"mlp did not run: .*no such layer"):
        measure(LocalPoint("mlp", "inference", 2, 1.0, 1.0, 1.0), budget_s=0.05, file=tmp_path / "models.py")
    assert MODELS_FILE.exists()
