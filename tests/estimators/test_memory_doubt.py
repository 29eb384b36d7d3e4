"""The interval of a GPU's memory: as wide as measured peaks of such models were off."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.fine_tunes import DEVICE
from benchmarks.memory.bound import factors
from leadline.catalog.read import TomlCatalog
from leadline.core.graph import Op, OpGraph, OpKind, Stage, StorageCategory
from leadline.core.hardware import Device, DeviceKind
from leadline.core.units import GIB
from leadline.estimators.device_memory import PeakMemory
from leadline.estimators.driver_context import context_bytes
from leadline.estimators.learned.selection import Domain
from leadline.estimators.memory_doubt import FACTORS, LOWERED, WIDEST, gpu_memory, sentence

GPU = Device("one", "nvidia", DeviceKind.GPU, compute_capability="8.0", compute_units=108)
CONTEXT = context_bytes(GPU)
STEP = OpGraph((Op("aten.mm", OpKind.GEMM, Stage.BACKWARD, "float32", 1.0, 1.0, 1.0),), source="torch")
PEAK = PeakMemory(8 * GIB, 10 * GIB, {})


@pytest.mark.parametrize("domain", Domain)
def test_the_ends_are_those_of_what_was_measured_of_its_kind(domain):
    low, high = FACTORS.get(domain, WIDEST)
    told = gpu_memory(PEAK, STEP, domain, GPU)
    assert 10 * GIB + CONTEXT.point == told.point
    assert pytest.approx(8 * GIB * low + CONTEXT.low) == told.low
    assert pytest.approx(10 * GIB * high + CONTEXT.high) == told.high
    said = f"{low:.2f} to {high:.2f}" if domain in FACTORS else "not measured"
    assert said in sentence(STEP, domain)


def test_inference_ranges_as_training_did_and_says_so():
    assert sentence(replace(STEP, ops=()), Domain.LANGUAGE).endswith("; no inference was measured")


def test_what_was_not_measured_is_doubted_most():
    assert all(WIDEST[0] <= low < 1 < high <= WIDEST[1] for low, high in FACTORS.values())


def test_a_device_without_a_driver_holds_no_context():
    assert gpu_memory(PEAK, STEP, Domain.VISION, Device("a TPU", "google", DeviceKind.TPU)).point == 10 * GIB


@pytest.mark.parametrize("domain", Domain)
def test_a_program_that_xla_has_yet_to_compile_is_doubted_as_far_as_its_plans_were_from_what_was_alive(domain):
    lowered = replace(STEP, source="stablehlo")
    told = gpu_memory(PEAK, lowered, domain, GPU)
    assert pytest.approx(8 * GIB * LOWERED[0] + CONTEXT.low) == told.low
    assert pytest.approx(10 * GIB * LOWERED[1] + CONTEXT.high) == told.high
    assert "plans of XLA" in sentence(lowered, domain)
    for known in (replace(lowered, planned_bytes=9 * GIB), replace(lowered, source="hlo")):
        assert gpu_memory(PEAK, STEP, domain, GPU) == gpu_memory(PEAK, known, domain, GPU)


def test_the_weights_are_held_whatever_else_is_doubted():
    held = PeakMemory(8 * GIB, 8 * GIB, {StorageCategory.PARAMETER: 8 * GIB - 100, StorageCategory.ACTIVATION: 100})
    assert 8 * GIB - 100 + CONTEXT.low == gpu_memory(held, STEP, Domain.LANGUAGE, GPU).low


def details(bench):
    results = Path(__file__).parents[2] / "benchmarks" / "results"
    return json.loads((results / f"{bench}.json").read_text(encoding="utf-8"))["details"]


def test_the_ends_are_those_that_the_last_runs_of_the_benches_ask_for():
    seen = [one["measured_gib"] / one["predicted_gib"] for one in details("detectors")]
    assert pytest.approx(FACTORS[Domain.VISION], abs=0.005) == factors(seen, ["all"] * len(seen))
    runs = [one for one in details("fine-tunes") if one["method"].startswith("LoRA")]
    context = context_bytes(TomlCatalog(None).device(DEVICE)).scaled(1e-9)
    for end, share in ((0, context.low), (1, context.high)):
        seen = [(one["measured_gb"] - share) / (one["predicted_gb"] - context.point) for one in runs]
        found = factors(seen, [one["model"] for one in runs])[end]
        assert pytest.approx(FACTORS[Domain.LANGUAGE][end], abs=0.005) == found
