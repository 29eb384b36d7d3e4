"""Liger Kernel's norms, gated activations and rotary positions: their kernels, and what they hold for backward."""

import math

import pytest

from benchmarks.scale.own_steps import measured_steps, options_of, write_configuration
from leadline.app.workloads.read import read_workload
from leadline.core.errors import InvalidInput
from leadline.core.graph import OpKind, Stage
from leadline.core.workload import Adapters, Fusion, Parallelism, Precision
from leadline.graphs.hf_config.expand import expand
from tests.graphs.hf_config.conftest import SMALL, flops, peak

LIGER = Parallelism(fusion=Fusion.LIGER)
TOKENS, HIDDEN, WIDTH, LAYERS = 4 * 512, 256, 688, 3
GEMMA2 = {**SMALL, "model_type": "gemma2", "head_dim": 32}
PHI3 = {**SMALL, "model_type": "phi3"}


def both(expanded, config=SMALL, **settings):
    return [
        expanded(config, batch=4, sequence=512, parallelism=plan, **settings).step for plan in (Parallelism(), LIGER)
    ]


def kernels(step, name, stage):
    return sum(op.count for op in step.ops if op.name == f"aten.{name}" and op.stage is stage)


def test_a_layer_holds_less_by_what_norms_gates_and_rotary_positions_saved(expanded):
    plain, liger = both(expanded, {**SMALL, "vocab_size": 50000})  # the loss has the peak
    # A norm saves its source in float32 and once more normalized, instead of its source. A gate saves its activation.
    norm, gate = TOKENS * HIDDEN * (4 + 2 - 2), TOKENS * WIDTH * 2
    assert peak(plain) - peak(liger) == pytest.approx((2 * LAYERS + 1) * norm + LAYERS * gate, rel=0.01)


def test_each_of_them_is_a_kernel_in_each_pass_and_products_stay(expanded):
    plain, liger = both(expanded)
    for stage, ending in ((Stage.FORWARD, ""), (Stage.BACKWARD, "_backward")):
        assert kernels(liger, f"rms_norm{ending}", stage) == 2 * LAYERS + 1
        assert kernels(liger, f"swiglu{ending}", stage) == LAYERS
        assert kernels(liger, "rope", stage) == 2 * LAYERS
        assert flops(liger, OpKind.GEMM, stage=stage) == flops(plain, OpKind.GEMM, stage=stage)
    assert liger.parameters == plain.parameters
    assert sum(op.kernels * op.count for op in liger.ops) < 0.6 * sum(op.kernels * op.count for op in plain.ops)


@pytest.mark.parametrize("config", [GEMMA2, PHI3, {**SMALL, "model_type": "qwen3", "head_dim": 32}], ids=str)
def test_families_differ_in_what_surrounds_the_kernels(expanded, config):
    plain, liger = both(expanded, config)
    name = "geglu" if config is GEMMA2 else "swiglu"
    norms = {"gemma2": 4, "phi3": 2, "qwen3": 4}[config["model_type"]]
    assert kernels(liger, name, Stage.FORWARD) == LAYERS
    assert kernels(liger, "rms_norm", Stage.FORWARD) == norms * LAYERS + 1
    assert peak(liger) < peak(plain)


@pytest.mark.parametrize("settings", [{"precision": Precision.AMP_BF16}, {"adapters": Adapters(8)},
                                      {"checkpointing": True}], ids=str)  # fmt: skip
def test_precisions_adapters_and_recomputing_keep_their_gradients(expanded, settings):
    plain, liger = both(expanded, **settings)
    assert flops(liger, OpKind.GEMM) == flops(plain, OpKind.GEMM)
    assert peak(liger) <= peak(plain)


def test_the_peaks_of_measured_steps_with_the_kernels_are_met(tmp_path):
    """Fused layers and a plain loss of Qwen3 1.7B on an H200, which no number of the graph is fitted to."""
    rows = [row for row in measured_steps() if row["configuration"]["fused"] == "layers"]
    assert len(rows) == 3
    for row in rows:
        asked = row["configuration"]
        step = expand(read_workload([str(write_configuration(asked, tmp_path))], options_of(asked))).step
        assert math.isclose(row["allocated_bytes"], peak(step), rel_tol=0.015)


@pytest.mark.parametrize("family", ["gpt_neox", "olmoe"])
def test_families_without_such_kernels_are_refused(expanded, family):
    with pytest.raises(InvalidInput, match=f"Liger Kernel has no kernels for {family}"):
        expanded({**SMALL, "model_type": family}, parallelism=LIGER)


def test_experts_are_named_as_counted_too_high(expanded):
    job = expanded({**SMALL, "model_type": "mixtral", "num_local_experts": 4}, parallelism=LIGER)
    assert any("experts hold less" in note for note in job.notes)
    assert not any("experts hold less" in note for note in expanded(SMALL, parallelism=LIGER).notes)
