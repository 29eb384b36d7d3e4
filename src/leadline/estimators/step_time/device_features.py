"""Device specifications for kernel models, and the dimensionless features that trees read.

Features are ratios, so that trees learn kernels and not devices.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from leadline.core.errors import InvalidInput
from leadline.core.frozen import Frozen
from leadline.core.hardware import Device, DeviceKind
from leadline.estimators.ports import Array, Columns, IntArray, Mask
from leadline.estimators.step_time.kernel_table import COMPUTING, COMPUTING_GROUPS, CONVOLUTION, DTYPES, KernelTable
from leadline.estimators.step_time.roofline import (
    clock_hz,
    compute_units,
    l2_bytes,
    power_limited_flops_per_s,
    require_bandwidth,
    vector_flops_per_s,
)

# Peak of float32 products on matrix units over that of the vector units, where products run there (AMD's figures).
MATRIX_FLOAT32 = {"CDNA": 2.0, "CDNA2": 2.0}

# A dtype whose peak is so much above the vector float32 peak runs on matrix units: before Volta, and since.
MATRIX_UNITS = (3.0, 1.5)


def require_gpu(device: Device, subject: str) -> None:
    """Reject a device that is no GPU; ``subject`` names what was learned on GPUs.

    Raises:
        InvalidInput: the device is a CPU or another accelerator.
    """
    if device.kind is not DeviceKind.GPU:
        raise InvalidInput(
            f"{device.name} is a {device.kind.value}, but {subject} learned on GPUs: use its specifications, or "
            "calibrate it"
        )


class _Specifications(Frozen):
    """Columns of specifications.

    ``allowed`` is the float32 rate within the power limit (``power_limited_flops_per_s``). ``modern`` is 1 for NVIDIA's
    devices since Volta, which issue integers and floats together.
    """

    peak: Array
    vector: Array
    allowed: Array
    bytes_per_s: Array
    l2_bytes: Array
    units: Array
    clock_hz: Array
    modern: Array


class DeviceFeatures(_Specifications):
    """Specifications of d devices: ``peak`` (d, dtypes), NaN where unknown; the others (d,)."""

    names: tuple[str, ...]

    @classmethod
    def of(cls, devices: Sequence[Device]) -> "DeviceFeatures":
        """Return the figures of ``devices``.

        Raises:
            InvalidInput: a device has no memory bandwidth in the catalog.
        """
        rules = (vector_flops_per_s, power_limited_flops_per_s, require_bandwidth, l2_bytes, compute_units, clock_hz,
                 _modern)  # fmt: skip
        columns = np.array([[rule(device) for device in devices] for rule in rules], np.float64)
        peak = np.array([_peaks(device) for device in devices]).reshape(len(devices), len(DTYPES))
        figures: list[Any] = [peak, *columns, tuple(device.name for device in devices)]
        return cls(*figures)


class PlacedKernels(_Specifications, Columns):
    """n kernels, each with the figures of the device it runs on, all of shape (n,).

    ``matrix`` is true where the arithmetic runs on matrix units.
    """

    matrix: Mask
    kernels: KernelTable

    def __len__(self) -> int:
        return len(self.kernels)


def place_kernels(kernels: KernelTable, boards: DeviceFeatures, where: IntArray) -> PlacedKernels:
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
    allowed = np.where(matrix, np.inf, boards.allowed[where])
    figures = {
        name: getattr(boards, name)[where] for name in ("bytes_per_s", "l2_bytes", "units", "clock_hz", "modern")
    }
    return PlacedKernels(peak, vector, allowed, **figures, matrix=matrix, kernels=kernels)


def _peaks(device: Device) -> list[float]:
    peaks = device.peak_flops_per_s
    single = peaks.get("float32", np.nan) * MATRIX_FLOAT32.get(device.architecture or "", 1.0)
    stand_in = {"float32": single, "tf32": peaks.get("tf32", single)}
    return [float(stand_in.get(dtype) or peaks.get(dtype) or np.nan) for dtype in DTYPES]


def _modern(device: Device) -> float:
    try:
        return float(float(device.compute_capability or 0) >= 7)
    except ValueError:
        return 0.0


EDGES = ((128, 128), (128, 64), (64, 64), (32, 32))
# Edge of the usual large tile.
EDGE = 128.0
# Time to which a kernel's is compared: about a launch.
TYPICAL_S = 3e-5


def computing_features(placed: PlacedKernels, kernel_s: Array) -> Array:
    """Return the features (n, f) of products and convolutions, given their analytical time."""
    kernels = placed.kernels
    b, m, n, k, width = kernels.b, kernels.m, kernels.n, kernels.k, kernels.width
    flops, moved, peak = kernels.flops, kernels.moved, placed.peak
    sustained = np.minimum(peak, placed.allowed)
    columns = []
    for tile_m, tile_n in EDGES:
        waves = b * np.ceil(m / tile_m) * np.ceil(n / tile_n) / placed.units
        columns += [np.log(waves), waves / np.ceil(waves)]
    for edge in (32, 64, 128):
        columns += [m / (np.ceil(m / edge) * edge), n / (np.ceil(n / edge) * edge)]
    columns += [m % EDGE / EDGE, n % EDGE / EDGE]  # a library takes a tile of half the edge where that leaves less over
    columns += [np.log(m), np.log(n), np.log(k), np.log(b), k / (np.ceil(k / 16) * 16)]
    columns += [(size % 4 == 0).astype(float) for size in (m, n, k)]
    columns += [np.log(each / placed.l2_bytes) for each in (moved, width * n * k, width * m * k, width * m * n)]
    columns += [np.log(kernel_s / TYPICAL_S), np.log(flops / peak / TYPICAL_S)]
    columns += [np.log(flops / moved * placed.bytes_per_s / sustained), flops / sustained / kernel_s]
    columns += [moved / placed.bytes_per_s / kernel_s, np.minimum(placed.allowed / peak, 1.5), placed.modern]
    columns += [kernels.fast_m > 0, np.log1p(kernels.fast_m / 128 * np.ceil(n / 64) / placed.units)]
    return np.column_stack(columns)


def convolving_features(placed: PlacedKernels, kernel_s: Array) -> Array:
    """Return the features (n, f) of convolutions, with image, batch and channels.

    Transforms work on tiles of 2 and 4 pixels in each direction (Lavin and Gray 2016).
    """
    kernels = placed.kernels
    side, images = kernels.side, np.maximum(kernels.m / kernels.side**2, 1.0)
    columns = [np.log(side), np.log(images), np.log(np.maximum(kernels.fast_k, 1.0)), kernels.fast_k % 4 == 0]
    columns += [side / (np.ceil(side / tile) * tile) for tile in (2, 4, 8)]
    return np.column_stack([computing_features(placed, kernel_s), *columns])


def streaming_features(placed: PlacedKernels, kernel_s: Array) -> Array:
    """Return the features (n, f) of kernels that stream their operands."""
    kernels = placed.kernels
    rows, columns = kernels.rows, kernels.columns
    features = [
        np.log(rows / placed.units),
        np.log(columns),
        np.log(rows * columns / placed.units),
        columns / (np.ceil(columns / 1024) * 1024),
        (columns % 4 == 0).astype(float),
        np.log(kernels.moved / placed.l2_bytes),
        np.log(kernel_s / TYPICAL_S),
        kernels.moved / placed.bytes_per_s / kernel_s,
        kernels.moved / (rows * columns * kernels.width),
        np.log(np.minimum(placed.vector, placed.allowed) / placed.bytes_per_s),
        placed.modern,
    ]
    return np.column_stack(features)


def group_features(group: int, placed: PlacedKernels, kernel_s: Array) -> Array:
    """Return the features that a group's trees read."""
    if group == CONVOLUTION:
        return convolving_features(placed, kernel_s)
    if group in COMPUTING_GROUPS:
        return computing_features(placed, kernel_s)
    return streaming_features(placed, kernel_s)
