"""The traced memory of one training step of each model, in one packed file.

``python -m benchmarks.detectors.trace`` makes the file again with the packages installed. A step keeps every allocation
and release in order, the ops with a workspace, and the first op of each stage. A release is stored as the number of
younger live pieces, which repeats from layer to layer and so packs well.
"""

import lzma
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from leadline.core.graph import Op, OpGraph, OpKind, Stage, StorageCategory, StorageEvent
from leadline.estimators.memory.workspaces import Workspaces, scratch_bytes

DETECTOR_GRAPHS = Path(__file__).with_name("graphs.msgpack.xz")
V100 = Workspaces(transformed=True)
"""The GPU of all published runs."""

Event = tuple[int, int, int, str]
"""Number of the op that is about to run, name of the piece, bytes taken or given back, category."""


class DetectorOp(msgspec.Struct, array_like=True, frozen=True):
    """An op between events: a convolution with its sizes, or whatever begins a stage, without any."""

    name: str
    stage: Stage
    dims: tuple[tuple[str, int], ...]

    def op(self) -> Op:
        """Return the op with the attributes that determine memory."""
        kind = OpKind.CONV if self.dims else OpKind.OTHER
        return Op(self.name, kind, self.stage, "float32", 0.0, 0.0, 0.0, dims=dict(self.dims))


class DetectorGraph(msgspec.Struct, array_like=True, frozen=True):
    """One step: its ``ops`` by number, how many events come ``before`` each, and the ``events``.

    An allocation is the number of its piece (size and category) plus one. A release is minus the position of the piece
    among the live ones, counted from the youngest.
    """

    parameters: int
    parameter_bytes: int
    trained_bytes: int
    images: int
    height: int
    width: int
    ops: tuple[int, ...]
    before: tuple[int, ...]
    events: tuple[int, ...]


class PackedDetectors(msgspec.Struct, array_like=True, frozen=True):
    """All steps over one list of ops and one of pieces.

    ``rows`` names the graph of each row of the tables; ``failed`` says of others why there is none.
    """

    versions: dict[str, str]
    ops: tuple[DetectorOp, ...]
    pieces: tuple[tuple[int, str], ...]
    graphs: tuple[DetectorGraph, ...]
    rows: dict[str, tuple[str, int]]
    failed: dict[str, str]

    def graph(self, number: int) -> OpGraph:
        """Return a step as the memory model reads it."""
        graph = self.graphs[number]
        return OpGraph(
            tuple(self.ops[place].op() for place in graph.ops),
            tuple(self._events(graph)),
            parameters=graph.parameters,
            parameter_bytes=graph.parameter_bytes,
            trained_bytes=graph.trained_bytes,
            source="torch",
        )

    def _events(self, graph: DetectorGraph) -> Iterator[StorageEvent]:
        live: list[tuple[int, int, StorageCategory]] = []
        op = remaining = 0
        waiting = iter(graph.before)
        remaining = next(waiting, len(graph.events))
        for name, event in enumerate(graph.events):
            while remaining == 0:
                op, remaining = op + 1, next(waiting, len(graph.events))
            remaining -= 1
            if event > 0:
                size, category = self.pieces[event - 1]
                live.append((name, size, StorageCategory(category)))
                yield StorageEvent(op, *live[-1])
            else:
                storage, size, kind = live.pop(event)
                yield StorageEvent(op, storage, -size, kind)


class DetectorPacker:
    """Gathers traced steps over one list of ops and one of pieces, equal ones once."""

    def __init__(self) -> None:
        self._ops: dict[DetectorOp, int] = {}
        self._pieces: dict[tuple[int, str], int] = {}
        self._graphs: dict[DetectorGraph, int] = {}

    def add(self, step: dict[str, Any], size: tuple[int, int, int]) -> int:
        """Take a step as ``trace.py`` writes it, of so many images of a height and width; return its number."""
        kept = dict(_kept(step))
        ops = tuple(self._ops.setdefault(op, len(self._ops)) for op in kept.values())
        before, events = self._coded(step["events"], list(kept))
        trained = sum(size for place, _, size, kind in step["events"] if place == 0 and kind == "gradient" and size > 0)
        graph = DetectorGraph(step["parameters"], step["parameter_bytes"], trained, *size, ops, before, events)
        return self._graphs.setdefault(graph, len(self._graphs))

    def packed(
        self, versions: dict[str, str], rows: dict[str, tuple[str, int]], failed: dict[str, str]
    ) -> PackedDetectors:
        """Return all that was taken."""
        return PackedDetectors(versions, tuple(self._ops), tuple(self._pieces), tuple(self._graphs), rows, failed)

    def _coded(self, events: Iterable[Event], places: list[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return how many events come before each kept op, and the events."""
        live: list[int] = []
        coded: list[int] = []
        before = [0] * len(places)
        last = 0
        for place, storage, size, category in events:
            while last < len(places) and place > places[last]:
                last += 1
            if size > 0:
                live.append(storage)
                coded.append(self._pieces.setdefault((size, category), len(self._pieces)) + 1)
            elif storage in live:
                age = len(live) - live.index(storage)
                live.pop(-age)
                coded.append(-age)
            else:
                continue
            if last < len(before):
                before[last] += 1
        return tuple(before), tuple(coded)


def _kept(step: dict[str, Any]) -> Iterator[tuple[int, DetectorOp]]:
    """Yield the ops that are kept, by their place: the first of each stage, and those that take a workspace."""
    begun, stages = 0, []
    for stage, count in step["stages"]:
        stages.append((begun, begun + count, Stage(stage)))
        begun += count
    sizes = {place: (name, dims) for place, name, dims, *_ in step["convolutions"]}
    for first, end, stage in stages:
        for place in sorted({first, *(place for place in sizes if first <= place < end)}):
            name, dims = sizes.get(place, ("", {}))
            op = DetectorOp(name, stage, tuple((key, size) for key, size in sorted(dims.items()) if key != "gradients"))
            if scratch_bytes(op.op(), V100):
                yield place, op
            elif place == first:
                yield place, DetectorOp("", stage, ())


@cache
def packed_graphs(path: Path = DETECTOR_GRAPHS) -> PackedDetectors:
    """Return the shipped steps."""
    return msgspec.msgpack.decode(lzma.decompress(path.read_bytes()), type=PackedDetectors)


def pack_detectors(packed: PackedDetectors, path: Path) -> None:
    """Write the steps."""
    path.write_bytes(lzma.compress(msgspec.msgpack.encode(packed), preset=9 | lzma.PRESET_EXTREME))
