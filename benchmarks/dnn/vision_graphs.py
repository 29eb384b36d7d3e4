"""The op graphs of vision models, traced by Leadline, for any batch, in one packed file.

``python -m benchmarks.dnn.trace_vision`` makes the file again with timm installed. An op separates the work of each
sample from the constant work. A size that grows with the batch is negative.
"""

import lzma
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import msgspec

from leadline.core.graph import Op, OpGraph, OpKind, Stage, TensorSpec

VISION_GRAPHS = Path(__file__).with_name("vision_graphs.msgpack.xz")


class VisionOp(msgspec.Struct, array_like=True, frozen=True):
    """An op at any batch; a pair is (for each sample, constant)."""

    name: str
    kind: OpKind
    stage: Stage
    dtype: str
    flops: tuple[float, float]
    read: tuple[float, float]
    written: tuple[float, float]
    kernels: int
    dims: dict[str, int]
    inputs: tuple[tuple[tuple[int, ...], str], ...]
    outputs: tuple[tuple[tuple[int, ...], str], ...]

    def at(self, batch: int, count: int, sources: tuple[int, ...]) -> Op:
        """Return the op at that batch."""
        return Op(
            self.name, self.kind, self.stage, self.dtype,
            self.flops[0] * batch + self.flops[1],
            self.read[0] * batch + self.read[1],
            self.written[0] * batch + self.written[1],
            tuple(TensorSpec(_sizes(shape, batch), dtype) for shape, dtype in self.inputs),
            tuple(TensorSpec(_sizes(shape, batch), dtype) for shape, dtype in self.outputs),
            {name: -size * batch if size < 0 else size for name, size in self.dims.items()},
            sources, count, self.kernels,
        )  # fmt: skip


class VisionGraph(msgspec.Struct, array_like=True, frozen=True):
    """One traced model: its ops by number, their counts, and the positions of the ops that each reads.

    ``attention`` is ``fused`` for PyTorch's own attention, ``explicit`` for products and softmax.
    """

    model: str
    image: int
    phase: str
    attention: str
    parameters: int
    ops: tuple[int, ...]
    counts: tuple[int, ...]
    sources: tuple[tuple[int, ...], ...]


class PackedVision(msgspec.Struct, array_like=True, frozen=True):
    """All traced models over one list of ops, and the versions that traced them."""

    versions: dict[str, str]
    ops: tuple[VisionOp, ...]
    graphs: tuple[VisionGraph, ...]


@dataclass(frozen=True, slots=True)
class VisionGraphs:
    """The traced models by (model, image size, phase, attention)."""

    packed: PackedVision
    numbers: dict[tuple[str, int, str, str], int]

    def find(self, model: str, image: int, phase: str, *, explicit: bool) -> VisionGraph | None:
        """Return the graph of a model; ``explicit`` attention falls back to the fused graph where they are equal."""
        kinds = ("explicit", "fused") if explicit else ("fused",)
        numbers = (self.numbers.get((model, image, phase, attention)) for attention in kinds)
        return next((self.packed.graphs[number] for number in numbers if number is not None), None)

    def number(self, graph: VisionGraph) -> int:
        """Return the position of a graph in the file."""
        return self.numbers[graph.model, graph.image, graph.phase, graph.attention]

    def falls_back(self, graph: VisionGraph) -> bool:
        """Return whether PyTorch computes the attention of this graph by products, without a fused kernel."""
        return any(self.packed.ops[number].name == "aten._safe_softmax" for number in graph.ops)

    def graph(self, graph: VisionGraph, batch: int) -> OpGraph:
        """Return the op graph at that batch, equal ops as one with their count."""
        ops = self.packed.ops
        graph_ops = tuple(
            ops[number].at(batch, count, sources)
            for number, count, sources in zip(graph.ops, graph.counts, graph.sources, strict=True)
        )
        return OpGraph(graph_ops, parameters=graph.parameters, source="torch")


@cache
def vision_graphs(path: Path = VISION_GRAPHS) -> VisionGraphs:
    """Return the shipped graphs."""
    packed = msgspec.msgpack.decode(lzma.decompress(path.read_bytes()), type=PackedVision)
    names = [(graph.model, graph.image, graph.phase, graph.attention) for graph in packed.graphs]
    return VisionGraphs(packed, {name: number for number, name in enumerate(names)})


def pack_vision(packed: PackedVision, path: Path) -> None:
    """Write the graphs."""
    path.write_bytes(lzma.compress(msgspec.msgpack.encode(packed), preset=9 | lzma.PRESET_EXTREME))


def _sizes(shape: tuple[int, ...], batch: int) -> tuple[int, ...]:
    return tuple(-size * batch if size < 0 else size for size in shape)
