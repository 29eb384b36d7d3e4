"""Answers of language models: prefill, decode steps, throughput and the KV cache, on one GPU and on several."""

import json
import math
from dataclasses import replace

import pytest

from leadline.catalog.read import TomlCatalog
from leadline.core.hardware import Device, DeviceKind
from leadline.core.workload import ModelKind, ModelSource, Parallelism, Phase, Precision, Workload
from leadline.estimators.memory.host import host_memory
from leadline.estimators.parallelism.division import COLLECTIVE_LAUNCH_S
from leadline.estimators.parallelism.fabric import make_ring
from leadline.estimators.step_time.roofline import UNMEASURED_SPREAD, RooflineKernels
from leadline.estimators.token_times import least_decode_s
from leadline.estimators.white_box import WhiteBox
from leadline.graphs.hf_config.expand import expand

A100 = Device("A100", "nvidia", DeviceKind.GPU, 80 * 10**9, 2.039e12,
              {"float32": 19.5e12, "tf32": 156e12, "float16": 312e12, "bfloat16": 312e12}, "Ampere", 108, tdp_w=400,
              form_factor="SXM4", link_bytes_per_s=600e9, pcie_generation=4)  # fmt: skip
CPU = Device("CPU", "amd", DeviceKind.CPU, None, 200e9, {"float32": 2e12})
LLAMA_7B = {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32,
            "num_hidden_layers": 32, "vocab_size": 32000, "max_position_embeddings": 4096}  # fmt: skip
GROUPED = {**LLAMA_7B, "num_key_value_heads": 4}
MISTRAL = {**GROUPED, "model_type": "mistral", "sliding_window": 1024}
BOX = WhiteBox(host_memory=host_memory)
ENDS = ("point", "low", "high")


class Unhurried(RooflineKernels):
    """The same kernels on a host that launches at once, so that the device alone decides."""

    def launch_s(self, op):  # noqa: ARG002 - the signature of a kernel model
        return 0.0


QUICK_HOST = WhiteBox(host_memory=host_memory, kernels=lambda device, _: Unhurried(device))


@pytest.fixture
def asked(tmp_path):
    def run(config=LLAMA_7B, box=BOX, device=A100, **settings):
        path = tmp_path / "config.json"
        path.write_text(json.dumps(config))
        given = {"batch": 1, "sequence": 512, "generated": 128, "precision": Precision.BF16, **settings}
        workload = Workload(ModelSource(ModelKind.HF_CONFIG, str(path)), phase=Phase.INFERENCE, **given)
        policy = "cpu" if device.kind is DeviceKind.CPU else "cuda"
        return box.estimate(workload, expand(workload, device_type=policy), device)

    return run


def over(gpus, tensor=1, pipeline=1):
    return {"gpus": gpus, "parallelism": Parallelism(tensor, pipeline)}


def test_a_forward_pass_has_no_token_times(asked):
    assert asked(generated=None).token_times is None


def test_an_answer_is_its_prefill_and_a_decode_step_for_each_further_token(asked):
    estimate = asked()
    told = estimate.token_times
    for end in ENDS:
        first, step = getattr(told.time_to_first_token_s, end), getattr(told.time_per_output_token_s, end)
        assert getattr(estimate.step_s, end) == pytest.approx(first + 127 * step, rel=1e-3)


def test_the_steps_between_are_those_priced_one_by_one(asked):
    """Over a window that fills on the way, and over the length from which the kernels outlast the launches."""
    settings = {"config": MISTRAL, "batch": 48, "sequence": 960}
    one_by_one = [
        asked(**{**settings, "sequence": length - 1}, generated=2).token_times.time_per_output_token_s.point
        for length in range(961, 1088)
    ]
    mean_s = sum(one_by_one) / len(one_by_one)
    assert asked(**settings).token_times.time_per_output_token_s.point == pytest.approx(mean_s, rel=0.005)


def test_time_to_first_token_equals_the_prefill(asked):
    prompt = asked(generated=1)
    assert prompt.token_times.time_per_output_token_s is None
    assert prompt.token_times.time_to_first_token_s == asked().token_times.time_to_first_token_s


def test_a_step_takes_longer_the_more_is_cached_until_the_window_is_full(asked):
    for config, grows in ((LLAMA_7B, True), (MISTRAL, False)):
        told = asked(config, QUICK_HOST, batch=16, sequence=1024).token_times
        longer = told.last_decode_step_s.point / told.first_decode_step_s.point
        assert (longer > 1.01) == grows


@pytest.mark.parametrize("batch", [1, 2, 4, 8])
def test_twice_the_sequences_hardly_take_longer_while_weight_reads_dominate(asked, batch):
    settings = {"sequence": 16, "generated": 512}
    once, twice = (asked(GROUPED, QUICK_HOST, batch=batch * times, **settings).token_times for times in (1, 2))
    ratio = twice.time_per_output_token_s.point / once.time_per_output_token_s.point
    assert 1.0 < ratio < 1.1
    assert 1.8 < twice.output_tokens_per_s.point / once.output_tokens_per_s.point < 2.0


def test_no_step_is_faster_than_reading_the_weights_and_the_cache(asked):
    told = asked(box=QUICK_HOST, batch=8).token_times
    read = 2 * 6.6e9 + told.kv_cache_bytes
    assert read / A100.memory_bytes_per_s < told.last_decode_step_s.point < 3 * read / A100.memory_bytes_per_s


def test_tokens_a_second_are_those_of_all_sequences_over_the_whole_answer(asked):
    estimate = asked(batch=4)
    told = estimate.token_times.output_tokens_per_s
    assert told.point == pytest.approx(4 * 128 / estimate.step_s.point, rel=1e-3)
    assert told.high == pytest.approx(4 * 128 / estimate.step_s.low, rel=1e-3)
    two = asked(batch=4, **over(2)).token_times.output_tokens_per_s
    assert two.point == pytest.approx(2 * told.point)


def test_the_memory_holds_the_weights_and_the_whole_cache(asked):
    estimate = asked(batch=16, sequence=128, generated=1024)
    cache = 2 * 32 * 4096 * 2 * 16 * (128 + 1023)
    assert cache == estimate.token_times.kv_cache_bytes
    assert 2 * 6_738_415_616 + cache < estimate.gpu_memory_bytes.point < 1.15 * (2 * 6_738_415_616 + cache)
    assert cache <= estimate.basis.memory_breakdown_bytes["kv-cache"] < 1.02 * cache
    assert any("KV cache" in reason for reason in estimate.basis.reasons)


def test_tensor_parallel_gpus_share_weights_and_cache_but_launch_every_op(asked):
    case, four = asked(batch=8), asked(batch=8, **over(4, tensor=4))
    assert case.token_times.kv_cache_bytes == 4 * four.token_times.kv_cache_bytes
    assert four.gpu_memory_bytes.point < 0.4 * case.gpu_memory_bytes.point
    launches_s = asked(batch=8, generated=2).basis.breakdown_s["launch"] / 2
    assert launches_s < four.token_times.last_decode_step_s.point < case.token_times.last_decode_step_s.point


def test_tensor_parallel_decoding_pays_the_latency_of_two_reductions_a_layer(asked):
    """32 layers, a message of 8 KiB, over links that were measured and over others."""
    alone_s = asked(box=QUICK_HOST, generated=2).token_times.last_decode_step_s.point
    computing_s = []
    for device in (A100, replace(A100, form_factor="PCIe", link_bytes_per_s=None)):
        told = asked(box=QUICK_HOST, device=device, **over(2, tensor=2), generated=2).token_times
        reduced_s = make_ring(device, 2).all_reduce_s(2 * 4096)
        computing_s.append(told.last_decode_step_s.point - 64 * reduced_s)
        assert 10 * 2 * 4096 / make_ring(device, 2).bytes_per_s < reduced_s
    assert computing_s[1] == pytest.approx(computing_s[0])
    assert alone_s / 2 < computing_s[0] < 0.75 * alone_s


def test_replayed_kernels_are_as_unsure_as_their_price_list_and_launched_ones_as_the_host(asked):
    box = WhiteBox(host_memory=host_memory, kernels=lambda device, _: RooflineKernels(device, spread=0.1))
    told = asked(box=box).token_times
    replayed, launched = told.replayed_per_output_token_s, told.time_per_output_token_s
    assert replayed.high / replayed.point == pytest.approx(math.exp(1.645 * 0.1), rel=1e-3)
    assert launched.high / launched.point > replayed.high / replayed.point


def test_a_decode_step_that_launches_limit_or_nearly_limit_is_unsure_of_the_host(asked):
    """Up to 16 sequences of a thousand tokens the kernels take little longer than the launches, if at all."""
    widest = math.exp(1.645 * UNMEASURED_SPREAD)
    longer = {"batch": 16, "sequence": 1024}
    for settings in ({}, {"batch": 4, "sequence": 1024}, longer, {**longer, **over(4, tensor=4)}):
        estimate = asked(**settings, generated=2)
        step = estimate.token_times.time_per_output_token_s
        launches_s = estimate.basis.breakdown_s["launch"] / 2
        assert min(launches_s * widest, step.point * widest) <= step.high * 1.001


def test_a_host_that_is_the_limit_launches_the_reductions_too(asked):
    """32 layers of two reductions each, beside the launches that one GPU needs."""
    told, alone = asked(**over(8, tensor=8), generated=2), asked(generated=2)
    reduced_s = 64 * make_ring(A100, 8).all_reduce_s(2 * 4096)
    launches_s = alone.basis.breakdown_s["launch"] / 2
    assert pytest.approx(launches_s + 64 * COLLECTIVE_LAUNCH_S + reduced_s, rel=0.01) == (
        told.token_times.last_decode_step_s.point
    )


def test_key_value_heads_are_not_cut_in_tensor_parallelism(asked):
    """Four heads on eight GPUs: two of them hold the same one."""
    case, eight = asked(GROUPED), asked(GROUPED, **over(8, tensor=8))
    assert case.token_times.kv_cache_bytes == 4 * eight.token_times.kv_cache_bytes


def test_a_pipeline_shares_the_cache_and_saves_no_time(asked):
    case, two = asked(box=QUICK_HOST), asked(box=QUICK_HOST, **over(2, pipeline=2))
    assert case.token_times.kv_cache_bytes == 2 * two.token_times.kv_cache_bytes
    assert case.token_times.last_decode_step_s.point <= two.token_times.last_decode_step_s.point


def test_reasons_distinguish_prefill_and_decoding(asked):
    reasons = asked().basis.reasons
    assert any(reason.startswith("prompt: ") for reason in reasons)
    assert any(reason.startswith("decoding token 639: ") and "host-bound" in reason for reason in reasons)


def test_a_processor_holds_the_cache_in_the_memory_of_its_host(asked):
    small = {**LLAMA_7B, "hidden_size": 512, "intermediate_size": 1376, "num_hidden_layers": 4}
    settings = {"config": small, "device": CPU, "precision": Precision.FP32, "batch": 4, "sequence": 16}
    short, long = (asked(**settings, generated=count) for count in (2, 2002))
    more = long.token_times.kv_cache_bytes - short.token_times.kv_cache_bytes
    assert 0.9 * more < long.host_memory_bytes.point - short.host_memory_bytes.point < 1.7 * more
    assert long.gpu_memory_bytes is None
    assert long.token_times.replayed_answer_s is None
    assert not any("replayed" in reason for reason in long.basis.reasons)


def test_the_floor_of_a_decode_step_is_that_of_reading_weights_and_cache_once(asked, tmp_path):
    """All weights but the embedding, of which a row is read."""
    estimate = asked(box=QUICK_HOST)
    read = 2 * (6_738_415_616 - 32000 * 4096) + estimate.token_times.kv_cache_bytes
    workload = Workload(
        ModelSource(ModelKind.HF_CONFIG, str(tmp_path / "config.json")), phase=Phase.INFERENCE, batch=1, sequence=512,
        generated=128, precision=Precision.BF16,
    )  # fmt: skip
    least_s = least_decode_s(workload, expand(workload), A100)
    assert least_s == pytest.approx(read / A100.memory_bytes_per_s, rel=1e-3)
    assert least_s < estimate.token_times.last_decode_step_s.point
    assert any("no engine decodes the last token faster" in reason for reason in estimate.basis.reasons)


PUBLISHED_MS = {
    ("A100", 1): (234.0, 249.6, 272.6, 329.5),
    ("H100", 1): (153.8, 160.8, 174.8, 199.2),
    ("A100", 2): (171.7, 180.3, 202.9, 237.6),
    ("H100", 2): (128.6, 132.0, 137.9, 156.2),
}
"""Average latency of Llama-2 7B, 128 tokens in and 20 out, at batches of 1, 2, 4 and 8 on one GPU and on two: NVIDIA's
user guide of the NeMo framework, "Llama-2 Results"."""


@pytest.mark.parametrize(("name", "gpus"), PUBLISHED_MS)
def test_replayed_answers_are_near_the_published_latencies(asked, name, gpus):
    """Nothing of the estimate was fitted to them. On two GPUs each kernel's share is smaller, and its start is not."""
    device = TomlCatalog().device(f"{name} {'SXM4' if name == 'A100' else 'SXM5'} 80GB")
    told_ms = [
        1000 * asked(device=device, batch=batch, sequence=128, generated=20, **over(gpus, tensor=gpus))
        .token_times.replayed_answer_s.point
        for batch in (1, 2, 4, 8)
    ]  # fmt: skip
    assert told_ms == pytest.approx(PUBLISHED_MS[name, gpus], rel={1: 0.1, 2: 0.25}[gpus])


def test_replayed_kernels_wait_for_no_launch(asked):
    """The same as on a host that launches at once, and never slower than launching them one by one."""
    told, quick = asked(batch=4), asked(box=QUICK_HOST, batch=4).token_times
    assert told.token_times.replayed_per_output_token_s.point == pytest.approx(quick.time_per_output_token_s.point)
    assert told.token_times.replayed_answer_s.point < told.step_s.point
    assert any("captured and replayed kernels" in reason for reason in told.basis.reasons)
