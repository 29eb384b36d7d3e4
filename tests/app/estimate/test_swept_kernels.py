"""The sweep of a GPU is fitted in once, kept, and made anew when it or what Leadline ships changes."""

import os
from dataclasses import replace

import pytest

from leadline.app.estimate import kernel_models
from leadline.catalog.read import TomlCatalog
from leadline.core.hardware import Calibration, KernelTiming
from leadline.estimators.recent_cache import RecentCache
from leadline.estimators.step_time.roofline import RAMP_S
from leadline.estimators.step_time.swept_kernels import fit_calibration


def add(rows, columns, bytes_per_s):
    size = rows * columns
    return KernelTiming("add", "float32", {"rows": rows, "columns": columns, "elements": size},
                        RAMP_S + 12.0 * size / bytes_per_s, float(size), 12.0 * size)  # fmt: skip


def calibrated(bytes_per_s=200e9):
    timings = tuple(add(2**i, columns, bytes_per_s) for i in range(6, 16) for columns in (64, 256, 1024))
    return replace(TomlCatalog(None).device("T4"), calibration=Calibration("now", "torch", 8, timings))


@pytest.fixture
def fits(monkeypatch, tmp_path):
    """Return the names of the devices that were fitted, none remembered from other tests."""
    done = []

    def counted(fitted, device):
        done.append(device.name)
        return fit_calibration(fitted, device)

    monkeypatch.setenv("LEADLINE_DATA_DIR", str(tmp_path))
    monkeypatch.setattr(kernel_models, "fit_calibration", counted)
    monkeypatch.setattr(kernel_models, "swept_kernels", RecentCache(kernel_models._fit_sweep))
    return done


def test_a_sweep_is_fitted_in_once_and_read_from_its_file_by_the_next_process(fits, tmp_path):
    device = calibrated()
    first = kernel_models.swept_kernels(device)
    assert first is kernel_models.swept_kernels(device)
    again = kernel_models._fit_sweep(device)  # as a process would that remembers nothing
    assert fits == ["T4"]
    assert first.sweeps.keys() == again.sweeps.keys()
    assert {"T4"} == {name for name, _ in again.sweeps}
    assert [one.name for one in (tmp_path / "swept").iterdir()] == ["t4.npz"]


def test_another_calibration_is_fitted_anew(fits):
    kernel_models._fit_sweep(calibrated())
    kernel_models._fit_sweep(calibrated(150e9))
    assert fits == ["T4", "T4"]


def test_a_damaged_file_is_made_anew(fits, tmp_path):
    kernel_models._fit_sweep(calibrated())
    file = tmp_path / "swept" / "t4.npz"
    file.write_bytes(file.read_bytes()[:1000])
    kernel_models._fit_sweep(calibrated())
    assert fits == ["T4", "T4"]
    kernel_models._fit_sweep(calibrated())
    assert fits == ["T4", "T4"]


def test_a_folder_that_cannot_be_made_costs_a_fit_and_nothing_else(fits, monkeypatch):
    monkeypatch.setenv("LEADLINE_DATA_DIR", os.devnull)
    assert kernel_models._fit_sweep(calibrated()).sweeps.keys() == kernel_models._fit_sweep(calibrated()).sweeps.keys()
    assert fits == ["T4", "T4"]
