import math

import pytest

pytest.importorskip("torch")

from leadline.catalog.probes.cases import KernelCase, log_spread_sizes
from leadline.catalog.probes.sweep import sweep_cases


def test_sizes_stay_within_their_bounds_and_reach_near_both():
    points = list(log_spread_sizes(64, (2, 16384), (4, 4096)))
    assert len(points) == 64
    assert all(2 <= m <= 16384 and 4 <= n <= 4096 for m, n in points)
    assert min(m for m, _ in points) <= 3
    assert max(n for _, n in points) >= 3000


def test_every_octave_is_equally_frequent():
    octaves = [int(math.log2(n)) for (n,) in log_spread_sizes(96, (8, 511))]
    counts = [octaves.count(octave) for octave in range(3, 9)]
    assert max(counts) - min(counts) <= 4


def test_the_first_cases_cover_every_kernel():
    cases = sweep_cases("cpu")
    kernels = {(case.kind, case.dtype) for case in cases}
    assert {(case.kind, case.dtype) for case in cases[: len(kernels)]} == kernels


def test_a_streaming_kernel_rotates_its_operands():
    made, used = [], []

    def prepare():
        made.append(len(made))
        return lambda mine=made[-1]: used.append(mine)

    call = KernelCase("add", {"elements": 2**20}, prepare, bytes_moved=12.0 * 2**20).call()
    for _ in range(6):
        call()
    assert len(made) == 3
    assert {0, 1, 2} == set(used[:3]) == set(used[3:])
