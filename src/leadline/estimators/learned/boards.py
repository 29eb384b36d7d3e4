"""A device as the few figures that the laws of kernels need."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from leadline.core.errors import InvalidInput
from leadline.core.hardware import Device, DeviceKind
from leadline.estimators.learned.kernel_table import COMPUTING, DTYPES, Kernels
from leadline.estimators.roofline import PROCESS_NM, WATT_PER_TFLOP_NM
from leadline.estimators.tabular.ports import Array

MATRIX_FLOAT32 = {"CDNA": 2.0, "CDNA2": 2.0}
"""Peak of float32 products on matrix units over that of the vector units, where products run there (AMD's figures)."""

MATRIX_UNITS = (3.0, 1.5)
"""A dtype whose peak is so much above the vector float32 peak runs on matrix units: before Volta, and since."""
BALANCE = 15.0
"""Vector float32 operations for each byte of bandwidth, where the catalog does not say: about its median GPU."""
LANES = 64
"""Multiply-adds that a compute unit starts in a cycle, where the catalog does not say."""

MIB = 2.0**20


def require_gpu(device: Device, what: str) -> None:
    """Refuse a device that is no GPU; ``what`` says what was learned.

    Raises:
        InvalidInput: it is a CPU or something else.
    """
    if device.kind is not DeviceKind.GPU:
        raise InvalidInput(
            f"{device.name} is a {device.kind.value}, but {what} learned on GPUs: price it by its specifications, or "
            "calibrate it"
        )


@dataclass(frozen=True, slots=True)
class Boards:
    """Figures of d devices: ``peak`` of shape (d, dtypes), NaN where a dtype is unknown; the others of shape (d,).

    ``allowed`` is the float32 rate that the power limit lets through outside matrix units (FLOP/s), infinite where it
    is not known. ``modern`` is 1 for NVIDIA's devices since Volta, which issue integers beside floats.
    """

    names: tuple[str, ...]
    peak: Array
    vector: Array
    allowed: Array
    bytes_per_s: Array
    l2_bytes: Array
    units: Array
    clock_hz: Array
    modern: Array

    @classmethod
    def of(cls, devices: Sequence[Device]) -> "Boards":
        """Return the figures of ``devices``.

        Raises:
            InvalidInput: a device has no memory bandwidth in the catalog.
        """
        for device in devices:
            if not device.memory_bytes_per_s:
                raise InvalidInput(f"{device.name} has no memory bandwidth in the catalog, so its speed is not known")
        return cls(
            tuple(device.name for device in devices),
            np.array([_peaks(device) for device in devices]).reshape(len(devices), len(DTYPES)),
            np.array([_vector(device) for device in devices]),
            np.array([_allowed(device) for device in devices]),
            np.array([float(device.memory_bytes_per_s or np.nan) for device in devices]),
            np.array([float(device.l2_bytes or 6 * MIB) for device in devices]),
            np.array([float(device.compute_units or _units(device)) for device in devices]),
            np.array([_clock_hz(device) for device in devices]),
            np.array([float(_generation(device) >= 7) for device in devices]),
        )


@dataclass(frozen=True, slots=True)
class Placed:
    """n kernels, each with the figures of the device it runs on, all of shape (n,).

    ``matrix`` is true where the arithmetic runs on matrix units.
    """

    kernels: Kernels
    peak: Array
    vector: Array
    allowed: Array
    bytes_per_s: Array
    l2_bytes: Array
    units: Array
    clock_hz: Array
    modern: Array
    matrix: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.kernels)

    def at(self, chosen: npt.NDArray[np.generic]) -> "Placed":
        """Return the rows that a mask or positions name."""
        return Placed(
            self.kernels.at(chosen),
            self.peak[chosen],
            self.vector[chosen],
            self.allowed[chosen],
            self.bytes_per_s[chosen],
            self.l2_bytes[chosen],
            self.units[chosen],
            self.clock_hz[chosen],
            self.modern[chosen],
            self.matrix[chosen],
        )


def place(kernels: Kernels, boards: Boards, where: npt.NDArray[np.int64]) -> Placed:
    """Return the kernels on the devices whose positions in ``boards`` are ``where``, of shape (n,).

    Raises:
        InvalidInput: a kernel computes in a dtype of which a device has no peak in the catalog.
    """
    computing = np.isin(kernels.law, COMPUTING)
    peak = np.where(computing, boards.peak[where, kernels.dtype], boards.vector[where])
    if np.isnan(peak).any():
        row = int(np.flatnonzero(np.isnan(peak))[0])
        name, dtype = boards.names[int(where[row])], DTYPES[int(kernels.dtype[row])]
        raise InvalidInput(f"{name} has no {dtype} peak in the catalog, so its speed is not known")
    vector = boards.vector[where]
    matrix = (kernels.dtype != DTYPES.index("float32")) & (
        peak > vector * np.where(boards.modern[where] > 0, MATRIX_UNITS[1], MATRIX_UNITS[0])
    )
    return Placed(
        kernels,
        peak,
        vector,
        np.where(matrix, np.inf, boards.allowed[where]),
        boards.bytes_per_s[where],
        boards.l2_bytes[where],
        boards.units[where],
        boards.clock_hz[where],
        boards.modern[where],
        matrix,
    )


def _peaks(device: Device) -> list[float]:
    peaks = device.peak_flops_per_s
    single = peaks.get("float32", np.nan) * MATRIX_FLOAT32.get(device.architecture or "", 1.0)
    stand_in = {"float32": single, "tf32": peaks.get("tf32", single)}
    return [float(stand_in.get(dtype) or peaks.get(dtype) or np.nan) for dtype in DTYPES]


def _allowed(device: Device) -> float:
    """Return the float32 rate that the power limit allows."""
    process = PROCESS_NM.get(device.architecture or "")
    if not process or not device.tdp_w:
        return np.inf
    return device.tdp_w / (WATT_PER_TFLOP_NM * process) * 1e12


def _units(device: Device) -> float:
    """Return about how many compute units reach the float32 peak, at 0.18 TFLOP/s each."""
    return max(_vector(device) / 0.18e12, 1.0)


def _clock_hz(device: Device) -> float:
    """Return the boost clock, from the float32 peak where the catalog does not say it."""
    lanes = (device.compute_units or _units(device)) * (device.lanes_per_unit or LANES)
    return device.boost_hz or _vector(device) / (2 * lanes)


def _vector(device: Device) -> float:
    return device.peak_flops_per_s.get("float32") or BALANCE * float(device.memory_bytes_per_s or np.nan)


def _generation(device: Device) -> float:
    try:
        return float(device.compute_capability or 0)
    except ValueError:
        return 0.0
