"""LLM training steps use the whole-step model where it applies, and kernels elsewhere."""

import json
import re
from functools import partial

import pytest

from leadline.app.composition import toolbox
from leadline.app.estimate.estimate import estimate
from leadline.app.estimate.fit import fit
from leadline.app.estimate.layouts import SURE_GROWTH
from leadline.app.estimate.recommend import recommend
from leadline.app.workloads.options import WorkloadOptions
from leadline.app.workloads.read import read_workload
from leadline.core.errors import InvalidInput, UnknownName
from leadline.core.estimate import Tier
from leadline.core.recommendation import Constraints

LLAMA = {"model_type": "llama", "hidden_size": 2048, "intermediate_size": 5504, "num_attention_heads": 16,
         "num_hidden_layers": 16, "vocab_size": 32000, "max_position_embeddings": 4096}  # fmt: skip
MIXTRAL = {**LLAMA, "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2,
           "num_key_value_heads": 8}  # fmt: skip


@pytest.fixture
def told(tmp_path, monkeypatch):
    monkeypatch.setenv("LEADLINE_DATA_DIR", str(tmp_path / "data"))

    def ask(config=LLAMA, device="A100 SXM4 80GB", **options):
        path = tmp_path / "config.json"
        path.write_text(json.dumps(config))
        asked = {"batch": 4, "seq": 2048, "precision": "bf16", "gpus": 8, "sharding": "full", **options}
        return estimate(read_workload([str(path)], WorkloadOptions(**asked)), toolbox(), on=[device]).estimates[0]

    return ask


def test_sharded_training_uses_the_whole_step_model(told):
    found = told()
    assert (found.estimator, found.basis.tier) == ("white-box, training-step model", Tier.LEARNED)
    assert "estimated with the training-step model: median error of" in found.basis.reasons[0]
    assert found.step_s.high / found.step_s.low < 2.2
    assert found.gpu_memory_bytes is not None
    assert sum(found.basis.breakdown_s.values()) == pytest.approx(found.step_s.point)


def test_more_steps_of_the_same_take_as_much_longer(told):
    one, ten = told(steps=100), told(steps=1000)
    assert one.step_s == ten.step_s
    assert pytest.approx(900 * one.step_s.point) == ten.elapsed_s.point - one.elapsed_s.point


@pytest.mark.parametrize(
    "change",
    [{"precision": "fp32"}, {"phase": "inference", "sharding": None, "gpus": 1}, {"lora": 8}],
    ids=["single precision", "inference", "adapters"],
)
def test_steps_outside_the_whole_step_model_use_kernels(told, change):
    found = told(**change)
    assert "training-step model" not in found.estimator
    assert found.step_s is not None or found.unknown


@pytest.mark.parametrize(
    ("change", "reason"),
    [({"device": "MI300X"}, "no training step on CDNA3"),
     ({"config": {**LLAMA, "hidden_size": 128, "intermediate_size": 256}}, "channels (128) below"),
     ({"gpus": 8192}, "GPUs (8192) above")],
    ids=["another vendor", "narrow", "many GPUs"],
)  # fmt: skip
def test_what_was_not_measured_widens_the_interval_and_says_so(told, change, reason):
    usual, found = told(), told(**change)
    assert any(f"extrapolating: {reason}" in sentence for sentence in found.basis.reasons)
    assert found.step_s.high / found.step_s.low > 1.1 * usual.step_s.high / usual.step_s.low


def test_experts_widen_the_interval_and_the_reason_is_given(told):
    usual, found = told(), told(config=MIXTRAL)
    assert any(sentence.startswith("experts: ") for sentence in found.basis.reasons)
    assert found.step_s.high / found.step_s.low > 1.2 * usual.step_s.high / usual.step_s.low


@pytest.mark.parametrize("precision", ["mxfp8", "nvfp4"])
def test_scales_of_blocks_need_a_gpu_that_has_them(told, precision):
    half, narrow = (told(device="B200 SXM", precision=each, fusion="library") for each in ("bf16", precision))
    assert narrow.step_s.point < half.step_s.point
    assert "no float4 peak" in told(device="H100 SXM5 80GB", precision="nvfp4").unknown["step_s"]


def test_the_layout_of_a_step_is_what_the_options_say(told):
    plain = told(gpus=64, sharding="optimizer", accumulate=16)
    divided = told(
        gpus=64, sharding="optimizer", accumulate=16, tensor_parallel=2, pipeline_parallel=4, virtual_stages=2,
        context_parallel=2,
    )  # fmt: skip
    assert divided.basis.breakdown_s["bubble"] > 0 == plain.basis.breakdown_s["bubble"]
    assert divided.basis.breakdown_s["tensor"] > 0 == plain.basis.breakdown_s["tensor"]
    assert divided.gpu_memory_bytes.point < plain.gpu_memory_bytes.point


def test_float8_is_faster_and_as_large(told):
    half, eight = (
        told(device="H100 SXM5 80GB", precision=precision, fusion="library") for precision in ("bf16", "fp8")
    )
    assert 0.5 < eight.step_s.point / half.step_s.point < 0.95
    assert eight.gpu_memory_bytes == half.gpu_memory_bytes


def test_an_automatic_layout_fits_and_is_the_fastest(told, tmp_path):
    found = told(gpus=64, sharding=None, layout="auto", global_batch=256, batch=None, device="H100 SXM5 80GB")
    assert found.basis.reasons[0].startswith("layout: ")
    assert found.gpu_memory_bytes.high < found.device_memory_bytes
    slower = told(gpus=64, tensor_parallel=8, sharding="optimizer", batch=1, accumulate=32, device="H100 SXM5 80GB")
    assert found.step_s.point < slower.step_s.point


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("config", [LLAMA, MIXTRAL], ids=["dense", "experts"])
def test_a_microbatch_grows_at_least_as_the_search_assumes(told, config, recompute):
    one, two, *more = (
        told(config=config, batch=batch, recompute=recompute).gpu_memory_bytes.high for batch in (1, 2, 4, 16)
    )
    for batch, bytes_ in zip((4, 16), more, strict=True):
        assert bytes_ >= one + SURE_GROWTH * (batch - 1) * (two - one)


def test_places_without_a_layout_are_left_out_with_the_reason(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))
    workload = read_workload([str(path)], WorkloadOptions(layout="auto", global_batch=64, seq=2048, gpus=8))
    answer = estimate(workload, toolbox(), on=["A100 SXM4 80GB", "T4"])
    assert [each.target.device for each in answer.estimates] == ["A100 SXM4 80GB"]
    assert any("T4" in sentence and "bfloat16" in sentence for sentence in answer.left_out)


@pytest.mark.parametrize(
    "verb",
    [partial(fit, on=["A100 SXM4 80GB"], risk=0.05), partial(recommend, constraints=Constraints(), on=["Ascend"])],
    ids=["fit", "recommend"],
)
def test_an_automatic_layout_is_for_estimates(tmp_path, verb):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))
    workload = read_workload([str(path)], WorkloadOptions(layout="auto", global_batch=64, seq=2048, gpus=8))
    with pytest.raises(InvalidInput, match="works with leadline estimate only"):
        verb(workload, toolbox())


def test_a_model_that_no_layout_fits_is_refused_with_its_least_memory(told):
    wide = {**LLAMA, "hidden_size": 16384, "num_hidden_layers": 64, "num_attention_heads": 128}
    with pytest.raises(InvalidInput, match="fits into 2 × A100 SXM4 80GB: the least memory"):
        told(config=wide, gpus=2, sharding=None, batch=None, layout="auto", global_batch=8)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"layout": "auto"}, "chooses --sharding"), ({"layout": "best"}, "auto"), ({"global_batch": 8}, "--layout auto"),
     ({"virtual_stages": 2}, "without --pipeline-parallel"), ({"context_method": "ring"}, "--context-parallel"),
     ({"expert_parallel": 3}, "cannot be spread"), ({"recompute": "none", "checkpointing": True}, "leave one out"),
     ({"expert_parallel": 2}, "shows none"),
     ({"expert_parallel": 2, "precision": "fp32", "config": MIXTRAL}, "16 or 8 bits"),
     ({"phase": "inference", "sharding": None, "context_parallel": 2}, "is for training"),
     ({"precision": "fp8", "lora": 8}, "trains adapters"),
     ({"precision": "fp8", "device": "EPYC 7763", "gpus": None, "sharding": None}, "covers GPUs only"),
     ({"precision": "fp8"}, "no float8 peak"),
     ({"recompute": "selective", "precision": "fp32"}, "not fp32")],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)  # fmt: skip
def test_options_that_contradict_or_do_nothing_are_refused(told, options, message):
    try:
        reason = told(**options).unknown.get("step_s", "")
    except (InvalidInput, UnknownName) as error:
        reason = str(error)
    assert re.search(message, reason)
