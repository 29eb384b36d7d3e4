"""Peak memory of a point: torch's allocator on a GPU, the kernel's process statistics on a CPU."""

import ctypes
import ctypes.util
import gc
from contextlib import suppress
from typing import Any, Dict, Optional

import torch

CPU_SHARE = 0.75
"""Share of the free host memory for a CPU point, which protects other processes."""
STATUS = "/proc/self/status"


class DeviceMemory:
    """The memory of a GPU, emptied before each point."""

    def __init__(self) -> None:
        self._before = self._model = 0

    def begin(self) -> None:
        """Release caches and reset the peaks."""
        gc.collect()
        torch.cuda.synchronize()
        # Otherwise the first product's workspace is counted with whichever point comes first.
        getattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: None)()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        self._before, self._model = torch.cuda.memory_allocated(), 0

    def record_model(self) -> None:
        """Record the memory of the model's weights."""
        self._model = torch.cuda.memory_allocated() - self._before

    def figures(self) -> Dict[str, Any]:
        """Return the peaks since ``begin``, in bytes."""
        free, total = torch.cuda.mem_get_info()
        reserved = torch.cuda.memory_reserved()
        return {
            "before_bytes": self._before,
            "model_bytes": self._model,
            "peak_allocated_bytes": torch.cuda.max_memory_allocated(),
            "peak_reserved_bytes": torch.cuda.max_memory_reserved(),
            "outside_allocator_bytes": total - free - reserved,
            "peak_host_bytes": None,
        }


class HostMemory:
    """The memory of this process on a CPU, from the kernel's peak because torch counts nothing there."""

    def __init__(self) -> None:
        self._before = self._model = 0
        self._trim = getattr(ctypes.CDLL(ctypes.util.find_library("c")), "malloc_trim", None)
        self.resettable = True

    def begin(self) -> None:
        """Return free memory to the system and reset the peak."""
        gc.collect()
        if self._trim is not None:
            self._trim(0)
        try:
            with open("/proc/self/clear_refs", "w", encoding="ascii") as switch:
                switch.write("5")  # resets the peak resident set, see proc(5)
        except OSError:
            self.resettable = False
        self._before, self._model = _resident_bytes(), 0

    def record_model(self) -> None:
        """Record the memory of the model's weights."""
        self._model = max(0, _resident_bytes() - self._before)

    def figures(self) -> Dict[str, Any]:
        """Return the peak since ``begin``, in bytes; ``None`` if the system cannot reset it."""
        return {
            "before_bytes": self._before,
            "model_bytes": self._model,
            "peak_allocated_bytes": None,
            "peak_reserved_bytes": None,
            "outside_allocator_bytes": None,
            "peak_host_bytes": _kernel_bytes(STATUS, "VmHWM") if self.resettable else None,
        }


def limit_host_memory(limit_bytes: Optional[int] = None) -> None:
    """Limit this process's allocations, by default to a share of the free memory: too large a point fails by itself."""
    import resource  # noqa: PLC0415 - not on every system, and only a CPU's worker asks

    bound = limit_bytes or int(CPU_SHARE * (_kernel_bytes("/proc/meminfo", "MemAvailable") or 1 << 40))
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    bound = bound if hard == resource.RLIM_INFINITY else min(bound, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (bound, hard))


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if an error of torch or its libraries means that memory was insufficient."""
    message = str(error).lower()
    phrases = ("out of memory", "can't allocate memory", "bad_alloc", "alloc_failed", "could not create a memory")
    return isinstance(error, MemoryError) or any(phrase in message for phrase in phrases)


def _resident_bytes() -> int:
    return _kernel_bytes(STATUS, "VmRSS") or 0


def _kernel_bytes(path: str, name: str) -> Optional[int]:
    """Return a value that the kernel prints in kB; ``None`` if it is absent."""
    with suppress(OSError), open(path, encoding="ascii", errors="replace") as lines:
        for line in lines:
            if line.startswith(name + ":"):
                return int(line.split()[1]) * 1024
    return None
