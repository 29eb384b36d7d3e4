"""The shipped models are complete, small, fast to load, and chosen by the errors on their card."""

import json
import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from leadline.app.estimate.step_estimators import select_kernels
from leadline.catalog.read import TomlCatalog
from leadline.core.errors import InvalidInput, MissingExtra
from leadline.core.estimate import Tier
from leadline.core.graph import Op, OpGraph, OpKind, Stage, TensorSpec, TracedJob
from leadline.core.hardware import Device, DeviceKind
from leadline.core.workload import ModelKind, ModelSource, Phase, Precision, Workload
from leadline.estimators.step_time.fitted_kernels import LearnedKernels
from leadline.estimators.step_time.op_utilization_kernels import OpUtilizationKernels, StepSetting
from leadline.estimators.step_time.roofline import UNMEASURED_SPREAD, RooflineKernels
from leadline.estimators.step_time.selection import Domain, StepGroup, rank_estimators
from leadline.estimators.step_time.step_kernels import BlackBoxKernels, NetworkKernels
from leadline.estimators.step_time.swept_kernels import SweptKernels
from leadline.graphs.hf_config.expand import expand
from leadline.training.shipped_models import (
    load_network,
    shipped_accuracy,
    shipped_kernels,
    shipped_network,
    shipped_op_utilization,
)

BERT = {"model_type": "bert", "hidden_size": 768, "num_hidden_layers": 2, "num_attention_heads": 12,
        "intermediate_size": 3072, "vocab_size": 30522, "max_position_embeddings": 512}  # fmt: skip


NAMES = (
    OpUtilizationKernels.name,
    LearnedKernels.name,
    NetworkKernels.name,
    BlackBoxKernels.name,
    RooflineKernels.name,
)


@pytest.fixture
def job(tmp_path):
    def traced(precision=Precision.FP32, phase=Phase.INFERENCE):
        path = tmp_path / "config.json"
        path.write_text(json.dumps(BERT))
        source = ModelSource(ModelKind.HF_CONFIG, str(path))
        return expand(Workload(source, phase=phase, batch=8, sequence=256, precision=precision))

    return traced


def device(name):
    return TomlCatalog().device(name)


def test_every_estimator_has_errors_on_measured_steps():
    records = shipped_accuracy()
    assert {*NAMES, SweptKernels.name} == {record.estimator for record in records}
    for record in records:
        assert 0 < record.error < record.within * 1.2
        assert record.steps >= 8
        assert record.devices
        assert record.source


def test_no_group_has_two_records_of_one_estimator():
    keys = [(record.estimator, record.group, record.known) for record in shipped_accuracy()]
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize(
    ("group", "knowing", "first"),
    [
        (StepGroup(Domain.VISION, "half", "inference"), (OpUtilizationKernels.name,), OpUtilizationKernels.name),
        (StepGroup(Domain.VISION, "half", "training"), (), OpUtilizationKernels.name),
        (StepGroup(Domain.LANGUAGE, "single", "inference"), (), LearnedKernels.name),
        (StepGroup(Domain.LANGUAGE, "half", "training"), (), RooflineKernels.name),
    ],
    ids=str,
)
def test_each_group_gets_the_most_accurate_estimator(group, knowing, first):
    assert first == rank_estimators(shipped_accuracy(), group, NAMES, knowing)[0].estimator


def test_a_transformer_in_single_precision_uses_learned_kernels(job):
    model = select_kernels(device("A100 PCIe 40GB"), job())
    assert (LearnedKernels.name, Tier.LEARNED) == (model.name, model.tier)
    assert "priced by the learned kernels: " in model.reasons[0]
    assert "the maker's figures" in model.reasons[0]
    assert pytest.approx(RooflineKernels(device("A100 PCIe 40GB")).step_s(job().step), rel=1.0) == model.step_s(
        job().step
    )


def test_a_group_without_measured_steps_has_an_assumed_interval(job):
    traced = job()
    plain = replace(traced.step, ops=tuple(op for op in traced.step.ops if op.kind.value == "gemm"))
    model = select_kernels(device("A100 SXM4 80GB"), TracedJob(plain))
    assert RooflineKernels.name == model.name
    assert model.reasons[0].startswith(
        "the interval is an assumption: no measured steps are like this job (inference in single precision"
    )
    assert model.spread_of(plain) == UNMEASURED_SPREAD


def test_a_cpu_is_estimated_from_its_specifications(job):
    cpu = next(
        device for device in TomlCatalog().devices() if device.kind is DeviceKind.CPU and device.memory_bytes_per_s
    )
    assert select_kernels(cpu, job()).reasons == ()


def test_an_estimator_that_does_not_apply_is_skipped_with_the_reason():
    spec = TensorSpec((8, 64, 32, 32), "float16")
    sizes = {"n": 8, "c": 64, "k": 64, "h": 32, "w": 32, "r": 3, "s": 3, "groups": 1, "stride": 1}
    conv = Op("aten.convolution", OpKind.CONV, Stage.FORWARD, "float16", 6e8, 1e6, 1e6, (spec,), (spec,), sizes)
    lookup = Op("aten.embedding", OpKind.EMBEDDING, Stage.FORWARD, "float16", 0.0, 1e9, 1e9, (spec,), (spec,))
    model = select_kernels(device("RTX 4090"), TracedJob(OpGraph((conv, lookup))))
    assert LearnedKernels.name == model.name
    assert re.match(r"the op law \(error \d+%\) does not apply: \d+% of its time is in ", model.reasons[1])
    assert "kernels of which no step was learned (embedding)" in model.reasons[1]


def test_states_are_small_and_loaded_once():
    assert shipped_op_utilization() is shipped_op_utilization()
    assert len(shipped_op_utilization().models) >= 8
    assert len(shipped_kernels().groups) >= 5


def test_estimates_need_numpy_alone(tmp_path):
    """What a plain install has is enough: nothing else of the sciences is imported."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(BERT))
    words = f"estimate {path} --phase inference --batch 8 --seq 128 --precision fp32 --on T4".split()
    code = (
        "import sys\n"
        "for name in ('scipy', 'sklearn', 'torch', 'onnxruntime', 'lightgbm', 'pandas', 'matplotlib'):\n"
        "    sys.modules[name] = None\n"
        "from leadline.interfaces.cli.main import main\n"
        f"sys.exit(main({words!r}))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "priced by the learned kernels" in done.stdout


INFERENCE = StepSetting("RTX 3090", training=False, channels_last=False, release=(2, 40))
DEVICE = Device(
    "Like an RTX 3090", "nvidia", DeviceKind.GPU, memory_bytes_per_s=936e9, l2_bytes=6_291_456, compute_units=82,
    boost_hz=1.695e9, peak_flops_per_s={"float32": 35.6e12, "float16": 71e12, "tf32": 35.6e12},
)  # fmt: skip


def relu(size, sources=()):
    spec = TensorSpec((64, size, 56, 56), "float16")
    moved = 2.0 * 64 * size * 56 * 56
    return Op("aten.relu.default", OpKind.ELEMENTWISE, Stage.FORWARD, "float16", moved / 2, moved, moved, (spec,),
              (spec,), sources=sources)  # fmt: skip


def test_the_shipped_network_estimates_a_graph_near_its_bandwidth():
    pytest.importorskip("onnxruntime")
    graph = [relu(64), relu(128, (0,)), relu(256, (1,))]
    moved = sum(op.bytes_read + op.bytes_written for op in graph)
    predicted = shipped_network().predict([graph], DEVICE, INFERENCE)
    assert 0.8 * moved / 936e9 <= predicted[0] <= 2 * moved / 936e9


def test_a_step_twice_as_wide_takes_about_twice_as_long():
    pytest.importorskip("onnxruntime")
    predicted = shipped_network().predict([[relu(256)], [relu(512)]], DEVICE, INFERENCE)
    assert predicted[1] / predicted[0] == pytest.approx(2.0, rel=0.25)


def test_a_file_that_is_not_onnx_is_refused():
    pytest.importorskip("onnxruntime")
    with pytest.raises(InvalidInput, match=r"x\.onnx is not an ONNX model"):
        load_network(b"not a network", "x.onnx")


def test_another_network_is_refused_by_its_inputs():
    pytest.importorskip("onnxruntime")
    onnx = pytest.importorskip("onnx")
    value = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1])
    out = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1])
    graph = onnx.helper.make_graph([onnx.helper.make_node("Abs", ["x"], ["y"])], "g", [value], [out])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9)
    with pytest.raises(InvalidInput, match="other has the inputs x, not kind, node"):
        load_network(model.SerializeToString(), "other")


def test_without_onnxruntime_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingExtra, match=r"pip install 'leadline\[gnn\]'"):
        load_network(np.zeros(4).tobytes(), "any")
