"""The length of a job follows from what the user and the script say of it, the user first."""

import pytest

from leadline.core.estimate import Interval
from leadline.core.graph import LoadingTime, LoopFacts, OpGraph, ScriptWork, TracedJob
from leadline.core.hardware import Calibration, Device, DeviceKind
from leadline.core.workload import Dataset, ModelKind, ModelSource, Phase, Workload
from leadline.estimators.walltime import (
    LOAD_BYTES_PER_S,
    evaluation_interval,
    job_length,
    loading,
    script_work,
    startup_interval,
    step_with_loading,
)

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


SCRIPT = ModelSource(ModelKind.COMMAND, "python train.py", ("python", "train.py"))
MEASURED = LoadingTime(batch_s=0.4, cpu_s=0.3, batches=8, queued_share=0.0)


def loading_of(workload, device=CPU, **loop):
    return loading(workload, TracedJob(OpGraph(()), LoopFacts(**loop)), device)


def test_without_a_loader_no_loading_is_invented():
    for workload in (Workload(SCRIPT, batch=64), Workload(MODEL, batch=64), Workload(MODEL, dataset=Dataset(10_000))):
        assert loading_of(workload, bytes_per_sample=16_384).step_s == Interval(0.0, 0.0, 0.0)
    assert "no DataLoader was measured" in loading_of(Workload(SCRIPT, batch=64)).reason


def test_unmeasured_reading_only_bounds_the_loading_from_above():
    told = loading_of(Workload(MODEL, batch=8, dataset=Dataset(bytes_per_sample=10**6, workers=4)))
    assert told.step_s == Interval(0.0, 0.0, 8e6 / LOAD_BYTES_PER_S / 4)
    assert "not counted, as it was not measured; reading at 150 MB/s" in told.reason
    held = Dataset(bytes_per_sample=10**6, held_in_memory=True)
    assert loading_of(Workload(MODEL, batch=8, dataset=held)).step_s.high == 0.0


def test_the_scripts_measured_loader_is_shared_by_its_workers_and_says_where_it_was_measured():
    told = loading_of(Workload(SCRIPT), batch=8, loading=MEASURED, loader_workers=2)
    assert told.step_s.point == 0.2
    assert told.reason.startswith("loading measured on this machine, 8 batches: 0.4 s a batch in one process")
    assert "25% of it waiting for files or the network" in told.reason
    assert loading_of(Workload(SCRIPT, batch=16), batch=8, loading=MEASURED).step_s.point == 0.8
    assert loading_of(Workload(SCRIPT, accumulation=3), batch=8, loading=MEASURED).step_s.point == pytest.approx(1.2)


def test_cached_and_cold_files_lead_to_intervals_that_overlap():
    cold = LoadingTime(batch_s=2.9, cpu_s=0.4, batches=8, read_bytes=10**8, queued_share=0.0)
    warm = LoadingTime(batch_s=0.4, cpu_s=0.4, batches=8, read_bytes=10**8, queued_share=0.0)
    first, second = (loading_of(Workload(SCRIPT), batch=8, loading=measured).step_s for measured in (cold, warm))
    assert first.low <= second.point <= first.high
    assert second.high > first.low
    held = loading_of(Workload(SCRIPT, dataset=Dataset(held_in_memory=True)), batch=8, loading=warm).step_s
    assert held.high == 0.8


def test_a_busy_machine_or_a_silent_kernel_widens_the_loading_and_says_so():
    def told(share):
        measured = LoadingTime(batch_s=0.4, cpu_s=0.4, batches=8, queued_share=share)
        return loading_of(Workload(SCRIPT), batch=8, loading=measured)

    idle, busy, silent = told(0.0), told(0.6), told(None)
    assert idle.step_s.point == busy.step_s.point == silent.step_s.point
    assert idle.step_s.high < silent.step_s.high < busy.step_s.high
    assert busy.step_s.low < silent.step_s.low < idle.step_s.low
    assert "the machine is busy (60% waiting for a processor, not counted)" in busy.reason
    assert "the kernel does not report waiting" in silent.reason


def test_the_users_own_loading_time_is_exact_and_takes_precedence():
    told = loading_of(Workload(SCRIPT, dataset=Dataset(load_s=0.1, workers=2)), batch=8, loading=MEASURED)
    assert told.step_s == Interval(0.05, 0.05, 0.05)
    assert told.reason == "loading takes 0.1 s a batch, as requested"
    assert loading_of(Workload(SCRIPT, dataset=Dataset(load_s=0.0)), batch=8, loading=MEASURED).step_s.high == 0.0


def test_a_step_loads_as_many_batches_as_the_script_showed():
    several = LoadingTime(batch_s=0.4, cpu_s=0.4, batches=8, queued_share=0.0, per_step=5)
    assert loading_of(Workload(SCRIPT), loading=several).step_s.point == pytest.approx(2.0)
    assert loading_of(Workload(SCRIPT), loading=several, accumulation=5).step_s.point == pytest.approx(2.0)
    assert loading_of(Workload(SCRIPT, accumulation=10), loading=several, accumulation=5).step_s.point == 4.0
    job = TracedJob(OpGraph(()), LoopFacts(batch=8, loading=several))
    assert evaluation_interval(Workload(SCRIPT), job, CPU, 1.0).point == pytest.approx(1.4)


def test_an_evaluation_batch_is_loaded_too():
    def seconds(load_s=None, **loop):
        workload = Workload(SCRIPT, dataset=Dataset(load_s=load_s))
        return evaluation_interval(workload, TracedJob(OpGraph(()), LoopFacts(**loop)), CPU, 1.0)

    assert seconds().point == 1.0
    assert seconds(batch=8, loading=MEASURED).point == pytest.approx(1.4)
    assert seconds(batch=8, loading=MEASURED, accumulation=4).point == pytest.approx(1.4)
    larger = LoadingTime(batch_s=3.0, cpu_s=3.0, batches=1, queued_share=0.0)
    assert seconds(batch=8, loading=MEASURED, evaluation_loading=larger).point == pytest.approx(4.0)
    assert seconds(batch=8, loading=MEASURED, evaluation_loading=larger, loader_workers=2).point == pytest.approx(1.5)
    assert seconds(load_s=2.0, evaluation_loading=larger).point == pytest.approx(3.0)


def test_workers_hide_loading_behind_the_step_and_nothing_else_does():
    compute = Interval(1.0, 0.5, 2.0)
    short, long = Interval(0.4, 0.2, 0.8), Interval(3.0, 1.5, 6.0)
    gpu = Device("GPU", "nvidia", DeviceKind.GPU)
    assert step_with_loading(compute, short, 2, gpu) == compute
    assert step_with_loading(compute, long, 2, gpu) == long
    assert step_with_loading(compute, short, 0, gpu).point == pytest.approx(1.4)


def test_workers_take_processor_time_from_a_step_on_the_cpu():
    compute, loading_s = Interval(1.0, 0.5, 2.0), Interval(0.4, 0.2, 0.8)
    cpu = Device("CPU", "amd", DeviceKind.CPU, compute_units=8)
    assert step_with_loading(compute, loading_s, 2, cpu).point == pytest.approx(1.0 + 0.4 * 2 / 8)
    assert step_with_loading(compute, loading_s, 16, cpu).point == pytest.approx(1.0 + 0.8)


def test_a_batch_of_a_worker_is_sent_and_received():
    figures = {"loader_send_s": 0.6, "loader_receive_s": 0.25}
    gpu = Device("GPU", "nvidia", DeviceKind.GPU, calibration=Calibration("now", "torch", 1, figures=figures))
    compute = Interval(1.0, 1.0, 1.0)
    assert step_with_loading(compute, Interval(0.1, 0.1, 0.1), 2, gpu).point == pytest.approx(1.25)
    assert step_with_loading(compute, Interval(2.0, 2.0, 2.0), 2, gpu).point == pytest.approx(2.3)


def test_the_scripts_own_work_is_wider_than_it_was_measured_and_more_so_elsewhere():
    job = TracedJob(OpGraph(()), LoopFacts(script_work=ScriptWork(0.1, 0.08, 0.3)))
    elsewhere = Device("GPU", "nvidia", DeviceKind.GPU)
    here = Device("GPU", "nvidia", DeviceKind.GPU, calibration=Calibration("now", "torch", 1))
    work = script_work(job, elsewhere)
    assert (work.step_s.low, work.step_s.point, work.step_s.high) == pytest.approx((0.04, 0.1, 0.6))
    assert "0.1 s a step" in work.reason
    assert script_work(job, here).step_s.high == pytest.approx(0.45)
    assert script_work(TracedJob(OpGraph(())), here) is None


def test_the_start_of_the_scripts_own_python_replaces_the_calibrated_one_on_a_cpu():
    figures = {"framework_import_s": 2.0, "first_step_s": 0.5}
    start_up = {"framework_import_s": 4.0, "first_step_s": 1.0}
    cpu = Device("CPU", "amd", DeviceKind.CPU, calibration=Calibration("now", "torch", 1, figures=figures))
    gpu = Device("GPU", "nvidia", DeviceKind.GPU, calibration=Calibration("now", "torch", 1, figures=figures))
    assert startup_interval(cpu, LoopFacts(start_up=start_up)).point == 5.0
    assert startup_interval(gpu, LoopFacts(start_up=start_up)).point == 2.5


def test_a_compiler_that_the_script_imports_is_loaded_once():
    start_up = {"framework_import_s": 2.0, "first_step_s": 2.5, "compiler_s": 1.5}
    cpu = Device("CPU", "amd", DeviceKind.CPU, calibration=Calibration("now", "torch", 1))
    assert startup_interval(cpu, LoopFacts(start_up=start_up)).point == 4.5
    assert startup_interval(cpu, LoopFacts(start_up=start_up, loads_compiler=True)).point == 3.0


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
    assert startup_interval(known, LoopFacts(script_s=0.1, framework_s=1e-6)).point == 4.5  # no import is so short


def test_a_calibrated_loader_is_priced_by_the_batch_and_by_the_sample_if_there_is_data():
    figures = {"loader_batch_s": 1e-4, "loader_sample_s": 1e-5}
    calibrated = Device("CPU", "amd", DeviceKind.CPU, calibration=Calibration("now", "torch", 1, figures=figures))
    told = loading_of(Workload(MODEL, batch=32, dataset=Dataset(samples=1000)), calibrated)
    assert told.step_s.point == pytest.approx(1e-4 + 32e-5)
    assert "as DataLoader on the calibrated device" in told.reason
    assert loading_of(Workload(MODEL, batch=32), calibrated).step_s.point == 0.0
    assert loading_of(Workload(SCRIPT, batch=32, dataset=Dataset(samples=1000)), calibrated).step_s.point == 0.0
