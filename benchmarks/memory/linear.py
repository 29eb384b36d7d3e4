"""The growth of the time of an estimate with the number of ops, on a chain of synthetic layers."""

import time
from collections.abc import Callable

from benchmarks.results import BenchmarkRow, at_most
from leadline.core.graph import Op, OpGraph, OpKind, Stage, StorageCategory, StorageEvent, TracedJob
from leadline.core.hardware import Device, DeviceKind
from leadline.core.units import MIB
from leadline.core.workload import ModelKind, ModelSource, Workload
from leadline.estimators.memory.device import peak_memory
from leadline.estimators.memory.heap import resident_peak_bytes
from leadline.estimators.memory.host import host_memory
from leadline.estimators.white_box import WhiteBox

FEW, MANY = 10_000, 100_000
TARGET = 12.0
SIZES = (MIB // 2, 3 * MIB, 12 * MIB, MIB, 700_000, 5 * MIB, 40_000)
"""Bytes of the activations, in turn; they fall into both pools of the caching allocator."""
REPEATS = 7
GPU = Device("a GPU", "NVIDIA", DeviceKind.GPU, 80 * 10**9, 2e12, {"float32": 2e13})


def chain_graph(ops: int) -> OpGraph:
    """Return a graph of products: half forward, each with an activation that the backward half frees."""
    half = ops // 2
    gemms, events = [], [StorageEvent(0, 0, 100 * MIB, StorageCategory.PARAMETER)]
    for number in range(ops):
        forward = number < half
        layer = number if forward else ops - 1 - number
        size = SIZES[layer % len(SIZES)]
        if forward:
            events.append(StorageEvent(number, layer + 1, size, StorageCategory.ACTIVATION))
        else:
            events += [
                StorageEvent(number, ops + number, size, StorageCategory.TEMPORARY),
                StorageEvent(number + 1, layer + 1, -size, StorageCategory.ACTIVATION),
                StorageEvent(number + 1, ops + number, -size, StorageCategory.TEMPORARY),
            ]
        side = 64 + layer % 64
        gemms.append(
            Op(
                "aten.mm",
                OpKind.GEMM,
                Stage.FORWARD if forward else Stage.BACKWARD,
                "float32",
                2.0 * side**3,
                8.0 * side**2,
                4.0 * side**2,
                dims={"b": 1, "m": side, "n": side, "k": side},
                sources=(number - 1,) if number else (),
            )
        )
    return OpGraph(tuple(gemms), tuple(events), source="made up")


def linear_rows(*, quick: bool = False) -> list[BenchmarkRow]:
    """Compare ten times as many ops with the fewer: the allocator, the whole GPU estimate, and a CPU's heap."""
    few, many = (FEW // 10, MANY // 10) if quick else (FEW, MANY)
    workload = Workload(ModelSource(ModelKind.FUNCTION, "made up"))

    def estimate(graph: OpGraph) -> None:
        WhiteBox(host_memory=host_memory).estimate(workload, TracedJob(graph), GPU)

    cases: tuple[tuple[str, Callable[[OpGraph], object]], ...] = (
        ("peak of the allocator", peak_memory), ("whole estimate", estimate), ("heap of a CPU", resident_peak_bytes),
    )  # fmt: skip
    return [_row(name, work, few, many) for name, work in cases]


def _row(name: str, work: Callable[[OpGraph], object], few: int, many: int) -> BenchmarkRow:
    short, long = chain_graph(few), chain_graph(many)
    pairs = [(_timed(work, short), _timed(work, long)) for _ in range(REPEATS)]
    few_s, many_s = (min(times) for times in zip(*pairs, strict=True))
    how = f"{few_s:.3f} s and {many_s:.2f} s of processor time, the least of {REPEATS} in turn"
    return at_most(f"{name}, {many:,} ops ÷ {few:,}", many_s / few_s, TARGET, "times", n=REPEATS, how=how)


def _timed(work: Callable[[OpGraph], object], graph: OpGraph) -> float:
    begun = time.process_time()
    work(graph)
    return time.process_time() - begun
