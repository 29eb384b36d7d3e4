"""Which estimator prices a graph: the user's choice, the sweep of the device, or what was least off."""

import json
from dataclasses import replace
from importlib.util import find_spec

import pytest

from leadline.app.composition import toolbox
from leadline.app.estimate.estimate import estimate
from leadline.app.estimate.step_estimators import select_kernels
from leadline.app.workloads.options import WorkloadOptions
from leadline.app.workloads.read import read_workload
from leadline.catalog.read import TomlCatalog
from leadline.core.errors import InvalidInput
from leadline.core.estimate import EstimatorChoice, Tier
from leadline.core.graph import Op, OpGraph, OpKind, Stage, TensorSpec, TracedJob
from leadline.core.hardware import Calibration, Device, DeviceKind, KernelTiming
from leadline.core.workload import ModelKind, ModelSource, Phase, Workload
from leadline.graphs.hf_config.expand import expand

BERT = {"model_type": "bert", "hidden_size": 768, "num_hidden_layers": 2, "num_attention_heads": 12,
        "intermediate_size": 3072, "vocab_size": 30522, "max_position_embeddings": 512}  # fmt: skip
SIZES = [2**i for i in range(5, 13)]


@pytest.fixture
def bert(tmp_path, monkeypatch):
    monkeypatch.setenv("LEADLINE_DATA_DIR", str(tmp_path / "data"))
    path = tmp_path / "config.json"
    path.write_text(json.dumps(BERT))
    return expand(Workload(ModelSource(ModelKind.HF_CONFIG, str(path)), phase=Phase.INFERENCE, batch=8, sequence=256))


@pytest.fixture
def vision(tmp_path, monkeypatch):
    monkeypatch.setenv("LEADLINE_DATA_DIR", str(tmp_path / "data"))
    spec = TensorSpec((8, 64, 32, 32), "float16")
    sizes = {"n": 8, "c": 64, "k": 64, "h": 32, "w": 32, "r": 3, "s": 3, "groups": 1, "stride": 1}
    conv = Op("aten.convolution", OpKind.CONV, Stage.FORWARD, "float16", 6e8, 1e6, 1e6, (spec,), (spec,), sizes)
    return TracedJob(OpGraph((conv, conv)))


def known(name):
    return TomlCatalog(None).device(name)


def calibrated(device, flops_per_s):
    """Return the device after a sweep whose products ran at such a rate."""
    timings = tuple(
        KernelTiming("addmm", "float32", {"b": 1, "m": m, "n": n, "k": k}, 10e-6 + 2.0 * m * n * k / flops_per_s,
                     2.0 * m * n * k, 4.0 * (m * n + m * k + n * k))
        for m in SIZES for n in SIZES for k in SIZES[::2]
    )  # fmt: skip
    return replace(device, calibration=Calibration("now", "torch", 8, timings, {"launch_s": 5e-6}))


NAMES = {
    EstimatorChoice.OP_UTILIZATION: "op law", EstimatorChoice.KERNELS: "learned kernels",
    EstimatorChoice.NETWORK: "graph network", EstimatorChoice.BLACK_BOX: "black box",
    EstimatorChoice.SPECS: "maker's figures",
}  # fmt: skip


FROM_ALL = (EstimatorChoice.NETWORK, EstimatorChoice.BLACK_BOX)
"""Those that were asked about all measured steps; the others about a part, as kernels take milliseconds each."""


@pytest.mark.parametrize("choice", EstimatorChoice)
def test_the_users_choice_is_used_and_reported_with_its_error(choice, vision):
    if choice is EstimatorChoice.NETWORK and not find_spec("onnxruntime"):
        pytest.skip("onnxruntime is not installed")
    model = select_kernels(known("RTX 4090"), vision, choice)
    assert NAMES[choice] == model.name
    assert f"the {NAMES[choice]}, " in model.reasons[0]
    assert "% off on 1,290 steps of vision inference in half precision" in model.reasons[0] or (
        choice in FROM_ALL and "% off on 9,149 steps" in model.reasons[0]
    )
    step_s = model.step_s(vision.step)
    priced_s = sum(
        seconds * op.count for seconds, op in zip(model.ops_s(vision.step.ops), vision.step.ops, strict=True)
    )
    assert 1e-6 < step_s < 1e-2
    assert 0 < priced_s <= step_s * (1 + 1e-6)


def test_a_choice_without_measurements_has_an_assumed_interval(vision):
    whole = TracedJob(OpGraph(tuple(replace(op, kind=OpKind.GEMM, dims={}) for op in vision.step.ops)))
    model = select_kernels(known("RTX 4090"), whole, EstimatorChoice.SPECS)
    assert "your choice; the interval is an assumption" in model.reasons[0]
    assert model.spread_of(whole.step) == 0.4


@pytest.mark.parametrize("choice", [EstimatorChoice.OP_UTILIZATION, EstimatorChoice.NETWORK, EstimatorChoice.BLACK_BOX])
def test_a_choice_that_learned_of_no_such_kernels_refuses(choice, vision):
    spec = TensorSpec((8, 64, 32, 32), "float16")
    lookup = Op("aten.embedding", OpKind.EMBEDDING, Stage.FORWARD, "float16", 0.0, 1e9, 1e9, (spec,), (spec,))
    with pytest.raises(InvalidInput, match=r"kernels of which no step was learned \(embedding\)"):
        select_kernels(known("RTX 4090"), TracedJob(OpGraph((*vision.step.ops, lookup))), choice)


@pytest.mark.parametrize("choice", [EstimatorChoice.OP_UTILIZATION, EstimatorChoice.NETWORK, EstimatorChoice.BLACK_BOX])
def test_estimators_trained_on_gpus_are_refused_for_a_cpu(choice, bert):
    processor = Device("Some processor", "AMD", DeviceKind.CPU, memory_bytes_per_s=1e11)
    with pytest.raises(
        InvalidInput, match=f"Some processor is a cpu, but the {choice.value} estimator was trained on GPUs"
    ):
        select_kernels(processor, bert, choice)


def test_a_calibrated_gpu_uses_its_own_sweep(bert):
    before = select_kernels(known("T4"), bert)
    device = calibrated(known("T4"), 2e12)
    model = select_kernels(device, bert)
    assert (before.name, model.name, model.tier) == ("learned kernels", "swept kernels", Tier.CALIBRATED)
    assert model.step_s(bert.step) > 1.3 * before.step_s(bert.step)  # a T4 usually reaches more than 2 TFLOP/s
    assert "on swept devices of which it knew no steps" in model.reasons[0]


def test_op_utilization_is_preferred_to_a_sweep_where_it_has_training_data(vision):
    assert select_kernels(calibrated(known("RTX 3090"), 2e13), vision).name == "op law"


def test_a_sweep_without_measured_steps_is_preferred_to_vendor_specs(bert):
    device = calibrated(known("T4"), 2e12)
    plain = TracedJob(OpGraph(tuple(op for op in bert.step.ops if op.kind is OpKind.GEMM)))
    model = select_kernels(device, plain)
    assert model.name == "swept kernels"
    assert model.reasons[0].startswith("the interval is an assumption: no measured steps are like this job")


def test_the_choice_of_kernels_is_the_sweep_where_there_is_one(bert):
    assert select_kernels(calibrated(known("T4"), 2e12), bert, EstimatorChoice.KERNELS).name == "swept kernels"


LLAMA = {"model_type": "llama", "hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 8,
         "num_hidden_layers": 2, "vocab_size": 32000, "max_position_embeddings": 4096, "dtype": "bfloat16"}  # fmt: skip


@pytest.fixture
def serve(tmp_path, monkeypatch):
    monkeypatch.setenv("LEADLINE_DATA_DIR", str(tmp_path / "data"))

    def run(device, **options):
        path = tmp_path / "config.json"
        path.write_text(json.dumps(LLAMA))
        usual = {"phase": "inference", "batch": 8, "seq": 512, "generate": 16, **options}
        workload = read_workload([str(path)], WorkloadOptions(**usual))
        return estimate(workload, toolbox(), on=[device]).estimates[0]

    return run


def test_a_paged_cache_or_products_in_few_bits_are_served_by_measured_kernels(serve):
    paged, narrow = serve("H100 SXM5 80GB", paged=True), serve("H100 SXM5 80GB", precision="fp8")
    for answer in (paged, narrow):
        assert "measured kernels of serving engines" in answer.estimator
        assert answer.token_times.replayed_answer_s is None
        assert 1.2 < answer.step_s.high / answer.step_s.point < 1.5
    assert any("in float8" in reason for reason in narrow.basis.reasons)
    eager = serve("H100 SXM5 80GB")
    assert "serving engines" not in eager.estimator
    assert eager.token_times.replayed_answer_s.point == pytest.approx(paged.step_s.point, rel=0.2)


def test_gpus_without_measured_products_have_a_wider_interval_or_no_engine(serve):
    measured, unmeasured = (serve(name, paged=True, precision="fp16").step_s for name in ("H100 SXM5 80GB", "T4"))
    assert unmeasured.high / unmeasured.point > 1.3 * measured.high / measured.point
    reasons = serve("T4", paged=True, precision="fp16").basis.reasons
    assert any("extrapolating: no matrix product on Turing was measured" in reason for reason in reasons)
    assert "serving engines" not in serve("MI300X", paged=True).estimator


def test_tensor_parallel_engines_are_faster_and_reduce_in_one_shot(serve):
    one, four = (serve("H100 SXM5 80GB", paged=True, gpus=count, tensor_parallel=count) for count in (1, 4))
    assert four.step_s.point < one.step_s.point
    assert 0 < four.basis.breakdown_s["communication"] < 0.6 * four.step_s.point
