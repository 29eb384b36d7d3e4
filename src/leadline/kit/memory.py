"""Peak memory of a point: what torch's allocator says of a GPU, what the kernel says of the process on a CPU."""

import ctypes
import ctypes.util
import gc
from typing import Any, Dict, Optional

import torch

CPU_SHARE = 0.75
"""Share of the free host memory that a point on the CPU may take, so that no other process dies of it."""


class DeviceMemory:
    """The memory of a GPU, emptied before a point."""

    def __init__(self) -> None:
        self._before = self._model = 0

    def begin(self) -> None:
        """Give back all that is cached, and forget the peaks."""
        gc.collect()
        torch.cuda.synchronize()
        clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
        if clear is not None:  # else the first product's workspace is counted with whichever point comes first
            clear()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        self._before, self._model = torch.cuda.memory_allocated(), 0

    def model_is_there(self) -> None:
        """Note what the model's weights take."""
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
    """The memory of this process, on a CPU; torch counts nothing there, so the kernel's peak stands in."""

    def __init__(self) -> None:
        self._before = self._model = 0
        self._trim = getattr(ctypes.CDLL(ctypes.util.find_library("c")), "malloc_trim", None)
        self.resettable = True

    def begin(self) -> None:
        """Give free memory back to the system, and forget the peak."""
        gc.collect()
        if self._trim is not None:
            self._trim(0)
        try:
            with open("/proc/self/clear_refs", "w", encoding="ascii") as switch:
                switch.write("5")  # resets the peak resident set, see proc(5)
        except OSError:
            self.resettable = False
        self._before = _status_bytes("VmRSS") or 0
        self._model = 0

    def model_is_there(self) -> None:
        """Note what the model's weights take."""
        self._model = max(0, (_status_bytes("VmRSS") or 0) - self._before)

    def figures(self) -> Dict[str, Any]:
        """Return the peak since ``begin``, in bytes; ``None`` where the system does not let it be reset."""
        return {
            "before_bytes": self._before,
            "model_bytes": self._model,
            "peak_allocated_bytes": None,
            "peak_reserved_bytes": None,
            "outside_allocator_bytes": None,
            "peak_host_bytes": _status_bytes("VmHWM") if self.resettable else None,
        }


def limit_host_memory(limit_bytes: Optional[int]) -> int:
    """Bound what this process may allocate, so that too large a point fails by itself; return the bound.

    Without ``limit_bytes`` it is a share of what is free now.
    """
    import resource  # noqa: PLC0415 - not on every system, and only a CPU's worker asks

    bound = limit_bytes or int(CPU_SHARE * (_meminfo_bytes("MemAvailable") or 1 << 40))
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    bound = bound if hard == resource.RLIM_INFINITY else min(bound, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (bound, hard))
    return bound


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an error says that memory did not suffice, in torch's words or those of the libraries below it."""
    said = str(error).lower()
    known = ("out of memory", "can't allocate memory", "bad_alloc", "alloc_failed", "could not create a memory")
    return isinstance(error, MemoryError) or any(words in said for words in known)


def _status_bytes(name: str) -> Optional[int]:
    return _kernel_bytes("/proc/self/status", name)


def _meminfo_bytes(name: str) -> Optional[int]:
    return _kernel_bytes("/proc/meminfo", name)


def _kernel_bytes(path: str, name: str) -> Optional[int]:
    """Return a line of the kernel's that is counted in kB; ``None`` where there is none."""
    try:
        with open(path, encoding="ascii", errors="replace") as lines:
            for line in lines:
                if line.startswith(name + ":"):
                    return int(line.split()[1]) * 1024
    except OSError:
        return None
    return None
