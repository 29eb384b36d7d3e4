"""Record the ops and the memory of a model written with sizes instead of tensors, and derive its backward pass.

A ``TapeTensor`` stands for a tensor: shape, dtype, and a share in a piece of memory. As in PyTorch, memory is given back when
the last share goes (by Python's own reference counts), an op saves what its backward needs, and the backward pass runs
the nodes in reverse, so that the timeline of an expanded configuration follows that of the eager model.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from leadline.core.graph import BYTES_PER_ELEMENT, Op, OpKind, Stage, StorageCategory, StorageEvent, TensorSpec

Backward = Callable[["TapeTensor"], None]


class Storage:
    """A piece of device memory; its events are written when it is made and when nobody holds it any more."""

    __slots__ = ("category", "number", "size_bytes", "tape")

    def __init__(self, tape: "Tape", size_bytes: int, category: StorageCategory) -> None:
        self.tape, self.size_bytes, self.category = tape, size_bytes, category
        self.number = tape.next_number()
        tape.events.append(StorageEvent(tape.place, self.number, size_bytes, category))

    def __del__(self) -> None:
        """Write the event that gives the memory back."""
        self.tape.events.append(StorageEvent(self.tape.place, self.number, -self.size_bytes, self.category))


class TapeTensor:
    """A tensor without data. ``slot`` names the value in the backward pass (``None``: no gradient flows to it)."""

    __slots__ = ("dtype", "shape", "slot", "storage")

    def __init__(self, shape: tuple[int, ...], dtype: str, storage: Storage, slot: int | None = None) -> None:
        self.shape, self.dtype, self.storage, self.slot = shape, dtype, storage, slot

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """Bytes of the elements."""
        return math.prod(self.shape) * BYTES_PER_ELEMENT[self.dtype]

    def view(self, *shape: int) -> "TapeTensor":
        """Return the same memory and value under another shape."""
        return TapeTensor(shape, self.dtype, self.storage, self.slot)


@dataclass(slots=True)
class _OpRow:
    op: Op
    count: int


@dataclass(slots=True)
class Tape:
    """The record: ops of equal sizes are one row with a count, memory events keep their true order."""

    training: bool = True
    autocast: str | None = None
    stage: Stage = Stage.FORWARD
    weight: int = 1
    place: int = 0
    events: list[StorageEvent] = field(default_factory=list)
    parameters: list[TapeTensor] = field(default_factory=list)
    frozen: list[TapeTensor] = field(default_factory=list)
    gradients: dict[int, TapeTensor] = field(default_factory=dict)
    _rows: dict[object, _OpRow] = field(default_factory=dict)
    _nodes: list[tuple[int, Backward]] = field(default_factory=list)
    _pending: dict[int, TapeTensor] = field(default_factory=dict)
    _casts: dict[int, TapeTensor] = field(default_factory=dict)
    _owned: set[int] = field(default_factory=set)
    _recording: bool = True
    _number: int = 0

    def next_number(self) -> int:
        """Return a number that was not used before."""
        self._number += 1
        return self._number

    def parameter(self, *shape: int, dtype: str, trained: bool = True) -> TapeTensor:
        """Make a weight, held for the whole step; without ``trained`` it has no gradient and no optimizer state."""
        storage = self._take(shape, dtype, StorageCategory.PARAMETER)
        if not trained:
            self.frozen.append(TapeTensor(shape, dtype, storage))
            return self.frozen[-1]
        made = TapeTensor(shape, dtype, storage, self.next_number())
        self.parameters.append(made)
        self._owned.add(made.slot or 0)
        return made

    def new(
        self, shape: tuple[int, ...], dtype: str, category: StorageCategory = StorageCategory.ACTIVATION
    ) -> TapeTensor:
        """Make a tensor that nobody computed yet (an input, or the output of the op recorded next)."""
        return TapeTensor(shape, dtype, self._take(shape, dtype, category))

    def op(
        self,
        name: str,
        kind: OpKind,
        inputs: Sequence[TapeTensor],
        outputs: Sequence[TapeTensor],
        *,
        flops: float = 0.0,
        dims: dict[str, int] | None = None,
        dtype: str | None = None,
        read: float | None = None,
        written: float | None = None,
        kernels: int = 1,
    ) -> None:
        """Record one call; traffic is what goes in and out unless ``read`` or ``written`` say otherwise."""
        shapes = tuple([(size.shape, size.dtype) for size in (*inputs, *outputs)])
        key = (name, self.stage, shapes, read, dtype)
        row = self._rows.get(key)
        if row is not None:
            row.count += self.weight
            return
        op = Op(
            name=f"aten.{name}",
            kind=kind,
            stage=self.stage,
            dtype=dtype or (inputs or outputs)[0].dtype,
            flops=float(flops),
            bytes_read=float(sum(size.bytes for size in inputs) if read is None else read),
            bytes_written=float(sum(size.bytes for size in outputs) if written is None else written),
            inputs=tuple(TensorSpec(size.shape, size.dtype) for size in inputs[:8]),
            outputs=tuple(TensorSpec(size.shape, size.dtype) for size in outputs[:8]),
            dims=dims or {},
            kernels=kernels,
        )
        self._rows[key] = _OpRow(op, self.weight)
        self.place = len(self._rows)

    def node(self, output: TapeTensor, backward: Backward, *sources: TapeTensor | None) -> TapeTensor:
        """Give ``output`` a backward function, if gradients are wanted here; return it.

        Where ``sources`` are named and no gradient flows to any of them, none flows through ``output`` either.
        """
        if sources and all(source is None or source.slot is None for source in sources):
            return output
        output.slot = self.next_number()
        if self.training and self._recording:
            self._nodes.append((output.slot, backward))
        return output

    def send(self, slot: int | None, gradient: TapeTensor) -> None:
        """Add ``gradient`` to what has arrived at the value named by ``slot`` in the backward pass."""
        if slot is None:
            return
        place = self.gradients if slot in self._owned else self._pending
        known = place.get(slot)
        if known is None:
            place[slot] = gradient
            return
        if place is self.gradients:
            self.op("add_", OpKind.ELEMENTWISE, [known, gradient], [known], flops=known.elements)
            return
        total = self.new(known.shape, known.dtype, StorageCategory.TEMPORARY)
        self.op("add", OpKind.ELEMENTWISE, [known, gradient], [total], flops=known.elements)
        place[slot] = total

    def backward(self, output: TapeTensor, gradient: TapeTensor) -> None:
        """Run the nodes in reverse from ``output``; each gives back what it saved when it is done."""
        self.stage = Stage.BACKWARD
        self.send(output.slot, gradient)
        del output, gradient
        self._run(self._nodes)
        self._casts.clear()

    def checkpoint(self, block: Callable[[TapeTensor], TapeTensor], source: TapeTensor) -> TapeTensor:
        """Run ``block`` without saving anything but its input; its backward runs it again first."""
        outer, self._recording = self._recording, False
        result = block(source)
        self._recording = outer

        def backward(gradient: TapeTensor) -> None:
            kept, self._nodes = self._nodes, []
            again = block(source)
            self.send(again.slot, gradient)
            del again, gradient
            self._run(self._nodes)
            self._nodes = kept

        return self.node(result, backward)

    def cast_weight(self, weight: TapeTensor) -> TapeTensor:
        """Return ``weight`` in autocast's dtype, cast once in each forward pass, or each time if it is not trained."""
        if self.autocast is None or weight.dtype == self.autocast:
            return weight
        if weight.slot is None:
            return self.cast(weight, self.autocast)
        known = self._casts.get(weight.slot)
        if known is None:
            known = self._casts[weight.slot] = self.cast(weight, self.autocast)
        return known

    def cast(self, source: TapeTensor, dtype: str) -> TapeTensor:
        """Return ``source`` in another dtype (itself when it is in that dtype already)."""
        if source.dtype == dtype:
            return source
        result = self.new(source.shape, dtype)
        self.op("_to_copy", OpKind.COPY, [source], [result])
        slot, origin = source.slot, source.dtype
        if slot is None:
            return result
        owned = slot in self._owned

        def backward(gradient: TapeTensor) -> None:
            category = StorageCategory.GRADIENT if owned else StorageCategory.TEMPORARY
            back = self.new(gradient.shape, origin, category)
            self.op("_to_copy", OpKind.COPY, [gradient], [back])
            self.send(slot, back)

        return self.node(result, backward)

    def end_forward(self) -> None:
        """Leave autocast: its cached casts live on only where an op saved them."""
        self._casts.clear()

    def is_weight(self, size: TapeTensor) -> bool:
        """Whether ``size`` is a parameter (not a cast of one)."""
        return size.slot in self._owned

    @contextmanager
    def repeated(self, times: int) -> Iterator[None]:
        """Count each op inside ``times`` times."""
        before, self.weight = self.weight, self.weight * times
        yield
        self.weight = before

    def ops(self) -> tuple[Op, ...]:
        """Return the rows as ops with their counts."""
        return tuple(_counted(row) for row in self._rows.values())

    def _run(self, nodes: list[tuple[int, Backward]]) -> None:
        while nodes:
            slot, backward = nodes.pop()
            gradient = self._pending.pop(slot, None)
            if gradient is not None:
                backward(gradient)

    def _take(self, shape: tuple[int, ...], dtype: str, category: StorageCategory) -> Storage:
        return Storage(self, math.prod(shape) * BYTES_PER_ELEMENT[dtype], category)


def _counted(row: _OpRow) -> Op:
    op = row.op
    return Op(
        op.name, op.kind, op.stage, op.dtype, op.flops, op.bytes_read, op.bytes_written, op.inputs, op.outputs,
        op.dims, op.sources, row.count, op.kernels,
    )  # fmt: skip
