"""Power, energy, clocks and temperature of a GPU by NVML, the library of NVIDIA's driver that nvidia-smi is made of."""

import ctypes
from typing import Any, Dict, List, Optional

LIBRARY, CUDA = "libnvidia-ml.so.1", "libcuda.so.1"
THROTTLES = {
    0x4: "power cap", 0x8: "hardware slowdown", 0x20: "thermal, by software", 0x40: "thermal, by hardware",
    0x80: "power brake",
}  # fmt: skip
"""Bits of NVML's reasons for lower clocks that are no choice of the user's (``nvmlClocksEventReasons``)."""
SM_CLOCK, MEMORY_CLOCK = 1, 2


class Nvml:
    """One GPU as NVML sees it; what the board does not tell is ``None``.

    Args:
        bus_id: its place on the PCI bus, as ``0000:3B:00.0``: the one name that CUDA and NVML share on every version.

    Raises:
        OSError: the library is not there, or does not know the GPU; with the reason.
    """

    def __init__(self, bus_id: str, library: str = LIBRARY) -> None:
        self._lib = ctypes.CDLL(library)
        self._check(self._lib.nvmlInit_v2(), "cannot be started")
        self._device = ctypes.c_void_p()
        found = self._lib.nvmlDeviceGetHandleByPciBusId_v2(bus_id.encode(), ctypes.byref(self._device))
        self._check(found, f"knows no GPU at {bus_id}")

    def energy_j(self) -> Optional[float]:
        """Return the energy since the driver was loaded; boards before Volta do not count it."""
        millijoules = self._ask("nvmlDeviceGetTotalEnergyConsumption", ctypes.c_ulonglong)
        return None if millijoules is None else millijoules / 1e3

    def power_w(self) -> Optional[float]:
        """Return the power drawn now, which is a mean over the last second on newer boards."""
        milliwatts = self._ask("nvmlDeviceGetPowerUsage", ctypes.c_uint)
        return None if milliwatts is None else milliwatts / 1e3

    def power_limit_w(self) -> Optional[float]:
        """Return the power at which the board holds back."""
        milliwatts = self._ask("nvmlDeviceGetEnforcedPowerLimit", ctypes.c_uint)
        return None if milliwatts is None else milliwatts / 1e3

    def state(self) -> Dict[str, Any]:
        """Return clocks, temperature, and why the clocks are lower than they could be."""
        reasons = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons", ctypes.c_ulonglong)
        throttled: Optional[List[str]] = None
        if reasons is not None:
            throttled = [words for bit, words in THROTTLES.items() if reasons & bit]
        return {
            "sm_mhz": self._ask("nvmlDeviceGetClockInfo", ctypes.c_uint, SM_CLOCK),
            "memory_mhz": self._ask("nvmlDeviceGetClockInfo", ctypes.c_uint, MEMORY_CLOCK),
            "temperature_c": self._ask("nvmlDeviceGetTemperature", ctypes.c_uint, 0),
            "throttled": throttled,
        }

    def limits(self) -> Dict[str, Any]:
        """Return the highest clocks, and the power limit."""
        return {
            "max_sm_mhz": self._ask("nvmlDeviceGetMaxClockInfo", ctypes.c_uint, SM_CLOCK),
            "max_memory_mhz": self._ask("nvmlDeviceGetMaxClockInfo", ctypes.c_uint, MEMORY_CLOCK),
            "power_limit_w": self.power_limit_w(),
        }

    def driver(self) -> Optional[str]:
        """Return the driver's version."""
        held = ctypes.create_string_buffer(96)
        code = self._lib.nvmlSystemGetDriverVersion(held, ctypes.c_uint(len(held)))
        return None if code else held.value.decode()

    def _ask(self, name: str, kind: Any, *arguments: int) -> Optional[int]:
        """Call a function that fills one number; ``None`` where the board or the driver does not know it."""
        function = getattr(self._lib, name, None)
        if function is None:
            return None
        value = kind()
        code = function(self._device, *(ctypes.c_uint(one) for one in arguments), ctypes.byref(value))
        return None if code else int(value.value)

    @staticmethod
    def _check(code: int, words: str) -> None:
        if code:
            raise OSError(f"NVML {words} (code {code})")


def open_nvml(number: int, cuda: str = CUDA, library: str = LIBRARY) -> "tuple[Optional[Nvml], str]":
    """Return NVML for the GPU that CUDA counts as ``number`` in this process, or ``None`` and the reason why not."""
    try:
        return Nvml(_bus_id(number, cuda), library), ""
    except (OSError, AttributeError) as error:
        return None, str(error)


def _bus_id(number: int, cuda: str) -> str:
    """Return where on the PCI bus a GPU is; the CUDA driver's count follows CUDA_VISIBLE_DEVICES, NVML's does not.

    Raises:
        OSError: there is no such driver or no such GPU.
    """
    driver = ctypes.CDLL(cuda)
    device, held = ctypes.c_int(), ctypes.create_string_buffer(32)
    code = driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), number)
    code = code or driver.cuDeviceGetPCIBusId(held, len(held), device)
    if code:
        raise OSError(f"the CUDA driver does not say where GPU {number} is (code {code})")
    return held.value.decode()
