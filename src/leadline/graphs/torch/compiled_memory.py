"""What torch.compile need not keep: the backward pass computes pointwise chains again from what is kept.

AOTAutograd cuts a training step where few bytes pass from forward to backward (the "min-cut" partitioner of
torch/_functorch/partitioners.py): what pointwise ops made is made again within the kernels that read it, unless
backward needs it in memory, as a product does; products, convolutions, attention and reductions are not repeated. Here
each tensor that such ops made is given back after its last use in forward, if backward reads it in fused kernels alone,
and everything it was made of is held until then or made again itself.
"""

from dataclasses import replace

from leadline.core.graph import Op, OpGraph, OpKind, Stage, StorageCategory, StorageEvent

POINTWISE = (OpKind.ELEMENTWISE, OpKind.COPY)
NORMALIZING = (OpKind.NORM, OpKind.SOFTMAX)
"""Their statistics are reductions and are kept; the rest of them is pointwise."""
FUSED = (*POINTWISE, *NORMALIZING, OpKind.REDUCTION)
"""What reads a tensor where it is made, without its being in memory."""


def drop_recomputed_tensors(graph: OpGraph) -> OpGraph:
    """Return a traced training step with the memory that it holds when it is compiled; its ops stay as they are."""
    if not graph.is_training:
        return graph
    held = _Held(graph)
    dropped = {name for name in held.crossing if held.may_drop(name)}
    if not dropped:
        return graph
    events: list[StorageEvent] = []
    for event in graph.events:
        if event.storage not in dropped:
            events.append(event)
        elif event.size_bytes > 0:
            end = held.last_read.get(event.op, event.op) + 1
            events += [event, StorageEvent(end, event.storage, -event.size_bytes, event.category)]
    return replace(graph, events=tuple(sorted(events, key=lambda event: event.op)))


class _Held:
    """When each piece of memory is taken and given back, and which op made it; what backward needs in memory."""

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
        self.last_read = _last_reads(graph.ops, self.backward)
        self.needed = {
            source
            for op in graph.ops[self.backward :]
            if op.kind not in FUSED
            for source in op.sources
        }  # fmt: skip

    def may_drop(self, name: int) -> bool:
        """Tell whether a tensor can be made again in the kernels of backward that read it."""
        place = self.taken[name].op
        if place in self.needed or not self._is_pointwise(place, name):
            return False
        return all(self._there(source, self.freed[name]) for source in self.ops[place].sources)

    def _there(self, place: int, until: int) -> bool:
        """Tell whether what an op made is held until an op of backward, or can be made again for it pointwise."""
        asked, seen = [place], set[int]()
        while asked:
            one = asked.pop()
            if one in seen or self._is_held(one, until):
                continue
            seen.add(one)
            if not self._is_pointwise(one, self._largest(one)):
                return False
            asked += self.ops[one].sources
        return True

    def _is_held(self, place: int, until: int) -> bool:
        largest = self._largest(place)
        return largest is not None and self.freed.get(largest, len(self.ops)) >= until

    def _largest(self, place: int) -> int | None:
        """Return the largest tensor that an op made; ``None`` where it changed one in place."""
        return max(self.made.get(place, ()), key=lambda name: self.taken[name].size_bytes, default=None)

    def _is_pointwise(self, place: int, name: int | None) -> bool:
        """Tell whether an op makes a tensor pointwise; of what normalises, that is its largest result."""
        op: Op = self.ops[place]
        if op.kind in POINTWISE:
            return True
        sizes = [self.taken[one].size_bytes for one in self.made.get(place, ())]
        return op.kind in NORMALIZING and name is not None and self.taken[name].size_bytes == max(sizes)


def _last_reads(ops: tuple[Op, ...], backward: int) -> dict[int, int]:
    """Return the last op of forward that reads what each op made."""
    found: dict[int, int] = {}
    for place, op in enumerate(ops[:backward]):
        for source in op.sources:
            found[source] = place
    return found
