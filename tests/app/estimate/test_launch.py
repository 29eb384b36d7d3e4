"""A host's launches, CUDA graphs and torch.compile change the time of a step, on kernels and on whole steps."""

import json

import numpy as np
import pytest
from msgspec.structs import replace

from leadline.app.composition import toolbox
from leadline.app.estimate.estimate import estimate
from leadline.app.estimate.step_models import step_model_of
from leadline.app.workloads.options import WorkloadOptions, parse_launch
from leadline.app.workloads.read import read_workload
from leadline.core.errors import InvalidInput
from leadline.core.hardware import Calibration
from leadline.core.workload import Launch
from leadline.estimators.parallelism.step_parts import NAMES
from leadline.training.step_adaptation import TRANSFORMERS_HOST

LLAMA = {"model_type": "llama", "hidden_size": 1024, "intermediate_size": 2752, "num_attention_heads": 16,
         "num_hidden_layers": 24, "vocab_size": 32000, "max_position_embeddings": 8192}  # fmt: skip
DEVICE = "H100 SXM5 80GB"


@pytest.fixture
def predict(tmp_path, monkeypatch):
    monkeypatch.setenv("LEADLINE_DATA_DIR", str(tmp_path / "data"))
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))

    def ask(device=DEVICE, **options):
        asked = {"batch": 1, "seq": 128, "precision": "bf16", **options}
        return estimate(read_workload([str(path)], WorkloadOptions(**asked)), toolbox(), on=[device]).estimates[0]

    return ask


INFERENCE = {"phase": "inference"}
DECODING = {"phase": "inference", "generate": 8}
MANY = {"gpus": 8, "sharding": "full"}


def width(interval):
    return interval.high / interval.low


@pytest.mark.parametrize("job", [{}, MANY, {"lora": 8}, INFERENCE, DECODING],
                         ids=["training", "many GPUs", "adapters", "inference", "decoding"])  # fmt: skip
def test_a_slow_host_makes_small_steps_slow_and_graphs_make_them_fast(predict, job):
    usual, slow, graphs = (predict(**job, launch=launch).step_s for launch in (None, "45us", "graphs"))
    assert slow.point > 2 * usual.point
    assert graphs.point < 0.7 * usual.point


def test_large_steps_do_not_depend_on_their_host(predict):
    usual, slow = (predict(batch=8, seq=8192, launch=launch).step_s.point for launch in (None, "30us"))
    assert slow == pytest.approx(usual, rel=0.02)


def test_a_known_host_narrows_the_interval_of_steps_that_wait_for_it(predict):
    for job in ({}, INFERENCE):
        assert width(predict(**job, launch="9us").step_s) < 0.8 * width(predict(**job).step_s)


def test_graphs_are_said_to_be_assumed_and_widen_large_steps(predict):
    usual, graphs = predict(batch=8, seq=4096), predict(batch=8, seq=4096, launch="graphs")
    assert width(graphs.step_s) > width(usual.step_s)
    assert any("assumed: CUDA graphs leave no launches" in reason for reason in graphs.basis.reasons)
    replayed = predict(**INFERENCE, launch="graphs")
    assert any("CUDA graphs: no launch of single kernels (assumed" in reason for reason in replayed.basis.reasons)
    assert replayed.estimator.endswith("CUDA graphs")


def test_the_compiler_fuses_ops_between_products_and_says_what_is_assumed(predict):
    for job in ({**INFERENCE, "batch": 32, "seq": 2048}, {"batch": 8, "seq": 2048}):
        usual, compiled = predict(**job), predict(**job, fusion="compiler")
        assert 0.4 * usual.step_s.point < compiled.step_s.point < 0.98 * usual.step_s.point
    assert "compiled" not in compiled.estimator
    answer = predict(**INFERENCE, fusion="compiler", launch="graphs")
    assert answer.estimator.endswith("compiled, CUDA graphs")
    assert any("torch.compile: ops between products take 0.54 of their time" in text for text in answer.basis.reasons)


def test_a_cpu_has_no_graphs(predict):
    assert (
        predict("Xeon Gold 6148", **INFERENCE, launch="graphs").step_s == predict("Xeon Gold 6148", **INFERENCE).step_s
    )


def test_a_calibrated_host_counts_with_what_transformers_add():
    device = toolbox().catalog.device(DEVICE)
    figures = {"launch_s": 20e-6, "launch_forward_s": 20e-6, "launch_backward_s": 14e-6}
    measured = replace(device, calibration=Calibration("now", "torch", 8, figures=figures))
    assert measured.launch_s == pytest.approx(16e-6)
    model, reasons = step_model_of(measured)
    assert np.exp(model.theta[NAMES.index("launch_s")]) == pytest.approx(TRANSFORMERS_HOST * 16e-6)
    assert "by leadline calibrate; assumed: 2.2 times that in a model of transformers" in reasons[1]
    assert device.with_launch(5e-6).launch_s == pytest.approx(5e-6)
    assert measured.with_launch(5e-6).calibration.figures == {"launch_s": 5e-6}


@pytest.mark.parametrize("text", ["fast", "0us", "25", "1e-5s", "20ms", "-3us", "9" * 400 + "us"])
def test_a_launch_that_no_host_has_is_refused(text):
    with pytest.raises(InvalidInput, match="write eager or graphs, or the host's time for an op, as in 25us"):
        parse_launch(text)


def test_times_of_a_launch_have_their_unit():
    assert parse_launch("25us") == (Launch.EAGER, pytest.approx(25e-6))
    assert parse_launch("0.05 ms") == (Launch.EAGER, pytest.approx(50e-6))
    assert parse_launch("graphs") == (Launch.GRAPHS, None)
    assert parse_launch(None) == (Launch.EAGER, None)


def test_xla_takes_no_launch(tmp_path):
    path = tmp_path / "step.mlir"
    path.write_text("")
    with pytest.raises(InvalidInput, match="XLA launches a whole module"):
        read_workload([str(path)], WorkloadOptions(launch="graphs"))
