"""Whole estimates: published throughputs and memory, honest intervals, and reasons for what is not known."""

import json
from dataclasses import replace

import pytest

from leadline.core.estimate import Interval, Tier
from leadline.core.graph import OpGraph, TracedJob
from leadline.core.hardware import Device, DeviceKind
from leadline.core.units import GIB
from leadline.core.workload import Dataset, ModelKind, ModelSource, Phase, Precision, Workload
from leadline.estimators.memory.host import host_memory
from leadline.estimators.white_box import WhiteBox
from leadline.graphs.hf_config.expand import expand

A100 = Device("A100", "nvidia", DeviceKind.GPU, 80 * 10**9, 2.039e12,
              {"float32": 19.5e12, "tf32": 156e12, "float16": 312e12, "bfloat16": 312e12}, "Ampere", 108, tdp_w=400,
              link_bytes_per_s=600e9, pcie_generation=4)  # fmt: skip
H100 = replace(A100, name="H100", memory_bytes_per_s=3.35e12, architecture="Hopper", compute_units=132, tdp_w=700,
               peak_flops_per_s={"float32": 67e12, "tf32": 494e12, "float16": 989e12, "bfloat16": 989e12})  # fmt: skip
CPU = Device("CPU", "amd", DeviceKind.CPU, None, 200e9, {"float32": 2e12})
LLAMA_7B = {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32,
            "num_hidden_layers": 32, "vocab_size": 32000, "max_position_embeddings": 4096}  # fmt: skip
SMALL = {**LLAMA_7B, "hidden_size": 256, "intermediate_size": 688, "num_attention_heads": 8, "num_hidden_layers": 2}
BOX = WhiteBox(host_memory=host_memory)


@pytest.fixture
def job(tmp_path):
    def run(config, **settings):
        path = tmp_path / "config.json"
        path.write_text(json.dumps(config))
        workload = Workload(ModelSource(ModelKind.HF_CONFIG, str(path)), **settings)
        return workload, expand(workload)

    return run


def test_llama_7b_trains_at_the_published_share_of_an_a100(job):
    """Published runs of 7B models on A100s reach 40 to 60 % of the bf16 peak (llm-foundry's tables)."""
    workload, traced = job(LLAMA_7B, batch=4, sequence=2048, precision=Precision.BF16)
    step = BOX.estimate(workload, traced, A100).step_s
    assert 0.4 < 6 * 6.74e9 * 4 * 2048 / 312e12 / step.point < 0.6


def test_an_h100_trains_two_to_three_times_as_fast(job):
    """NVIDIA's and MosaicML's published training speed-ups of H100 over A100 in bf16 are 2 to 3."""
    workload, traced = job(LLAMA_7B, batch=4, sequence=2048, precision=Precision.BF16)
    a100, h100 = (BOX.estimate(workload, traced, device).step_s for device in (A100, H100))
    assert 1.8 < a100.point / h100.point < 3.2


def test_a_7b_model_in_mixed_precision_with_adamw_does_not_fit_in_80_gb(job):
    workload, traced = job(LLAMA_7B, precision=Precision.AMP_BF16, sequence=512)
    estimate = BOX.estimate(workload, traced, A100)
    assert estimate.gpu_memory_bytes.point > 16 * 6.7e9
    assert estimate.gpu_memory_bytes.low > 80 * GIB
    assert any("does not fit" in reason for reason in estimate.basis.reasons)


def test_7b_inference_in_bf16_holds_its_weights_and_little_more(job):
    workload, traced = job(LLAMA_7B, phase=Phase.INFERENCE, precision=Precision.BF16, sequence=512)
    memory = BOX.estimate(workload, traced, A100).gpu_memory_bytes
    assert 12.5 * GIB < memory.low <= memory.point < 16 * GIB


def test_intervals_of_the_specs_tier_are_wide_and_hold_the_point(job):
    workload, traced = job(SMALL, steps=10)
    estimate = BOX.estimate(workload, traced, A100)
    assert Tier.SPECS is estimate.basis.tier
    # Its small kernels wait for a host that may be five times as slow.
    assert 1.5 < estimate.step_s.point / estimate.step_s.low < 3 < estimate.step_s.high / estimate.step_s.point < 6
    for interval in (estimate.step_s, estimate.elapsed_s, estimate.gpu_memory_bytes, estimate.host_memory_bytes):
        assert interval.low <= interval.point <= interval.high


def test_a_trace_of_low_confidence_widens_the_interval(job):
    workload, traced = job(SMALL)
    sure, unsure = (BOX.estimate(workload, replace(traced, low_confidence=low), A100).step_s for low in (False, True))
    assert sure.point == unsure.point
    assert sure.high < unsure.high


def test_twice_the_epochs_take_twice_the_time_without_start_up(job):
    workload, traced = job(SMALL, batch=8, sequence=256, epochs=100, dataset=Dataset(samples=80_000))
    once, twice, none = (
        BOX.estimate(replace(workload, epochs=epochs), traced, A100).elapsed_s.point for epochs in (100, 200, 50)
    )
    assert 2 * (once - none) == pytest.approx(twice - once)


def test_a_peak_that_is_not_known_is_a_reason_not_a_figure(job):
    workload, traced = job(SMALL, precision=Precision.BF16)
    volta = replace(A100, name="V100", peak_flops_per_s={"float32": 15.7e12, "float16": 125e12})
    estimate = BOX.estimate(workload, traced, volta)
    assert estimate.step_s is None
    assert estimate.elapsed_s is None
    assert "V100 has no bfloat16 peak" in estimate.unknown["step_s"]
    assert estimate.gpu_memory_bytes is not None


def test_a_cpu_has_no_gpu_memory(job):
    workload, traced = job(SMALL)
    estimate = BOX.estimate(workload, traced, CPU)
    assert estimate.gpu_memory_bytes is None
    assert "CPU" in estimate.unknown["gpu_memory_bytes"]


def test_more_gpus_pay_for_their_gradients(job):
    workload, traced = job(SMALL)
    alone, four = (BOX.estimate(replace(workload, gpus=gpus), traced, A100) for gpus in (1, 4))
    assert alone.step_s.point < four.step_s.point
    assert four.basis.breakdown_s["communication"] > 0


def test_the_memory_of_a_graph_is_simulated_for_that_graph(job):
    """Estimates of one graph on many devices share the simulation; another graph has its own."""
    box = WhiteBox(host_memory=lambda *_: Interval(1.0, 1.0, 1.0))
    workload, traced = job(SMALL, batch=1)
    larger = job(SMALL, batch=16)[1]
    first = box.estimate(workload, traced, A100).gpu_memory_bytes
    assert first.point < box.estimate(workload, larger, A100).gpu_memory_bytes.point
    assert first == box.estimate(workload, traced, replace(A100, name="A10")).gpu_memory_bytes
    assert first.point < box.estimate(workload, traced, H100).gpu_memory_bytes.point  # its workspaces are larger


def test_an_empty_graph_has_no_memory_to_report():
    workload = Workload(ModelSource(ModelKind.FUNCTION, "net.py:build"))
    assert BOX.estimate(workload, TracedJob(OpGraph(())), A100).gpu_memory_bytes is None
