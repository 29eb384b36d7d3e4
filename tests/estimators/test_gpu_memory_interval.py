"""The driver's context grows with the threads that a GPU holds at once, as published figures have it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.memory.bound import bound_factors, transfer_bounds
from benchmarks.memory.fine_tunes import source_ratios
from leadline.catalog.read import TomlCatalog
from leadline.core.estimate import Interval
from leadline.core.graph import CALCULATED, Op, OpGraph, OpKind, Stage, StorageCategory
from leadline.core.hardware import Device, DeviceKind
from leadline.core.units import GIB, MIB
from leadline.core.workload import Adapters, ModelKind, ModelSource, Phase, Workload
from leadline.estimators.gpu_memory_interval import (
    DOMAIN_FACTORS,
    KERNEL_BYTES,
    UNCOMPILED_FACTORS,
    UNKNOWN_CONTEXT,
    WIDEST_FACTORS,
    context_bytes,
    describe_gpu_memory,
    predict_gpu_memory,
    widen_unmeasured,
)
from leadline.estimators.memory.device import PeakMemory
from leadline.estimators.step_time.selection import Domain

CATALOG = TomlCatalog(None)


@pytest.mark.parametrize(
    ("device", "published_mib"),
    [
        (CATALOG.device("H100 SXM5 80GB"), 534),
        (CATALOG.device("RTX PRO 6000 Blackwell Server"), 555),
        (CATALOG.device("RTX 6000 Ada"), 426),
        (Device("RTX 4060 Ti", "nvidia", DeviceKind.GPU, compute_capability="8.9", compute_units=34), 107),
        (CATALOG.device("RTX 3090"), 256),
        (Device("Titan V", "nvidia", DeviceKind.GPU, compute_capability="7.0", compute_units=80), 319),
    ],
    ids=lambda value: value.name if isinstance(value, Device) else "",
)
def test_a_bare_context_is_as_large_as_was_published(device, published_mib):
    told = context_bytes(device)
    assert (told.point - KERNEL_BYTES.point) / MIB == pytest.approx(published_mib, rel=0.05)
    assert told.low / MIB - 1 <= published_mib <= told.point / MIB


def test_half_of_an_a100s_bare_context_are_the_stacks_of_its_threads():
    assert context_bytes(CATALOG.device("A100 SXM4 80GB")).point - KERNEL_BYTES.point == 2 * 216 * MIB


def test_all_kernels_at_once_fit_below_the_high_end():
    bare = 108 * 2048 * 2048
    assert bare + 688 * MIB < context_bytes(CATALOG.device("A100 PCIe 40GB")).high < 1.06 * bare + 688 * MIB


@pytest.mark.parametrize("name", ["MI300X", "Jetson AGX Xavier 32GB", "A10G"])
def test_a_gpu_without_a_thread_count_has_a_wider_interval(name):
    assert context_bytes(CATALOG.device(name)) == UNKNOWN_CONTEXT


def test_other_devices_have_no_driver_context():
    assert context_bytes(CATALOG.device("Cloud TPU v4")).high == 0


GPU = Device("one", "nvidia", DeviceKind.GPU, compute_capability="8.0", compute_units=108)
CONTEXT = context_bytes(GPU)
STEP = OpGraph((Op("aten.mm", OpKind.GEMM, Stage.BACKWARD, "float32", 1.0, 1.0, 1.0),), source="torch")
PEAK = PeakMemory(8 * GIB, 10 * GIB, {})


@pytest.mark.parametrize("domain", Domain)
def test_the_bounds_are_the_measured_ones_of_its_domain(domain):
    low, high = DOMAIN_FACTORS.get(domain, WIDEST_FACTORS)
    told = predict_gpu_memory(PEAK, STEP, domain, GPU)
    assert 10 * GIB + CONTEXT.point == told.point
    assert told.low == pytest.approx(8 * GIB * low + CONTEXT.low)
    assert told.high == pytest.approx(10 * GIB * high + CONTEXT.high)
    said = f"×{low:.2f} to ×{high:.2f}" if domain in DOMAIN_FACTORS else "no such model was measured"
    assert said in describe_gpu_memory(STEP, domain)


def test_inference_ranges_as_training_did_and_says_so():
    assert describe_gpu_memory(replace(STEP, ops=()), Domain.LANGUAGE).endswith("; no inference was measured")


def test_an_unmeasured_domain_has_the_widest_interval():
    assert all(WIDEST_FACTORS[0] <= low < 1 < high <= WIDEST_FACTORS[1] for low, high in DOMAIN_FACTORS.values())


def test_a_device_without_a_driver_holds_no_context():
    assert predict_gpu_memory(PEAK, STEP, Domain.VISION, Device("a TPU", "google", DeviceKind.TPU)).point == 10 * GIB


@pytest.mark.parametrize("domain", Domain)
def test_an_uncompiled_xla_program_has_the_interval_of_measured_plans(domain):
    lowered = replace(STEP, source="stablehlo")
    told = predict_gpu_memory(PEAK, lowered, domain, GPU)
    assert told.low == pytest.approx(8 * GIB * UNCOMPILED_FACTORS[0] + CONTEXT.low)
    assert told.high == pytest.approx(10 * GIB * UNCOMPILED_FACTORS[1] + CONTEXT.high)
    assert "measured XLA plans" in describe_gpu_memory(lowered, domain)
    for known in (replace(lowered, planned_bytes=9 * GIB), replace(lowered, source="hlo")):
        assert predict_gpu_memory(PEAK, STEP, domain, GPU) == predict_gpu_memory(PEAK, known, domain, GPU)


def test_the_low_bound_includes_the_weights():
    held = PeakMemory(8 * GIB, 8 * GIB, {StorageCategory.PARAMETER: 8 * GIB - 100, StorageCategory.ACTIVATION: 100})
    assert 8 * GIB - 100 + CONTEXT.low == predict_gpu_memory(held, STEP, Domain.LANGUAGE, GPU).low


def details(bench):
    results = Path(__file__).parents[2] / "benchmarks" / "results"
    return json.loads((results / f"{bench}.json").read_text(encoding="utf-8"))["details"]


def test_the_ends_are_those_that_the_last_runs_of_the_benches_ask_for():
    seen = [detail["measured_gib"] / detail["predicted_gib"] for detail in details("detectors")]
    assert bound_factors(seen, ["all"] * len(seen)) == pytest.approx(DOMAIN_FACTORS[Domain.VISION], abs=0.005)
    # Within a hundredth, and never narrower: one more measured run moves the bounds by that much.
    low, high = (transfer_bounds(source_ratios(details("fine-tunes"), name))[0] for name in ("low", "high"))
    assert DOMAIN_FACTORS[Domain.LANGUAGE][0] <= low[0] + 0.01
    assert DOMAIN_FACTORS[Domain.LANGUAGE][1] >= high[1] - 0.01


def training(**settings):
    return Workload(ModelSource(ModelKind.HF_CONFIG, "config.json"), **settings)


@pytest.mark.parametrize(
    ("workload", "width", "reason"),
    [
        (training(sequence=8192, adapters=Adapters(8)), 0.0, ""),
        (training(sequence=2048, longest=16384), 0.05, "16,384 tokens, but measured fine-tunes have up to 8,192"),
        (training(sequence=32768), 0.10, "32,768 tokens"),
        (training(sequence=512, adapters=Adapters(method="hra")), 0.07, "no run with hra was measured"),
        (training(sequence=16384, adapters=Adapters(method="hra")), 0.12, "extrapolating: 16,384 tokens"),
        (training(sequence=16384, phase=Phase.INFERENCE), 0.0, ""),
    ],
)
def test_the_interval_is_wider_beyond_the_measured_fine_tunes_and_says_so(workload, width, reason):
    memory, sentence = widen_unmeasured(Interval(10.0, 8.0, 12.0), workload)
    assert (memory.point, memory.low, memory.high) == pytest.approx((10.0, 8.0 / (1 + width), 12.0 * (1 + width)))
    assert reason in sentence


def test_the_interval_is_wider_for_steps_that_the_cpu_calculated():
    peak, device = PeakMemory(GIB, GIB, {}), CATALOG.device("H100 SXM5 80GB")
    for domain in Domain:
        simulated, calculated = (
            predict_gpu_memory(peak, OpGraph((), source=source), domain, device) for source in ("torch", CALCULATED)
        )
        assert calculated.low < simulated.low
        assert calculated.high > simulated.high
        assert "the CPU calculated the steps" in describe_gpu_memory(OpGraph((), source=CALCULATED), domain)
