"""Steps that wait for their host: the model adapted to some of them predicts others better."""

import numpy as np
import pytest

from benchmarks.scale import hosts
from benchmarks.scale.own_steps import measured_steps
from leadline.app.composition import toolbox


def test_steps_of_one_family_improve_the_prediction_of_another(tmp_path):
    steps = list(measured_steps())
    known = [step for step in steps if step["configuration"]["model"] in ("llama-1.1b", "llama-125m")]
    asked = [step for step in steps if step["configuration"]["model"] == "gemma2-2b"]
    tools = hosts._remembering(toolbox())

    def log_errors():
        predicted_s = np.array([hosts._predict(step, tmp_path, tools).point for step in asked])
        return np.abs(np.log(predicted_s * 1e3 / [step["step_ms"] for step in asked]))

    with hosts._data_folder(tmp_path):
        before = log_errors()
        hosts._adapt(known, tmp_path, tools)
        after = log_errors()
        hosts._adapt(known[:1], tmp_path, tools)
        assert log_errors() == pytest.approx(before)
    assert len(asked) == 3
    assert np.median(after) < np.median(before) / 2
