"""Seconds of matrix products by the tiles of a GPU's kernels, fitted to kernels that were timed on each generation.

A product ``(m × k) · (k × n)`` is cut into tiles of its output, which the multiprocessors work off in waves. The last
wave idles in part. A tile takes its FLOPs, with some more for the start of its inner loop, at a share of the peak that
depends on its size; the fastest tile counts. Operands and output pass through memory. Both overlap: the seconds are
launch + (c^q + b^q)^(1/q) with c of computing and b of memory.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from leadline.core.errors import InvalidInput
from leadline.core.hardware import Device
from leadline.estimators.ports import Array, Stored
from leadline.estimators.step_time.power_limit import matrix_share

# Name: start of a fit. The fit and the stored curves have logarithms.
PARAMETERS = {
    "tile_256x128": 0.8,  # shares of the peak in tiles of that size
    "tile_128x128": 0.75,
    "tile_128x64": 0.6,
    "tile_64x64": 0.4,
    "fill": 100.0,  # inner elements that a tile loses at its start
    "memory": 0.8,  # share of the bandwidth
    "launch_s": 4e-6,
    "overlap": 3.0,  # q above
    "last_wave": 1.0,  # odds that a multiprocessor without a tile in the last wave idles
    "sustained": 0.1,  # slowdown of long products, at which power limits the clock
    "cast": 1.0,  # passes of the left operand in 16 bits that casting to 8 bits or fewer takes
}  # fmt: skip
TILES = ((256, 128, 0), (128, 256, 0), (128, 128, 1), (128, 64, 2), (64, 128, 2), (64, 64, 3))  # m, n, parameter
# Bytes of an element of the left and the right operand, with scales: 8 bits for each 16 values of NVFP4, 16 bits for
# each 128 int4 weights. Others have two bytes. Weights alone are in few bits where the name says so.
OPERAND_BYTES = {
    "float8": (1.0, 1.0), "float4": (0.5625, 0.5625), "int8": (1.0, 1.0), "int8-weights": (2.0, 1.0),
    "int4-weights": (2.0, 0.515625),
}  # fmt: skip
ARITHMETIC = {"int8-weights": "bfloat16", "int4-weights": "bfloat16"}
"""Number format of the multiplication, where it is not that of the name."""
# Rows of the smallest tiles, and of those that kernels before Blackwell have for fewer rows. Blackwell's matrix units
# take no fewer than 64.
SMALLEST_TILE, FEWEST_ROWS, BLACKWELL = 64, 32, 10
USUAL_UNITS = 128  # of a device whose number of multiprocessors is not in the catalog
CLOCKS_SETTLE_S = 2e-3  # half of the slowdown shows in products of that length: an assumption


class Rates(NamedTuple):
    """Rates and parameters of n devices, a column (n, 1) each."""

    peak: Array
    memory: Array
    units: Array
    fewest_rows: Array
    left_bytes: Array
    right_bytes: Array
    parameters: Array  # (parameters, n, 1)


class ProductCurves(Stored):
    """The law's parameters for GPU generations and dtypes.

    ``names`` are like ``9.0 bfloat16``: a compute capability, and the dtype of the operands. float16 is bfloat16,
    and ``int4-weights`` meet 16-bit activations. ``logs`` (curves, parameters) has the logarithms of ``PARAMETERS``.
    """

    names: tuple[str, ...]
    logs: Array

    def curve_of(self, capability: str, dtype: str) -> str | None:
        """Return the name of the curve of a compute capability, ``None`` if nothing like it was measured.

        A generation within the same major capability follows the newest measured one before it.
        """
        major, _, minor = capability.partition(".")
        fits = [name for name in self.names if name.startswith(f"{major}.") and name.endswith(f" {dtype}")]
        before = [name for name in fits if name.split()[0].partition(".")[2] <= minor]
        return max(before, default=None)

    def rates(self, devices: Sequence[Device], dtypes: Sequence[str]) -> Rates:
        """Return the rates of products of a dtype on each device, whose bandwidth is in the catalog.

        Generations without a curve have the mean of those with the same dtype, or of all. ``InvalidInput`` if a device
        lacks the peak.
        """
        kinds = ["bfloat16" if dtype == "float16" else dtype for dtype in dtypes]
        pairs = [(device.compute_capability or "", kind) for device, kind in zip(devices, kinds, strict=True)]
        logs = {pair: self._parameters(*pair) for pair in set(pairs)}
        columns = (
            [
                sustained_peak(device, ARITHMETIC.get(dtype, dtype))
                for device, dtype in zip(devices, dtypes, strict=True)
            ],
            [device.memory_bytes_per_s for device in devices],
            [device.compute_units or USUAL_UNITS for device in devices],
            [_fewest_rows(device) for device in devices],
            *zip(*[OPERAND_BYTES.get(dtype, (2.0, 2.0)) for dtype in dtypes], strict=True),
        )
        peak, memory, units, fewest, left, right = (np.array(column, np.float64)[:, None] for column in columns)
        return Rates(peak, memory, units, fewest, left, right, np.exp([logs[pair] for pair in pairs]).T[:, :, None])

    def _parameters(self, capability: str, dtype: str) -> Array:
        if (name := self.curve_of(capability, dtype)) is not None:
            return np.asarray(self.logs[self.names.index(name)])
        alike = [place for place, name in enumerate(self.names) if name.endswith(f" {dtype}")]
        return np.asarray(self.logs[alike or slice(None)].mean(axis=0))


def _fewest_rows(device: Device) -> int:
    major = (device.compute_capability or "").partition(".")[0]
    return SMALLEST_TILE if major.isdecimal() and int(major) >= BLACKWELL else FEWEST_ROWS


def sustained_peak(device: Device, dtype: str) -> float:
    """Return the dense peak of a dtype that the power limit sustains, in FLOP/s.

    The curves were measured on boards that sustain all of it. ``InvalidInput`` if the peak is not in the catalog.
    """
    peak = device.peak_flops_per_s.get(dtype)
    if not peak:
        raise InvalidInput(f"{device.name} has no {dtype} peak in the catalog: ask for another number format")
    return peak * matrix_share(device)


def product_seconds(
    rates: Rates, m: Array, n: Array, k: Array, groups: Array | float = 1.0, *, busy: bool = False
) -> Array:
    """Return the seconds of products (n, p), one row a device.

    ``groups`` products of the same shape share the waves of one kernel, as those of experts do.
    ``busy`` is for products among others that keep the GPU at the clock of long products, on operands that are in
    their dtype already.
    """
    p = dict(zip(PARAMETERS, rates.parameters, strict=True))
    computing = np.full(np.broadcast_shapes(m.shape, rates.peak.shape), np.inf)
    idle = p["last_wave"] / (1 + p["last_wave"])
    for tile_m, tile_n, place in TILES:
        waves = np.ceil(m / tile_m) * np.ceil(n / tile_n) * groups / rates.units
        waves = waves + (np.ceil(waves) - waves) * idle
        rows = np.clip(m, rates.fewest_rows, tile_m) if tile_m == SMALLEST_TILE else tile_m
        flops = 2.0 * rows * tile_n * (k + p["fill"]) * rates.units
        computing = np.minimum(computing, waves * flops / (rates.peak * rates.parameters[place]))
    settled = 1.0 if busy else computing / (computing + CLOCKS_SETTLE_S)
    computing = computing * (1 + p["sustained"] * settled)
    if not busy:
        computing = computing + np.where(rates.left_bytes < 2, p["cast"] * 2 * groups * m * k / rates.memory, 0.0)
    moved = groups * ((rates.left_bytes * m + rates.right_bytes * n) * k + 2 * m * n) / (rates.memory * p["memory"])
    q = p["overlap"]
    return np.asarray(p["launch_s"] + (computing**q + moved**q) ** (1 / q))
