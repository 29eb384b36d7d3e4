"""Record the ops and memory of a model of tensors without data, and derive its backward pass.

A ``TapeTensor`` is a shape, a dtype and a share in a piece of memory. As in PyTorch, memory is freed when the last
share goes (by Python's own reference counts), an op saves what its backward needs, and the backward pass runs the nodes
in reverse. The timeline of an expanded configuration thus follows that of the eager model.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from leadline.core.graph import BYTES_PER_ELEMENT, Op, OpKind, Stage, StorageCategory, StorageEvent, TensorSpec

Backward = Callable[["TapeTensor"], None]


class Storage:
    """A piece of device memory. It records an event when it is allocated and when its last reference goes."""

    __slots__ = ("category", "number", "size_bytes", "tape")

    def __init__(self, tape: "Tape", size_bytes: int, category: StorageCategory) -> None:
        self.tape, self.size_bytes, self.category = tape, size_bytes, category
        self.number = tape.next_number()
        tape.events.append(StorageEvent(tape.position, self.number, size_bytes, category))

    def __del__(self) -> None:
        """Record the release of the memory."""
        self.tape.events.append(StorageEvent(self.tape.position, self.number, -self.size_bytes, self.category))


class TapeTensor:
    """A tensor without data. ``slot`` identifies the value in the backward pass, or is ``None`` without a gradient."""

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
        """Return the same memory and value with another shape."""
        return TapeTensor(shape, self.dtype, self.storage, self.slot)


@dataclass(slots=True)
class Tape:
    """The record. Ops of equal sizes are one row with a count, memory events keep their order.

    Attributes:
        weight: How often each op counts.
        category: That of new tensors: activations, or temporary ones while a backward function runs.
    """

    training: bool = True
    autocast: str | None = None
    stage: Stage = Stage.FORWARD
    category: StorageCategory = StorageCategory.ACTIVATION
    weight: int = 1
    position: int = 0
    events: list[StorageEvent] = field(default_factory=list)
    parameters: list[TapeTensor] = field(default_factory=list)
    frozen: list[TapeTensor] = field(default_factory=list)
    gradients: dict[int, TapeTensor] = field(default_factory=dict)
    _ops: dict[object, Op] = field(default_factory=dict)
    _counts: Counter[object] = field(default_factory=Counter)
    _nodes: list[tuple[int, Backward]] = field(default_factory=list)
    _pending: dict[int, TapeTensor] = field(default_factory=dict)
    _casts: dict[int, TapeTensor] = field(default_factory=dict)
    _weight_slots: set[int] = field(default_factory=set)
    _recording: bool = True
    _number: int = 0

    def next_number(self) -> int:
        """Return an unused number."""
        self._number += 1
        return self._number

    def parameter(self, *shape: int, dtype: str, trained: bool = True) -> TapeTensor:
        """Return a weight, held for the whole step. An untrained one has no gradient and no optimizer state."""
        storage = self._allocate(shape, dtype, StorageCategory.PARAMETER)
        if not trained:
            self.frozen.append(TapeTensor(shape, dtype, storage))
            return self.frozen[-1]
        weight = TapeTensor(shape, dtype, storage, self.next_number())
        self.parameters.append(weight)
        self._weight_slots.add(weight.slot or 0)
        return weight

    def new(self, shape: tuple[int, ...], dtype: str, category: StorageCategory | None = None) -> TapeTensor:
        """Return a tensor that no op has computed yet: an input, or the output of the op recorded next."""
        return TapeTensor(shape, dtype, self._allocate(shape, dtype, category or self.category))

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
        """Record one call. Its traffic is its inputs and outputs, unless ``read`` or ``written`` is given."""
        shapes = tuple([(tensor.shape, tensor.dtype) for tensor in (*inputs, *outputs)])
        key = (name, self.stage, shapes, read, dtype)
        self._counts[key] += self.weight
        if key in self._ops:
            return
        self._ops[key] = Op(
            name=f"aten.{name}",
            kind=kind,
            stage=self.stage,
            dtype=dtype or (inputs or outputs)[0].dtype,
            flops=float(flops),
            bytes_read=float(sum(tensor.bytes for tensor in inputs) if read is None else read),
            bytes_written=float(sum(tensor.bytes for tensor in outputs) if written is None else written),
            inputs=tuple(TensorSpec(tensor.shape, tensor.dtype) for tensor in inputs[:8]),
            outputs=tuple(TensorSpec(tensor.shape, tensor.dtype) for tensor in outputs[:8]),
            dims=dims or {},
            kernels=kernels,
        )
        self.position = len(self._ops)

    def compute(
        self,
        name: str,
        kind: OpKind,
        inputs: Sequence[TapeTensor],
        shape: tuple[int, ...],
        dtype: str,
        category: StorageCategory | None = None,
        *,
        flops: float = 0.0,
        dims: dict[str, int] | None = None,
        read: float | None = None,
    ) -> TapeTensor:
        """Record one call with one output, and return that output."""
        output = self.new(shape, dtype, category)
        self.op(name, kind, inputs, [output], flops=flops, dims=dims, read=read)
        return output

    def pointwise(
        self,
        name: str,
        *inputs: TapeTensor,
        shape: tuple[int, ...] | None = None,
        dtype: str | None = None,
        cost: float = 1.0,
    ) -> TapeTensor:
        """Record one elementwise call, with an output like the first input, and return that output."""
        shape, dtype = shape or inputs[0].shape, dtype or inputs[0].dtype
        flops = cost * inputs[0].elements
        return self.compute(name, OpKind.ELEMENTWISE, inputs, shape, dtype, flops=flops)

    def sum_to(
        self, source: TapeTensor, shape: tuple[int, ...], dtype: str, category: StorageCategory | None = None
    ) -> TapeTensor:
        """Record a sum over some axes, and return it."""
        return self.compute("sum", OpKind.REDUCTION, [source], shape, dtype, category, flops=source.elements)

    def node(self, output: TapeTensor, backward: Backward, *sources: TapeTensor | None) -> TapeTensor:
        """Attach a backward function to ``output`` if gradients are needed, and return it.

        If none of the given ``sources`` has a gradient, ``output`` has none either.
        """
        if sources and all(source is None or source.slot is None for source in sources):
            return output
        output.slot = self.next_number()
        if self.training and self._recording:
            self._nodes.append((output.slot, backward))
        return output

    def node_op(
        self,
        output: TapeTensor,
        source: TapeTensor,
        name: str,
        kind: OpKind,
        saved: Sequence[TapeTensor] = (),
        *,
        dtype: str | None = None,
        flops: float = 0.0,
        read: float | None = None,
    ) -> TapeTensor:
        """Attach a backward of one call, from the gradient and what is ``saved`` to the gradient of ``source``."""
        slot, shape = source.slot, source.shape
        category = StorageCategory.GRADIENT if self.is_weight(source) else StorageCategory.TEMPORARY

        def backward(gradient: TapeTensor) -> None:
            inputs = [gradient, *saved]
            back = self.compute(name, kind, inputs, shape, dtype or gradient.dtype, category, flops=flops, read=read)
            self.send(slot, back)

        return self.node(output, backward, source)

    def send(self, slot: int | None, gradient: TapeTensor) -> None:
        """Add a gradient to the sum that has arrived at the value of ``slot`` in the backward pass."""
        if slot is None:
            return
        arrivals = self.gradients if slot in self._weight_slots else self._pending
        sum_so_far = arrivals.get(slot)
        if sum_so_far is None:
            arrivals[slot] = gradient
            return
        if arrivals is self.gradients:
            self.op("add_", OpKind.ELEMENTWISE, [sum_so_far, gradient], [sum_so_far], flops=sum_so_far.elements)
            return
        arrivals[slot] = self.pointwise("add", sum_so_far, gradient)

    def backward(self, loss: TapeTensor) -> None:
        """Run the nodes in reverse from ``loss``. Each frees what it saved when it is done."""
        self.stage = Stage.BACKWARD
        self.send(loss.slot, self.new((1,), "float32", StorageCategory.TEMPORARY))
        self._run(self._nodes)
        self.category = StorageCategory.ACTIVATION
        self._casts.clear()

    def checkpoint(self, block: Callable[[TapeTensor], TapeTensor], source: TapeTensor) -> TapeTensor:
        """Run ``block`` and save nothing but its input. Its backward runs it again first."""
        outer, self._recording = self._recording, False
        result = block(source)
        self._recording = outer

        def backward(gradient: TapeTensor) -> None:
            outer_nodes, self._nodes = self._nodes, []
            self.category = StorageCategory.ACTIVATION
            recomputed = block(source)
            self.category = StorageCategory.TEMPORARY
            self.send(recomputed.slot, gradient)
            del recomputed, gradient
            self._run(self._nodes)
            self._nodes = outer_nodes

        return self.node(result, backward)

    def cast_weight(self, weight: TapeTensor) -> TapeTensor:
        """Return ``weight`` in autocast's dtype, cast once per forward pass, or each time if it is not trained."""
        if self.autocast is None or weight.dtype == self.autocast:
            return weight
        if weight.slot is None:
            return self.cast(weight, self.autocast)
        cast_once = self._casts.get(weight.slot)
        if cast_once is None:
            cast_once = self._casts[weight.slot] = self.cast(weight, self.autocast)
        return cast_once

    def cast(self, source: TapeTensor, dtype: str) -> TapeTensor:
        """Return ``source`` in another dtype, or itself if it has that dtype."""
        if source.dtype == dtype:
            return source
        result = self.compute("_to_copy", OpKind.COPY, [source], source.shape, dtype)
        slot, origin = source.slot, source.dtype
        category = StorageCategory.GRADIENT if self.is_weight(source) else None

        def backward(gradient: TapeTensor) -> None:
            back = self.compute("_to_copy", OpKind.COPY, [gradient], gradient.shape, origin, category)
            self.send(slot, back)

        return self.node(result, backward, source)

    def end_forward(self) -> None:
        """Leave autocast. Cached casts live on only where an op saved them."""
        self._casts.clear()

    def is_weight(self, tensor: TapeTensor) -> bool:
        """Return whether a tensor is a parameter itself, not a cast of one."""
        return tensor.slot in self._weight_slots

    def ops(self) -> tuple[Op, ...]:
        """Return the recorded ops with their counts."""
        return tuple(replace(op, count=self._counts[key]) for key, op in self._ops.items())

    def _run(self, nodes: list[tuple[int, Backward]]) -> None:
        self.category = StorageCategory.TEMPORARY
        while nodes:
            slot, backward = nodes.pop()
            gradient = self._pending.pop(slot, None)
            if gradient is not None:
                backward(gradient)

    def _allocate(self, shape: tuple[int, ...], dtype: str, category: StorageCategory) -> Storage:
        return Storage(self, math.prod(shape) * BYTES_PER_ELEMENT[dtype], category)
