"""Does the time of an estimate grow in step with the number of ops: a chain of made-up layers, forward and backward."""

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
"""Bytes of the activations, in turn: of both pools of the caching allocator."""
REPEATS = 7
GPU = Device("a GPU", "NVIDIA", DeviceKind.GPU, 80 * 10**9, 2e12, {"float32": 2e13})


def chain_graph(ops: int) -> OpGraph:
    """Return a graph of so many products: half of them forward, each with a result that the other half gives back."""
    half = ops // 2
    found, events = [], [StorageEvent(0, 0, 100 * MIB, StorageCategory.PARAMETER)]
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
        found.append(
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
    return OpGraph(tuple(found), tuple(events), source="made up")


def linear_rows(*, quick: bool = False) -> list[BenchmarkRow]:
    """Time ten times as many ops against the fewer: the allocator, the whole estimate for a GPU, and a CPU's heap."""
    few, many = (FEW // 10, MANY // 10) if quick else (FEW, MANY)
    workload = Workload(ModelSource(ModelKind.FUNCTION, "made up"))

    def estimate(graph: OpGraph) -> None:
        WhiteBox(host_memory=host_memory).estimate(workload, TracedJob(graph), GPU)

    asked: tuple[tuple[str, Callable[[OpGraph], object]], ...] = (
        ("peak of the allocator", peak_memory), ("whole estimate", estimate), ("heap of a CPU", resident_peak_bytes),
    )  # fmt: skip
    return [_row(name, ask, few, many) for name, ask in asked]


def _row(name: str, ask: Callable[[OpGraph], object], few: int, many: int) -> BenchmarkRow:
    short, long = chain_graph(few), chain_graph(many)
    few_s, many_s = (min(times) for times in zip(*(_both(ask, short, long) for _ in range(REPEATS)), strict=True))
    how = f"{few_s:.3f} s and {many_s:.2f} s of processor time, the least of {REPEATS} in turn"
    return at_most(f"{name}, {many:,} ops ÷ {few:,}", many_s / few_s, TARGET, "times", n=REPEATS, how=how)


def _both(ask: Callable[[OpGraph], object], short: OpGraph, long: OpGraph) -> tuple[float, float]:
    return _timed(ask, short), _timed(ask, long)


def _timed(ask: Callable[[OpGraph], object], graph: OpGraph) -> float:
    begun = time.process_time()
    ask(graph)
    return time.process_time() - begun
