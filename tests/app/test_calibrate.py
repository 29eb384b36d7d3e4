import pytest

from leadline.app.calibrate import calibrate, save_record
from leadline.core.documents import load
from leadline.core.errors import InvalidInput
from leadline.core.hardware import Device
from leadline.estimators.calibrated import CalibratedKernels


def silent(kind, number, total):
    assert 0 <= number <= total


@pytest.mark.slow
def test_this_machine_is_measured_saved_and_read_back(tmp_path):
    device = calibrate(device_type="cpu", budget_s=10, progress=silent, folder=tmp_path)
    (file,) = tmp_path.iterdir()
    assert device == load(file.read_text(encoding="utf-8"), Device, what=str(file))
    expected = {"addmm", "mm", "bmm", "convolution", "convolution_backward", "attention", "lstm", "add"}
    timed = {timing.kind for timing in device.calibration.timings}
    assert len(expected & timed) >= 6, expected - timed  # on a busy machine so short a sweep does not come to all
    assert all(timing.elapsed_s > 0 for timing in device.calibration.timings)
    assert {"call_s", "launch_forward_s", "launch_backward_s", "launch_optimizer_s", "fresh_s_per_byte",
            "copy_bytes_per_s", "loader_batch_s", "framework_bytes"} <= set(device.calibration.figures)  # fmt: skip
    CalibratedKernels(device)
    assert [file] == [save_record(device, tmp_path)]


def test_a_budget_too_small_is_refused_before_anything_is_measured(tmp_path):
    with pytest.raises(InvalidInput, match="--budget 1 is too short"):
        calibrate(device_type="cpu", budget_s=1, progress=silent, folder=tmp_path)
    assert [] == list(tmp_path.iterdir())


def test_an_unknown_device_type_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match="--device abacus is not known: give cpu or cuda"):
        calibrate(device_type="abacus", budget_s=10, progress=silent, folder=tmp_path)
