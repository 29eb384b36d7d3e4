"""LLM training steps use the whole-step model where it applies, and kernels elsewhere."""

import json

import pytest

from leadline.app.composition import toolbox
from leadline.app.estimate.estimate import estimate
from leadline.app.workloads.options import WorkloadOptions
from leadline.app.workloads.read import read_workload
from leadline.core.estimate import Tier

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
    assert (found.estimator, found.basis.tier) == ("white-box, law of decoders' steps", Tier.LEARNED)
    assert (
        "estimated with the law of decoders' steps: errors of 2 to 4 % on held-out steps of 216 runs"
        in found.basis.reasons[0]
    )
    assert found.step_s.high / found.step_s.low < 1.6
    assert found.gpu_memory_bytes is not None
    assert sum(found.basis.breakdown_s.values()) > 0


def test_more_steps_of_the_same_take_as_much_longer(told):
    one, ten = told(steps=100), told(steps=1000)
    assert one.step_s == ten.step_s
    assert pytest.approx(900 * one.step_s.point) == ten.elapsed_s.point - one.elapsed_s.point


@pytest.mark.parametrize(
    "change",
    [{"config": MIXTRAL}, {"config": {**LLAMA, "num_hidden_layers": 2}},
     {"precision": "fp32"}, {"phase": "inference", "sharding": None, "gpus": 1},
     {"device": "MI300X"}],
    ids=["experts", "two layers", "single precision", "inference", "another maker"],
)  # fmt: skip
def test_steps_outside_the_whole_step_model_use_kernels(told, change):
    found = told(**change)
    assert "law of decoders" not in found.estimator
    assert found.step_s is not None or found.unknown


def test_another_vendor_has_an_assumed_interval(told):
    found = told(device="MI300X", gpus=1, sharding=None)
    assert any("none of those steps ran on a device of amd" in reason for reason in found.basis.reasons)
    assert found.step_s.high / found.step_s.low > 3
