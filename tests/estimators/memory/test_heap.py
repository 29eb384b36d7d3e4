"""The heap is held against the real one: the same allocations in a fresh process, its page faults counted."""

import json
import platform
import random
import subprocess
import sys

import pytest

from leadline.core.graph import Op, OpGraph, OpKind, Stage, StorageEvent, TensorSpec
from leadline.estimators.memory.heap import _Heap, fresh_bytes, live_peak_bytes, resident_peak_bytes

REPLAY = """
import ctypes, json, random, resource, sys
c = ctypes.CDLL(None)
c.posix_memalign.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t, ctypes.c_size_t]
c.free.argtypes = [ctypes.c_void_p]
events, rounds = json.load(sys.stdin)
held, faults = {}, 0
def take(name, size):
    address = ctypes.c_void_p()
    c.posix_memalign(ctypes.byref(address), 64, size)
    ctypes.memset(address, 1, size)
    held[name] = address.value
chance = random.Random(int(sys.argv[1]))
for n in range(60):
    take(("before", n), int(2 ** chance.uniform(10, 17)))
for n in range(60):
    if chance.random() < 0.5:
        c.free(held.pop(("before", n)))
warm = ctypes.c_void_p()
c.posix_memalign(ctypes.byref(warm), 64, 943 * 1024)
c.free(warm)
for _ in range(rounds):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for name, size in events:
        take(name, size) if size > 0 else c.free(held.pop(name))
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(faults * 4096)
"""


def step(sizes, *, chance):
    """Return a forward pass that keeps most of what it makes, and a backward that frees it in the opposite order."""
    live, events = [], []
    for block in enumerate(sizes):
        events.append(block)
        live.append(block)
        if chance.random() < 0.4:
            name, size = live.pop(chance.randrange(len(live)))
            events.append((name, -size))
    return events + [(name, -size) for name, size in reversed(live)]


def graph(events):
    return OpGraph((), tuple(StorageEvent(i + 1, name, size) for i, (name, size) in enumerate(events)))


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the heap that is modelled is glibc's")
def test_page_faults_of_real_allocations_are_predicted_within_two_fifths():
    """What a process did before decides where its blocks come to lie: each step is replayed after three pasts."""
    chance, foretold, real = random.Random(5), 0.0, 0.0  # noqa: S311 - chance, not secrecy
    for _ in range(12):
        events = step([int(2 ** chance.uniform(15, 22)) for _ in range(30)], chance=chance)
        for past in range(3):
            done = subprocess.run([sys.executable, "-c", REPLAY, str(past)], input=json.dumps([events, 6]), text=True,
                                  capture_output=True, check=True)  # fmt: skip
            real += int(done.stdout) / 3
        foretold += fresh_bytes(graph(events))
    assert real == pytest.approx(foretold, rel=0.4)


def test_small_blocks_used_again_and_again_cost_no_page_faults():
    events = [(n, sign * 65536) for n in range(4) for sign in (1, -1)]
    assert fresh_bytes(graph(events)) == 0
    assert 65536 <= resident_peak_bytes(graph(events)) <= 3 * 65536  # a hole now and then is too small


def test_a_block_above_the_largest_threshold_is_fetched_anew_at_every_step():
    size = 64 * 2**20
    assert size == pytest.approx(fresh_bytes(graph([(1, size), (1, -size)])), rel=0.001)


def test_blocks_left_by_a_step_are_freed_when_the_next_begins():
    size = 8 * 2**20
    gradients = graph([(n, size) for n in range(4)])
    assert 4 * size <= resident_peak_bytes(gradients) <= 5 * size  # one may find its old place too small


def test_a_convolution_holds_copies_of_its_operands_while_it_runs():
    image, filters = TensorSpec((8, 16, 64, 64), "float32"), TensorSpec((16, 16, 3, 3), "float32")
    op = Op("aten.convolution", OpKind.CONV, Stage.FORWARD, "float32", 1.0, 1.0, 1.0, (image, filters), (image,))
    result = 8 * 16 * 64 * 64 * 4
    events = (StorageEvent(0, 1, result), StorageEvent(1, 1, -result))
    plain = live_peak_bytes(OpGraph((), events))
    assert plain + 0.9 * result <= live_peak_bytes(OpGraph((op,), events)) <= plain + 2.2 * result
    assert live_peak_bytes(OpGraph((op,), events)) <= resident_peak_bytes(OpGraph((op,), events))


def test_the_live_peak_is_the_highest_sum_held_at_once():
    events = (StorageEvent(0, 1, 100), StorageEvent(1, 2, 50), StorageEvent(2, 2, -50), StorageEvent(3, 3, 20))
    assert live_peak_bytes(OpGraph((), events)) == 150


def test_freed_blocks_serve_fitting_requests_and_the_remainder_stays_free():
    heap = _Heap(pinned=0.0)
    large, small = ((heap.take(size), size, heap.take(64)) for size in (40_000, 3_000))
    for address, size, _ in (large, small):
        heap.give(address, size)
    assert small[0] == heap.take(2_000)
    assert large[0] == heap.take(5_000)
    assert large[0] + 5_000 == heap.take(35_000)
    assert small[0] + 2_000 == heap.take(1_000)
    assert not heap.free.sizes


SMALL_BESIDE = """
import ctypes, json, sys
c = ctypes.CDLL(None)
c.posix_memalign.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t, ctypes.c_size_t]
c.free.argtypes, c.malloc.argtypes, c.malloc.restype = [ctypes.c_void_p], [ctypes.c_size_t], ctypes.c_void_p
steps, beside = json.load(sys.stdin)
def resident(name):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(name))
warm = ctypes.c_void_p()
c.posix_memalign(ctypes.byref(warm), 64, 943 * 1024)
c.free(warm)
before, held = resident("VmRSS"), {}
for number, events in enumerate(steps):
    for name, size in events:
        if size > 0:
            address = ctypes.c_void_p()
            c.posix_memalign(ctypes.byref(address), 64, size)
            ctypes.memset(address, 1, size)
            held[name] = [address.value] + [c.malloc(32 + 16 * ((name + number) % 8)) for _ in range(beside)]
        else:
            for one in held.pop(name):
                c.free(one)
print(resident("VmHWM") - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the heap that is modelled is glibc's")
def test_small_objects_make_the_real_and_the_predicted_heap_grow_alike():
    chance, real, foretold = random.Random(3), [0.0, 0.0], 0.0  # noqa: S311 - chance, not secrecy
    for _ in range(4):
        events = step([int(2 ** chance.uniform(17, 21)) for _ in range(150)], chance=chance)
        for beside in (0, 1):
            done = subprocess.run([sys.executable, "-c", SMALL_BESIDE], input=json.dumps([[events] * 6, beside]),
                                  text=True, capture_output=True, check=True)  # fmt: skip
            real[beside] += int(done.stdout)
        foretold += resident_peak_bytes(graph(events))
    assert real[0] < foretold < 1.1 * real[1]
