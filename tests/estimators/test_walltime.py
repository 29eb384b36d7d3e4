"""The length of a job follows from what the user and the script say of it, the user first."""

import pytest

from leadline.core.estimate import Interval
from leadline.core.graph import LoopFacts, OpGraph, TracedJob
from leadline.core.hardware import Calibration, Device, DeviceKind
from leadline.core.workload import Dataset, ModelKind, ModelSource, Phase, Workload
from leadline.estimators.walltime import job_length, load_s, startup_interval, step_with_loading

MODEL = ModelSource(ModelKind.FUNCTION, "net.py:build")
CPU = Device("CPU", "amd", DeviceKind.CPU)


def length(workload, **loop):
    return job_length(workload, TracedJob(OpGraph(()), LoopFacts(**loop)))


def test_steps_are_samples_divided_by_the_global_batch():
    workload = Workload(MODEL, batch=32, accumulation=2, gpus=4, epochs=3, dataset=Dataset(samples=1000))
    assert length(workload).steps == 3 * 4


def test_requested_steps_take_precedence():
    assert length(Workload(MODEL, steps=7, epochs=3, dataset=Dataset(samples=1000))).steps == 7


def test_the_script_supplies_unset_options():
    assert length(Workload(MODEL), steps_per_epoch=40, epochs=5).steps == 5 * 40


def test_the_user_overrides_the_scripts_epochs():
    assert length(Workload(MODEL, epochs=2), steps_per_epoch=40, epochs=5).steps == 2 * 40


def test_another_batch_changes_the_scripts_steps():
    assert length(Workload(MODEL, batch=64, epochs=1), steps_per_epoch=40, batch=32, samples=1280).steps == 20


def test_without_a_length_the_answer_is_one_step_and_says_so():
    answer = length(Workload(MODEL))
    assert answer.steps == 1
    assert "--epochs" in answer.reasons[0]


def test_inference_passes_the_data_once():
    workload = Workload(MODEL, phase=Phase.INFERENCE, batch=10, dataset=Dataset(samples=95))
    assert length(workload).steps == 10


def test_workers_share_the_loading():
    job = TracedJob(OpGraph(()))
    alone, four = (
        load_s(Workload(MODEL, batch=8, dataset=Dataset(bytes_per_sample=10**6, workers=workers)), job, CPU)
        for workers in (0, 4)
    )
    assert four == pytest.approx(alone / 4)


def test_data_in_memory_is_not_read_again():
    job = TracedJob(OpGraph(()))
    stored, held = (
        load_s(Workload(MODEL, batch=8, dataset=Dataset(bytes_per_sample=10**6, held_in_memory=held)), job, CPU)
        for held in (False, True)
    )
    assert held < stored / 10


def test_workers_hide_loading_behind_the_step_and_nothing_else_does():
    compute = Interval(1.0, 0.5, 2.0)
    assert step_with_loading(compute, 0.4, workers=2).point == 1.0
    assert step_with_loading(compute, 3.0, workers=2).point == 3.0
    assert step_with_loading(compute, 0.4, workers=0).point == pytest.approx(1.4)


def test_a_measured_import_narrows_the_start():
    bare = Device("CPU", "amd", DeviceKind.CPU)
    figures = {"framework_import_s": 2.0}
    known = Device("CPU", "amd", DeviceKind.CPU, calibration=Calibration("now", "torch", 1, figures=figures))
    measured, assumed = startup_interval(known, LoopFacts()), startup_interval(bare, LoopFacts())
    assert 2.0 <= measured.point <= 4.0
    assert measured.high - measured.low < assumed.high - assumed.low


def test_a_scripts_own_imports_lengthen_the_start_in_proportion():
    figures = {"framework_import_s": 2.0, "first_step_s": 0.5}
    known = Device("CPU", "amd", DeviceKind.CPU, calibration=Calibration("now", "torch", 1, figures=figures))
    assert startup_interval(known, LoopFacts()).point == 2.5
    assert startup_interval(known, LoopFacts(script_s=0.7, framework_s=1.4)).point == 3.5


def test_the_scripts_measured_loader_takes_precedence():
    job = TracedJob(OpGraph(()), LoopFacts(batch=8, load_s=0.4, loader_workers=2))
    assert load_s(Workload(MODEL), job, CPU) == 0.2
    assert load_s(Workload(MODEL, batch=16), job, CPU) == 0.4
    assert load_s(Workload(MODEL, batch=16, dataset=Dataset(bytes_per_sample=10**7)), job, CPU) != 0.4


def test_a_calibrated_loader_is_priced_by_the_batch_and_by_the_sample():
    figures = {"loader_batch_s": 1e-4, "loader_sample_s": 1e-5}
    known = Device("CPU", "amd", DeviceKind.CPU, calibration=Calibration("now", "torch", 1, figures=figures))
    job = TracedJob(OpGraph(()))
    assert load_s(Workload(MODEL, batch=32), job, known) == pytest.approx(1e-4 + 32e-5)
    assert load_s(Workload(MODEL), job, known) == 0.0
