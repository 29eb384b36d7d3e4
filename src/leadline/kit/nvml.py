"""Power, energy, clocks and temperature of a GPU from NVML, the driver library behind nvidia-smi."""

import ctypes
from typing import Any, Dict, Optional

LIBRARY, CUDA = "libnvidia-ml.so.1", "libcuda.so.1"
THROTTLES = {
    0x4: "power cap", 0x8: "hardware slowdown", 0x20: "thermal, by software", 0x40: "thermal, by hardware",
    0x80: "power brake",
}  # fmt: skip
"""Bits of NVML's reasons for lower clocks, without those of the user's choice (``nvmlClocksEventReasons``)."""
SM_CLOCK, MEMORY_CLOCK = 1, 2


class Nvml:
    """One GPU in NVML; values that the board does not report are ``None``.

    ``OSError`` if the library is missing or does not know the GPU at ``bus_id``, such as ``0000:3B:00.0``.
    """

    # The PCI bus id is the only name that CUDA and NVML share on every version.

    def __init__(self, bus_id: str, library: str = LIBRARY) -> None:
        self._lib = ctypes.CDLL(library)
        self._check(self._lib.nvmlInit_v2(), "cannot be started")
        self._device = ctypes.c_void_p()
        code = self._lib.nvmlDeviceGetHandleByPciBusId_v2(bus_id.encode(), ctypes.byref(self._device))
        self._check(code, f"knows no GPU at {bus_id}")

    def energy_j(self) -> Optional[float]:
        """Return the energy since the driver was loaded; boards before Volta do not count it."""
        return self._thousandths("nvmlDeviceGetTotalEnergyConsumption", ctypes.c_ulonglong)

    def power_w(self) -> Optional[float]:
        """Return the current power, on newer boards a mean over the last second."""
        return self._thousandths("nvmlDeviceGetPowerUsage", ctypes.c_uint)

    def state(self) -> Dict[str, Any]:
        """Return clocks, temperature, and the reasons for reduced clocks."""
        reasons = self._query("nvmlDeviceGetCurrentClocksThrottleReasons", ctypes.c_ulonglong)
        throttled = None if reasons is None else [words for bit, words in THROTTLES.items() if reasons & bit]
        return {
            "sm_mhz": self._query("nvmlDeviceGetClockInfo", ctypes.c_uint, SM_CLOCK),
            "memory_mhz": self._query("nvmlDeviceGetClockInfo", ctypes.c_uint, MEMORY_CLOCK),
            "temperature_c": self._query("nvmlDeviceGetTemperature", ctypes.c_uint, 0),
            "throttled": throttled,
        }

    def limits(self) -> Dict[str, Any]:
        """Return the maximum clocks and the power limit."""
        return {
            "max_sm_mhz": self._query("nvmlDeviceGetMaxClockInfo", ctypes.c_uint, SM_CLOCK),
            "max_memory_mhz": self._query("nvmlDeviceGetMaxClockInfo", ctypes.c_uint, MEMORY_CLOCK),
            "power_limit_w": self._thousandths("nvmlDeviceGetEnforcedPowerLimit", ctypes.c_uint),
        }

    def driver(self) -> Optional[str]:
        """Return the driver's version."""
        buffer = ctypes.create_string_buffer(96)
        code = self._lib.nvmlSystemGetDriverVersion(buffer, ctypes.c_uint(len(buffer)))
        return None if code else buffer.value.decode()

    def _thousandths(self, name: str, kind: Any) -> Optional[float]:
        value = self._query(name, kind)
        return None if value is None else value / 1e3

    def _query(self, name: str, kind: Any, *arguments: int) -> Optional[int]:
        """Call a function with one numeric result; ``None`` if the board or driver does not support it."""
        function = getattr(self._lib, name, None)
        if function is None:
            return None
        value = kind()
        code = function(self._device, *(ctypes.c_uint(argument) for argument in arguments), ctypes.byref(value))
        return None if code else int(value.value)

    @staticmethod
    def _check(code: int, words: str) -> None:
        if code:
            raise OSError(f"NVML {words} (code {code})")


def open_nvml(number: int, cuda: str = CUDA, library: str = LIBRARY) -> "tuple[Optional[Nvml], str]":
    """Return NVML for CUDA device ``number`` of this process, or ``None`` and the reason."""
    try:
        return Nvml(_bus_id(number, cuda), library), ""
    except (OSError, AttributeError) as error:
        return None, str(error)


def _bus_id(number: int, cuda: str) -> str:
    """Return a GPU's PCI bus id; CUDA's numbering follows CUDA_VISIBLE_DEVICES, NVML's does not."""
    driver = ctypes.CDLL(cuda)
    device, buffer = ctypes.c_int(), ctypes.create_string_buffer(32)
    code = driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), number)
    code = code or driver.cuDeviceGetPCIBusId(buffer, len(buffer), device)
    if code:
        raise OSError(f"the CUDA driver does not say where GPU {number} is (code {code})")
    return buffer.value.decode()
