"""Memory of a compiled training step, in which the backward pass recomputes pointwise chains.

AOTAutograd cuts a training step where few bytes pass from forward to backward (the "min-cut" partitioner of
torch/_functorch/partitioners.py). Backward kernels recompute the results of pointwise ops, unless backward needs them
in memory, as a product does. Products, convolutions, attention and reductions are not repeated.

Here each such tensor is freed after its last use in forward if only fused kernels of backward read it. Everything it is
computed from must be held until then, or be recomputable itself.
"""

from dataclasses import replace

from leadline.core.graph import OpGraph, OpKind, Stage, StorageCategory, StorageEvent

POINTWISE = (OpKind.ELEMENTWISE, OpKind.COPY)
NORMALIZING = (OpKind.NORM, OpKind.SOFTMAX)
"""Normalizations. Their statistics are reductions and are kept; the rest is pointwise."""
FUSED = (*POINTWISE, *NORMALIZING, OpKind.REDUCTION)
"""Ops that read a tensor where it is computed, without its being in memory."""


def drop_recomputed_tensors(graph: OpGraph) -> OpGraph:
    """Return a traced training step with the memory it holds when compiled. Its ops stay as they are."""
    if not graph.is_training:
        return graph
    memory = _MemoryUse(graph)
    dropped = {name for name in memory.crossing if memory.can_drop(name)}
    if not dropped:
        return graph
    events: list[StorageEvent] = []
    for event in graph.events:
        if event.storage not in dropped:
            events.append(event)
        elif event.size_bytes > 0:
            end = memory.last_read.get(event.op, event.op) + 1
            events += [event, StorageEvent(end, event.storage, -event.size_bytes, event.category)]
    return replace(graph, events=tuple(sorted(events, key=lambda event: event.op)))


class _MemoryUse:
    """Allocation, release and producer of each piece of memory, and the ops whose results backward needs in memory."""

    def __init__(self, graph: OpGraph) -> None:
        self.ops = graph.ops
        self.taken: dict[int, StorageEvent] = {}
        self.freed: dict[int, int] = {}
        self.made: dict[int, list[int]] = {}
        for event in graph.events:
            if event.size_bytes < 0:
                self.freed[event.storage] = event.op
            else:
                self.taken[event.storage] = event
                self.made.setdefault(event.op, []).append(event.storage)
        self.backward = next(place for place, op in enumerate(graph.ops) if op.stage is Stage.BACKWARD)
        self.crossing = [
            name for name, event in self.taken.items()
            if event.category is StorageCategory.ACTIVATION and event.op < self.backward < self.freed.get(name, 0)
        ]  # fmt: skip
        # The last op of forward that reads each result.
        self.last_read = {
            source: position
            for position, op in enumerate(graph.ops[: self.backward])
            for source in op.sources
        }  # fmt: skip
        unfused = [op for op in graph.ops[self.backward :] if op.kind not in FUSED]
        self.needed = {source for op in unfused for source in op.sources}

    def can_drop(self, storage: int) -> bool:
        """Return whether the kernels of backward that read a tensor can recompute it."""
        op = self.taken[storage].op
        if op in self.needed or not self._is_pointwise(op, storage):
            return False
        return all(self._is_available(source, self.freed[storage]) for source in self.ops[op].sources)

    def _is_available(self, op: int, until_op: int) -> bool:
        """Return whether the result of an op is held until ``until_op``, or can be recomputed pointwise by then."""
        pending, visited = [op], set[int]()
        while pending:
            source = pending.pop()
            # An op that worked in place made none.
            largest = max(self.made.get(source, ()), key=lambda storage: self.taken[storage].size_bytes, default=None)
            is_held = largest is not None and self.freed.get(largest, len(self.ops)) >= until_op
            if source in visited or is_held:
                continue
            visited.add(source)
            if not self._is_pointwise(source, largest):
                return False
            pending += self.ops[source].sources
        return True

    def _is_pointwise(self, position: int, storage: int | None) -> bool:
        """Return whether an op makes ``storage`` pointwise. For a normalization, that is its largest result."""
        kind = self.ops[position].kind
        if kind in POINTWISE:
            return True
        sizes = [self.taken[result].size_bytes for result in self.made.get(position, ())]
        return kind in NORMALIZING and storage is not None and self.taken[storage].size_bytes == max(sizes)
