"""Our own measured steps as rows of ``bench scale``."""

from benchmarks.gpu_steps.configurations import MODELS
from benchmarks.scale.own_steps import _predict, measured_steps


def test_measured_training_steps_are_those_that_the_options_describe():
    rows = list(measured_steps())
    assert len(rows) == 50
    assert {row["configuration"]["model"] for row in rows} <= MODELS.keys()
    assert {row["configuration"]["attention"] for row in rows} == {"sdpa", "eager"}
    assert {row["configuration"]["lengths"] for row in rows} == {"fixed", "varied"}


def test_a_measured_step_is_within_its_interval(tmp_path):
    row = next(row for row in measured_steps() if row["configuration"]["model"] == "olmoe-cut")
    answer = _predict(row["configuration"], tmp_path)
    assert answer.step_s.low <= row["step_ms"] / 1e3 <= answer.step_s.high
    assert answer.gpu_memory_bytes.low <= row["device_bytes"] <= answer.gpu_memory_bytes.high
