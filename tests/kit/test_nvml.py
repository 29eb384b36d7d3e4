"""NVML through the very calls that a driver gets, answered by a library built here that keeps NVML's contract."""

import shutil
import subprocess

import pytest

from leadline.kit.nvml import open_nvml

SOURCE = r"""
#include <string.h>
typedef void *device_t;
static int board;
static unsigned long long energy_mj = 5000000;
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, device_t *device) {
    if (strcmp(bus, "0000:3B:00.0")) return 6;  /* NVML_ERROR_NOT_FOUND */
    *device = &board;
    return 0;
}
int nvmlDeviceGetTotalEnergyConsumption(device_t device, unsigned long long *mj) {
    if (device != &board) return 2;
#ifdef OLD
    return 3;  /* NVML_ERROR_NOT_SUPPORTED, as before Volta */
#endif
    *mj = energy_mj += 1500;
    return 0;
}
int nvmlDeviceGetPowerUsage(device_t device, unsigned *mw) { *mw = 312500; return device != &board; }
int nvmlDeviceGetEnforcedPowerLimit(device_t device, unsigned *mw) { *mw = 700000; return device != &board; }
int nvmlDeviceGetClockInfo(device_t device, unsigned kind, unsigned *mhz) {
    *mhz = kind == 1 ? 1755 : kind == 2 ? 2619 : 0;
    return device != &board;
}
int nvmlDeviceGetMaxClockInfo(device_t device, unsigned kind, unsigned *mhz) {
    *mhz = kind == 1 ? 1980 : 2619;
    return device != &board;
}
int nvmlDeviceGetTemperature(device_t device, unsigned sensor, unsigned *c) { *c = 61; return sensor != 0; }
int nvmlDeviceGetCurrentClocksThrottleReasons(device_t device, unsigned long long *bits) {
    *bits = 0x1 | 0x4 | 0x20;  /* idle, power cap, thermal */
    return device != &board;
}
int nvmlSystemGetDriverVersion(char *text, unsigned size) { strncpy(text, "570.86.15", size); return 0; }
"""
CUDA = r"""
#include <string.h>
static int ready;
int cuInit(unsigned flags) { ready = 1; return flags; }
int cuDeviceGet(int *device, int number) {
    if (!ready) return 3;  /* CUDA_ERROR_NOT_INITIALIZED */
    *device = number + 40;
    return number > 1 ? 101 : 0;  /* CUDA_ERROR_INVALID_DEVICE */
}
int cuDeviceGetPCIBusId(char *text, int size, int device) {
    strncpy(text, device == 40 ? "0000:3B:00.0" : "0000:AF:00.0", size);
    return device < 40;
}
"""


def built(folder, name, source, *flags):
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler to build the library with")
    (folder / f"{name}.c").write_text(source)
    library = folder / f"lib{name}.so"
    subprocess.run(["cc", "-shared", "-fPIC", *flags, str(folder / f"{name}.c"), "-o", str(library)], check=True)
    return str(library)


@pytest.fixture(scope="module", params=["", "-DOLD"], ids=["counts energy", "counts none"])
def libraries(request, tmp_path_factory):
    """Return CUDA's library and NVML's, and whether the board counts energy."""
    folder = tmp_path_factory.mktemp("driver")
    flags = filter(None, [request.param])
    return built(folder, "cuda", CUDA), built(folder, "nvidia-ml", SOURCE, *flags), not request.param


def test_supported_values_of_the_board_are_read(libraries):
    cuda, nvml_library, counts = libraries
    nvml, reason = open_nvml(0, cuda, nvml_library)
    assert reason == ""
    assert nvml.state() == {"sm_mhz": 1755, "memory_mhz": 2619, "temperature_c": 61,
            "throttled": ["power cap", "thermal, by software"]}  # fmt: skip
    assert nvml.limits() == {"max_sm_mhz": 1980, "max_memory_mhz": 2619, "power_limit_w": 700.0}
    assert (nvml.power_w(), nvml.driver()) == (312.5, "570.86.15")
    assert counts == (nvml.energy_j() is not None)


def test_energy_covers_the_timed_steps_with_a_counter_or_power_samples(libraries):
    pytest.importorskip("torch")
    from leadline.kit.measure import _EnergyMeter

    cuda, nvml_library, counts = libraries
    nvml, _ = open_nvml(0, cuda, nvml_library)
    meter = _EnergyMeter(nvml)
    for _ in range(5):
        meter.read()
    found = meter.figures(steps=4)
    assert ("counter" if counts else "samples") == found["method"]
    if counts:
        assert found["step_j"] == pytest.approx(4 * 1.5 / 4)  # four readings after the first, 1.5 J each
        assert found["mean_w"] * found["window_s"] == pytest.approx(6.0)
    else:
        assert found["mean_w"] == 312.5
        assert 312.5 * found["window_s"] / 4 == pytest.approx(found["step_j"])


def test_a_missing_library_or_device_is_a_reason_not_an_error(libraries, tmp_path):
    cuda, nvml_library, _ = libraries
    assert open_nvml(1, cuda, nvml_library) == (None, "NVML knows no GPU at 0000:AF:00.0 (code 6)")
    assert open_nvml(2, cuda, nvml_library) == (None, "the CUDA driver does not say where GPU 2 is (code 101)")
    for paths in ((cuda, str(tmp_path / "none.so")), (str(tmp_path / "none.so"), nvml_library)):
        nvml, reason = open_nvml(0, *paths)
        assert nvml is None
        assert "none.so" in reason
