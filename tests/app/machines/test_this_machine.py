import pytest

from leadline.app.machines.this_machine import calibrate, save_device, with_catalog_specs
from leadline.catalog.read import TomlCatalog
from leadline.core.documents import from_json
from leadline.core.errors import InvalidInput
from leadline.core.hardware import Calibration, Confidence, Device, DeviceKind, KernelTiming
from leadline.estimators.step_time.calibrated_kernels import CalibratedKernels


def silent(kind, number, total):
    assert 0 <= number <= total


@pytest.mark.slow
def test_this_machine_is_measured_saved_and_read_back(tmp_path):
    device = calibrate(device_type="cpu", budget_s=10, progress=silent, folder=tmp_path)
    (file,) = tmp_path.iterdir()
    assert device == from_json(file.read_text(encoding="utf-8"), Device, label=str(file))
    expected = {"addmm", "mm", "bmm", "convolution", "convolution_backward", "attention", "lstm", "add"}
    timed = {timing.kind for timing in device.calibration.timings}
    assert len(expected & timed) >= 6, expected - timed  # on a busy machine so short a sweep does not come to all
    assert all(timing.elapsed_s > 0 for timing in device.calibration.timings)
    assert {"call_s", "launch_forward_s", "launch_backward_s", "launch_optimizer_s", "fresh_s_per_byte",
            "copy_bytes_per_s", "loader_batch_s", "framework_bytes"} <= set(device.calibration.figures)  # fmt: skip
    CalibratedKernels(device)
    assert [file] == [save_device(device, tmp_path)]


def test_a_budget_too_small_is_refused_before_anything_is_measured(tmp_path):
    with pytest.raises(InvalidInput, match="--budget is 1, but it must be at least 10 seconds"):
        calibrate(device_type="cpu", budget_s=1, progress=silent, folder=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_device_type_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match="--device abacus is not known: give cpu or cuda"):
        calibrate(device_type="abacus", budget_s=10, progress=silent, folder=tmp_path)


def swept_gpu(name, memory_gib):
    timing = KernelTiming("addmm", "float32", {"b": 1, "m": 64, "n": 64, "k": 64}, 1e-3, 2.0 * 64**3, 5e4)
    return Device(
        name, "NVIDIA", DeviceKind.GPU, memory_bytes=int(memory_gib * 2**30), memory_bytes_per_s=1e11,
        peak_flops_per_s={"float32": 1e12}, aliases=("local",), confidence=Confidence.MEASURED, source="calibrate",
        calibration=Calibration("2026-01-01", "torch", 8, (timing,)),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("driver", "name", "memory_gib"),
    [("Tesla T4", "T4", 14.6), ("NVIDIA A100-SXM4-40GB", "A100 SXM4 40GB", 39.4), ("NVIDIA L40S", "L40S", 44.4),
     ("AMD Instinct MI300X", "MI300X", 191.5), ("AMD Instinct MI250X", "MI250X GCD", 64)],
)  # fmt: skip
def test_a_measured_gpu_of_the_catalog_keeps_its_name_and_specs(driver, name, memory_gib):
    known, measured = TomlCatalog(None).device(name), swept_gpu(driver, memory_gib)
    device = with_catalog_specs(measured)
    assert (name, known.peak_flops_per_s, known.memory_bytes_per_s) == (
        device.name, device.peak_flops_per_s, device.memory_bytes_per_s,
    )  # fmt: skip
    assert (measured.calibration, measured.memory_bytes) == (device.calibration, device.memory_bytes)
    assert {"local", driver} <= set(device.aliases)


def test_half_of_a_board_and_a_gpu_that_the_catalog_has_not_stay_as_they_were_measured():
    for measured in (swept_gpu("NVIDIA A100-SXM4-40GB", 20), swept_gpu("NVIDIA Z9000", 80)):
        assert measured is with_catalog_specs(measured)
