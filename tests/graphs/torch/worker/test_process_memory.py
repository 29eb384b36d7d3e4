"""What a trace reads of its own process: the peak of its memory, and the blocks that the C library maps."""

import ctypes
import sys

import pytest

from leadline.graphs.torch.worker.session import (
    LARGEST_MAPPED,
    forget_peak,
    mapped_block_bytes,
    peak_resident_bytes,
    resident_bytes,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def test_the_peak_counts_from_when_it_was_forgotten():
    held = bytearray(200 * 2**20)
    del held
    forget_peak()
    if peak_resident_bytes() - resident_bytes() > 150 * 2**20:
        pytest.skip("the kernel does not let a process count its peak anew")
    assert peak_resident_bytes() - resident_bytes() < 50 * 2**20
    held = bytearray(100 * 2**20)
    del held
    assert peak_resident_bytes() - resident_bytes() > 80 * 2**20


def test_a_large_block_that_is_freed_raises_the_size_of_mapped_blocks():
    library = ctypes.CDLL(None)
    library.malloc.argtypes, library.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
    library.free.argtypes = [ctypes.c_void_p]
    library.free(library.malloc(LARGEST_MAPPED - 2**20))
    mapped_from = mapped_block_bytes()
    if mapped_from is None:
        pytest.skip("the C library is not glibc")
    assert mapped_from >= LARGEST_MAPPED - 2**21
