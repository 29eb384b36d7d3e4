"""What trees see of a kernel on a device: ratios without dimension, so that they learn kernels and not devices."""

import numpy as np

from leadline.estimators.learned.boards import Placed
from leadline.estimators.tabular.ports import Array

EDGES = ((128, 128), (128, 64), (64, 64), (32, 32))
EDGE = 128.0
"""Edge of the usual large tile."""
TYPICAL_S = 3e-5
"""Time to which a kernel's is compared: about a launch."""


def computing_features(placed: Placed, kernel_s: Array) -> Array:
    """Return the features (n, f) of products and convolutions, given what the law says of their time."""
    kernels = placed.kernels
    b, m, n, k, width = kernels.b, kernels.m, kernels.n, kernels.k, kernels.width
    flops, moved, peak = kernels.flops, kernels.moved, placed.peak
    sustained = np.minimum(peak, placed.allowed)
    found = []
    for tile_m, tile_n in EDGES:
        waves = b * np.ceil(m / tile_m) * np.ceil(n / tile_n) / placed.units
        found += [np.log(waves), waves / np.ceil(waves)]
    for edge in (32, 64, 128):
        found += [m / (np.ceil(m / edge) * edge), n / (np.ceil(n / edge) * edge)]
    found += [m % EDGE / EDGE, n % EDGE / EDGE]  # a library takes a tile of half the edge where that leaves less over
    found += [np.log(m), np.log(n), np.log(k), np.log(b), k / (np.ceil(k / 16) * 16)]
    found += [(size % 4 == 0).astype(float) for size in (m, n, k)]
    found += [np.log(each / placed.l2_bytes) for each in (moved, width * n * k, width * m * k, width * m * n)]
    found += [np.log(kernel_s / TYPICAL_S), np.log(flops / peak / TYPICAL_S)]
    found += [np.log(flops / moved * placed.bytes_per_s / sustained), flops / sustained / kernel_s]
    found += [moved / placed.bytes_per_s / kernel_s, np.minimum(placed.allowed / peak, 1.5), placed.modern]
    found += [kernels.fast_m > 0, np.log1p(kernels.fast_m / 128 * np.ceil(n / 64) / placed.units)]
    return np.column_stack(found)


def convolving_features(placed: Placed, kernel_s: Array) -> Array:
    """Return the features (n, f) of convolutions: a library chooses its code by the image, the batch and the channels.

    Transforms work on tiles of 2 and 4 pixels in each direction (Lavin and Gray 2016).
    """
    kernels = placed.kernels
    side, images = kernels.side, np.maximum(kernels.m / kernels.side**2, 1.0)
    found = [np.log(side), np.log(images), np.log(np.maximum(kernels.fast_k, 1.0)), kernels.fast_k % 4 == 0]
    found += [side / (np.ceil(side / tile) * tile) for tile in (2, 4, 8)]
    return np.column_stack([computing_features(placed, kernel_s), *found])


def streaming_features(placed: Placed, kernel_s: Array) -> Array:
    """Return the features (n, f) of kernels that stream their operands."""
    kernels = placed.kernels
    rows, columns = kernels.rows, kernels.columns
    found = [
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
    return np.column_stack(found)
